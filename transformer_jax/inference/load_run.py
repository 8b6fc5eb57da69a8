"""Loads models and tokenizers of stored runs."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from transformer_jax.core.errors import CheckpointError, ConfigError, DataError, plural
from transformer_jax.inference.runs import (
    FAMILY_NAMES,
    abstract_model,
    is_ngram_run,
    model_config,
    open_directory,
    refuse_others,
    text_format,
    text_start,
)
from transformer_jax.models.recurrent_config import ModelConfig

if TYPE_CHECKING:
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.decoding.language import DecoderLanguageModel
    from transformer_jax.decoding.ngram import NgramLanguageModel
    from transformer_jax.decoding.options import BatchingConfig
    from transformer_jax.runs.run_directory import RunDirectory

__all__ = ["chosen_checkpoint", "load", "load_language"]


def chosen_checkpoint(text: str) -> tuple[int | Literal["best", "last"], int]:
    """Parses the name of a checkpoint; returns it and the number of checkpoints to average.

    Raises:
        ConfigError: The name is not ``best``, ``last``, a step or ``average:N``.

    Example:
        >>> chosen_checkpoint("best"), chosen_checkpoint("1200"), chosen_checkpoint("average:5")
        (('best', 1), (1200, 1), ('last', 5))
    """
    kind, _, number = text.partition(":")
    if text == "best":
        return "best", 1
    if text == "last":
        return "last", 1
    if text.isdecimal():
        return int(text), 1
    if kind == "average" and number.isdecimal() and int(number):
        return "last", int(number)
    raise ConfigError(
        f"checkpoint {text}: must be best, last, a step (1200) or average:N, the mean of the last N"
    )


def load(
    path: Path,
    checkpoint: str = "best",
    *,
    kind: str | tuple[str, ...] = "encoder-decoder",
    change: Callable[[Any], Any] = lambda config: config,
) -> tuple[tuple[Any, dict[Any, Any]], "Tokenizer"]:
    """Loads the model of a run, as graph and parameters, and its tokenizer.

    The tokenizer of an image model is None. The parameters are on the mesh of :func:`.loading_on`.

    Args:
        path: The run directory.
        checkpoint: The checkpoint, see :func:`chosen_checkpoint`.
        kind: The allowed family or families.
        change: Function that changes the configuration; the parameters must still fit.

    Raises:
        ConfigError: The run is of another family; the message names the command for it.
        CheckpointError: The run does not exist, or its files are damaged or do not match.
    """
    run = open_directory(path)
    which, average = chosen_checkpoint(checkpoint)
    found_kind = refuse_others(run, (kind,) if isinstance(kind, str) else kind)
    config = change(model_config(run))

    import jax
    from flax import nnx

    from transformer_jax.core.trees import default_device
    from transformer_jax.data.vocabulary import check_vocabulary
    from transformer_jax.models.layers.replace import with_attention_kernels
    from transformer_jax.parallel.placement import loading_mesh, shard_parameters
    from transformer_jax.runs.checkpoint_reader import check_parameters

    loaded = run.load_params(which, average=average)
    if found_kind in FAMILY_NAMES:  # a recipe with a new family makes its own model
        _check_size(run, config, loaded.params)
    tokenizer: Any = None if found_kind == "image" else _tokenizer(run, loaded.manifest)
    if tokenizer is not None:
        check_vocabulary(tokenizer, config.vocab_size, config.decoder().vocab_size, where=path)
    model = with_attention_kernels(abstract_model(run, config), default_device())
    graph, shapes = nnx.split(model)
    params = loaded.params
    other = "by config.json: they belong to different runs"
    check_parameters(path, nnx.to_pure_dict(shapes), params, other)
    if (mesh := loading_mesh()) is not None:
        return (graph, shard_parameters(graph, params, mesh)), tokenizer
    return (graph, jax.device_put(params)), tokenizer


def _check_size(run: "RunDirectory", config: ModelConfig, params: Any) -> None:
    """Refuses a configuration of a much larger model than the checkpoint's.

    Otherwise a model of thousands of layers would be created for minutes before shapes are
    compared.
    """
    import jax

    from transformer_jax.models.costs.accounting import count_parameters

    described, there = count_parameters(config), sum(leaf.size for leaf in jax.tree.leaves(params))
    if described > 2 * there:
        raise CheckpointError(
            f"{run.path}: config.json describes a model of {plural(described, 'parameter')}, but "
            f"the checkpoint has {there:,}: they belong to different runs"
        )


def _tokenizer(run: "RunDirectory", said: Mapping[str, Any]) -> "Tokenizer":
    """Loads the tokenizer of a checkpoint, and checks it against the manifest."""
    try:
        return run.load_tokenizer(said.get("tokenizer"))
    except DataError as error:
        raise CheckpointError(str(error)) from None


def load_language(
    path: Path,
    checkpoint: str = "best",
    *,
    loaded: Any = None,
    shapes: "BatchingConfig | None" = None,
    dtype: Literal["float32", "bfloat16"] | None = None,
    context: int | None = None,
    change: Callable[[Any], Any] = lambda config: config,
    adapters: Mapping[str, str | os.PathLike[str]] = {},
) -> "DecoderLanguageModel | NgramLanguageModel":
    """Loads the language model of a run, a decoder or an n-gram model.

    Args:
        path: The run directory.
        checkpoint: The checkpoint, see :func:`chosen_checkpoint`.
        loaded: The result of :func:`load` for a decoder, if already loaded.
        shapes: Batch shapes to compile.
        dtype: Data type of weights and computation; None is that of the run.
        context: Context length in tokens; None is the number of the model's positions.
        change: Function that changes the configuration; the parameters must still fit.
        adapters: Runs and folders of the adapters in ``loaded``, by name.

    Raises:
        ConfigError: The run is of another family.
        CheckpointError: The run does not exist, or its files are damaged or do not match.
    """
    run = open_directory(path)
    if is_ngram_run(run):
        from transformer_jax.decoding.ngram import NgramLanguageModel
        from transformer_jax.models.ngram import NgramModel
        from transformer_jax.parallel.placement import loading_mesh

        if checkpoint not in ("best", "last"):
            raise ConfigError(f"{path}: an n-gram model has no steps: leave checkpoint out")
        if loading_mesh() is not None:
            raise ConfigError(f"{path}: an n-gram model cannot run on a mesh: leave mesh out")
        try:
            tokenizer = run.load_tokenizer()
        except DataError as error:
            raise CheckpointError(str(error)) from None
        counts = NgramModel.load(run.path / "ngram.npz")
        try:
            return NgramLanguageModel(counts, tokenizer)
        except ConfigError as error:
            raise CheckpointError(f"{path}: {error}") from None
    from transformer_jax.decoding.language import DecoderLanguageModel
    from transformer_jax.interop.peft import is_peft_folder

    model, tokenizer = loaded or load(path, checkpoint, kind="decoder", change=change)
    language = DecoderLanguageModel(
        model,
        tokenizer,
        start=text_start(run, tokenizer),
        ends=text_format(run).ends,
        shapes=shapes,
        dtype=dtype,
        context=context,
        adapters=tuple(adapters),
    )
    for name, folder in adapters.items():
        adapter = open_directory(run.path if is_peft_folder(folder) else folder)
        language.set_texts(name, text_start(adapter, tokenizer), text_format(adapter).ends)
    return language

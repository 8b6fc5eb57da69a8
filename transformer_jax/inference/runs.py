"""Loads models, tokenizers and tasks from run directories, for commands and predictors."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from transformer_jax.core.config_dict import from_dict
from transformer_jax.core.errors import CheckpointError, ConfigError, DataError, command, plural
from transformer_jax.data.preparation import Preparation
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.recurrent_config import ModelConfig, RecurrentConfig
from transformer_jax.recipes.registry import recipe_name, recipe_of

if TYPE_CHECKING:
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.decoding.language import DecoderLanguageModel
    from transformer_jax.decoding.ngram import NgramLanguageModel
    from transformer_jax.decoding.options import BatchingConfig
    from transformer_jax.recipes.recipe import TextFormat
    from transformer_jax.runs.run_directory import RunDirectory

__all__ = [
    "ENCODERS",
    "FAMILY_NAMES",
    "FINE_TUNED",
    "TASKS",
    "abstract_model",
    "as_trained",
    "chosen_checkpoint",
    "family",
    "is_ngram_run",
    "load",
    "load_language",
    "model_config",
    "of_training",
    "open_directory",
    "preparation",
    "refuse_others",
    "source_as_trained",
    "task_of",
    "text_format",
]

ENCODERS = ("encoder", "encoder-task")  # pre-trained, fine-tuned
FINE_TUNED = ("encoder-task", "decoder-task")

# The command for each task of a fine-tuned model.
TASKS = {
    "classify": "classify",
    "multi_label": "classify",
    "pair": "classify",
    "regress": "classify",
    "replaced": "tag",
    "tag": "tag",
    "qa": "answer",
}

# The name of each family of models, and the commands for it.
_USE = {
    "encoder-decoder": ("a translator", "translate"),
    "speech": ("a speech recognizer", "transcribe"),
    "decoder": ("a decoder", "generate"),
    "ngram": ("an n-gram model", "generate"),
    "encoder": ("a pre-trained encoder", "fill-mask"),
    "encoder-task": ("a fine-tuned encoder", "embed"),
    "decoder-task": ("a fine-tuned decoder", "classify"),
    "image": ("an image model", "describe"),
}
FAMILY_NAMES = {found: name for found, (name, _) in _USE.items()}  # for messages


def chosen_checkpoint(text: str) -> tuple[int | Literal["best", "last"], int]:
    """The checkpoint that a name stands for, and the number of checkpoints to average.

    Raises:
        ConfigError: The name is none of ``best``, ``last``, a step, ``average:N``.

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


def of_training(name: str) -> bool:
    """Returns whether a file of a run is needed to resume it, and not to use it."""
    parts = name.split("/")
    return len(parts) > 3 and parts[0] == "checkpoints" and parts[2] == "optimizer"


def open_directory(path: str | os.PathLike[str]) -> "RunDirectory":
    """The run directory at ``path``, or a Hugging Face checkpoint as one; a URL is downloaded.

    Raises:
        CheckpointError: The path is neither.
    """
    from transformer_jax.core.storage.copies import fetched
    from transformer_jax.interop.hf_folders import is_hf_checkpoint
    from transformer_jax.runs.run_directory import RunDirectory

    path = fetched(path, of_training)
    if is_hf_checkpoint(path):
        from transformer_jax.interop.hf_run_directory import HFRunDirectory

        return HFRunDirectory(path)
    return RunDirectory.open(path)


def model_config(run: "RunDirectory") -> ModelConfig:
    """The configuration of a run's model, without the word vectors that its training began with.

    Raises:
        CheckpointError: ``config.json`` is damaged or describes no model of this library.
    """
    fields = run.read_config()
    if not isinstance(fields.get("model"), dict):
        from transformer_jax.runs.run_directory import NOT_OURS

        raise CheckpointError(f"{run.config}: {NOT_OURS}")
    if fields["model"].get("kind") == "ngram":
        raise ConfigError(f"{run.path}: an n-gram model, which has no layers and no attention")
    try:
        recurrent = fields["model"].get("kind") == "recurrent"
        kind = RecurrentConfig if recurrent else TransformerConfig
        config: ModelConfig = from_dict(kind, fields["model"])
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"{run.config}: {error}: written by another version?") from None
    embedding: Any = dataclasses.replace(config.embedding, init=None)
    return dataclasses.replace(config, embedding=embedding)


def preparation(run: "RunDirectory") -> Preparation:
    """Returns the preparation that the texts of a run had in training.

    Raises:
        CheckpointError: ``config.json`` is damaged.
    """
    data = run.read_config().get("data")
    read = data.get("read") if isinstance(data, dict) else None
    return Preparation.of(read if isinstance(read, dict) else {})


def as_trained(path: Path, *, trim: bool = True) -> Callable[[str], str]:
    """Returns the function that prepares a line as in training, or a text if ``trim`` is False."""
    prepare = preparation(open_directory(path))
    return prepare.line if trim else prepare.text


def source_as_trained(path: Path) -> Callable[[str], str]:
    """Returns the function that prepares a source line of an encoder, behind its prefix."""
    return preparation(open_directory(path)).source


def family(run: "RunDirectory") -> str:
    """The family of a run's model.

    One of ``encoder-decoder``, ``speech`` (an encoder-decoder of features), ``decoder``,
    ``ngram``, ``image``, ``encoder`` (pre-trained), ``encoder-task`` or ``decoder-task``
    (fine-tuned).

    Raises:
        CheckpointError: ``config.json`` is damaged or describes no model of this library.
    """
    recipe = recipe_of(run)
    if recipe.family != "ngram":
        model_config(run)  # refuses one that is damaged
    return recipe.family_of(run.read_config())


def task_of(run: "RunDirectory") -> dict[str, Any]:
    """Returns the settings of a fine-tuned model's task: kind, labels, length of examples ...

    Raises:
        CheckpointError: ``config.json`` is damaged.
    """
    task = recipe_of(run).task_fields(run.read_config())
    task = task if isinstance(task, dict) else {}
    if task.get("kind") not in TASKS or not isinstance(task.get("labels", []), list):
        raise CheckpointError(f"{run.config}: its task is none of {', '.join(TASKS)}: damaged?")
    return task


def text_format(run: "RunDirectory") -> "TextFormat":
    """Returns how the texts of a decoder begin and end.

    Raises:
        CheckpointError: ``config.json`` is damaged.
    """
    return recipe_of(run).text_format(run.read_config())


def refuse_others(run: "RunDirectory", kinds: tuple[str, ...]) -> str:
    """The family of a run, which is one of ``kinds``.

    Raises:
        ConfigError: The family is another; the message names the command for it.
    """
    found = family(run)
    if found in kinds:
        return found
    name, name_of_command = _USE[found]
    if found == "image":
        raise ConfigError(
            f"{run.path}: the run of {name}, and no command reads images: in Python "
            f'transformer_jax.load("{run.path}") is a function of images'
        )
    if found in FINE_TUNED:
        name_of_command = TASKS[task_of(run)["kind"]]
    if found in ENCODERS and not set(ENCODERS) & set(kinds):
        raise ConfigError(
            f"{run.path}: {name} is bidirectional, without a next-token distribution: use "
            f"{command(name_of_command, run.path)}, or initialize a translator from it, see "
            f"{command('train', 'small', '--init-from', run.path, '--help')}"
        )
    raise ConfigError(
        f"{run.path}: the run of {name}, which this command does not use: "
        f"try {command(name_of_command, run.path)}"
    )


def is_ngram_run(run: "RunDirectory") -> bool:
    """Returns whether a run's model is an n-gram model, which has no checkpoints.

    Raises:
        CheckpointError: ``config.json`` is damaged.
    """
    return recipe_name(run.read_config()) == "ngram"


def load(
    path: Path,
    checkpoint: str = "best",
    *,
    kind: str | tuple[str, ...] = "encoder-decoder",
    change: Callable[[Any], Any] = lambda config: config,
) -> tuple[tuple[Any, dict[Any, Any]], "Tokenizer"]:
    """The model of a run, as its graph and parameters, and its tokenizer.

    A model of images has none: None. The parameters are on the mesh of :func:`.loading_on`.

    Args:
        path: The run directory.
        checkpoint: The checkpoint, see :func:`chosen_checkpoint`.
        kind: The allowed family or families.
        change: Function that changes the configuration; the parameters must still fit.

    Raises:
        ConfigError: The run is of another family; the message names the command for it.
        CheckpointError: The run does not exist, or its files are damaged or do not fit together.
    """
    run = open_directory(path)
    which, average = chosen_checkpoint(checkpoint)
    found_kind = refuse_others(run, (kind,) if isinstance(kind, str) else kind)
    config = change(model_config(run))

    import jax
    from flax import nnx

    from transformer_jax.core.devices import default_device
    from transformer_jax.data.vocabulary import check_vocabulary
    from transformer_jax.models.layers.replace import with_attention_kernels
    from transformer_jax.parallel.inference import loading_mesh, shard_parameters
    from transformer_jax.training.trained_model import check_parameters

    loaded = run.load_params(which, average=average)
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
    """Refuse a configuration of a much larger model than the checkpoint's.

    A model of thousands of layers takes minutes to create, before shapes can be compared.
    """
    import jax

    from transformer_jax.models.costs.accounting import count_parameters

    described, there = count_parameters(config), sum(leaf.size for leaf in jax.tree.leaves(params))
    if described > 2 * there:
        raise CheckpointError(
            f"{run.path}: config.json describes a model of {plural(described, 'parameter')}, and "
            f"the checkpoint has {there:,}: they belong to different runs"
        )


def _tokenizer(run: "RunDirectory", said: Mapping[str, Any]) -> "Tokenizer":
    """The tokenizer of a checkpoint, checked against its manifest."""
    try:
        return run.load_tokenizer(said.get("tokenizer"))
    except DataError as error:
        raise CheckpointError(str(error)) from None


def abstract_model(run: "RunDirectory", config: ModelConfig) -> Any:
    """The model of a run with shapes instead of parameters, with the head of its training."""
    from flax import nnx

    recipe, fields = recipe_of(run), run.read_config()
    if recipe.family_of(fields) in FINE_TUNED:
        task_of(run)  # refuses one that is damaged
    return nnx.eval_shape(lambda: recipe.model(config, fields, nnx.Rngs(0)))


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
    """The language model of a run, a decoder or an n-gram model.

    Args:
        path: The run directory.
        checkpoint: The checkpoint, see :func:`chosen_checkpoint`.
        loaded: The result of :func:`load` for a decoder, if it was loaded already.
        shapes: Batch shapes to compile.
        dtype: Data type of weights and computation; None is that of the run.
        context: Context length in tokens; None is the number of the model's positions.
        change: Function that changes the configuration; the parameters must still fit.
        adapters: Runs and folders of the adapters that ``loaded`` has for each row to choose from,
            by name.

    Raises:
        ConfigError: The run is of another family.
        CheckpointError: The run does not exist, or its files are damaged or do not fit together.
    """
    run = open_directory(path)
    if is_ngram_run(run):
        from transformer_jax.decoding.ngram import NgramLanguageModel
        from transformer_jax.models.ngram import NgramModel
        from transformer_jax.parallel.inference import loading_mesh

        if loading_mesh() is not None:
            raise ConfigError(f"{path}: an n-gram model runs on no mesh: leave mesh out")
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
    from transformer_jax.inference.generation_settings import text_start
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

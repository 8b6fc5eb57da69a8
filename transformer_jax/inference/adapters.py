"""Adapters of runs and of PEFT folders, opened for a base that they change."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from flax import nnx
from jaxtyping import PyTree

from transformer_jax.core.errors import CheckpointError, ConfigError, command, plural
from transformer_jax.core.storage.copies import fetched
from transformer_jax.core.trees import default_device, flatten_dict
from transformer_jax.inference.load_run import chosen_checkpoint, load
from transformer_jax.inference.runs import (
    abstract_model,
    family,
    is_ngram_run,
    model_config,
    of_training,
    open_directory,
)
from transformer_jax.interop.export_plan import choose_family, unscan_layers
from transformer_jax.interop.family import Model, ModelFamily
from transformer_jax.interop.hf_run_directory import HFRunDirectory, model_of
from transformer_jax.interop.peft import is_peft_folder, read_peft
from transformer_jax.models.layers.replace import with_attention_kernels
from transformer_jax.parallel.inference import mesh_of, shard_parameters
from transformer_jax.runs.run_directory import RunDirectory
from transformer_jax.training.adapters import (
    Adapter,
    check_base,
    is_adapter_run,
    merge_adapter,
    of_run,
    with_choice,
)

__all__ = [
    "check_adapter",
    "has_new_head",
    "load_adapted",
    "load_merged",
    "merge_into",
    "named_family",
    "open_adapter",
    "open_adapters",
    "with_adapters_of",
]

Adapters = Mapping[str, str | os.PathLike[str]]
HEAD = "head/table"  # of an output layer that is not tied


def named_family(base: RunDirectory) -> tuple[ModelFamily, Model]:
    """The Hugging Face family whose names the tensors of a base have, and the base as one of it.

    Raises:
        ConfigError: No family has its architecture, or only with its axes in another order.
    """
    if isinstance(base, HFRunDirectory):
        return base.folder.family, base.folder.model
    fields = base.read_config()
    if is_ngram_run(base):
        raise ConfigError(f"{base.path}: an n-gram model, which has no linear maps")
    try:
        model = model_of(fields, family(base))
        plan = choose_family(model, (fields.get("published") or {}).get("fields"))
    except ConfigError as error:
        raise ConfigError(f"{base.path}: PEFT has no names for its parameters: {error}") from None
    kinds = [one.config.positions.kind for one in (model, plan.model)]
    if kinds[0] != kinds[1] == "sinusoidal_halves":
        raise ConfigError(
            f"{base.path}: PEFT has no names for its parameters: Hugging Face folders of such "
            f"positions have their axes in another order"
        )
    return plan.family, plan.model


def check_adapter(path: str | os.PathLike[str]) -> Path:
    """The folder of an adapter on this machine; one on an object store is downloaded.

    Raises:
        CheckpointError: There is no adapter.
    """
    folder = fetched(path, of_training)
    if not is_peft_folder(folder) and not is_adapter_run(open_directory(folder).path):
        raise CheckpointError(
            f"{path}: holds no adapter: it is a run that was trained with --lora.rank, or a folder "
            f"in PEFT's format"
        )
    return folder


def open_adapter(
    path: str | os.PathLike[str], base: RunDirectory, params: PyTree, checkpoint: str = "best"
) -> Adapter:
    """The adapter of a run or of a folder in PEFT's format, for a base.

    That of a PEFT folder is of separate layers, also where the base has scanned ones.

    Args:
        path: The run or the folder.
        base: The directory of the base.
        params: The parameters of the base.
        checkpoint: Of a run.

    Raises:
        CheckpointError: It holds no adapter, is damaged, or belongs to another base.
        ConfigError: A folder in PEFT's format, for a base of no family that PEFT has names for; or
            the base lacks tokens that were added where it was trained.
    """
    folder = check_adapter(path)
    if is_peft_folder(folder):
        named, model = named_family(base)
        _, apart = unscan_layers(model, params)
        leaves = {name: np.asarray(leaf) for name, leaf in flatten_dict(apart).items()}
        return read_peft(folder, named, model, leaves)
    which, average = chosen_checkpoint(checkpoint)
    adapter, _ = of_run(open_directory(folder).path, which, average)
    _check_vocabulary(path, adapter, params, base)
    check_base(adapter, params, str(path), str(base.path))
    return adapter


def _check_vocabulary(
    path: str | os.PathLike[str], adapter: Adapter, params: PyTree, base: RunDirectory
) -> None:
    """Refuses a base without the tokens that were added where an adapter was trained."""
    leaves = flatten_dict(params)
    if any(max(adapter.tokens) >= len(leaves.get(name, ())) for name in adapter.rows):
        raise ConfigError(
            f"{path}: was trained with the rows of {plural(len(adapter.tokens), 'token')} beside "
            f"its adapters, some of which {base.path} lacks: load that run itself"
        )


def _merge(path: str | os.PathLike[str], base: RunDirectory) -> str:
    """Returns the command that merges adapters into their base."""
    path = os.fspath(path).rstrip("/")
    return command("merge", base.path, "--adapter", path, "--output", f"{path}-merged")


def _check_rows(path: str | os.PathLike[str], adapter: Adapter, base: RunDirectory) -> None:
    """Refuses rows of tokens beside an adapter: all prompts of a batch read one table."""
    if adapter.rows:
        raise ConfigError(
            f"{path}: was trained with the rows of {plural(len(adapter.tokens), 'token')} beside "
            f"its adapters, and prompts that choose adapters share one table: merge them with "
            f"{_merge(path, base)}, and use the result"
        )


def open_adapters(paths: Adapters, base: RunDirectory, params: PyTree) -> dict[str, Adapter]:
    """Several adapters of one base, by name.

    Raises:
        CheckpointError: As of :func:`open_adapter`.
        ConfigError: One has parameters of its own beside adapters, such as a head of labels, or
            rows of tokens; a head of values, which only training uses, is left out.
    """
    found = {name: open_adapter(path, base, params) for name, path in paths.items()}
    for name, adapter in found.items():
        _check_rows(paths[name], adapter, base)
        own = sorted(one for one in adapter.itself if not one.startswith("value/"))
        if own:
            raise ConfigError(
                f"{paths[name]}: has parameters of its own beside its adapters ({own[0]}), and "
                f"prompts that choose adapters share them: merge them with "
                f"{_merge(paths[name], base)}, and use the result"
            )
    return found


def with_adapters_of(path: Path, model: tuple[Any, Any], adapters: Adapters) -> tuple[Any, Any]:
    """Graph and parameters of a model with several adapters, of which each row chooses one.

    Args:
        path: The base.
        model: Its graph and parameters.
        adapters: Runs with adapters, or folders in PEFT's format, by name.

    Raises:
        CheckpointError: One holds no adapter, is damaged, or belongs to another base.
        ConfigError: One has more than adapters.
    """
    graph, params = model
    found = open_adapters(adapters, open_directory(path), params)
    graph, state = nnx.split(with_choice(nnx.merge(graph, params), list(found.values())))
    return graph, nnx.to_pure_dict(state)


def load_adapted(
    path: Path,
    adapters: Adapters,
    checkpoint: str = "best",
    *,
    dtype: Literal["float32", "bfloat16"] | None = None,
    change: Callable[[Any], Any] = lambda config: config,
) -> tuple[tuple[Any, Any], Any]:
    """A decoder with several adapters, as :func:`.load_language` takes it, and its tokenizer.

    Args:
        path: The base, a run or a Hugging Face folder.
        adapters: As of :func:`with_adapters_of`.
        checkpoint: Of the base.
        dtype: Data type of computation; None is that of the base.
        change: Function that changes the configuration of the base.

    Raises:
        CheckpointError: A folder is missing or damaged, or an adapter belongs to another base.
        ConfigError: The base is no decoder, or an adapter has more than adapters.
    """
    for adapter in adapters.values():
        check_adapter(adapter)  # before the base is loaded

    def changed(config: Any) -> Any:
        config = change(config)
        compute = dataclasses.replace(config.compute, dtype=dtype or config.compute.dtype)
        return dataclasses.replace(config, compute=compute)

    model, tokenizer = load(path, checkpoint, kind="decoder", change=changed)
    return with_adapters_of(path, model, adapters), tokenizer


def load_merged(
    path: Path,
    adapter: str | os.PathLike[str],
    checkpoint: str = "best",
    *,
    change: Callable[[Any], Any] = lambda config: config,
) -> tuple[tuple[Any, Any], Any]:
    """A decoder with an adapter merged into its weights, and its tokenizer.

    Args:
        path: The base, a run or a Hugging Face folder.
        adapter: A run that was trained with adapters on it, or a folder in PEFT's format.
        checkpoint: Of the base.
        change: Function that changes the configuration of the base.

    Raises:
        CheckpointError: As of :func:`load_adapted`.
        ConfigError: As of :func:`load_adapted`.
    """
    check_adapter(adapter)  # before the base is loaded
    (graph, params), tokenizer = load(path, checkpoint, kind="decoder", change=change)
    run = open_directory(path)
    whole, _ = merge_into(run, params, adapter)
    if has_new_head(whole, params):
        config = change(model_config(run))
        head = dataclasses.replace(config.head, tie_word_embeddings=False)
        model = abstract_model(run, dataclasses.replace(config, head=head))
        graph = nnx.graphdef(with_attention_kernels(model, default_device()))
    if (mesh := mesh_of(params)) is not None:
        return (graph, shard_parameters(graph, whole, mesh)), tokenizer
    return (graph, jax.device_put(whole)), tokenizer


def has_new_head(whole: PyTree, params: PyTree) -> bool:
    """Returns whether merging gave an output layer a table of its own, which it shared before."""
    return HEAD in flatten_dict(whole) and HEAD not in flatten_dict(params)


def merge_into(
    base: RunDirectory, params: PyTree, path: str | os.PathLike[str]
) -> tuple[dict[Any, Any], int]:
    """Parameters with an adapter merged into them, and how many maps and tables it changes.

    An adapter in PEFT's format may change one of a table and an output layer that is tied to it:
    then there is a ``head/table``, and the model is no longer tied (:func:`has_new_head`).

    Raises:
        CheckpointError: As of :func:`open_adapter`.
        ConfigError: The base lacks a parameter that was trained beside the adapter, or has scanned
            layers and the adapter separate ones.
    """
    adapter, leaves = open_adapter(path, base, params), flatten_dict(params)
    itself = {
        name: value for name, value in adapter.itself.items() if not name.startswith("value/")
    }
    # A folder in PEFT's format may change an output layer that is the table in the base.
    new = {HEAD} if is_peft_folder(check_adapter(path)) else set()
    if missing := sorted(set(itself) - set(leaves) - new):
        raise ConfigError(
            f"{path}: was trained with parameters of its own beside its adapters ({missing[0]}), "
            f"which {base.path} lacks: load or merge that run alone"
        )
    if any(f"{name}/kernel" not in leaves for name in adapter.params):
        raise ConfigError(
            f"{base.path}: its layers are scanned, and an adapter in PEFT's format is of separate "
            f"ones: export {base.path} to a Hugging Face folder, and use that"
        )
    adapter = dataclasses.replace(adapter, itself=itself)
    return merge_adapter(adapter, params), len(adapter.params) + len(itself) * bool(new)

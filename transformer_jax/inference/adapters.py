"""Adapters of runs and of PEFT folders, loaded for their base model."""

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
from transformer_jax.inference.facts import Facts, Opening
from transformer_jax.inference.pretrained import (
    Pretrained,
    abstract_model,
    chosen_checkpoint,
    open_directory,
    read_facts,
)
from transformer_jax.interop.export_plan import choose_family, unscan_layers
from transformer_jax.interop.family import Model, ModelFamily
from transformer_jax.interop.hf_run_directory import model_of
from transformer_jax.interop.peft import is_peft_folder, read_peft
from transformer_jax.models.layers.surgery import with_attention_kernels
from transformer_jax.parallel.placement import mesh_of, shard_parameters
from transformer_jax.runs.manifest import is_optimizer_file
from transformer_jax.training.adapter_parts import (
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
HEAD = "head/table"  # table of an untied output layer


def named_family(base: Facts) -> tuple[ModelFamily, Model]:
    """Returns the Hugging Face family of a base, and the base as a model of the family.

    Raises:
        ConfigError: No family has the architecture, or only with a different order of axes.
    """
    if base.family is not None:
        return base.family
    fields = base.record
    if base.kind == "ngram":
        raise ConfigError(f"{base.source}: an n-gram model, which has no linear maps")
    try:
        model = model_of(fields, base.kind, base.task_fields)
        plan = choose_family(model, (fields.get("published") or {}).get("fields"))
    except ConfigError as error:
        raise ConfigError(f"{base.source}: PEFT has no names for its parameters: {error}") from None
    kinds = [one.config.positions.kind for one in (model, plan.model)]
    if kinds[0] != kinds[1] == "sinusoidal_halves":
        raise ConfigError(
            f"{base.source}: PEFT has no names for its parameters: Hugging Face folders with such "
            f"positions have a different order of axes"
        )
    return plan.family, plan.model


def check_adapter(path: str | os.PathLike[str], opening: Opening = Opening()) -> Path:
    """Returns the local folder of an adapter, downloaded from an object store if needed.

    Raises:
        CheckpointError: The path has no adapter.
    """
    folder = fetched(path, is_optimizer_file)
    if not is_peft_folder(folder) and not is_adapter_run(
        open_directory(folder, opening.allow_changed).path
    ):
        raise CheckpointError(
            f"{path}: no adapter: give a run trained with --lora.rank, or a folder in PEFT's format"
        )
    return folder


def open_adapter(
    path: str | os.PathLike[str], base: Facts, params: PyTree, checkpoint: str = "best"
) -> Adapter:
    """Loads the adapter of a run or of a folder in PEFT's format, for a base.

    The adapter of a PEFT folder has separate layers, even if the base has scanned layers.

    Args:
        path: The run or the folder.
        base: Facts of the base.
        params: The parameters of the base.
        checkpoint: The checkpoint of a run.

    Raises:
        CheckpointError: The path has no adapter, or the adapter is damaged or belongs to another
            base.
        ConfigError: The folder is in PEFT's format, but PEFT has no names for the base; or the base
            lacks tokens that were added when the adapter was trained.
    """
    folder = check_adapter(path, base.opening)
    if is_peft_folder(folder):
        named, model = named_family(base)
        _, apart = unscan_layers(model, params)
        leaves = {name: np.asarray(leaf) for name, leaf in flatten_dict(apart).items()}
        return read_peft(folder, named, model, leaves)
    which, average = chosen_checkpoint(checkpoint)
    adapter, _ = of_run(folder, which, average)
    _check_vocabulary(path, adapter, params, base)
    check_base(adapter, params, str(path), str(base.source))
    return adapter


def _check_vocabulary(
    path: str | os.PathLike[str], adapter: Adapter, params: PyTree, base: Facts
) -> None:
    """Refuses a base without the tokens that were added when an adapter was trained."""
    leaves = flatten_dict(params)
    if any(max(adapter.tokens) >= len(leaves.get(name, ())) for name in adapter.rows):
        raise ConfigError(
            f"{path}: was trained with rows of {plural(len(adapter.tokens), 'token')}, some of "
            f"which {base.source} lacks: load that run itself"
        )


def _merge(path: str | os.PathLike[str], base: Facts) -> str:
    """Returns the command that merges adapters into their base."""
    path = os.fspath(path).rstrip("/")
    return command("merge", base.source, "--adapter", path, "--output", f"{path}-merged")


def _check_rows(path: str | os.PathLike[str], adapter: Adapter, base: Facts) -> None:
    """Refuses an adapter with trained token rows, since all prompts of a batch share one table."""
    if adapter.rows:
        raise ConfigError(
            f"{path}: was trained with rows of {plural(len(adapter.tokens), 'token')}, but "
            f"prompts that choose adapters share one table: merge it with "
            f"{_merge(path, base)}, and use the result"
        )


def open_adapters(paths: Adapters, base: Facts, params: PyTree) -> dict[str, Adapter]:
    """Loads several adapters of one base, by name.

    Raises:
        CheckpointError: See :func:`open_adapter`.
        ConfigError: An adapter has further trained parameters, such as a classification head or
            rows of tokens; a value head, which only training uses, is ignored.
    """
    found = {name: open_adapter(path, base, params) for name, path in paths.items()}
    for name, adapter in found.items():
        _check_rows(paths[name], adapter, base)
        own = sorted(one for one in adapter.itself if not one.startswith("value/"))
        if own:
            raise ConfigError(
                f"{paths[name]}: has further trained parameters ({own[0]}), but "
                f"prompts that choose adapters share them: merge it with "
                f"{_merge(paths[name], base)}, and use the result"
            )
    return found


def with_adapters_of(base: Pretrained, adapters: Adapters) -> Pretrained:
    """Returns a model with several adapters, chosen per row; ``base`` is unchanged.

    Args:
        base: An opened decoder.
        adapters: Runs with adapters, or folders in PEFT's format, by name.

    Raises:
        CheckpointError: A path has no adapter, or an adapter is damaged or belongs to another base.
        ConfigError: An adapter has further trained parameters.
    """
    graph, params = base.model
    opened = open_adapters(adapters, base.facts, params)
    graph, state = nnx.split(with_choice(nnx.merge(graph, params), list(opened.values())))
    # The texts of a run begin and end as in its training, those of a PEFT folder as the base's.
    opening = base.facts.opening
    texts = {
        name: base.facts
        if is_peft_folder(check_adapter(path, opening))
        else dataclasses.replace(read_facts(path, opening=opening), files=None)
        for name, path in adapters.items()
    }
    return dataclasses.replace(base, model=(graph, nnx.to_pure_dict(state)), adapters=texts)


def load_adapted(
    facts: Facts,
    adapters: Adapters,
    *,
    dtype: Literal["float32", "bfloat16"] | None = None,
    change: Callable[[Any], Any] = lambda config: config,
) -> Pretrained:
    """Loads a decoder with several adapters.

    Args:
        facts: Facts of the base.
        adapters: See :func:`with_adapters_of`.
        dtype: Data type of computation; None is the base's.
        change: Function that changes the configuration of the base.

    Raises:
        CheckpointError: A folder is missing or damaged, or an adapter belongs to another base.
        ConfigError: The base is not a decoder, or an adapter has further trained parameters.
    """
    for adapter in adapters.values():
        check_adapter(adapter, facts.opening)  # check it before loading the base

    def changed(config: Any) -> Any:
        config = change(config)
        compute = dataclasses.replace(config.compute, dtype=dtype or config.compute.dtype)
        return dataclasses.replace(config, compute=compute)

    return with_adapters_of(Pretrained.load(facts, "decoder", change=changed), adapters)


def load_merged(
    facts: Facts,
    adapter: str | os.PathLike[str],
    *,
    change: Callable[[Any], Any] = lambda config: config,
) -> Pretrained:
    """Loads a decoder with an adapter merged into its weights.

    Args:
        facts: Facts of the base.
        adapter: A run that was trained with adapters on it, or a folder in PEFT's format.
        change: Function that changes the configuration of the base.

    Raises:
        CheckpointError: See :func:`load_adapted`.
        ConfigError: See :func:`load_adapted`.
    """
    check_adapter(adapter, facts.opening)  # check it before loading the base
    base = Pretrained.load(facts, "decoder", change=change)
    graph, params = base.model
    whole, _ = merge_into(base.facts, params, adapter)
    if has_new_head(whole, params):
        config = base.facts.transformer
        head = dataclasses.replace(config.head, tie_word_embeddings=False)
        model = abstract_model(base.facts, dataclasses.replace(config, head=head))
        graph = nnx.graphdef(with_attention_kernels(model, default_device()))
    mesh = mesh_of(params)
    placed = jax.device_put(whole) if mesh is None else shard_parameters(graph, whole, mesh)
    return dataclasses.replace(base, model=(graph, placed))


def has_new_head(whole: PyTree, params: PyTree) -> bool:
    """Returns whether merging untied an output layer from the embedding table."""
    return HEAD in flatten_dict(whole) and HEAD not in flatten_dict(params)


def merge_into(
    base: Facts, params: PyTree, path: str | os.PathLike[str]
) -> tuple[dict[Any, Any], int]:
    """Merges an adapter into parameters; returns them and the number of changed maps and tables.

    An adapter in PEFT's format may change only the table or only a tied output layer: then there is
    a ``head/table``, and the model is no longer tied (:func:`has_new_head`).

    Raises:
        CheckpointError: See :func:`open_adapter`.
        ConfigError: The base lacks a parameter that was trained with the adapter, or has scanned
            layers while the adapter has separate ones.
    """
    adapter, leaves = open_adapter(path, base, params), flatten_dict(params)
    itself = {
        name: value for name, value in adapter.itself.items() if not name.startswith("value/")
    }
    # A folder in PEFT's format may change an output layer that is tied in the base.
    new = {HEAD} if is_peft_folder(check_adapter(path, base.opening)) else set()
    if missing := sorted(set(itself) - set(leaves) - new):
        raise ConfigError(
            f"{path}: was trained with further parameters ({missing[0]}), "
            f"which {base.source} lacks: load or merge that run itself"
        )
    if any(f"{name}/kernel" not in leaves for name in adapter.params):
        raise ConfigError(
            f"{base.source}: its layers are scanned, but an adapter in PEFT's format has separate "
            f"ones: export {base.source} to a Hugging Face folder, and use that"
        )
    adapter = dataclasses.replace(adapter, itself=itself)
    return merge_adapter(adapter, params), len(adapter.params) + len(itself) * bool(new)

"""Adapters and their bases as folders: merged, apart again, and in PEFT's format."""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from transformer_jax.core.config_dict import from_dict
from transformer_jax.core.errors import CheckpointError, ConfigError, plural
from transformer_jax.core.trees import flatten_dict
from transformer_jax.data.chat.template import ChatTemplate, find_template
from transformer_jax.inference.adapters import (
    check_adapter,
    has_new_head,
    merge_into,
    named_family,
    open_adapter,
)
from transformer_jax.inference.load_run import chosen_checkpoint
from transformer_jax.inference.runs import family, is_ngram_run, open_directory
from transformer_jax.interop.config_reader import is_hf_checkpoint
from transformer_jax.interop.dense import copy_dense
from transformer_jax.interop.export_plan import unscan_layers
from transformer_jax.interop.family import Model, ModelFamily
from transformer_jax.interop.hf_run_directory import (
    HFRunDirectory,
    convert,
    republished,
    save_converted,
)
from transformer_jax.interop.peft import is_peft_folder, write_peft
from transformer_jax.models.config import TransformerConfig
from transformer_jax.runs.run_directory import RunDirectory
from transformer_jax.training.adapters import is_adapter_run, merge_adapter, of_run

__all__ = [
    "check_peft",
    "export_peft",
    "kernel_changes",
    "write_merged",
    "write_with_adapter",
]

# Settings of what training starts from, which no longer says where all of the weights are from.
_START = (
    *("init_from", "freeze", "reinit_last", "reinit_head", "trainable_tokens"),
    "tokens_like",
)


def write_merged(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    checkpoint: str = "best",
    *,
    unmerge: bool = False,
    overwrite: bool = False,
) -> int:
    """Writes a run with adapters as a run of plain weights; returns how many adapters it has.

    Args:
        path: The run.
        output: The run to create.
        checkpoint: Which checkpoint's adapters.
        unmerge: Whether the base is written instead, bit for bit.
        overwrite: Whether a run that is there gives way.

    Raises:
        CheckpointError: The run has no adapters, is damaged, or the new one cannot be written.
        ConfigError: There is something at ``output`` already, or the base is no whole model.
    """
    run = open_directory(path)
    run.read_config()  # refuses one that was changed
    if not is_adapter_run(run.path):
        raise CheckpointError(
            f"{path}: has no adapters: there is nothing to merge; --adapter names one to merge "
            f"into it"
        )
    RunDirectory.check_free(output, overwrite=overwrite)
    which, average = chosen_checkpoint(checkpoint)
    adapter, frozen = of_run(run.path, which, average)
    if unmerge and adapter.itself:
        raise ConfigError(
            f"{path}: its head was trained beside its adapters ({sorted(adapter.itself)[0]}), and "
            f"the base has none: use the run that it started from"
        )
    params = frozen if unmerge else run.load_params(which, average=average).params
    template = find_template(run.path)
    _write_run(run, output, params, _fields_of(run), template, overwrite=overwrite)
    return len(adapter.params)


def write_with_adapter(
    base: str | os.PathLike[str],
    adapter: str | os.PathLike[str],
    output: str | os.PathLike[str],
    checkpoint: str = "best",
    *,
    overwrite: bool = False,
) -> int:
    """Writes a model with an adapter merged into it as a run; returns how many maps that changes.

    Args:
        base: A run or a Hugging Face folder.
        adapter: A run that was trained with adapters on it, or a folder in PEFT's format.
        output: The run to create. With a run's adapter it is that of :func:`write_merged`, so that
            its texts begin and end as those that the adapter was trained on.
        checkpoint: Of the base.
        overwrite: Whether a run that is there gives way.

    Raises:
        CheckpointError: There is no adapter, it belongs to another base, a folder is damaged, or
            the run cannot be written.
        ConfigError: There is something at ``output`` already, or the base lacks parameters that
            were trained beside the adapter.
    """
    folder, run = check_adapter(adapter), open_directory(base)
    if is_ngram_run(run):
        raise ConfigError(f"{base}: an n-gram model, which has no linear maps")
    which, average = chosen_checkpoint(checkpoint)
    RunDirectory.check_free(output, overwrite=overwrite)
    if not is_peft_folder(folder):  # it holds its base, which has to be this one
        open_adapter(adapter, run, run.load_params(which, average=average).params)
        return write_merged(folder, output, overwrite=overwrite)
    changed = 0

    def change(params: PyTree, fields: Mapping[str, Any]) -> tuple[PyTree, dict[str, Any]]:
        nonlocal changed
        whole, changed = merge_into(run, params, adapter)
        new = has_new_head(whole, params)
        return whole, _untied(run, fields) if new else dict(fields)

    template = find_template(run.path)
    if isinstance(run, HFRunDirectory):
        run.refuse_steps(which, average)
        more = lambda made: _write_template(made, template)
        convert(run.path, output, overwrite=overwrite, change=change, more=more)
    else:
        fields = _fields_of(run)
        params, fields = change(run.load_params(which, average=average).params, fields)
        _write_run(run, output, params, fields, template, overwrite=overwrite)
    return changed


def _fields_of(run: RunDirectory) -> dict[str, Any]:
    """The ``config.json`` of a run without what its training began with."""
    fields: dict[str, Any] = json.loads(json.dumps(run.read_config()))
    fields.pop("lora", None)
    for own in (fields, fields.get("task") or {}):
        for name in _START:
            own.pop(name, None)
    return fields


def _untied(run: RunDirectory, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The ``config.json`` of the same model with an output layer that has a table of its own."""
    model = json.loads(json.dumps(fields["model"]))
    model["head"]["tie_word_embeddings"] = False
    changed = {**fields, "model": model}
    if (published := changed.get("published")) is not None:
        config = from_dict(TransformerConfig, model)
        record = republished(published, family(run), config)
        # A family whose output layer is always its table has no configuration for this model.
        changed = {name: value for name, value in changed.items() if name != "published"}
        changed |= {} if record is None else {"published": record}
    return changed


def _write_run(
    run: RunDirectory,
    output: str | os.PathLike[str],
    params: PyTree,
    fields: dict[str, Any],
    template: ChatTemplate | None,
    *,
    overwrite: bool,
) -> None:
    """Writes weights as a run with the model and the data of another."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), params)
    tokenizer = run.load_tokenizer()
    with RunDirectory.whole(output, overwrite=overwrite) as made:
        made.write(made.config, fields)
        tokenizer.save(made.tokenizer)
        _write_template(made, template)
        if (dense := fields.get("sentence", {}).get("dense")) is not None:
            copy_dense(run.path, dense, made.path)
        save_converted(made, params, {"config": fields, "tokenizer": tokenizer.sha256})


def _write_template(run: RunDirectory, template: ChatTemplate | None) -> None:
    """Gives a run the chat template of what was trained on conversations."""
    if template is not None:
        chat = {"chat_template": template.text, **(template.special or {})}
        run.write(run.path / "tokenizer_config.json", chat)


def check_peft(path: str | os.PathLike[str]) -> tuple[ModelFamily, Model]:
    """The Hugging Face family of a run with adapters, and its model as one of it.

    Raises:
        CheckpointError: The run has no adapters.
        ConfigError: No family has its architecture.
    """
    run = open_directory(path)
    if not is_adapter_run(run.path):
        raise CheckpointError(
            f"{path}: has no adapters, and so nothing that PEFT would load: use --format hf"
        )
    return named_family(run)


def export_peft(path: str | os.PathLike[str], output: Path, checkpoint: str = "best") -> str:
    """Writes the adapters of a run as a folder in PEFT's format; returns a line about it.

    The head of a fine-tuned model is written too, as PEFT's ``modules_to_save``; the head of
    values, which only training uses, is not.

    Args:
        path: The run.
        output: The folder, which is made.
        checkpoint: Which checkpoint's adapters.

    Raises:
        CheckpointError: The run has no adapters, is damaged, or the folder cannot be written.
        ConfigError: No family that PEFT has names for has its architecture, or its head.
    """
    named, model = check_peft(path)
    run = open_directory(path)
    fields = run.read_config()
    which, average = chosen_checkpoint(checkpoint)
    adapter, frozen = of_run(run.path, which, average)
    itself = {
        name: value for name, value in adapter.itself.items() if not name.startswith("value/")
    }
    known = {mapping.name for mapping in named.mappings(model)}
    if missing := sorted(set(itself) - known):
        raise ConfigError(f"{path}: {named.types[0]} has no tensor for {missing[0]}")
    _, apart = unscan_layers(model, frozen)
    kernels = {name: np.asarray(leaf) for name, leaf in flatten_dict(apart).items()} | itself
    started = fields.get("init_from") or (fields.get("task") or {}).get("init_from")
    origin = {**adapter.origin, "task_type": _TASK_TYPES.get(model.kind)}
    origin["dropout"] = (fields.get("lora") or {}).get("dropout", 0.0)
    adapter = dataclasses.replace(adapter.unstacked(), itself=itself, origin=origin)
    published = started if started and is_hf_checkpoint(started) else None
    write_peft(output, adapter, named, model, kernels, base=published)
    return f"{plural(len(adapter.params), 'adapter')} of {named.types[0]}"


# What PEFT calls the task of a model without a head of its own.
_TASK_TYPES = {"decoder": "CAUSAL_LM", "encoder-decoder": "SEQ_2_SEQ_LM"}


def kernel_changes(
    path: str | os.PathLike[str], checkpoint: str = "best"
) -> tuple[dict[str, np.ndarray], int]:
    """Returns the changes of kernels by the adapters of a run, by path of the map, and their rank.

    Layers of a scanned stack have their number behind the path. With DoRA a change has more than
    that rank: it is of all columns' lengths too.

    Raises:
        CheckpointError: The run has no adapters, or is damaged.
    """
    run = open_directory(path)
    run.read_config()  # refuses one that was changed
    if not is_adapter_run(run.path):
        raise CheckpointError(f"{path}: has no adapters, and so no spectrum of what they add")
    which, average = chosen_checkpoint(checkpoint)
    adapter, frozen = of_run(run.path, which, average)
    before, after = flatten_dict(frozen), flatten_dict(merge_adapter(adapter, frozen))
    found: dict[str, np.ndarray] = {}
    for name in adapter.params:
        change = after[f"{name}/kernel"] - np.asarray(before[f"{name}/kernel"], np.float32)
        if change.ndim == 2:
            found[name] = change
        else:
            found |= {f"{name}[{i}]": layer for i, layer in enumerate(change)}
    return found, next(iter(adapter.params.values()))["lora_a"].shape[-1]

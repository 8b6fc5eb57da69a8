"""Writes adapters and their bases to folders: merged, unmerged, and in PEFT's format."""

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
from transformer_jax.inference.facts import Facts, Opening
from transformer_jax.inference.pretrained import chosen_checkpoint, open_directory, read_facts
from transformer_jax.interop.config_reader import is_hf_checkpoint
from transformer_jax.interop.export_plan import unscan_layers
from transformer_jax.interop.hf_run_directory import (
    convert,
    refuse_steps,
    republished,
    save_converted,
)
from transformer_jax.interop.peft import is_peft_folder, write_peft
from transformer_jax.interop.sentence_dense import copy_dense
from transformer_jax.models.config import TransformerConfig
from transformer_jax.runs.run_directory import RunDirectory
from transformer_jax.training.adapter_parts import (
    AdapterOrigin,
    is_adapter_run,
    merge_adapter,
    of_run,
)

__all__ = [
    "export_peft",
    "kernel_changes",
    "write_merged",
    "write_with_adapter",
]

# Settings of the start, which are no longer true for merged weights.
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
    opening: Opening = Opening(),
) -> int:
    """Writes a run with adapters as a run of plain weights; returns the number of adapters.

    Args:
        path: The run.
        output: The run to create.
        checkpoint: The checkpoint of the adapters.
        unmerge: Whether to write the base instead, bit for bit.
        overwrite: Whether to replace an existing run.
        opening: Whether a changed ``config.json`` is allowed.

    Raises:
        CheckpointError: The run has no adapters, is damaged, or the new run cannot be written.
        ConfigError: ``output`` exists, or the base is not a complete model.
    """
    run = open_directory(path, opening.allow_changed)
    run.read_config()  # refuses a changed configuration
    if not is_adapter_run(run.path):
        raise CheckpointError(
            f"{path}: has no adapters: there is nothing to merge; --adapter names an adapter to "
            f"merge into it"
        )
    RunDirectory.check_free(output, overwrite=overwrite)
    which, average = chosen_checkpoint(checkpoint)
    adapter, frozen = of_run(run.path, which, average)
    if unmerge and adapter.itself:
        raise ConfigError(
            f"{path}: its head ({sorted(adapter.itself)[0]}) was trained with its adapters, and "
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
    opening: Opening = Opening(),
) -> int:
    """Writes a model with a merged adapter as a run; returns the number of changed maps.

    Args:
        base: A run or a Hugging Face folder.
        adapter: A run that was trained with adapters on it, or a folder in PEFT's format.
        output: The run to create. For the adapter of a run, it equals the output of
            :func:`write_merged`, so that texts begin and end as in the adapter's training.
        checkpoint: The checkpoint of the base.
        overwrite: Whether to replace an existing run.
        opening: Whether a changed ``config.json`` is allowed.

    Raises:
        CheckpointError: There is no adapter, it belongs to another base, a folder is damaged, or
            the run cannot be written.
        ConfigError: ``output`` exists, or the base lacks parameters that were trained with the
            adapter.
    """
    folder, facts = check_adapter(adapter, opening), read_facts(base, checkpoint, opening)
    run = facts.reader
    if facts.kind == "ngram":
        raise ConfigError(f"{base}: an n-gram model, which has no linear maps")
    which, average = chosen_checkpoint(checkpoint)
    RunDirectory.check_free(output, overwrite=overwrite)
    if not is_peft_folder(folder):  # a run stores its base, which must be the same
        open_adapter(adapter, facts, run.load_params(which, average=average).params)
        return write_merged(folder, output, overwrite=overwrite, opening=opening)
    changed = 0

    def change(params: PyTree, fields: Mapping[str, Any]) -> tuple[PyTree, dict[str, Any]]:
        nonlocal changed
        whole, changed = merge_into(facts, params, adapter)
        new = has_new_head(whole, params)
        return whole, _untied(facts, fields) if new else dict(fields)

    template = find_template(run.path)
    if facts.family is not None:
        refuse_steps(facts.source, which, average)
        more = lambda made: _write_template(made, template)
        convert(run.path, output, overwrite=overwrite, change=change, more=more)
    else:
        fields = _fields_of(run)
        params, fields = change(run.load_params(which, average=average).params, fields)
        _write_run(run, output, params, fields, template, overwrite=overwrite)
    return changed


def _fields_of(run: RunDirectory) -> dict[str, Any]:
    """Returns the ``config.json`` of a run without the settings of its start."""
    fields: dict[str, Any] = json.loads(json.dumps(run.read_config()))
    fields.pop("lora", None)
    for own in (fields, fields.get("task") or {}):
        for name in _START:
            own.pop(name, None)
    return fields


def _untied(facts: Facts, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the ``config.json`` of the same model with an untied output layer."""
    model = json.loads(json.dumps(fields["model"]))
    model["head"]["tie_word_embeddings"] = False
    changed = {**fields, "model": model}
    if (published := changed.get("published")) is not None:
        config = from_dict(TransformerConfig, model)
        record = republished(published, facts.kind, config)
        # A family with a tied output layer has no configuration for this model.
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
    """Writes weights as a run with the model and the data settings of another."""
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
    """Copies the chat template of a run that was trained on conversations."""
    if template is not None:
        chat = {"chat_template": template.text, **(template.special or {})}
        run.write(run.path / "tokenizer_config.json", chat)


def export_peft(
    path: str | os.PathLike[str],
    output: Path,
    checkpoint: str = "best",
    opening: Opening = Opening(),
) -> str:
    """Writes the adapters of a run as a folder in PEFT's format; returns a summary line.

    The head of a fine-tuned model is included, as PEFT's ``modules_to_save``; a value head, which
    only training uses, is not.

    Args:
        path: The run.
        output: The folder to create.
        checkpoint: The checkpoint of the adapters.
        opening: Whether a changed ``config.json`` is allowed.

    Raises:
        CheckpointError: The run has no adapters, is damaged, or the folder cannot be written.
        ConfigError: No family with names in PEFT has the architecture or the head.
    """
    facts = read_facts(path, opening=opening)
    if not is_adapter_run(facts.source):
        raise CheckpointError(f"{path}: has no adapters for PEFT: use --format hf")
    (named, model), fields = named_family(facts), facts.record
    which, average = chosen_checkpoint(checkpoint)
    adapter, frozen = of_run(facts.source, which, average)
    itself = {
        name: value for name, value in adapter.itself.items() if not name.startswith("value/")
    }
    known = {mapping.name for mapping in named.mappings(model)}
    if missing := sorted(set(itself) - known):
        raise ConfigError(f"{path}: {named.types[0]} has no tensor for {missing[0]}")
    _, apart = unscan_layers(model, frozen)
    kernels = {name: np.asarray(leaf) for name, leaf in flatten_dict(apart).items()} | itself
    started = fields.get("init_from") or (fields.get("task") or {}).get("init_from")
    origin: AdapterOrigin = {**adapter.origin, "task_type": _TASK_TYPES.get(model.kind)}
    origin["dropout"] = (fields.get("lora") or {}).get("dropout", 0.0)
    adapter = dataclasses.replace(adapter.unstacked(), itself=itself, origin=origin)
    published = started if started and is_hf_checkpoint(started) else None
    write_peft(output, adapter, named, model, kernels, base=published)
    return f"{plural(len(adapter.params), 'adapter')} of {named.types[0]}"


# PEFT's name of the task of a model without its own head.
_TASK_TYPES = {"decoder": "CAUSAL_LM", "encoder-decoder": "SEQ_2_SEQ_LM"}


def kernel_changes(
    path: str | os.PathLike[str], checkpoint: str = "best", opening: Opening = Opening()
) -> tuple[dict[str, np.ndarray], int]:
    """Returns the kernel changes by a run's adapters, by path of the map, and their rank.

    Layers of a scanned stack have their number after the path. With DoRA, the rank of a change is
    higher, since the norms of all columns also change.

    Raises:
        CheckpointError: The run has no adapters, or is damaged.
    """
    run = open_directory(path, opening.allow_changed)
    run.read_config()  # refuses a changed configuration
    if not is_adapter_run(run.path):
        raise CheckpointError(f"{path}: has no adapters, so there is no spectrum")
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

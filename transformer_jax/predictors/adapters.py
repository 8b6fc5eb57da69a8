"""Adapters of runs and of PEFT folders: opened for a base, merged into it."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import PyTree

from transformer_jax.chat.template import find_template
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.interop.peft import is_peft_folder, read_peft
from transformer_jax.predictors.runs import chosen_checkpoint, open_directory
from transformer_jax.training.adapters import (
    Adapter,
    check_base,
    is_adapter_run,
    merge_adapter,
    of_run,
    with_choice,
)
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.trees import flatten_dict

__all__ = ["kernel_changes", "open_adapter", "open_adapters", "with_adapters_of", "write_merged"]


def open_adapter(
    path: str | os.PathLike[str], base: RunDirectory, params: PyTree, checkpoint: str = "best"
) -> Adapter:
    """The adapter of a run or of a folder in PEFT's format, for a base.

    Args:
        path: The run or the folder.
        base: The directory of the base.
        params: The parameters of the base.
        checkpoint: Of a run.

    Raises:
        CheckpointError: It holds no adapter, is damaged, or belongs to another base.
        ConfigError: A folder in PEFT's format, for a base that was not published.
    """
    if is_peft_folder(path):
        from transformer_jax.interop.hf_run_directory import HFRunDirectory

        if not isinstance(base, HFRunDirectory):
            raise ConfigError(
                f"{path}: an adapter in PEFT's format, whose base is a Hugging Face folder, and "
                f"{base.path} is none"
            )
        leaves = {name: np.asarray(leaf) for name, leaf in flatten_dict(params).items()}
        return read_peft(path, base.folder.family, base.folder.model, leaves)
    run = open_directory(path)
    if not is_adapter_run(run.path):
        raise CheckpointError(
            f"{path}: holds no adapter: it is a run that was trained with --lora.rank, or a folder "
            f"in PEFT's format"
        )
    which, average = chosen_checkpoint(checkpoint)
    adapter, _ = of_run(run.path, which, average)
    check_base(adapter, params, str(path), str(base.path))
    return adapter


def open_adapters(
    paths: Mapping[str, str | os.PathLike[str]], base: RunDirectory, params: PyTree
) -> dict[str, Adapter]:
    """Several adapters of one base, by name.

    Raises:
        CheckpointError: As of :func:`open_adapter`.
        ConfigError: One has parameters of its own beside adapters, such as a head of labels; a
            head of values, which only training uses, is left out.
    """
    found = {name: open_adapter(path, base, params) for name, path in paths.items()}
    for name, adapter in found.items():
        own = sorted(one for one in adapter.itself if not one.startswith("value/"))
        if own:
            raise ConfigError(
                f"{paths[name]}: was trained with parameters of its own beside its adapters "
                f"({own[0]}): load it alone"
            )
    return found


def with_adapters_of(
    path: Path, model: tuple[Any, Any], adapters: Mapping[str, str | os.PathLike[str]]
) -> tuple[Any, Any]:
    """Graph and parameters of a model with several adapters, of which each row chooses one.

    Args:
        path: The base.
        model: Its graph and parameters.
        adapters: Runs with adapters, or folders in PEFT's format, by name.

    Raises:
        CheckpointError: One holds no adapter, is damaged, or belongs to another base.
        ConfigError: Layers are stacked for a scan, or one has more than adapters.
    """
    graph, params = model
    found = open_adapters(adapters, open_directory(path), params)
    if any(own["lora_a"].ndim > 2 for one in found.values() for own in one.params.values()):
        raise ConfigError(
            f"{path}: adapters of scanned layers are loaded one at a time: load the run itself"
        )
    graph, state = nnx.split(with_choice(nnx.merge(graph, params), list(found.values())))
    return graph, nnx.to_pure_dict(state)


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
    from transformer_jax.interop.hf_run_directory import save_converted

    run = open_directory(path)
    fields: dict[str, Any] = json.loads(json.dumps(run.read_config()))
    if not is_adapter_run(run.path):
        raise CheckpointError(f"{path}: has no adapters: there is nothing to merge")
    which, average = chosen_checkpoint(checkpoint)
    adapter, frozen = of_run(run.path, which, average)
    if unmerge and adapter.itself:
        raise ConfigError(
            f"{path}: its head was trained beside its adapters ({sorted(adapter.itself)[0]}), and "
            f"the base has none: use the run that it started from"
        )
    params = frozen if unmerge else run.load_params(which, average=average).params
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), params)
    fields.pop("lora", None)
    tokenizer, template = run.load_tokenizer(), find_template(run.path)
    RunDirectory.check_free(output, overwrite=overwrite)
    made = RunDirectory.create(output, overwrite=overwrite)
    made.write(made.config, fields)
    tokenizer.save(made.tokenizer)
    if template is not None:  # of a run that was trained on conversations
        chat = {"chat_template": template.text, **template.special}
        made.write(made.path / "tokenizer_config.json", chat)
    save_converted(made, params, {"config": fields, "tokenizer": tokenizer.sha256})
    return len(adapter.params)


def kernel_changes(
    path: str | os.PathLike[str], checkpoint: str = "best"
) -> tuple[dict[str, np.ndarray], int]:
    """What the adapters of a run add to each kernel, by path of the map, and their rank.

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

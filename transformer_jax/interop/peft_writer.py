"""Writes adapters as folders in PEFT's format, which PEFT loads on their base."""

import dataclasses
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.core.json_types import Json
from transformer_jax.interop.family import Model, ModelFamily, TensorMapping
from transformer_jax.interop.peft_config import CONFIG, INDICES
from transformer_jax.interop.peft_modules import BaseModules, linear_maps, untied
from transformer_jax.interop.peft_reader import LEAVES, WEIGHTS, kernel_norms
from transformer_jax.interop.peft_tokens import BEFORE, row_tensors
from transformer_jax.interop.tensor_layouts import to_hf
from transformer_jax.training.adapter_parts import Adapter

__all__ = ["write_peft"]

_EMBEDDING, _HEAD = "embedding/table", "head/table"


def write_peft(
    path: str | os.PathLike[str],
    adapter: Adapter,
    family: ModelFamily,
    model: Model,
    kernels: Mapping[str, np.ndarray],
    *,
    base: str | None = None,
) -> None:
    """Writes an adapter as a folder that PEFT loads on the base.

    Args:
        path: The folder to create.
        adapter: The adapter, with separate layers.
        family: The family of the base.
        model: The base as one of our models, with the prefix of its names.
        kernels: The parameters of the base by name.
        base: The value of ``base_model_name_or_path``.

    Raises:
        CheckpointError: The folder cannot be written.
        ConfigError: The family has no tensor for a map with an adapter or a table with trained
            rows, or rows belong to a bias.
    """
    adapter, model = _with_both_tables(adapter, family, model)
    tensors: dict[str, np.ndarray] = {}
    ranks: dict[str, int] = {}
    scales: dict[str, float] = {}
    left, fan_in_fan_out = set(adapter.params), False
    for mappings in linear_maps(family, model).values():
        names = [mapping.name.removesuffix("/kernel") for mapping in mappings]
        if not left & set(names):
            continue
        left -= set(names)
        module = mappings[0].hf_name.removesuffix(".weight")
        a, b, magnitude, scale = _fused_adapter(adapter, names, mappings, kernels)
        tensors[f"{BEFORE}{module}.lora_A.weight"] = a
        tensors[f"{BEFORE}{module}.lora_B.weight"] = b
        if magnitude is not None:
            tensors[f"{BEFORE}{module}.lora_magnitude_vector"] = magnitude
        ranks[module], scales[module] = len(a), scale
        fan_in_fan_out = mappings[0].layout == "same"
    if left:
        raise ConfigError(f"{sorted(left)[0]}: {family.types[0]} has no tensor for this map")
    tensors |= _own_tensors(adapter.itself, family, model, kernels)
    rows, indices = row_tensors(adapter.rows, adapter.tokens, family, model)
    fields = _fields(adapter, ranks, scales, tensors)
    if "peft" not in adapter.origin:
        fields |= {"base_model_name_or_path": base, "fan_in_fan_out": fan_in_fan_out}
        fields |= {} if indices is None else {INDICES: indices}
    _write(Path(path), tensors | rows, fields, adapter.base)


def _with_both_tables(adapter: Adapter, family: ModelFamily, model: Model) -> tuple[Adapter, Model]:
    """Returns the adapter with its tied table stored for both modules, and the model.

    Raises:
        ConfigError: More than two modules share the table.
    """
    itself, base = dict(adapter.itself), BaseModules(family, model)
    if not base.tied or base.head is None or not itself.keys() & {_EMBEDDING, _HEAD}:
        return adapter, model
    if _EMBEDDING in itself and base.several:
        raise ConfigError(
            f"{_EMBEDDING}: was trained directly, but several modules of {family.types[0]} share "
            f"it: merge the run and export it instead"
        )
    if _EMBEDDING in itself:
        itself.setdefault(_HEAD, itself[_EMBEDDING])
    return dataclasses.replace(adapter, itself=itself), untied(model)


def _fused_adapter(
    adapter: Adapter,
    names: Sequence[str],
    mappings: Sequence[TensorMapping],
    kernels: Mapping[str, np.ndarray],
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, float]:
    """Combines adapters of maps with the same inputs; returns one adapter and its scale."""
    there = [name for name in names if name in adapter.params]
    widths = [kernels[mapping.name].shape[1] for mapping in mappings]
    scale = adapter.scales[there[0]]
    first = adapter.params[there[0]]["lora_a"]
    shared = all(np.array_equal(first, adapter.params[name]["lora_a"]) for name in there)
    a = [first] if shared else [adapter.params[name]["lora_a"] for name in there]
    rows, row = [], 0
    for name, width in zip(names, widths, strict=True):
        block = np.zeros((sum(part.shape[1] for part in a), width), np.float32)
        if name in there:
            own = adapter.params[name]["lora_b"]
            # Scales that differ from the first become factors of B.
            factor = adapter.scales[name] / scale
            own = own if factor == 1.0 else np.float32(factor) * own
            block[row : row + len(own)] = own
            row += 0 if shared else len(own)
        rows.append(block.T)
    magnitude = None
    if any("lora_magnitude" in adapter.params[name] for name in there):
        parts = [
            kernel_norms(kernels[mapping.name])
            + adapter.params.get(name, {}).get("lora_magnitude", np.float32(0))
            for name, mapping in zip(names, mappings, strict=True)
        ]
        magnitude = np.concatenate(parts)
    order = lambda array: np.ascontiguousarray(array, np.float32)
    return order(np.concatenate(a, axis=1).T), order(np.concatenate(rows)), magnitude, scale


def _own_tensors(
    itself: Mapping[str, np.ndarray],
    family: ModelFamily,
    model: Model,
    kernels: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Returns the tensors of directly trained parameters."""
    together: dict[str, list[TensorMapping]] = {}
    for mapping in family.mappings(model):
        together.setdefault(mapping.hf_name, []).append(mapping)
    found = {}
    for name, mappings in together.items():
        if any(mapping.name in itself for mapping in mappings):
            arrays = [itself.get(m.name, kernels.get(m.name)) for m in mappings]
            found[BEFORE + name] = to_hf([np.asarray(array) for array in arrays], mappings)
    base = BaseModules(family, model)
    module = f"{BEFORE}{base.names([]).get(str(base.head))}"
    if base.biased and f"{module}.weight" in found:  # store a module with its bias
        bias = itself.get("head/bias", kernels.get("head/bias"))
        found.setdefault(f"{module}.bias", np.asarray(bias))
    return found


def _fields(
    adapter: Adapter,
    ranks: Mapping[str, int],
    scales: Mapping[str, float],
    tensors: Mapping[str, np.ndarray],
) -> dict[str, Json]:
    """Returns the ``adapter_config.json`` of an adapter: the original, or a new one."""
    if "peft" in adapter.origin:
        return dict(adapter.origin["peft"])
    rslora = adapter.origin.get("variant") == "rslora"
    alphas = {
        name: scales[name] * (math.sqrt(rank) if rslora else rank) for name, rank in ranks.items()
    }
    rank = max(set(ranks.values()), key=list(ranks.values()).count)
    alpha = max(set(alphas.values()), key=list(alphas.values()).count)
    of_adapters = tuple(f".{end}" for end in LEAVES)
    # Full names: PEFT matches the ends of names, and many maps are called dense.
    others = [name.removeprefix(BEFORE) for name in tensors if not name.endswith(of_adapters)]
    saved = {name.rpartition(".")[0] for name in others}
    return {
        "peft_type": "LORA",
        "task_type": adapter.origin.get("task_type"),
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": float(adapter.origin.get("dropout", 0.0)),
        "bias": "none",
        "use_rslora": rslora,
        "use_dora": any(name.endswith("lora_magnitude_vector") for name in tensors),
        "target_modules": sorted(ranks),
        "modules_to_save": sorted(saved) or None,
        "rank_pattern": {re.escape(name): r for name, r in ranks.items() if r != rank},
        "alpha_pattern": {re.escape(name): a for name, a in alphas.items() if a != alpha},
    }


def _write(
    folder: Path, tensors: Mapping[str, np.ndarray], fields: Mapping[str, Json], base: str | None
) -> None:
    metadata = {"format": "pt"} | ({} if base is None else {"base_sha256": base})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(dict(tensors), folder / WEIGHTS, metadata=metadata)
        (folder / CONFIG).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise CheckpointError(f"{folder}: cannot be written: {reason}") from None

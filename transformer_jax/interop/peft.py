"""Adapters in the folder format of PEFT: ``adapter_config.json``, ``adapter_model.safetensors``.

PEFT is Hugging Face's library of adapters, https://huggingface.co/docs/peft. Its tensors lie as
PyTorch's linear maps do, ``lora_A`` as [r, in] and ``lora_B`` as [out, r], also where the base
holds a kernel the other way (GPT-2). Several maps of ours that are one tensor there, such as
GPT-2's queries, keys and values, have one adapter there: they share its ``A``, and each has its
outputs of ``B``. The other way, adapters with an ``A`` each become one of the sum of their ranks.
"""

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.functional.low_rank import Variant, lora_scale
from transformer_jax.interop.config_reader import read_config
from transformer_jax.interop.family import Model, ModelFamily, TensorMapping
from transformer_jax.interop.peft_tokens import BEFORE, INDICES, bare_name, read_rows, row_tensors
from transformer_jax.interop.tensor_layouts import from_hf, to_hf
from transformer_jax.numerics import all_finite
from transformer_jax.training.adapters import Adapter

__all__ = ["CONFIG", "WEIGHTS", "is_peft_folder", "read_peft", "write_peft"]

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_LEAVES = {"lora_A.weight": "a", "lora_B.weight": "b", "lora_magnitude_vector": "magnitude"}

# Keys that change nothing of what a stored adapter computes.
_HARMLESS = frozenset({
    "auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "task_type",
    "peft_type", "peft_version", "r", "lora_alpha", "lora_dropout", "target_modules",
    "exclude_modules", "fan_in_fan_out", "use_rslora", "use_dora", "init_lora_weights",
    "modules_to_save", "rank_pattern", "alpha_pattern", "bias", "layers_to_transform",
    "layers_pattern", "loftq_config", "eva_config", "corda_config", "lora_ga_config",
    "megatron_core", "megatron_config", "runtime_config", "qalora_group_size",
    "ensure_weight_tying", INDICES,
})  # fmt: skip


def is_peft_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a folder holds an adapter in PEFT's format."""
    return os.path.isfile(Path(path) / CONFIG)


def read_peft(
    path: str | os.PathLike[str],
    family: ModelFamily,
    model: Model,
    kernels: Mapping[str, np.ndarray],
) -> Adapter:
    """The adapter of a folder, for a model of a published family.

    Args:
        path: The folder.
        family: Of the base.
        model: The base as one of ours.
        kernels: The parameters of the base by name, as DoRA's magnitudes need them.

    Raises:
        CheckpointError: A file is missing or damaged, or a tensor fits nothing of the base.
        ConfigError: It is an adapter of a kind that is not computed here.
    """
    folder = Path(path)
    fields = read_config(folder / CONFIG).values
    _refuse_others(folder, fields)
    tensors, base = _tensors(folder)
    together = _by_module(family, model)
    found: dict[str, dict[str, np.ndarray]] = {}
    scales: dict[str, float] = {}
    modules, others = _grouped(folder, tensors)
    for module, arrays in modules.items():
        mappings = together.get(bare_name(module))
        if mappings is None:
            raise CheckpointError(
                f"{folder}: {module} has an adapter, and is no linear map of the base: it belongs "
                f"to another model"
            )
        rank = arrays["a"].shape[0] if "a" in arrays else 0
        alpha = _patterned(fields.get("alpha_pattern"), module, fields.get("lora_alpha", 8))
        variant: Variant = "rslora" if fields.get("use_rslora") else "lora"
        for mapping, own in _split(folder, module, arrays, mappings, kernels):
            name = mapping.name.removesuffix("/kernel")
            found[name], scales[name] = own, lora_scale(rank, float(alpha), variant)
    tables = {bare_name(m.hf_name.removesuffix(".weight")): m.name for m in family.mappings(model)}
    sizes = {name: kernel.shape for name, kernel in kernels.items()}
    rows, tokens, others = read_rows(folder, fields, others, tables, sizes)
    itself = _themselves(folder, others, family, model, kernels)
    return Adapter(found, scales, itself, base, {"peft": dict(fields)}, rows, tokens)


def _refuse_others(folder: Path, fields: Mapping[str, Any]) -> None:
    if fields.get("peft_type") != "LORA":
        raise ConfigError(
            f"{folder}: an adapter of type {fields.get('peft_type')}: LORA is what is read here"
        )
    if fields.get("bias", "none") != "none":
        raise ConfigError(f"{folder}: trains biases (bias {fields['bias']}): only none is read")
    patterns = fields.get("alpha_pattern") or {}
    alphas = [fields.get("lora_alpha", 8)]
    alphas += patterns.values() if isinstance(patterns, dict) else [None]
    if not all(isinstance(alpha, int | float) and math.isfinite(alpha) for alpha in alphas):
        raise ConfigError(f"{folder}: lora_alpha and the values of alpha_pattern must be numbers")
    for key in patterns:
        try:
            re.compile(rf"(.*\.)?({key})$")
        except re.error as error:
            raise ConfigError(f"{folder}: alpha_pattern {key[:60]!r}: {error}") from None
    for name, value in fields.items():
        if name not in _HARMLESS and value not in (None, False, [], {}):
            raise ConfigError(
                f"{folder}: {name} is {json.dumps(value)[:60]}: adapters with it are not read here"
            )


def _tensors(folder: Path) -> tuple[dict[str, np.ndarray], str | None]:
    """The tensors of a folder, and the checksum of the base if they were written here."""
    path = folder / WEIGHTS
    if not path.is_file():
        raise CheckpointError(
            f"{folder}: has no {WEIGHTS}; other formats run code and are not read"
        )
    try:
        with safe_open(path, "np") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            base = (file.metadata() or {}).get("base_sha256")
    except (OSError, SafetensorError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: damaged: {' '.join(str(error).split())}") from None
    for name, array in tensors.items():
        if not all_finite(array):
            raise CheckpointError(f"{path}: the tensor {name} holds NaN or infinity")
    return tensors, base


def _grouped(
    folder: Path, tensors: Mapping[str, np.ndarray]
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Adapters by module, and the other tensors."""
    modules: dict[str, dict[str, np.ndarray]] = {}
    others: dict[str, np.ndarray] = {}
    for name, array in tensors.items():
        if not name.startswith(BEFORE):
            raise CheckpointError(f"{folder}: the tensor {name} is none of PEFT's")
        plain = name.removeprefix(BEFORE)
        ends = [end for end in _LEAVES if plain.endswith(f".{end}")]
        if ends:
            module = plain.removesuffix(f".{ends[0]}")
            modules.setdefault(module, {})[_LEAVES[ends[0]]] = array
        else:
            others[plain] = array
    return modules, others


def _by_module(family: ModelFamily, model: Model) -> dict[str, list[TensorMapping]]:
    """The kernels that each linear map of theirs consists of, in the order of its outputs."""
    found: dict[str, list[TensorMapping]] = {}
    for mapping in family.mappings(model):
        if mapping.name.endswith("/kernel") and mapping.layout in ("same", "transposed"):
            module = bare_name(mapping.hf_name.removesuffix(".weight"))
            found.setdefault(module, []).append(mapping)
    return {name: sorted(parts, key=lambda m: m.part) for name, parts in found.items()}


def _patterned(pattern: Any, module: str, default: Any) -> Any:
    """The value of a module: that of the first pattern that its name ends with, as in PEFT."""
    for key, value in (pattern or {}).items():
        if re.match(rf"(.*\.)?({key})$", module):
            return value
    return default


def _split(
    folder: Path,
    module: str,
    arrays: Mapping[str, np.ndarray],
    mappings: Sequence[TensorMapping],
    kernels: Mapping[str, np.ndarray],
) -> list[tuple[TensorMapping, dict[str, np.ndarray]]]:
    """The adapter of one tensor of theirs as those of the kernels of ours."""
    shapes = {mapping.name: kernels[mapping.name].shape for mapping in mappings}
    rows = shapes[mappings[0].name][0]
    columns = sum(shape[1] for shape in shapes.values())
    rank = arrays["a"].shape[0] if "a" in arrays else 0
    expected = {"a": (rank, rows), "b": (columns, rank), "magnitude": (columns,)}
    for leaf in ("a", "b"):
        if leaf not in arrays:
            raise CheckpointError(f"{folder}: {module} lacks its lora_{leaf.upper()}")
    for leaf, array in arrays.items():
        if array.shape != expected[leaf]:
            raise CheckpointError(
                f"{folder}: {leaf} of {module} is {list(array.shape)}, and the base needs "
                f"{list(expected[leaf])}: it belongs to another model"
            )
    found, at = [], 0
    for mapping in mappings:
        end = at + shapes[mapping.name][1]
        own = {
            "lora_a": np.ascontiguousarray(arrays["a"].T, np.float32),
            "lora_b": np.ascontiguousarray(arrays["b"][at:end].T, np.float32),
        }
        if "magnitude" in arrays:
            norms = _norms(kernels[mapping.name])
            own["lora_magnitude"] = arrays["magnitude"][at:end].astype(np.float32) - norms
        found.append((mapping, own))
        at = end
    return found


def _norms(kernel: np.ndarray) -> np.ndarray:
    return np.linalg.norm(np.asarray(kernel, np.float32), axis=0)


def _themselves(
    folder: Path,
    others: Mapping[str, np.ndarray],
    family: ModelFamily,
    model: Model,
    kernels: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Parameters that were trained themselves (PEFT's modules_to_save)."""
    known: dict[str, list[TensorMapping]] = {}
    for mapping in family.mappings(model):
        known.setdefault(bare_name(mapping.hf_name), []).append(mapping)
    found = {}
    for name, array in others.items():
        if bare_name(name) not in known:
            raise CheckpointError(f"{folder}: the tensor {name} fits nothing of the base")
        for mapping in known[bare_name(name)]:
            value = from_hf(array, mapping)
            if value.shape != kernels[mapping.name].shape:
                raise CheckpointError(
                    f"{folder}: the tensor {name} is {list(array.shape)}, which does not fit the "
                    f"base: it belongs to another model"
                )
            found[mapping.name] = value
    return found


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
        path: The folder, which is made.
        adapter: The adapter, of layers that are apart.
        family: Of the base.
        model: The base as one of ours, with the prefix that its names have there.
        kernels: The parameters of the base by name.
        base: What ``base_model_name_or_path`` says.

    Raises:
        CheckpointError: It cannot be written.
        ConfigError: A map with an adapter, or a table with trained rows, lies nowhere in the
            family's tensors, or rows are of a bias.
    """
    tensors: dict[str, np.ndarray] = {}
    ranks: dict[str, int] = {}
    scales: dict[str, float] = {}
    left, fan_in_fan_out = set(adapter.params), False
    for mappings in _by_module(family, model).values():
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


def _fused_adapter(
    adapter: Adapter,
    names: Sequence[str],
    mappings: Sequence[TensorMapping],
    kernels: Mapping[str, np.ndarray],
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, float]:
    """One adapter for several maps with the same inputs, and what multiplies it."""
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
            # Another scale than that of the first is a factor of B.
            factor = adapter.scales[name] / scale
            own = own if factor == 1.0 else np.float32(factor) * own
            block[row : row + len(own)] = own
            row += 0 if shared else len(own)
        rows.append(block.T)
    magnitude = None
    if any("lora_magnitude" in adapter.params[name] for name in there):
        parts = [
            _norms(kernels[mapping.name])
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
    """Tensors of the parameters that were trained themselves."""
    together: dict[str, list[TensorMapping]] = {}
    for mapping in family.mappings(model):
        together.setdefault(mapping.hf_name, []).append(mapping)
    found = {}
    for name, mappings in together.items():
        if any(mapping.name in itself for mapping in mappings):
            arrays = [itself.get(m.name, kernels.get(m.name)) for m in mappings]
            found[BEFORE + name] = to_hf([np.asarray(array) for array in arrays], mappings)
    return found


def _fields(
    adapter: Adapter,
    ranks: Mapping[str, int],
    scales: Mapping[str, float],
    tensors: Mapping[str, np.ndarray],
) -> dict[str, Any]:
    """The ``adapter_config.json`` of an adapter: the one it came with, or one that is made."""
    if "peft" in adapter.origin:
        return dict(adapter.origin["peft"])
    rslora = adapter.origin.get("variant") == "rslora"
    alphas = {
        name: scales[name] * (math.sqrt(rank) if rslora else rank) for name, rank in ranks.items()
    }
    rank = max(set(ranks.values()), key=list(ranks.values()).count)
    alpha = max(set(alphas.values()), key=list(alphas.values()).count)
    of_adapters = tuple(f".{end}" for end in _LEAVES)
    # Whole names: PEFT takes each for the end of one, and many maps are called dense.
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
    folder: Path, tensors: Mapping[str, np.ndarray], fields: Mapping[str, Any], base: str | None
) -> None:
    metadata = {"format": "pt"} | ({} if base is None else {"base_sha256": base})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(dict(tensors), folder / WEIGHTS, metadata=metadata)
        (folder / CONFIG).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise CheckpointError(f"{folder}: cannot be written: {reason}") from None

"""Reads adapters from folders in PEFT's format.

Tensors have the layout of PyTorch's linear maps, ``lora_A`` as [r, in] and ``lora_B`` as [out, r],
even if the base stores a kernel transposed (GPT-2). Maps that are one tensor in the base, such as
GPT-2's queries, keys and values, have one adapter there: they share ``A``, and each has its outputs
of ``B``. Adapters of tables, and of an output layer, are merged into the tables.
"""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.core.numerics import all_finite
from transformer_jax.interop.family import Model, ModelFamily, TensorMapping
from transformer_jax.interop.peft_base import as_of_unchanged_base, largest_rank
from transformer_jax.interop.peft_config import CONFIG, PeftConfig, read_peft_config
from transformer_jax.interop.peft_modules import BaseModules, bare_name, check_saved, check_targets
from transformer_jax.interop.peft_tables import Leaves, TableChanges
from transformer_jax.interop.peft_tokens import BEFORE, read_rows
from transformer_jax.interop.tensor_layouts import from_hf
from transformer_jax.interop.wrapped_names import unwrapped_names
from transformer_jax.models.lora import not_finite
from transformer_jax.training.adapter_parts import Adapter, AdapterOrigin

__all__ = ["LEAVES", "WEIGHTS", "is_peft_folder", "kernel_norms", "read_peft"]

WEIGHTS = "adapter_model.safetensors"
LEAVES = {"lora_A.weight": "a", "lora_B.weight": "b", "lora_magnitude_vector": "magnitude"}
_OF_TABLES = {"lora_embedding_A": "table_a", "lora_embedding_B": "table_b"}
_BASE = ".base_layer."  # in the names of a module's own tensors, if it has an adapter


def is_peft_folder(path: str | os.PathLike[str]) -> bool:
    """Returns whether a folder has an adapter in PEFT's format."""
    return os.path.isfile(Path(path) / CONFIG)


def read_peft(
    path: str | os.PathLike[str],
    family: ModelFamily,
    model: Model,
    kernels: Mapping[str, np.ndarray],
) -> Adapter:
    """Reads the adapter of a folder, for a model of a published family.

    Args:
        path: The folder.
        family: The family of the base.
        model: The base as one of our models.
        kernels: The parameters of the base by name.

    Returns:
        The adapter. If it changes only a table or only the tied output layer, ``itself`` has the
        ``head/table`` that the base lacks.

    Raises:
        CheckpointError: A file is missing or damaged, or a tensor is missing or does not match the
            base.
        ConfigError: The kind of adapter is not supported, or its configuration contradicts its
            tensors.
    """
    folder = Path(path)
    config = read_peft_config(folder)
    tensors, checksum = _tensors(folder)
    modules, others = _grouped(folder, tensors)
    base = BaseModules(_as_named(family, model, {*modules, *others}), model)
    names = base.names(modules)
    check_targets(config, modules, base, names)
    adapters = {bare_name(name): leaves for name, leaves in modules.items()}
    trained = read_rows(config, others, base, kernels)
    plain, replaced = _plain_names(folder, trained.rest, set(adapters))
    saved = check_saved(config, plain, base, names)
    itself, tables = _themselves(folder, plain, base, kernels)
    if twice := trained.modules & {*tables, *adapters}:
        raise CheckpointError(f"{folder}: trains rows of {min(twice)}, but also changes all of it")
    own = {name: table for name, table in tables.items() if f"{name}.weight" in saved}
    own |= trained.tables
    put = {name: table for name, table in tables.items() if name not in own}
    for name, leaves in adapters.items():
        _check_leaves(config, names[name], leaves, _weight_shape(name, base, kernels))
    in_tables = {name: leaves for name, leaves in adapters.items() if name not in base.linear}
    found, scales = {}, {}
    for name in adapters.keys() - in_tables.keys():
        whole, known = names[name], {**kernels, **itself}
        of = _of_published(
            config, whole, adapters[name], base.linear[name], known, began=name in replaced
        )
        for mapping, parts in _split(of, base.linear[name], known):
            at = mapping.name.removesuffix("/kernel")
            found[at], scales[at] = parts, config.scale(whole)
    itself |= TableChanges(config, base, names, kernels, in_tables, own, put).tables()
    for name, array in itself.items():
        if not all_finite(array):
            raise CheckpointError(f"{folder}: {not_finite(name)}")
    # Recomputed tensors cannot be exported with their original configuration.
    shared = base.tied and any(name in own for name in (base.embedding, base.head))
    same = not (in_tables or shared or trained.tables) and config.initialization is None
    origin: AdapterOrigin = {"peft": dict(config.fields)} if same else _origin(config)
    return Adapter(found, scales, itself, checksum, origin, trained.rows, trained.tokens)


def _as_named(family: ModelFamily, model: Model, names: set[str]) -> ModelFamily:
    """Returns the family with the module names of a file: of current or earlier transformers."""
    renamed = dataclasses.replace(family, mappings=lambda model: _as_modules(family, model))

    def matching(other: ModelFamily) -> int:
        known = [mapping.hf_name for mapping in other.mappings(model)]
        known += [name.removesuffix(".weight") for name in known]
        return len({*map(bare_name, known)} & {*map(bare_name, names)})

    return renamed if matching(renamed) > matching(family) else family


def _as_modules(family: ModelFamily, model: Model) -> list[TensorMapping]:
    """Returns the mappings of a model with module names of current transformers."""
    found = []
    for mapping in family.mappings(model):
        name = mapping.hf_name
        for pattern, instead in family.module_names:
            name = re.sub(pattern, instead, name)
        found.append(mapping._replace(hf_name=name))
    return found


def _origin(config: PeftConfig) -> AdapterOrigin:
    """Returns the settings of an adapter with recomputed tensors."""
    variant = "rslora" if config.fields.get("use_rslora") else "lora"
    return {"variant": variant, "task_type": config.fields.get("task_type")}


def _tensors(folder: Path) -> tuple[dict[str, np.ndarray], str | None]:
    """Reads the tensors of a folder, and the checksum of the base if written here."""
    path = folder / WEIGHTS
    if not path.is_file():
        raise CheckpointError(
            f"{folder}: has no {WEIGHTS}; other formats execute code and are not supported"
        )
    try:
        with safe_open(path, "np") as file:
            names = unwrapped_names(file.keys())
            tensors = {name: file.get_tensor(there) for name, there in names.items()}
            base = (file.metadata() or {}).get("base_sha256")
    except (OSError, SafetensorError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: damaged: {' '.join(str(error).split())}") from None
    for name, array in tensors.items():
        if not all_finite(array):
            raise CheckpointError(f"{path}: the tensor {name} contains NaN or infinity")
    return tensors, base


def _grouped(
    folder: Path, tensors: Mapping[str, np.ndarray]
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Returns adapters by module, and the remaining tensors."""
    modules: dict[str, dict[str, np.ndarray]] = {}
    others: dict[str, np.ndarray] = {}
    leaves = LEAVES | _OF_TABLES
    for name, array in tensors.items():
        if not name.startswith(BEFORE):
            raise CheckpointError(f"{folder}: the tensor {name} is not from PEFT")
        plain = name.removeprefix(BEFORE)
        ends = [end for end in leaves if plain.endswith(f".{end}")]
        if ends:
            module = plain.removesuffix(f".{ends[0]}")
            modules.setdefault(module, {})[leaves[ends[0]]] = array
        else:
            others[plain] = array
    return modules, others


def _plain_names(
    folder: Path, tensors: Mapping[str, np.ndarray], adapted: set[str]
) -> tuple[dict[str, np.ndarray], set[str]]:
    """Returns further tensors by bare names, and modules stored with both base and adapter."""
    plain: dict[str, np.ndarray] = {}
    replaced = set()
    for name, array in tensors.items():
        module, inside, leaf = name.rpartition(_BASE)
        if not inside:
            module, _, leaf = name.rpartition(".")
        elif bare_name(module) in adapted:
            replaced.add(bare_name(module))
        if bool(inside) != (bare_name(module) in adapted):
            why = "no adapter" if inside else f"an adapter, so it must be called {_BASE[1:-1]}"
            raise CheckpointError(f"{folder}: the tensor {name}: {module} has {why}")
        plain[f"{bare_name(module)}.{leaf}"] = array
    return plain, replaced


def _themselves(
    folder: Path,
    tensors: Mapping[str, np.ndarray],
    base: BaseModules,
    kernels: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns directly stored parameters, and tables by bare name of their module."""
    found: dict[str, np.ndarray] = {}
    tables: dict[str, np.ndarray] = {}
    for name, array in tensors.items():
        module = name.removesuffix(".weight")
        table = base.table_of(module)
        if name not in base.parameters and table is None:
            raise CheckpointError(f"{folder}: the tensor {name} does not match the base")
        mappings = base.parameters.get(name) or [TensorMapping(str(table), name)]
        for mapping in mappings:
            value = from_hf(array, mapping)
            if value.shape != kernels[mapping.name].shape:
                raise CheckpointError(
                    f"{folder}: the tensor {name} is {list(array.shape)}, which does not match the "
                    f"base: it belongs to another model"
                )
            if table is None and not np.array_equal(found.get(mapping.name, value), value):
                raise CheckpointError(
                    f"{folder}: the tensor {name} differs from another tensor of the same parameter"
                )
            if table is None:
                found[mapping.name] = value
            else:
                tables[module] = value
    return found, tables


def _weight_shape(
    name: str, base: BaseModules, kernels: Mapping[str, np.ndarray]
) -> tuple[int, int]:
    """Returns the shape of the weight of a module with an adapter, [out, in]."""
    if name in base.linear:
        shapes = [kernels[mapping.name].shape for mapping in base.linear[name]]
        return sum(shape[1] for shape in shapes), shapes[0][0]
    rows, columns = kernels[base.table_of(name) or "embedding/table"].shape
    return rows, columns


def _check_leaves(config: PeftConfig, module: str, leaves: Leaves, shape: tuple[int, int]) -> None:
    """Refuses an adapter with missing tensors, or with shapes that contradict its configuration.

    Raises:
        CheckpointError: A tensor is missing or has the wrong shape.
        ConfigError: DoRA is used on a table.
    """
    out, inputs = shape
    rank, dora = config.rank(module), bool(config.fields.get("use_dora"))
    table = "table_a" in leaves or "table_b" in leaves
    if table and dora:
        raise ConfigError(f"{config.folder}: {module} has DoRA of a table, which is not supported")
    if not table:
        rank = largest_rank(config.initialization, rank, shape)
    wanted: dict[str, tuple[int, ...]] = {"table_a": (rank, out), "table_b": (inputs, rank)}
    if not table:
        wanted = {"a": (rank, inputs), "b": (out, rank)} | ({"magnitude": (out,)} if dora else {})
    named = {leaf: end.removesuffix(".weight") for end, leaf in (LEAVES | _OF_TABLES).items()}
    for leaf in {**wanted, **leaves}:
        if leaf not in leaves:
            reason = ", but use_dora is true" if leaf == "magnitude" else ""
            raise CheckpointError(f"{config.folder}: {module} lacks its {named[leaf]}{reason}")
        if leaf not in wanted:
            reason = "use_dora is false" if leaf == "magnitude" else "the module is another kind"
            raise ConfigError(f"{config.folder}: {module} has a {named[leaf]}, but {reason}")
        if leaves[leaf].shape != wanted[leaf]:
            raise CheckpointError(
                f"{config.folder}: {named[leaf]} of {module} is {list(leaves[leaf].shape)}, but "
                f"rank {rank} in {CONFIG} and the base need {list(wanted[leaf])}: they belong to "
                f"another model, or the file was changed"
            )


def _of_published(
    config: PeftConfig,
    module: str,
    leaves: Leaves,
    mappings: Sequence[TensorMapping],
    kernels: Mapping[str, np.ndarray],
    *,
    began: bool,
) -> Leaves:
    """Returns the adapter for the published base, even if its initialization changed the base.

    ``began`` means that the kernels are already changed, as stored in the folder.
    """
    kind = config.initialization
    if kind is None or began:
        return leaves
    weight = np.concatenate([np.asarray(kernels[one.name]) for one in mappings], axis=1).T
    where = f"{config.folder}: {module}"
    return as_of_unchanged_base(
        where, kind, leaves, weight, config.scale(module),
        stored_inputs_first=mappings[0].layout == "same",
    )  # fmt: skip


def _split(
    leaves: Leaves, mappings: Sequence[TensorMapping], kernels: Mapping[str, np.ndarray]
) -> list[tuple[TensorMapping, dict[str, np.ndarray]]]:
    """Splits the adapter of one of their tensors into adapters of our kernels."""
    found, at = [], 0
    for mapping in mappings:
        end = at + kernels[mapping.name].shape[1]
        own = {
            "lora_a": np.ascontiguousarray(leaves["a"].T, np.float32),
            "lora_b": np.ascontiguousarray(leaves["b"][at:end].T, np.float32),
        }
        if "magnitude" in leaves:
            norms = kernel_norms(kernels[mapping.name])
            own["lora_magnitude"] = leaves["magnitude"][at:end].astype(np.float32) - norms
        found.append((mapping, own))
        at = end
    return found


def kernel_norms(kernel: np.ndarray) -> np.ndarray:
    """Returns the norm of each column of a kernel, in float32.

    Example:
        >>> kernel_norms(np.array([[3.0, 0.0], [4.0, 2.0]]))
        array([5., 2.], dtype=float32)
    """
    return np.linalg.norm(np.asarray(kernel, np.float32), axis=0)

"""Writes weights as .safetensors files, whole or in shards, atomically."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.core.output_files import draft_file
from transformer_jax.interop.safetensors_header import TYPES, name_problem
from transformer_jax.interop.tensor_files import INDEX, WEIGHTS

__all__ = ["write_tensors"]


def write_tensors(
    path: Path, tensors: Mapping[str, np.ndarray], *, shard_bytes: int | None = None
) -> None:
    """Writes tensors as ``model.safetensors``, or in shards with an index, into a folder.

    After a crash, either the old or all of the new weights can be opened. Shards are written only
    without existing weights, since several files cannot be replaced atomically.

    Args:
        path: The folder, created if missing.
        tensors: Arrays by name.
        shard_bytes: Maximum number of bytes in a file; a larger tensor has a separate file. None
            writes one file.

    Raises:
        CheckpointError: The format does not support a name or type, weights exist, or the disk is
            full.
    """
    if shard_bytes is not None and shard_bytes < 1:
        raise ConfigError(f"shard_bytes {shard_bytes}: at least 1")
    known = {dtype: name for name, dtype in TYPES.items()}
    for name, array in tensors.items():
        if problem := name_problem(name):
            raise CheckpointError(f"{path}: the tensor name {name[:80]!r} {problem}")
        if array.dtype.newbyteorder("<") not in known:
            raise CheckpointError(f"{path}: {name!r} is {array.dtype}, which is not supported")
    groups = _groups(tensors, shard_bytes)
    existing = [name for name in (WEIGHTS, INDEX) if os.path.lexists(path / name)]
    if INDEX in existing or (existing and len(groups) > 1):
        raise CheckpointError(f"{path}: already holds {existing[-1]}: choose an empty folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
        if len(groups) == 1:
            _save(path / WEIGHTS, tensors)
        else:
            _save_shards(path, tensors, groups)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise CheckpointError(f"{path}: cannot be written: {reason}") from None


def _groups(tensors: Mapping[str, np.ndarray], most: int | None) -> list[list[str]]:
    """Returns names by file: in order, each file as full as possible."""
    groups: list[list[str]] = [[]]
    size = 0
    for name, array in tensors.items():
        if most is not None and groups[-1] and size + array.nbytes > most:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += array.nbytes
    return groups


def _save_shards(path: Path, tensors: Mapping[str, np.ndarray], groups: list[list[str]]) -> None:
    where: dict[str, str] = {}
    for number, names in enumerate(groups, 1):
        shard = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        _save(path / shard, {name: tensors[name] for name in names})
        where |= dict.fromkeys(names, shard)
    total = sum(array.nbytes for array in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    _write(path / INDEX, lambda draft: draft.write_text(json.dumps(index, indent=2) + "\n"))


def _save(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    # The library writes the memory directly, so it must be contiguous.
    ordered = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    _write(path, lambda draft: save_file(ordered, draft, metadata={"format": "pt"}))


def _write(path: Path, fill: Callable[[Path], object]) -> None:
    """Writes a file under a temporary name, and renames it once it is on disk."""
    with draft_file(path) as draft:
        draft.touch()
        usual = draft.stat().st_mode
        fill(draft)
        draft.chmod(usual)  # safetensors creates files that only the owner can read

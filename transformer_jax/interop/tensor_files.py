"""Reads ``.safetensors`` files, checked before any allocation.

Other formats are refused, since a pickle can execute code.
"""

import contextlib
import dataclasses
import io
import mmap
import os
import re
import stat
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import numpy as np

from transformer_jax.core.errors import CheckpointError, no_such_run
from transformer_jax.interop.bounded_json import Cursor
from transformer_jax.interop.safetensors_header import (
    LARGEST_HEADER,
    MOST_KEYS,
    TYPES,
    Entry,
    check_cover,
    name_problem,
    read_header,
)
from transformer_jax.interop.tensor_memory import LINE, Memory, aligned
from transformer_jax.interop.wrapped_names import unwrapped_names

__all__ = ["INDEX", "WEIGHTS", "Entry", "TensorFolder", "inside", "open_tensors"]

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

_PIECE = 1 << 20
_LARGE = 1 << 20  # minimum size of tensors to memory-map, in bytes
_OTHERS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.safetensors")


@dataclasses.dataclass(frozen=True)
class TensorFolder:
    """All tensors of a Hugging Face checkpoint by name, not in memory until read.

    Attributes:
        path: The folder.
        entries: Type, shape and location of each tensor, by its name without the prefixes of a
            wrapped model. Sizes are not validated, so compare shapes with expected ones before
            reading.
    """

    path: Path
    entries: Mapping[str, Entry]
    _stamps: Mapping[Path, tuple[int, ...]] = dataclasses.field(repr=False)

    @property
    def nbytes(self) -> int:
        """Total bytes of all tensors."""
        return sum(entry.stop - entry.start for entry in self.entries.values())

    def read(self, name: str, memory: Memory = aligned) -> np.ndarray:
        """Reads one tensor bit for bit, without checking for NaN.

        Args:
            name: Name of the tensor.
            memory: Function that allocates the array to read into.

        Raises:
            CheckpointError: The tensor does not exist, or the file changed since it was opened.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise CheckpointError(f"{self.path}: has no tensor {name!r}")
        try:
            array = memory(entry.shape, TYPES[entry.dtype])
            raw = array.reshape(-1).view(np.uint8).data
            with self._open(entry.file) as file:
                file.seek(entry.start)
                if file.readinto(raw) != entry.stop - entry.start:
                    raise CheckpointError(f"{entry.file}: ends before its tensor {name!r}")
        except MemoryError:
            size = (entry.stop - entry.start) / 2**30
            raise CheckpointError(
                f"{entry.file}: no memory for the {size:.1f} GiB of {name!r}"
            ) from None
        if entry.dtype == "BOOL" and array.size and np.max(array.view(np.uint8)) > 1:
            raise CheckpointError(f"{entry.file}: {name!r} has bytes that are neither 0 nor 1")
        return array

    def mapped(self) -> dict[str, np.ndarray]:
        """Returns large tensors, memory-mapped, by name.

        They take no time or memory until used. Writing to one writes to a copy of the page. As with
        all mapped files, truncating the file while it is in use kills the process; replacing it is
        harmless.

        Omitted are tensors that must be read: small ones, ones without the alignment for JAX on a
        CPU (in seven of eight files, all large ones), and files that the system cannot map.

        Raises:
            CheckpointError: A file changed since it was opened.
        """
        files: dict[Path, list[str]] = {}
        for name, entry in self.entries.items():
            large = entry.stop - entry.start >= _LARGE
            # Booleans are read, which checks every value.
            if large and entry.start % LINE == 0 and entry.dtype != "BOOL":
                files.setdefault(entry.file, []).append(name)
        found = {}
        for path, names in files.items():
            with self._open(path) as file:
                try:
                    pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
                except (OSError, ValueError):
                    continue
            raw = np.frombuffer(pages, np.uint8)
            for name in names:
                entry = self.entries[name]
                array = raw[entry.start : entry.stop].view(TYPES[entry.dtype])
                found[name] = array.reshape(entry.shape)
        return found

    @contextlib.contextmanager
    def _open(self, path: Path) -> Iterator[io.BufferedReader]:
        """Opens one of the files, if it has not changed."""
        try:
            with path.open("rb") as file:
                if _stamp(file) != self._stamps[path]:
                    raise CheckpointError(f"{path}: changed while it was being read")
                yield file
        except OSError as error:
            raise _unreadable(path, error) from None

    def same(self, one: str, two: str) -> bool:
        """Returns whether two tensors are bitwise equal, reading in parts.

        Raises:
            CheckpointError: A file cannot be read.
        """
        a, b = self.entries[one], self.entries[two]
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        try:
            with a.file.open("rb") as first, b.file.open("rb") as second:
                first.seek(a.start)
                second.seek(b.start)
                left = a.stop - a.start
                while left > 0:
                    size = min(left, _PIECE)
                    if first.read(size) != second.read(size):
                        return False
                    left -= size
        except OSError as error:
            raise _unreadable(a.file, error) from None
        return True


def open_tensors(folder: str | os.PathLike[str]) -> TensorFolder:
    """Opens the tensors of ``model.safetensors``, or of the shards in its index.

    Only headers are read and checked. This takes the memory of the headers and half a kilobyte per
    tensor. Links may lead elsewhere in the folder, or from a snapshot of the Hugging Face cache to
    its blobs.

    Raises:
        CheckpointError: Files are missing, damaged or hostile, or in another format; then the
            message has the command to convert them.
    """
    path = Path(folder)
    if path.is_file():
        raise CheckpointError(f"{path}: is a file: name its folder")
    if not path.is_dir():
        raise CheckpointError(no_such_run(path))
    stamps: dict[Path, tuple[int, ...]] = {}
    if os.path.lexists(path / WEIGHTS):
        entries = _tensors(path, WEIGHTS, stamps)
    elif os.path.lexists(path / INDEX):
        entries = _shards(path, stamps)
    else:
        raise CheckpointError(_absence(path))
    try:
        names = unwrapped_names(entries)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
    entries = {name: entries[there] for name, there in names.items()}
    return TensorFolder(path, MappingProxyType(entries), MappingProxyType(stamps))


def _tensors(folder: Path, name: str, stamps: dict[Path, tuple[int, ...]]) -> dict[str, Entry]:
    """Returns the entries of one file, and records its stamp."""
    path = inside(folder, name)
    try:
        with path.open("rb") as file:
            stamps[path] = stamp = _stamp(file)
            size = stamp[2]
            start = file.read(9)
            length = struct.unpack("<Q", start[:8])[0] if len(start) == 9 else size
            if len(start) < 9 or start[8:] != b"{" or not 2 <= length <= size - 8:
                raise ValueError("it does not begin with the length of a header and {")
            if length > LARGEST_HEADER:
                raise ValueError(f"its header claims {length} bytes, more than {LARGEST_HEADER}")
            file.seek(8)
            entries = read_header(file.read(length), path, 8 + length)
        check_cover(entries, 8 + length, size)
    except OSError as error:
        raise _unreadable(path, error) from None
    except ValueError as error:  # includes invalid Unicode and JSON
        raise CheckpointError(f"{path}: is not a safetensors file, or damaged: {error}") from None
    return entries


def _shards(folder: Path, stamps: dict[Path, tuple[int, ...]]) -> dict[str, Entry]:
    index = inside(folder, INDEX)
    try:
        if index.stat().st_size > LARGEST_HEADER:
            raise ValueError("it is too long")
        where = _weight_map(index.read_bytes())
    except OSError as error:
        raise _unreadable(index, error) from None
    except ValueError as error:
        raise CheckpointError(f"{index}: is not an index of shards, or damaged: {error}") from None
    entries: dict[str, Entry] = {}
    for shard in sorted(set(where.values())):
        for name, entry in _tensors(folder, shard, stamps).items():
            if where.get(name) != shard:
                told = where.get(name, "no shard")
                raise CheckpointError(f"{index}: puts {name!r} in {told}, but {shard} also has it")
            entries[name] = entry
    for name in where.keys() - entries.keys():
        raise CheckpointError(f"{index}: puts {name!r} in {where[name]}, which does not have it")
    return {name: entries[name] for name in where}


def _weight_map(data: bytes) -> dict[str, str]:
    cursor = Cursor(data, MOST_KEYS)
    where: dict[str, str] | None = None
    for part in cursor.members():
        if part == "metadata":
            for _ in cursor.members():
                cursor.scalar()
        elif part == "weight_map":
            where = {name: _shard_name(cursor.text()) for name in cursor.members()}
        else:
            raise ValueError(f"it has {part[:40]!r} besides metadata and weight_map")
    cursor.end()
    if not where:
        raise ValueError("it has no weight_map")
    return where


def _shard_name(name: str) -> str:
    if name_problem(name) or name.startswith(".") or not name.endswith(".safetensors"):
        raise ValueError(f"{name[:80]!r} is not the plain name of a .safetensors file")
    return name


def inside(folder: Path, name: str) -> Path:
    """Returns the path of a regular file that is in ``folder`` even after following links."""
    path = folder / name
    try:
        root, real = folder.resolve(strict=True), path.resolve(strict=True)
        ordinary = stat.S_ISREG(real.stat().st_mode)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file, although it is named") from None
    except (OSError, RuntimeError) as error:  # RuntimeError: circular links, before Python 3.13
        raise _unreadable(path, error) from None
    # The Hugging Face cache: <entry>/snapshots/<revision>/file -> <entry>/blobs/<hash>, also from
    # directories of a revision.
    cached = any(
        part.parent.name == "snapshots" and real.parent == part.parents[1] / "blobs"
        for part in (root, *root.parents)
    )
    if not cached and not real.is_relative_to(root):
        raise CheckpointError(f"{path}: is a link that leaves the folder: copy the file into it")
    if not ordinary:
        raise CheckpointError(f"{path}: is not a regular file")
    return path


def _stamp(file: BinaryIO) -> tuple[int, ...]:
    """Returns values that change when a file is replaced or written; index 2 is the size."""
    facts = os.fstat(file.fileno())
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}")


def _absence(folder: Path) -> str:
    """Describes a folder without the expected weights, and the remedy."""
    found = sorted(path.name for kind in _OTHERS for path in folder.glob(kind))
    missing = f"{folder}: has neither {WEIGHTS} nor {INDEX}"
    if not found:
        return missing
    if found[0].endswith(".safetensors"):
        return f"{missing}, but {found[0]}: rename it if it is the model"
    name = str(folder) if re.fullmatch(r"[\w./ -]+", str(folder)) else "FOLDER"
    # The class in the config, since AutoModel would omit the head.
    command = (
        f"import transformers as t; name = t.AutoConfig.from_pretrained({name!r}).architectures[0];"
        f" getattr(t, name).from_pretrained({name!r})"
        f".save_pretrained('NEW', safe_serialization=True)"
    )
    return (
        f"{missing}, but {found[0]}, which is not read because such files can execute code: "
        f'convert it, if you trust it, with  python -c "{command}"'
    )

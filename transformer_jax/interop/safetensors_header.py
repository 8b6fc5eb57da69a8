"""Checks of the header of a ``.safetensors`` file."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np

from transformer_jax.interop.bounded_json import Cursor

__all__ = [
    "FLOATS",
    "LARGEST_HEADER",
    "MOST_KEYS",
    "TYPES",
    "Entry",
    "check_cover",
    "name_problem",
    "read_header",
]

TYPES: Mapping[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "C64": np.dtype("<c8"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
FLOATS = ("F64", "F32", "F16", "BF16")  # data types of weights
LARGEST_HEADER = 100_000_000  # limit of the format
MOST_KEYS = 40_000  # four per tensor; large models have some thousand tensors
_LARGEST = 1 << 62  # elements and bytes of one tensor


class Entry(NamedTuple):
    """The location of a tensor: bytes ``start`` to ``stop``, exclusive, of ``file``."""

    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    stop: int


def read_header(data: bytes, path: Path, base: int) -> dict[str, Entry]:
    """Reads the tensors of a header.

    Args:
        data: The header.
        path: The file.
        base: Offset of the first tensor in the file.

    Raises:
        ValueError: The header is invalid.
    """
    if 4 * data.count(b'"data_offsets"') > MOST_KEYS:  # checked before they are read one by one
        raise ValueError(f"it has too many keys: at most {MOST_KEYS // 4:,} tensors are supported")
    cursor = Cursor(data, MOST_KEYS)
    entries = {}
    for name in cursor.members():
        if name == "__metadata__":
            for _ in cursor.members():
                cursor.text()
            continue
        if problem := name_problem(name):
            raise ValueError(f"the tensor name {name[:80]!r} {problem}")
        fields: dict[str, object] = {}
        for field in cursor.members():
            fields[field] = cursor.text() if field == "dtype" else cursor.values()
        try:
            entries[name] = _entry(fields, path, base)
        except ValueError as error:
            raise ValueError(f"the tensor {name[:80]!r} {error}") from None
    cursor.end()
    return entries


def _entry(fields: dict[str, object], path: Path, base: int) -> Entry:
    if set(fields) != {"dtype", "shape", "data_offsets"}:
        raise ValueError("has fields other than dtype, shape and data_offsets")
    dtype = str(fields["dtype"])
    if dtype not in TYPES:
        raise ValueError(f"is of type {dtype[:20]!r}: known are {', '.join(TYPES)}")
    shape, offsets = _naturals(fields["shape"]), _naturals(fields["data_offsets"])
    if shape is None or len(shape) > 32:
        raise ValueError("has a shape that is not at most 32 natural numbers")
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError("has data_offsets that are not two natural numbers in order")
    nbytes = TYPES[dtype].itemsize
    for length in shape:  # also with zeros: [0, 2**60, 2**60] is not an array
        nbytes *= max(length, 1)
        if nbytes > _LARGEST:
            raise ValueError("has too large a shape")
    nbytes = 0 if 0 in shape else nbytes
    if offsets[1] - offsets[0] != nbytes:
        raise ValueError(f"needs {nbytes} bytes and has {offsets[1] - offsets[0]}")
    return Entry(dtype, shape, path, base + offsets[0], base + offsets[1])


def _naturals(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    # JSON's true is an int in Python.
    return tuple(value) if all(type(n) is int and 0 <= n < _LARGEST for n in value) else None


def name_problem(name: str) -> str | None:
    """Returns the reason why a tensor name is invalid, or None.

    Example:
        >>> name_problem("encoder.weight"), name_problem("../weight")
        (None, 'has parts of a path')
    """
    if not name or name == "__metadata__" or len(name) > 1000:
        return "is empty, reserved or too long"
    if not name.isprintable():
        return "has unprintable characters"
    if ".." in name or "/" in name or "\\" in name:
        return "has parts of a path"
    return None


def check_cover(entries: Mapping[str, Entry], start: int, size: int) -> None:
    """Checks that tensors fill the file from the header to its end without gaps.

    Raises:
        ValueError: Tensors overlap, or leave gaps.
    """
    at = start
    for name, entry in sorted(entries.items(), key=lambda item: item[1][3:]):
        if entry.start != at:
            what = "overlaps another tensor" if entry.start < at else "follows a gap"
            raise ValueError(f"the tensor {name[:80]!r} {what}")
        at = entry.stop
    if at != size:
        raise ValueError(f"its tensors end at byte {at}, the file at {size}")

"""Loading of ``.npy`` and ``.npz`` files, with sizes checked before memory is allocated."""

import io
import math
import zipfile
from typing import IO, Any

import numpy as np

__all__ = ["load_arrays"]

# The largest unpacked size of an archive, absolute and relative to its own. Zeros compress a
# thousandfold, meaningful numbers rarely tenfold.
_MOST_UNPACKED = 1 << 28
_MOST_TIMES = 16


def load_arrays(file: io.BufferedIOBase) -> Any:
    """Loads an array, or an archive of arrays, like ``numpy.load``.

    Every header is compared with the bytes that follow it, so that a damaged or forged one
    allocates no memory.

    Args:
        file: An open, seekable file.

    Raises:
        ValueError: The file is truncated, a header gives another size, or NumPy cannot read it.
        zipfile.BadZipFile: The archive is damaged.

    Example:
        >>> import io
        >>> np.save(file := io.BytesIO(), np.arange(3))
        >>> load_arrays(io.BytesIO(file.getvalue()))
        array([0, 1, 2])
        >>> load_arrays(io.BytesIO(file.getvalue()[:-1]))
        Traceback (most recent call last):
        ...
        ValueError: an array [3] of int64 takes 24 bytes, and 23 are there
    """
    size = file.seek(0, 2)
    file.seek(0)
    archive = file.read(2) == b"PK"
    file.seek(0)
    if archive:
        _check_members(file, size)
    else:
        _check_array(file, size)
    file.seek(0)
    return np.load(file, allow_pickle=False)


def _check_members(file: io.BufferedIOBase, size: int) -> None:
    most = max(_MOST_UNPACKED, _MOST_TIMES * size)
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if member.file_size > most:
                raise ValueError(
                    f"{member.filename} unpacks from {member.compress_size:,} to "
                    f"{member.file_size:,} bytes, but at most {most:,} are allowed"
                )
            try:
                with archive.open(member) as inside:
                    _check_array(inside, member.file_size)
            except ValueError as error:
                raise ValueError(f"{member.filename}: {error}") from None


def _check_array(file: IO[bytes] | io.BufferedIOBase, size: int) -> None:
    """Refuses a header that does not match the bytes after it."""
    version = np.lib.format.read_magic(file)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"version {version[0]}.{version[1]} of the format is not read")
    shape, _, dtype = readers[version](file)
    if dtype.hasobject or not dtype.itemsize or min(shape, default=0) < 0:
        raise ValueError(f"an array {list(shape)} of {dtype} does not hold numbers")
    needed, there = math.prod(shape) * dtype.itemsize, size - file.tell()
    if needed != there:
        raise ValueError(
            f"an array {list(shape)} of {dtype} takes {needed:,} bytes, and {there:,} are there"
        )

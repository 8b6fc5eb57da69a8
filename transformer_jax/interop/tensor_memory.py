"""Memory that JAX on a CPU can use without a copy."""

import math
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike

__all__ = ["LINE", "Memory", "Shared", "aligned"]

LINE = 64  # required alignment of arrays in bytes

# (shape, dtype) -> uninitialized array
Memory = Callable[[tuple[int, ...], DTypeLike], np.ndarray]

_SMALL, _LARGE = 1 << 16, 1 << 22  # limits of array sizes in bytes
_PIECES = (1 << 20, 1 << 25)  # sizes of shared pieces for small and medium arrays, in bytes


def aligned(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Returns an uninitialized array in memory that JAX on a CPU can use without a copy.

    Without alignment to 64 bytes, JAX would make a copy, with both in memory temporarily.

    Example:
        >>> aligned((3, 5), np.float32).ctypes.data % 64
        0
    """
    return _Piece(_size(shape, dtype)).take(shape, dtype)


class Shared:
    """Allocates arrays like :func:`aligned`, many of them in shared pieces of memory.

    The system provides large pieces in large pages, faster than many small ones. A piece is
    released with the last of its arrays; so arrays of different sizes do not share one, since small
    arrays, such as biases, often outlive kernels whose layout is changed. Thread-safe.

    Example:
        >>> memory = Shared()
        >>> first, second = memory((3,), np.float32), memory((2, 5), np.float32)
        >>> second.ctypes.data - first.ctypes.data
        64
    """

    def __init__(self) -> None:
        self._pieces = [_Piece(0), _Piece(0)]
        self._lock = threading.Lock()

    def __call__(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """Returns an uninitialized array.

        Raises:
            MemoryError: There is not enough memory.
        """
        size = _size(shape, dtype)
        if size >= _LARGE:
            return aligned(shape, dtype)
        kind = int(size >= _SMALL)
        with self._lock:
            if self._pieces[kind].left < size:
                self._pieces[kind] = _Piece(_PIECES[kind])
            return self._pieces[kind].take(shape, dtype)


class _Piece:
    """Memory from which arrays are allocated in sequence."""

    def __init__(self, nbytes: int):
        self._raw = np.empty(nbytes + LINE, np.uint8)
        self._at = -self._raw.ctypes.data % LINE
        self.left = nbytes

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """Returns the next array, for which there must be room."""
        size, length = _size(shape, dtype), math.prod(shape) * np.dtype(dtype).itemsize
        start = self._at
        self._at, self.left = start + size, self.left - size
        return self._raw[start : start + length].view(dtype).reshape(shape)


def _size(shape: tuple[int, ...], dtype: DTypeLike) -> int:
    """Returns the bytes of an array, rounded up to a multiple of 64."""
    return -(-math.prod(shape) * np.dtype(dtype).itemsize // LINE) * LINE

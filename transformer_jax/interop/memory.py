"""Memory that JAX on a CPU takes over as it is, without a copy."""

import math
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike

__all__ = ["LINE", "Memory", "Shared", "aligned"]

LINE = 64  # bytes, at a multiple of which arrays have to begin

# Makes an array of a shape and a type, whose contents are arbitrary.
Memory = Callable[[tuple[int, ...], DTypeLike], np.ndarray]

_SMALL, _LARGE = 1 << 16, 1 << 22  # bytes of arrays
_PIECES = (1 << 20, 1 << 25)  # bytes of what small and middle-sized ones share


def aligned(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """An array whose contents are arbitrary, in memory that JAX on a CPU takes over as it is.

    Anywhere else than at a multiple of 64 bytes it makes a copy, and holds both for a moment.

    Example:
        >>> aligned((3, 5), np.float32).ctypes.data % 64
        0
    """
    return _Piece(_size(shape, dtype)).take(shape, dtype)


class Shared:
    """Makes arrays as :func:`aligned` does, many of which share a piece of memory.

    The system hands large pieces over in large pages, in less time than many small ones. A piece
    is given back when the last of its arrays is gone; so arrays of unlike size share none, as
    small ones, such as biases, often outlive kernels that are laid out anew.
    Threads may call it at once.

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
        """An array whose contents are arbitrary.

        Raises:
            MemoryError: There is no room for it.
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
    """Memory that arrays are taken from, one after the other."""

    def __init__(self, nbytes: int):
        self._raw = np.empty(nbytes + LINE, np.uint8)
        self._at = -self._raw.ctypes.data % LINE
        self.left = nbytes

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """The next array; there has to be room for it."""
        size, length = _size(shape, dtype), math.prod(shape) * np.dtype(dtype).itemsize
        start = self._at
        self._at, self.left = start + size, self.left - size
        return self._raw[start : start + length].view(dtype).reshape(shape)


def _size(shape: tuple[int, ...], dtype: DTypeLike) -> int:
    """Bytes of an array and of what follows it up to the next multiple of 64."""
    return -(-math.prod(shape) * np.dtype(dtype).itemsize // LINE) * LINE

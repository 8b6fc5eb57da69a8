"""Memory that JAX on a CPU takes over as it is, without a copy."""

import math
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike

__all__ = ["Arena", "Memory", "aligned"]

# Makes an array of a shape and a type, whose contents are arbitrary.
Memory = Callable[[tuple[int, ...], DTypeLike], np.ndarray]

_LINE = 64  # bytes, at a multiple of which arrays have to begin


def aligned(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """An array whose contents are arbitrary, in memory that JAX on a CPU takes over as it is.

    Anywhere else than at a multiple of 64 bytes it makes a copy, and holds both for a moment.

    Example:
        >>> aligned((3, 5), np.float32).ctypes.data % 64
        0
    """
    return Arena(_size(shape, dtype))(shape, dtype)


class Arena:
    """Arrays as :func:`aligned` makes them, out of one piece of memory.

    The system hands large pieces over in large pages, in a fraction of the time that it takes for
    many small ones; and they are given back as one, when the last of the arrays is gone.

    Example:
        >>> arena = Arena(2 * 64)
        >>> first, second = arena((3,), np.float32), arena((2, 5), np.float32)
        >>> second.ctypes.data - first.ctypes.data
        64
    """

    def __init__(self, nbytes: int):
        """Makes room for arrays of ``nbytes`` together, each rounded up to a multiple of 64.

        Raises:
            MemoryError: There is no such room.
        """
        self._raw = np.empty(nbytes + _LINE, np.uint8)
        self._at = -self._raw.ctypes.data % _LINE
        self._lock = threading.Lock()

    def __call__(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """An array; one that no longer fits has memory of its own."""
        size = _size(shape, dtype)
        with self._lock:
            start, end = self._at, self._at + size
            if end > len(self._raw):
                return aligned(shape, dtype)
            self._at = end
        length = math.prod(shape) * np.dtype(dtype).itemsize
        return self._raw[start : start + length].view(dtype).reshape(shape)


def _size(shape: tuple[int, ...], dtype: DTypeLike) -> int:
    """Bytes of an array and of what follows it up to the next multiple of 64."""
    return -(-math.prod(shape) * np.dtype(dtype).itemsize // _LINE) * _LINE

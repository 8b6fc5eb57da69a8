"""How a tensor lies in published files, and how the parameters of ours that it holds lie here."""

from collections.abc import Sequence

import numpy as np

from transformer_jax.interop.family import Row
from transformer_jax.interop.memory import Memory, aligned

__all__ = ["moves", "ours", "shape_there", "theirs"]


def shape_there(shape: tuple[int, ...], row: Row) -> tuple[int, ...]:
    """The shape of a tensor of theirs, one part of which is a parameter of ours.

    Example:
        >>> shape_there((32, 48), Row("up/kernel", "fc1.weight", "turned"))
        (48, 32)
        >>> shape_there((32, 32), Row("query/kernel", "c_attn.weight", "same", (0, 1, 3)))
        (32, 96)
        >>> shape_there((32, 16), Row("key/kernel", "qkv_proj.weight", "turned", (4, 6, 8)))
        (64, 32)
        >>> shape_there((192, 32), Row("embedding/kernel", "conv.weight", "patches", patch=8))
        (32, 3, 8, 8)
    """
    if row.form == "patches":
        return (shape[1], shape[0] // row.patch**2, row.patch, row.patch)
    first, last, of = row.part
    shape = (*shape[:-1], shape[-1] * of // (last - first))
    if row.form == "turned":
        return shape[::-1]
    return (1, *shape) if row.form == "row" else shape


def moves(row: Row) -> bool:
    """Whether the numbers of a parameter lie in another order in the tensor, or apart.

    Example:
        >>> moves(Row("gain", "ln.weight")), moves(Row("up/kernel", "fc1.weight", "turned"))
        (False, True)
    """
    return row.part[2] > 1 or row.form in ("turned", "patches")


def ours(array: np.ndarray, row: Row, memory: Memory = aligned) -> np.ndarray:
    """The parameter of ours that a tensor of theirs holds, float32: the opposite of :func:`theirs`.

    The tensor itself where nothing has to be moved, and otherwise a copy in ``memory``.

    Example:
        >>> ours(np.zeros((3, 2)), Row("up/kernel", "fc1.weight", "turned")).shape
        (2, 3)
    """
    if row.form == "turned":
        array = array.T
    first, last, of = row.part
    if of > 1:
        size = array.shape[-1] // of
        array = array[..., first * size : last * size]
    if row.form == "row":
        array = array[0]
    elif row.form == "patches":
        array = array.transpose(2, 3, 1, 0).reshape(-1, len(array))
    if array.dtype == np.float32 and array.flags.c_contiguous:
        return array
    copy = memory(array.shape, np.dtype(np.float32))
    copy[...] = array
    return copy


def theirs(arrays: Sequence[np.ndarray], rows: Sequence[Row]) -> np.ndarray:
    """The tensor of theirs that parameters of ours make up, in the order of its parts.

    Example:
        >>> theirs([np.zeros((2, 3))], [Row("up/kernel", "fc1.weight", "turned")]).shape
        (3, 2)
    """
    order = sorted(range(len(rows)), key=lambda i: rows[i].part)
    form, patch = rows[0].form, rows[0].patch
    if form == "patches":
        kernel = arrays[0].reshape(patch, patch, -1, arrays[0].shape[-1])
        return np.ascontiguousarray(kernel.transpose(3, 2, 0, 1))
    parts = [arrays[i] for i in order]
    array = np.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]
    array = array.T if form == "turned" else array
    return np.ascontiguousarray(array[None] if form == "row" else array)

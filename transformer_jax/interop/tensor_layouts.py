"""Conversion between layouts of published tensors and of parameters."""

from collections.abc import Sequence

import numpy as np

from transformer_jax.interop.family import TensorMapping
from transformer_jax.interop.tensor_memory import Memory, aligned

__all__ = ["from_hf", "hf_shape", "needs_copy", "to_hf"]


def hf_shape(shape: tuple[int, ...], mapping: TensorMapping) -> tuple[int, ...]:
    """Returns the shape of their tensor, of which one part is our parameter.

    Example:
        >>> hf_shape((32, 48), TensorMapping("up/kernel", "fc1.weight", "transposed"))
        (48, 32)
        >>> hf_shape((32, 32), TensorMapping("query/kernel", "c_attn.weight", "same", (0, 1, 3)))
        (32, 96)
        >>> key = TensorMapping("key/kernel", "qkv_proj.weight", "transposed", (4, 6, 8))
        >>> hf_shape((32, 16), key)
        (64, 32)
        >>> hf_shape((1, 32), TensorMapping("class/table", "class_embedding", "first_row"))
        (32,)
        >>> patches = TensorMapping("embedding/kernel", "conv.weight", "patches", patch=8)
        >>> hf_shape((192, 32), patches)
        (32, 3, 8, 8)
    """
    if mapping.layout == "patches":
        return (shape[1], shape[0] // mapping.patch**2, mapping.patch, mapping.patch)
    if mapping.layout == "first_row":
        return shape[1:]
    first, last, of = mapping.part
    shape = (*shape[:-1], shape[-1] * of // (last - first))
    if mapping.layout == "transposed":
        return shape[::-1]
    return (1, *shape) if mapping.layout == "leading_axis" else shape


def needs_copy(mapping: TensorMapping) -> bool:
    """Returns whether the values of a parameter are not contiguous in order in the tensor.

    Example:
        >>> needs_copy(TensorMapping("gain", "ln.weight"))
        False
        >>> needs_copy(TensorMapping("up/kernel", "fc1.weight", "transposed"))
        True
    """
    return mapping.part[2] > 1 or mapping.layout in ("transposed", "patches")


def from_hf(array: np.ndarray, mapping: TensorMapping, memory: Memory = aligned) -> np.ndarray:
    """Returns our float32 parameter in their tensor: the inverse of :func:`to_hf`.

    This is the tensor itself if the layout is the same, or else a copy in ``memory``.

    Example:
        >>> from_hf(np.zeros((3, 2)), TensorMapping("up/kernel", "fc1.weight", "transposed")).shape
        (2, 3)
    """
    if mapping.layout == "transposed":
        array = array.T
    first, last, of = mapping.part
    if of > 1:
        size = array.shape[-1] // of
        array = array[..., first * size : last * size]
    if mapping.layout == "leading_axis":
        array = array[0]
    elif mapping.layout == "first_row":
        array = array[None]
    elif mapping.layout == "patches":
        array = array.transpose(2, 3, 1, 0).reshape(-1, len(array))
    if array.dtype == np.float32 and array.flags.c_contiguous:
        return array
    copy = memory(array.shape, np.dtype(np.float32))
    copy[...] = array
    return copy


def to_hf(arrays: Sequence[np.ndarray], mappings: Sequence[TensorMapping]) -> np.ndarray:
    """Returns their tensor composed of our parameters, in the order of its parts.

    Example:
        >>> mapping = TensorMapping("up/kernel", "fc1.weight", "transposed")
        >>> to_hf([np.zeros((2, 3))], [mapping]).shape
        (3, 2)
    """
    order = sorted(range(len(mappings)), key=lambda i: mappings[i].part)
    form, patch = mappings[0].layout, mappings[0].patch
    if form == "patches":
        kernel = arrays[0].reshape(patch, patch, -1, arrays[0].shape[-1])
        return np.ascontiguousarray(kernel.transpose(3, 2, 0, 1))
    if form == "first_row":
        return np.asarray(arrays[0]).reshape(arrays[0].shape[1:])
    parts = [arrays[i] for i in order]
    array = np.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]
    array = array.T if form == "transposed" else array
    return np.ascontiguousarray(array[None] if form == "leading_axis" else array)

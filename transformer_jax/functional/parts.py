"""Sums over devices of which each keeps a part."""

import functools

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from transformer_jax.functional.real_arguments import real_arguments

__all__ = ["LANES", "reduce_scatter"]

LANES = 128  # of the units of accelerators, which prefer sizes that are multiples of it


@real_arguments
def reduce_scatter(x: Float[Array, "M N"], over: str, dimension: int) -> Float[Array, "P Q"]:
    """The sum of a matrix over devices, of which each keeps its part along a dimension.

    For use inside ``shard_map``. XLA:TPU would sum the whole matrix on every device in two cases.
    Devices that lie in a plane or a cuboid: there it is summed in stages, by groups of four. And
    parts that do not fill the lanes, as 96 columns of 768 on 8 devices: there it is summed to parts
    along the other dimension, and these are exchanged, which moves an eighth as much on 8 devices.

    Args:
        x: What is summed.
        over: The mesh axis of the devices.
        dimension: Along which parts are taken; the number of devices divides it.
    """
    direct = functools.partial(
        lax.psum_scatter, axis_name=over, scatter_dimension=dimension, tiled=True
    )
    fills = x.shape[dimension] // lax.axis_size(over) % LANES == 0
    on_tpu = functools.partial(
        _sum_in_stages if fills else _sum_and_exchange, over=over, dimension=dimension
    )
    return lax.platform_dependent(x, tpu=on_tpu, default=direct)


def _sum_and_exchange(x: Array, over: str, dimension: int) -> Array:
    devices, other = lax.axis_size(over), 1 - dimension
    size = x.shape[other]
    lanes = devices * LANES
    padding = [(0, 0), (0, 0)]
    padding[other] = (0, -size % (lanes if size >= 2 * lanes else devices))
    summed = _sum_in_stages(jnp.pad(x, padding), over, other)
    parts = lax.all_to_all(summed, over, dimension, other, tiled=True)
    return lax.slice_in_dim(parts, 0, size, axis=other)


def _sum_in_stages(x: Array, over: str, dimension: int) -> Array:
    """Computes ``psum_scatter`` in stages: four neighbours, then every fourth device, and so on.

    After each stage one digit of a device's number is done. Its parts come first in memory.
    """
    devices = lax.axis_size(over)
    digits = _digits(devices)
    before, after = x.shape[:dimension], x.shape[dimension + 1 :]
    x = x.reshape(*before, *digits, x.shape[dimension] // devices, *after)
    stride = 1
    for place in reversed(range(len(digits))):
        size = digits[place]
        groups = [
            [first + stride * step for step in range(size)]
            for first in range(devices)
            if first // stride % size == 0
        ]
        parts = jnp.moveaxis(x, dimension + place, 0)
        rows = parts.reshape(-1, parts.shape[-1])
        rows = lax.psum_scatter(rows, over, axis_index_groups=groups, tiled=True)
        x = rows.reshape(parts.shape[1:])
        stride *= size
    return x


def _digits(devices: int) -> list[int]:
    """Factors of a number, 4 as often as it can be, the rest first.

    Example:
        >>> _digits(16), _digits(32), _digits(6), _digits(1)
        ([4, 4], [2, 4, 4], [6], [1])
    """
    fours = []
    while devices % 4 == 0:
        devices //= 4
        fours.append(4)
    return fours if fours and devices == 1 else [devices, *fours]

"""Sums over devices that leave one part on each device."""

import functools

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from transformer_jax.functional.array_arguments import real_arguments

__all__ = ["LANES", "reduce_scatter"]

LANES = 128  # of accelerator units, which prefer sizes that are multiples of it


@real_arguments
def reduce_scatter(x: Float[Array, "M N"], over: str, dimension: int) -> Float[Array, "P Q"]:
    """Sums a matrix over devices, each of which keeps its part along a dimension.

    For use inside ``shard_map``. In two cases XLA:TPU would sum the complete matrix on every
    device:

    - Devices that form a plane or a cuboid: here it is summed in stages, by groups of four.
    - Parts that do not fill the lanes, such as 96 columns of 768 on 8 devices: here it is summed to
      parts along the other dimension, which are then exchanged. That moves an eighth as much on 8
      devices.

    Args:
        x: The matrix to sum.
        over: The mesh axis of the devices.
        dimension: The dimension to split; the number of devices divides its size.
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

    Each stage handles one digit of a device's index, whose axis is moved to the front.
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
    """Factors of a number: as many fours as possible, after the rest.

    Example:
        >>> _digits(16), _digits(32), _digits(6), _digits(1)
        ([4, 4], [2, 4, 4], [6], [1])
    """
    fours = []
    while devices % 4 == 0:
        devices //= 4
        fours.append(4)
    return fours if fours and devices == 1 else [devices, *fours]

"""Dropout whose masks are hashed from positions: as cheap as reading the array."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Key, UInt32

from transformer_jax.errors import ArgumentError
from transformer_jax.functional.real_arguments import real_arguments

# The fraction set to zero, and a random key, without which nothing is dropped.
Dropout = tuple[float, Key[Array, ""] | None]


@real_arguments
def dropout(
    x: Float[Array, "*shape"], rate: float, key: Key[Array, ""] | None
) -> Float[Array, "*shape"]:
    """``x`` with a fraction ``rate`` of it set to 0 and the rest scaled to the same mean.

    Without a key, or at rate 0, it is ``x`` itself.

    Source: Srivastava et al. 2014, https://jmlr.org/papers/v15/srivastava14a.html.

    Raises:
        ArgumentError: ``rate`` is not in ``[0, 1)``.

    Example:
        >>> dropout(jnp.ones(3), 0.1, None)
        Array([1., 1., 1.], dtype=float32)
        >>> dropout(jnp.ones(8), 0.5, jax.random.key(0)).max()
        Array(2., dtype=float32)
    """
    keep = None if key is None or rate == 0 else dropout_mask(key, x.shape, rate)
    return x if keep is None else jnp.where(keep, x / (1 - rate), 0)


def dropout_mask(key: Key[Array, ""], shape: tuple[int, ...], rate: float) -> Bool[Array, "..."]:
    """True with probability ``1 − rate`` (to one part in 2³²), at each place by itself.

    A place is hashed with 64 random bits of the key, instead of asking ``jax.random`` for a
    number each, which takes 20 times as long on CPU. It depends on nothing but the key and the
    place, so the mask is the same on any number of devices and on every platform. The hash is
    well mixed, but no cryptographic generator: for dropout, not for sampling.

    Raises:
        ArgumentError: ``rate`` is not in ``[0, 1)``.

    Example:
        >>> dropout_mask(jax.random.key(0), (1000, 100), 0.25).mean().round(2)
        Array(0.75, dtype=float32)
    """
    if not 0 <= rate < 1:
        raise ArgumentError(f"dropout rate is {rate}; it must be at least 0 and below 1")
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    shape, whole = (shape or (1,)), shape
    row = jnp.zeros((*shape[:-1], 1), jnp.uint32)
    for axis, size in enumerate(shape[:-1]):
        row = row * jnp.uint32(size) + lax.broadcasted_iota(jnp.uint32, row.shape, axis)
    # Two hashes a row: where one of them coincides with another row's, the other does not.
    row = _mix(row + first)
    other = _mix(row ^ second)
    column = lax.broadcasted_iota(jnp.uint32, (1,) * (len(shape) - 1) + shape[-1:], len(shape) - 1)
    number = _mix(_mix(row + column * jnp.uint32(0x9E3779B9)) ^ other)
    return (number >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))).reshape(whole)


def _mix(h: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """A hash of 32 bits in which each bit of the input flips each of the output half the time.

    Source: Wellons' ``lowbias32``, https://nullprogram.com/blog/2018/07/31/.
    """
    h = (h ^ (h >> 16)) * jnp.uint32(0x7FEB352D)
    h = (h ^ (h >> 15)) * jnp.uint32(0x846CA68B)
    return h ^ (h >> 16)

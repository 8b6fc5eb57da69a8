"""Ring attention: a text is split over devices, which pass keys and values around.

Each device of the mesh axis ``context`` holds an equal part of the text. Keys and values travel
around the devices, and each device adds the received block to the softmax of its queries, as
:mod:`.chunked` does with blocks. No device ever holds the keys of two other devices. The backward
pass sends them around again, with the sums of their gradients (Liu et al. 2023, "Ring attention
with blockwise transformers for near-infinite context").
"""

from functools import partial
from typing import cast

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree

from transformer_jax.functional.kernels.chunked import BLOCK, Softmax, add_keys, gradients
from transformer_jax.functional.kernels.products import Saved
from transformer_jax.functional.masks import Mask
from transformer_jax.functional.scores import ScaledDot, Scores, Shaped

__all__ = ["AXIS", "run_part", "supports"]

AXIS = "context"  # of the mesh
# A gradient of queries, keys and values, and their gradients.
Carry = tuple[Array, Array, Array, Array, Array]


def supports(
    q: Shaped,
    k: Shaped,
    v: Shaped,
    scores: Scores,
    parts: int = 1,
) -> str | None:
    """Returns the reason why this kernel does not support a case; None if it does."""
    if parts == 1:
        return "the text is on one device: a mesh with a context axis divides it"
    return None if scores.bias is None else "it takes no bias"


def run_part(
    q: Float[Array, "B N t H"],
    k: Float[Array, "B K s H"],
    v: Float[Array, "B K s U"],
    scores: Scores,
    index: Array,
) -> Float[Array, "B N t U"]:
    """Returns the output for this device's queries, which see the keys of all devices.

    For use inside ``shard_map``, with an axis :data:`AXIS`.

    Args:
        q: Queries of this device.
        k: Its keys.
        v: Its values.
        scores: Scale, cap and mask of the complete text.
        index: The device's position along the axis.
    """
    score = cast(ScaledDot, scores.score)
    return _attend(q, k, v, scores.mask or Mask(), index, score)


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(q: Array, k: Array, v: Array, mask: Mask, index: Array, score: ScaledDot) -> Array:
    return _forward(q, k, v, mask, index, score)[0]


def _forward(
    q: Array, k: Array, v: Array, mask: Mask, index: Array, score: ScaledDot
) -> tuple[Array, Saved]:
    def add(softmax: Softmax, k: Array, v: Array, s0: Array) -> Softmax:
        def body(softmax: Softmax, x: tuple[Array, Array, Array]) -> tuple[Softmax, None]:
            k, v, start = x
            allowed = mask.block(index * q.shape[2], q.shape[2], s0 + start, k.shape[2])
            return add_keys(softmax, q, k, v, allowed, score), None

        return lax.scan(body, softmax, _blocks(k, v))[0]

    def rotate(
        carry: tuple[Softmax, Array, Array], step: Array
    ) -> tuple[tuple[Softmax, Array, Array], None]:
        softmax, k, v = carry
        softmax = add(softmax, k, v, _owner(index, step) * k.shape[2])
        k, v = _pass_on((k, v))
        return (softmax, k, v), None

    carry = (Softmax.empty(q, v.shape[3]), k, v)
    (softmax, *_), _ = lax.scan(rotate, carry, jnp.arange(lax.axis_size(AXIS)))
    y, log = softmax.finish(q.dtype)
    return y, (q, k, v, mask, index, y, log)


def _backward(score: ScaledDot, saved: Saved, g: Array) -> tuple[Array | None, ...]:
    q, k, v, mask, index, y, log = saved
    center = (g.astype(jnp.float32) * y.astype(jnp.float32)).sum(-1, keepdims=True)
    rows = q, g, log, center

    def rotate(carry: Carry, step: Array) -> tuple[Carry, None]:
        dq, k, v, dk, dv = carry
        s0 = _owner(index, step) * k.shape[2]

        def body(dq: Array, x: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, ...]]:
            k, v, start = x
            allowed = mask.block(index * q.shape[2], q.shape[2], s0 + start, k.shape[2])
            more, *others = gradients(rows, k, v, allowed, score)
            return dq + more, tuple(others)

        dq, (dks, dvs) = lax.scan(body, dq, _blocks(k, v))
        dk, dv = dk + _whole(dks), dv + _whole(dvs)
        # After the last step, the sums are on the device that owns the keys.
        k, v, dk, dv = _pass_on((k, v, dk, dv))
        return (dq, k, v, dk, dv), None

    wide = lambda x: jnp.zeros(x.shape, jnp.float32)
    carry = (wide(q), k, v, wide(k), wide(v))
    (dq, _, _, dk, dv), _ = lax.scan(rotate, carry, jnp.arange(lax.axis_size(AXIS)))
    scale = score.scale_of(q.shape[3])
    return (
        (dq * scale).astype(q.dtype),
        (dk * scale).astype(k.dtype),
        dv.astype(v.dtype),
        None,
        None,
    )


_attend.defvjp(_forward, _backward)


def _owner(index: Array, step: Array) -> Array:
    """Returns the device whose keys this device holds at a step."""
    return (index - step) % lax.axis_size(AXIS)


def _pass_on(arrays: PyTree) -> PyTree:
    """Sends each array to the next device of the ring."""
    size = lax.axis_size(AXIS)
    return lax.ppermute(arrays, AXIS, [(i, (i + 1) % size) for i in range(size)])


def _blocks(k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Keys and values in blocks along a leading axis, and the index of each block's first key."""
    s = k.shape[2]
    block = next((n for n in range(min(BLOCK, s), 15, -1) if s % n == 0), s)
    cut = lambda x: jnp.moveaxis(x.reshape(*x.shape[:2], s // block, block, x.shape[3]), 2, 0)
    return cut(k), cut(v), jnp.arange(0, s, block)


def _whole(x: Float[Array, "blocks B K s X"]) -> Float[Array, "B K S X"]:
    """Concatenates blocks again."""
    x = jnp.moveaxis(x, 0, 2)
    return x.reshape(*x.shape[:2], -1, x.shape[4])

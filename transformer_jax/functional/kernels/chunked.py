"""Attention by online softmax over blocks of keys: memory grows with ``T``, not with ``T S``.

Queries are divided into a few blocks, so that keys masked for all queries of a block are never
read; over the remaining keys, a loop carries the sum, its normalizer and the largest score
(Milakov & Gimelshein 2018; Rabe & Staats 2021; Dao et al. 2022). The backward pass recomputes the
weights from the saved log-normalizers.
"""

import math
from functools import partial
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from transformer_jax.functional.kernels.products import Saved
from transformer_jax.functional.masks import Mask
from transformer_jax.functional.scores import (
    ALL_KEYS,
    FULLY_MASKED_THRESHOLD,
    MASK_VALUE,
    ScaledDot,
    Scores,
    Shaped,
    mix,
    query_key_product,
    transposed_value_product,
)

__all__ = [
    "BLOCK",
    "Softmax",
    "add_keys",
    "gradients",
    "run",
    "run_part",
    "supports",
]
BLOCK = 128  # keys at a time; measured best on CPU, see benchmarks
# Queries, the cotangent of the output, the log-normalizer, and the product of output and cotangent.
Rows = tuple[Array, Array, Array, Array]
Sums = tuple[Array, Array, Array]  # gradients of queries, keys and values
QUERY_BLOCKS = 8  # at most, each compiled once; computes 9/16 of a causal square


def supports(q: Shaped, k: Shaped, v: Shaped, scores: Scores, parts: int = 1) -> str | None:
    """Returns the reason why this kernel does not support a case; None if it does."""
    if scores.bias is not None:
        # The bias and its gradient are [T S] themselves, so no memory would be saved.
        return "it takes no bias"
    return None


def run(
    q: Float[Array, "B N T H"],
    k: Float[Array, "B K S H"],
    v: Float[Array, "B K S U"],
    scores: Scores = ALL_KEYS,
    block: int = BLOCK,
) -> Float[Array, "B N T U"]:
    """Computes the same as :func:`.xla.run` in ``O(T + S)`` memory."""
    T, S = q.shape[2], k.shape[2]
    size = min(block, S)
    more_T, more_S = -T % _query_block(T, size), -S % size
    mask = (scores.mask or Mask()).padded(T, S, more_T, more_S)
    q, k, v = (
        jnp.pad(x, ((0, 0), (0, 0), (0, more), (0, 0))) if more else x
        for x, more in ((q, more_T), (k, more_S), (v, more_S))
    )
    return _attend(q, k, v, mask, cast(ScaledDot, scores.score), size)[:, :, :T]


def run_part(q: Array, k: Array, v: Array, scores: Scores, index: Array) -> Array:
    """Computes :func:`run` for the ``index``-th of equal parts of the queries."""
    return run(q, k, v, scores.part_of_queries(index, q.shape[2]))


def _query_block(T: int, block: int) -> int:
    """Queries per block: a multiple of the key block, giving at most ``QUERY_BLOCKS`` blocks."""
    return min(T, block * math.ceil(T / (block * QUERY_BLOCKS)))


def _plan(T: int, S: int, mask: Mask, block: int) -> list[tuple[int, int, int, int]]:
    """``(first query, queries, first key block, end of key blocks)`` of each query block."""
    num_blocks = -(-S // block)
    if not mask.positional or not isinstance(mask.offset, int):
        return [(0, T, 0, num_blocks)]
    size, plan = _query_block(T, block), []
    for t in range(0, T, size):
        first, last = t + mask.offset, t + size - 1 + mask.offset
        low, high = 0, S - 1
        if mask.window is not None:
            low, high = max(low, first - mask.window + 1), min(high, last + mask.window - 1)
        if mask.causal:
            high = min(high, last)
        start = min(max(low, 0) // block, num_blocks - 1)
        # A fully masked block of queries still reads one block of keys.
        plan.append((t, size, start, max(min(high // block + 1, num_blocks), start + 1)))
    return plan


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attend(q: Array, k: Array, v: Array, mask: Mask, score: ScaledDot, block: int) -> Array:
    return _forward(q, k, v, mask, score, block)[0]


class Softmax(NamedTuple):
    """The running softmax of queries over the keys of the blocks so far."""

    total: Float[Array, "B N T 1"]  # the normalizer, relative to ``top``
    top: Float[Array, "B N T 1"]  # the largest score
    y: Float[Array, "B N T U"]  # the sum of values, with the same weights as ``total``

    @staticmethod
    def empty(q: Float[Array, "B N T H"], U: int) -> "Softmax":
        """Returns the softmax over no keys."""
        row = jnp.zeros((*q.shape[:3], 1), jnp.float32)
        return Softmax(row, row + MASK_VALUE, jnp.zeros((*q.shape[:3], U), jnp.float32))

    def finish(self, dtype: DTypeLike) -> tuple[Float[Array, "B N T U"], Float[Array, "B N T 1"]]:
        """Returns the output and the log-normalizer; fully masked queries give zeros."""
        visible = self.top > FULLY_MASKED_THRESHOLD
        total = jnp.where(visible, self.total, 1.0)
        y = jnp.where(visible, self.y / total, 0.0).astype(dtype)
        # exp(score - log) is zero in a fully masked row.
        return y, jnp.where(visible, self.top + jnp.log(total), -MASK_VALUE)


def add_keys(
    so_far: Softmax,
    q: Float[Array, "B N T H"],
    k: Float[Array, "B K s H"],
    v: Float[Array, "B K s U"],
    allowed: Bool[Array, "#B #N #T #s"] | None,
    score: ScaledDot,
) -> Softmax:
    """Returns the softmax extended by more keys and values."""
    s = _masked(score(q, k), allowed)
    top = jnp.maximum(so_far.top, s.max(-1, keepdims=True))
    e, shrink = jnp.exp(s - top), jnp.exp(so_far.top - top)
    y = so_far.y * shrink + mix(e.astype(v.dtype), v)
    return Softmax(so_far.total * shrink + e.sum(-1, keepdims=True), top, y)


def gradients(
    rows: Rows,
    k: Float[Array, "B K s H"],
    v: Float[Array, "B K s U"],
    allowed: Bool[Array, "#B #N #T #s"] | None,
    score: ScaledDot,
) -> tuple[Float[Array, "B N T H"], Float[Array, "B K s H"], Float[Array, "B K s U"]]:
    """Returns the gradients of queries, keys and values of a block; the first two lack the scale.

    Args:
        rows: Queries, the cotangent of the output, the logarithm of the normalizer, and the product
            of cotangent and output.
        k: Keys.
        v: Values.
        allowed: Which keys each query sees.
        score: Scale and soft cap.
    """
    q, g, log, center = rows
    capped = score(q, k)
    p = jnp.exp(_masked(capped, allowed) - log)
    ds = p * (query_key_product(g, v) - center)
    if score.capped:
        ds = ds * score.slope(capped)
    d = ds.astype(q.dtype)
    dk, dv = transposed_value_product(d, q, k), transposed_value_product(p.astype(v.dtype), g, v)
    return mix(d, k), dk, dv


def _forward(
    q: Array, k: Array, v: Array, mask: Mask, score: ScaledDot, block: int
) -> tuple[Array, Saved]:
    T, S = q.shape[2], k.shape[2]
    keys, values = _blocks(k, block), _blocks(v, block)
    outs, logs = [], []
    for t0, t, start, end in _plan(T, S, mask, block):
        queries = _cut(q, t0, t)

        def body(j: Array, carry: Softmax, queries: Array = queries, t0: int = t0) -> Softmax:
            allowed = mask.block(t0, queries.shape[2], j * block, block)
            return add_keys(carry, queries, _block(keys, j), _block(values, j), allowed, score)

        softmax = lax.fori_loop(start, end, body, Softmax.empty(queries, v.shape[3]))
        y, log = softmax.finish(q.dtype)
        outs.append(y)
        logs.append(log)
    y, log = jnp.concatenate(outs, 2), jnp.concatenate(logs, 2)
    return y, (q, k, v, mask, y, log)


def _backward(score: ScaledDot, block: int, saved: Saved, g: Array) -> tuple[Array | None, ...]:
    # XLA would keep blocks of the forward pass, and zeros for all layers, until they are needed
    # here. A barrier prevents it, which halves the GPU memory of packed rows.
    saved, g, zero = lax.optimization_barrier((saved, g, jnp.float32(0)))
    q, k, v, mask, y, log = saved
    T, S = q.shape[2], k.shape[2]
    scale = score.scale_of(q.shape[3])
    keys, values = _blocks(k, block), _blocks(v, block)
    center = (g.astype(jnp.float32) * y.astype(jnp.float32)).sum(-1, keepdims=True)
    dk, dv = jnp.full(keys.shape, zero), jnp.full(values.shape, zero)
    dqs = []
    for t0, t, start, end in _plan(T, S, mask, block):
        rows = _cut(q, t0, t), _cut(g, t0, t), _cut(log, t0, t), _cut(center, t0, t)

        def body(j: Array, sums: Sums, rows: Rows = rows, t0: int = t0) -> Sums:
            allowed = mask.block(t0, rows[0].shape[2], j * block, block)
            more = gradients(rows, _block(keys, j), _block(values, j), allowed, score)
            return sums[0] + more[0], _plus(sums[1], more[1], j), _plus(sums[2], more[2], j)

        dq = jnp.full(rows[0].shape, zero)
        dq, dk, dv = lax.fori_loop(start, end, body, (dq, dk, dv))
        dqs.append(dq)
    dq = jnp.concatenate(dqs, 2) * scale
    return (
        dq.astype(q.dtype),
        (_unblocks(dk) * scale).astype(k.dtype),
        _unblocks(dv).astype(v.dtype),
        None,
    )


def _masked(s: Array, allowed: Array | None) -> Array:
    return s if allowed is None else jnp.where(allowed, s, MASK_VALUE)


def _cut(x: Array, t0: int, t: int) -> Array:
    """Selects ``t`` queries from ``t0`` on."""
    return lax.slice_in_dim(x, t0, t0 + t, axis=2)


def _block(blocks: Array, j: Array) -> Array:
    return lax.dynamic_index_in_dim(blocks, j, keepdims=False)


def _plus(total: Array, more: Array, j: Array) -> Array:
    """Adds ``more`` to the sums of the ``j``-th block of keys."""
    return lax.dynamic_update_index_in_dim(total, _block(total, j) + more, j, 0)


def _blocks(x: Array, block: int) -> Array:
    """``[B K S X]`` as ``[S/block B K block X]``."""
    B, K, S, X = x.shape
    return x.reshape(B, K, S // block, block, X).transpose(2, 0, 1, 3, 4)


def _unblocks(x: Array) -> Array:
    blocks, B, K, block, X = x.shape
    return x.transpose(1, 2, 0, 3, 4).reshape(B, K, blocks * block, X)


_attend.defvjp(_forward, _backward)

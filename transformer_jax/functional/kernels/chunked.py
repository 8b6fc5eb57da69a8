"""Attention by online softmax over blocks of keys: memory grows with ``T``, not with ``T S``.

Queries are divided into a few blocks, so that keys which are masked for a whole block of queries
are never read; over the rest a scan carries the sum, its normalizer and the largest score
(Milakov & Gimelshein 2018; Rabe & Staats 2021; Dao et al. 2022). The backward pass computes the
weights again from the saved log-normalizers.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.functional.masks import Mask
from transformer_jax.functional.scores import (
    FULLY_MASKED_THRESHOLD,
    MASK_VALUE,
    ScaledDot,
    dot_product_scores,
    mix,
    query_key_product,
    scaled_dot,
    transposed_value_product,
)

__all__ = ["BLOCK", "run", "supports"]

BLOCK = 128  # keys at a time; measured best on CPU, see benchmarks
QUERY_BLOCKS = 8  # at most, each compiled once: half of a causal square, less 1/16


def supports(q: Any, k: Any, v: Any, mask: Mask | None, bias: Any, *_: Any) -> str | None:
    """Why this kernel does not support a case; None if it does."""
    if bias is not None:
        # The bias and its gradient are [T S] themselves: no memory would be saved.
        return "it takes no bias"
    return None


def run(
    q: Float[Array, "B N T H"],
    k: Float[Array, "B K S H"],
    v: Float[Array, "B K S U"],
    mask: Mask | None = None,
    bias: None = None,
    score: ScaledDot = scaled_dot,
    block: int = BLOCK,
) -> Float[Array, "B N T U"]:
    """The same as :func:`.xla.run` in ``O(T + S)`` memory."""
    T, S = q.shape[2], k.shape[2]
    size = min(block, S)
    more_T, more_S = -T % _query_block(T, size), -S % size
    mask = (Mask() if mask is None else mask).padded(T, S, more_T, more_S)
    q, k, v = (
        jnp.pad(x, ((0, 0), (0, 0), (0, more), (0, 0))) if more else x
        for x, more in ((q, more_T), (k, more_S), (v, more_S))
    )
    scale = score.scale_of(q.shape[3])
    return _attend(q, k, v, mask, scale, score.softcap, size)[:, :, :T]


def _query_block(T: int, block: int) -> int:
    """Queries a block: a multiple of the block of keys, at most ``QUERY_BLOCKS`` blocks."""
    return min(T, block * math.ceil(T / (block * QUERY_BLOCKS)))


def _plan(T: int, S: int, mask: Mask, block: int) -> list[tuple[int, int, int, int]]:
    """``(first query, queries, first key block, end of key blocks)`` of each query block."""
    whole = -(-S // block)
    if not mask.positional or not isinstance(mask.offset, int):
        return [(0, T, 0, whole)]
    size, plan = _query_block(T, block), []
    for t in range(0, T, size):
        first, last = t + mask.offset, t + size - 1 + mask.offset
        low, high = 0, S - 1
        if mask.window is not None:
            low, high = max(low, first - mask.window + 1), min(high, last + mask.window - 1)
        if mask.causal:
            high = min(high, last)
        start = min(max(low, 0) // block, whole - 1)
        # A fully masked block of queries still reads one block of keys.
        plan.append((t, size, start, max(min(high // block + 1, whole), start + 1)))
    return plan


@partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def _attend(
    q: Array, k: Array, v: Array, mask: Mask, scale: float, softcap: float | None, block: int
) -> Array:
    return _forward(q, k, v, mask, scale, softcap, block)[0]


def _forward(
    q: Array, k: Array, v: Array, mask: Mask, scale: float, softcap: float | None, block: int
) -> tuple[Array, Any]:
    T, S = q.shape[2], k.shape[2]
    keys, values = _blocks(k, block), _blocks(v, block)
    outs, logs = [], []
    for t0, t, start, end in _plan(T, S, mask, block):
        queries = jax.lax.slice_in_dim(q, t0, t0 + t, axis=2)

        def body(carry: Any, x: Any, queries: Array = queries, t0: int = t0) -> tuple[Any, None]:
            total, top, y = carry
            k, v, j = x
            s = _masked(dot_product_scores(queries, k, scale, softcap), mask, t0, j * block)
            new = jnp.maximum(top, s.max(-1, keepdims=True))
            e, shrink = jnp.exp(s - new), jnp.exp(top - new)
            y = y * shrink + mix(e.astype(v.dtype), v)
            return (total * shrink + e.sum(-1, keepdims=True), new, y), None

        B, N, _, _ = q.shape
        row = jnp.zeros((B, N, t, 1), jnp.float32)
        carry = (row, row + MASK_VALUE, jnp.zeros((B, N, t, v.shape[3]), jnp.float32))
        xs = (keys[start:end], values[start:end], jnp.arange(start, end))
        (total, top, y), _ = jax.lax.scan(body, carry, xs)
        visible = top > FULLY_MASKED_THRESHOLD
        outs.append(jnp.where(visible, y / jnp.where(visible, total, 1.0), 0.0).astype(q.dtype))
        # exp(score - log) is zero in a fully masked row.
        logs.append(jnp.where(visible, top + jnp.log(jnp.where(visible, total, 1.0)), -MASK_VALUE))
    y, log = jnp.concatenate(outs, 2), jnp.concatenate(logs, 2)
    return y, (q, k, v, mask, y, log)


def _backward(
    scale: float, softcap: float | None, block: int, saved: Any, g: Array
) -> tuple[Array | None, ...]:
    q, k, v, mask, y, log = saved
    T, S = q.shape[2], k.shape[2]
    keys, values = _blocks(k, block), _blocks(v, block)
    center = (g.astype(jnp.float32) * y.astype(jnp.float32)).sum(-1, keepdims=True)
    dk, dv = jnp.zeros(keys.shape, jnp.float32), jnp.zeros(values.shape, jnp.float32)
    dqs = []
    for t0, t, start, end in _plan(T, S, mask, block):
        rows = tuple(jax.lax.slice_in_dim(x, t0, t0 + t, axis=2) for x in (q, g, log, center))

        def body(dq: Array, x: Any, rows: Any = rows, t0: int = t0) -> tuple[Array, Any]:
            q, g, log, center = rows
            k, v, j = x
            capped = dot_product_scores(q, k, scale, softcap)
            p = jnp.exp(_masked(capped, mask, t0, j * block) - log)
            ds = p * (query_key_product(g, v) - center)
            if softcap is not None:
                ds = ds * (1.0 - jnp.square(capped / softcap))
            d = ds.astype(q.dtype)
            return dq + mix(d, k), (
                transposed_value_product(d, q, k),
                transposed_value_product(p.astype(v.dtype), g, v),
            )

        xs = (keys[start:end], values[start:end], jnp.arange(start, end))
        dq, (dks, dvs) = jax.lax.scan(body, jnp.zeros(rows[0].shape, jnp.float32), xs)
        dk, dv = dk.at[start:end].add(dks), dv.at[start:end].add(dvs)
        dqs.append(dq)
    dq = jnp.concatenate(dqs, 2) * scale
    return (
        dq.astype(q.dtype),
        (_unblocks(dk) * scale).astype(k.dtype),
        _unblocks(dv).astype(v.dtype),
        None,
    )


def _masked(s: Array, mask: Mask, t0: int, s0: Array) -> Array:
    allowed = mask.block(t0, s.shape[2], s0, s.shape[3])
    return s if allowed is None else jnp.where(allowed, s, MASK_VALUE)


def _blocks(x: Array, block: int) -> Array:
    """``[B K S X]`` as ``[S/block B K block X]``."""
    B, K, S, X = x.shape
    return x.reshape(B, K, S // block, block, X).transpose(2, 0, 1, 3, 4)


def _unblocks(x: Array) -> Array:
    blocks, B, K, block, X = x.shape
    return x.transpose(1, 2, 0, 3, 4).reshape(B, K, blocks * block, X)


_attend.defvjp(_forward, _backward)

"""Attention as matrix products around a softmax, with all weights ``[B N T S]`` in memory at once.

Heads come first: queries ``[B N T H]``, keys ``[B K S H]``, values ``[B K S U]``.
"""

import functools
import itertools
import math
from typing import cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.functional.kernels.products import Saved
from transformer_jax.functional.layers import Dropout, dropout_mask
from transformer_jax.functional.masks import Mask
from transformer_jax.functional.scores import (
    ALL_KEYS,
    ScaledDot,
    Scores,
    masked_softmax,
    mix,
    query_key_product,
    transposed_value_product,
)

__all__ = ["run", "supports"]

# In blocks of queries, causal attention skips the keys after the last query of each block. On CPU
# this is 1.1 to 1.3 times as fast at 256 and 512 queries, and no faster at 128.
MIN_LENGTH = 192  # queries from which on they are divided into blocks
QUERY_BLOCK = 64  # fewest queries per block
MAX_BLOCKS = 8  # each is compiled separately
NARROW = (jnp.dtype(jnp.bfloat16),)  # dtypes whose backward pass is written by hand

Blocks = tuple[tuple[int, int, int], ...]  # first query, queries and keys of each


def supports(*_: object) -> None:
    """Returns None: this kernel supports everything."""


def run(
    q: Float[Array, "B N T H"],
    k: Float[Array, "B K S H"],
    v: Float[Array, "B K S U"],
    scores: Scores = ALL_KEYS,
    dropout: Dropout | None = None,
    *,
    query_blocks: bool = False,
) -> Float[Array, "B N T U"]:
    """Computes ``softmax(score(q, k) + bias) v`` under the mask; zero in fully masked rows.

    In bfloat16, without bias and cap, the backward pass is hand-written (reverse mode only):
    autodiff would multiply float32 slopes by bfloat16 values, which is up to 1.7 times as slow. In
    float32 autodiff is used; a hand-written pass was not faster at any measured length.

    Args:
        q: Queries.
        k: Keys, each head shared by ``N / K`` query heads.
        v: Values.
        scores: Scale and cap of ``q kᵀ``, bias and mask.
        dropout: Fraction of weights to set to zero, and a random key; without a key nothing is
            dropped.
        query_blocks: Whether to divide long causal queries into blocks (not with a bias).
    """
    (B, N, T, _), S = q.shape, k.shape[2]
    rate, key = dropout or (0.0, None)
    keep = None if key is None or rate == 0.0 else dropout_mask(key, (B, N, T, S), rate)
    mask, score = scores.mask, cast(ScaledDot, scores.score)
    if scores.bias is None:
        blocks = tuple(_blocks(T, S, mask) if query_blocks else [(0, T, S)])
        if not score.capped and q.dtype in NARROW:
            return _attend(q, k, v, mask, keep, rate, score, blocks)
        return _mix(q, k, v, mask, keep, rate, score, blocks)[0]
    w = _dropped(scores.weights(q, k), keep, rate)
    return mix(w.astype(v.dtype), v).astype(q.dtype)


def _dropped(w: Array, keep: Array | None, rate: float) -> Array:
    return w if keep is None else jnp.where(keep, w / (1 - rate), 0)


def _blocks(T: int, S: int, mask: Mask | None) -> list[tuple[int, int, int]]:
    """``(first query, queries, keys)`` of each block."""
    if not (isinstance(T, int) and T >= MIN_LENGTH and mask is not None and mask.causal):
        return [(0, T, S)]
    if not isinstance(mask.offset, int):
        return [(0, T, S)]  # the positions of the queries are not known yet
    size = max(QUERY_BLOCK, math.ceil(T / MAX_BLOCKS))
    return [
        (t0, t, min(max(t0 + t + mask.offset, 1), S))
        for t0 in range(0, T, size)
        for t in (min(size, T - t0),)
    ]


def _mix(
    q: Array,
    k: Array,
    v: Array,
    mask: Mask | None,
    keep: Array | None,
    rate: float,
    score: ScaledDot,
    blocks: Blocks,
) -> tuple[Array, list[Array]]:
    """The output, and the weights of each block before dropout, in the dtype of ``v``."""
    out, weights = [], []
    for t0, t, s in blocks:
        here = slice(t0, t0 + t)
        allowed = None if mask is None else mask.block(t0, t, 0, s)
        w = masked_softmax(score(q[:, :, here], k[:, :, :s]), allowed)
        weights.append(w.astype(v.dtype))
        w = _dropped(w, None if keep is None else keep[:, :, here, :s], rate)
        out.append(mix(w.astype(v.dtype), v[:, :, :s]))
    return jnp.concatenate(out, 2).astype(q.dtype), weights


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7))
def _attend(
    q: Array,
    k: Array,
    v: Array,
    mask: Mask | None,
    keep: Array | None,
    rate: float,
    score: ScaledDot,
    blocks: Blocks,
) -> Array:
    return _mix(q, k, v, mask, keep, rate, score, blocks)[0]


def _forward(
    q: Array,
    k: Array,
    v: Array,
    mask: Mask | None,
    keep: Array | None,
    rate: float,
    score: ScaledDot,
    blocks: Blocks,
) -> tuple[Array, Saved]:
    y, weights = _mix(q, k, v, mask, keep, rate, score, blocks)
    return y, (q, k, v, keep, y, weights)


def _backward(
    rate: float, score: ScaledDot, blocks: Blocks, saved: Saved, g: Array
) -> tuple[Array | None, ...]:
    q, k, v, keep, y, weights = saved
    scale = score.scale_of(q.shape[3])
    # The term that softmax subtracts from all slopes of a query, Σ w (g vᵀ), is g y even with
    # dropout.
    center = (g.astype(jnp.float32) * y.astype(jnp.float32)).sum(-1, keepdims=True)
    dq, dk, dv = [], [], []
    for (t0, t, s), w in zip(blocks, weights, strict=True):
        here, keys, values = slice(t0, t0 + t), k[:, :, :s], v[:, :, :s]
        stay = None if keep is None else keep[:, :, here, :s]
        slope = _dropped(query_key_product(g[:, :, here], values), stay, rate)
        slope = (w * (slope - center[:, :, here])).astype(q.dtype)
        dq.append(mix(slope, keys))
        dk.append(transposed_value_product(slope, q[:, :, here], keys))
        dv.append(transposed_value_product(_dropped(w, stay, rate), g[:, :, here], values))
    return (
        (jnp.concatenate(dq, 2) * scale).astype(q.dtype),
        (_over_blocks(dk, k.shape[2]) * scale).astype(k.dtype),
        _over_blocks(dv, v.shape[2]).astype(v.dtype),
        None,
        None,
    )


def _over_blocks(sums: list[Array], keys: int) -> Array:
    """Returns the sum over blocks, each of which covers a prefix of all ``keys``."""
    parts = []
    for start, end in itertools.pairwise(sorted({0, keys, *(x.shape[2] for x in sums)})):
        covered = [x[:, :, start:end] for x in sums if x.shape[2] >= end]
        none = jnp.zeros((*sums[0].shape[:2], end - start, sums[0].shape[3]), jnp.float32)
        parts.append(functools.reduce(jnp.add, covered) if covered else none)
    return jnp.concatenate(parts, 2)


_attend.defvjp(_forward, _backward)

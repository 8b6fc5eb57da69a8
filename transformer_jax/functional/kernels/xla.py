"""Attention as three matrix products around a softmax, the whole ``[B N T S]`` held at once.

Heads come first: queries ``[B N T H]``, keys ``[B K S H]``, values ``[B K S U]``. The products
here are those of the other kernels too.
"""

import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from transformer_jax.functional._backend import by_rows, narrow_on_cpu, own_backward
from transformer_jax.functional.dropout import dropout_mask
from transformer_jax.functional.masks import Mask

__all__ = [
    "FULLY_MASKED_THRESHOLD",
    "MASK_VALUE",
    "query_key_product",
    "run",
    "scores",
    "supports",
    "transposed_value_product",
    "weights",
    "weights_value_product",
]

# What a hidden score becomes: its exponential is zero beside any score that can be seen, and
# differences stay finite where -inf would give NaN. Rows whose largest score is not above
# FULLY_MASKED_THRESHOLD see nothing.
MASK_VALUE = -1e30
FULLY_MASKED_THRESHOLD = -1e29
# On CPU, causal queries are cut into pieces of at least so many, from so many on: each piece meets
# only the keys up to its last query. Measured 1.1 to 1.3 times as fast at 256 and 512, and not at
# all at 128.
QUERY_BLOCK = 64
# XLA:CPU copies the transposed operand of a product in batches. Up to so many queries a head, as in
# decoding, those are copied instead of the keys.
FEW = 8
LONG = 192
PIECES = 8  # at most, each compiled once


def supports(*_: Any) -> None:
    """None: there is nothing that this kernel cannot take."""


def run(
    q: Float[Array, "B N T H"],
    k: Float[Array, "B K S H"],
    v: Float[Array, "B K S U"],
    mask: Mask | None = None,
    bias: Float[Array, "#B #N #T S"] | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    dropout_rate: float = 0.0,
    key: Key[Array, ""] | None = None,
) -> Float[Array, "B N T U"]:
    """``softmax(q kᵀ · scale + bias) v`` where the mask allows; zero where it allows nothing.

    Of bfloat16 on CPU, without bias and cap, the backward pass is our own and reverse-mode only.
    That of float32 is left to autodiff: writing it out was not faster at any length measured.
    """
    (B, N, T, _), S = q.shape, k.shape[2]
    rate = dropout_rate
    keep = None if key is None or rate == 0.0 else dropout_mask(key, (B, N, T, S), rate)
    if bias is None:
        # Autodiff would multiply float32 slopes by bfloat16 numbers: up to 1.7 times as slow.
        if softcap is None and narrow_on_cpu(q):
            return _attend(q, k, v, mask, keep, rate, scale)
        return _mix(q, k, v, mask, keep, rate, scale, softcap)[0]
    allowed = None if mask is None else mask.array(T, S)
    w = _dropped(weights(q, k, allowed, bias, scale, softcap), keep, rate)
    return weights_value_product(w.astype(v.dtype), v).astype(q.dtype)


def _dropped(w: Array, keep: Array | None, rate: float) -> Array:
    return w if keep is None else jnp.where(keep, w / (1 - rate), 0)


def _plan(T: int, S: int, mask: Mask | None) -> list[tuple[int, int, int]]:
    """``(first query, queries, keys)`` of each piece."""
    if not (own_backward() and T >= LONG and mask is not None and mask.causal):
        return [(0, T, S)]
    if not isinstance(mask.offset, int):
        return [(0, T, S)]  # where a query stands is not known yet
    size = max(QUERY_BLOCK, math.ceil(T / PIECES))
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
    scale: float,
    softcap: float | None = None,
) -> tuple[Array, list[Array]]:
    """What is read, and the weights of each piece before dropout, in the dtype of ``v``."""
    out, kept = [], []
    for t0, t, s in _plan(q.shape[2], k.shape[2], mask):
        here = slice(t0, t0 + t)
        allowed = None if mask is None else mask.block(t0, t, 0, s)
        w = weights(q[:, :, here], k[:, :, :s], allowed, None, scale, softcap)
        kept.append(w.astype(v.dtype))
        w = _dropped(w, None if keep is None else keep[:, :, here, :s], rate)
        out.append(weights_value_product(w.astype(v.dtype), v[:, :, :s]))
    return jnp.concatenate(out, 2).astype(q.dtype), kept


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _attend(
    q: Array, k: Array, v: Array, mask: Mask | None, keep: Array | None, rate: float, scale: float
) -> Array:
    return _mix(q, k, v, mask, keep, rate, scale)[0]


def _forward(
    q: Array, k: Array, v: Array, mask: Mask | None, keep: Array | None, rate: float, scale: float
) -> tuple[Array, Any]:
    y, kept = _mix(q, k, v, mask, keep, rate, scale)
    return y, (q, k, v, mask, keep, y, kept)


def _backward(rate: float, scale: float, saved: Any, g: Array) -> tuple[Array | None, ...]:
    q, k, v, mask, keep, y, kept = saved
    # What softmax takes off all slopes of a query: Σ w (g vᵀ), which is g y, dropout or not.
    centre = (g.astype(jnp.float32) * y.astype(jnp.float32)).sum(-1, keepdims=True)
    dq, dk, dv = [], [], []
    for (t0, t, s), w in zip(_plan(q.shape[2], k.shape[2], mask), kept, strict=True):
        here, keys, values = slice(t0, t0 + t), k[:, :, :s], v[:, :, :s]
        stay = None if keep is None else keep[:, :, here, :s]
        slope = _dropped(query_key_product(g[:, :, here], values), stay, rate)
        slope = (w * (slope - centre[:, :, here])).astype(q.dtype)
        dq.append(weights_value_product(slope, keys))
        dk.append(transposed_value_product(slope, q[:, :, here], keys))
        dv.append(transposed_value_product(_dropped(w, stay, rate), g[:, :, here], values))
    return (
        (jnp.concatenate(dq, 2) * scale).astype(q.dtype),
        (_over_pieces(dk, k.shape[2]) * scale).astype(k.dtype),
        _over_pieces(dv, v.shape[2]).astype(v.dtype),
        None,
        None,
    )


def _over_pieces(sums: list[Array], keys: int) -> Array:
    """The sum over pieces, each of which met the first so many of all ``keys``."""
    parts = []
    for start, end in itertools.pairwise(sorted({0, keys, *(x.shape[2] for x in sums)})):
        met = [x[:, :, start:end] for x in sums if x.shape[2] >= end]
        none = jnp.zeros((*sums[0].shape[:2], end - start, sums[0].shape[3]), jnp.float32)
        parts.append(functools.reduce(jnp.add, met) if met else none)
    return jnp.concatenate(parts, 2)


_attend.defvjp(_forward, _backward)


def weights(
    q: Float[Array, "B N T H"],
    k: Float[Array, "B K S H"],
    allowed: Bool[Array, "#B #N #T #S"] | None,
    bias: Float[Array, "#B #N #T S"] | None,
    scale: float,
    softcap: float | None,
) -> Float[Array, "B N T S"]:
    """The softmax itself, in float32; a row of zeros for a query that may look nowhere."""
    s = scores(q, k, scale, softcap)
    if bias is not None:
        s = s + bias.astype(s.dtype)
    if allowed is not None:
        s = jnp.where(allowed, s, MASK_VALUE)
    top = jax.lax.stop_gradient(s.max(-1, keepdims=True))
    e = jnp.exp(s - jnp.maximum(top, MASK_VALUE))
    total = e.sum(-1, keepdims=True)
    if bias is None and allowed is None:
        return e / total
    seen = top > FULLY_MASKED_THRESHOLD
    return e * jnp.where(seen, 1.0 / jnp.where(seen, total, 1.0), 0.0)


def scores(
    q: Float[Array, "B N T H"], k: Float[Array, "B K S H"], scale: float, softcap: float | None
) -> Float[Array, "B N T S"]:
    """``q kᵀ · scale`` in float32, soft-capped to ``±softcap`` if asked (before bias and mask)."""
    # Scaling q instead of the scores touches T·H numbers instead of T·S; in bfloat16 it would
    # round, unless the scale is a power of two.
    if q.dtype == jnp.float32 or math.frexp(scale)[0] == 0.5:
        s = query_key_product(q * jnp.asarray(scale, q.dtype), k)
    else:
        s = query_key_product(q, k) * scale
    return s if softcap is None else softcap * jnp.tanh(s / softcap)


def query_key_product(
    q: Float[Array, "B N T H"], k: Float[Array, "B K S H"]
) -> Float[Array, "B N T S"]:
    """``q kᵀ`` in float32; query head ``n`` meets key head ``n // G``."""
    q, shape = _grouped(q, k)
    if own_backward() and q.shape[2] <= FEW:
        s = jnp.matmul(k, q.swapaxes(2, 3), preferred_element_type=jnp.float32).swapaxes(2, 3)
    else:
        s = jnp.matmul(q, _turned(k), preferred_element_type=jnp.float32)
    return s.reshape(*shape, k.shape[2])


def weights_value_product(
    w: Float[Array, "B N T S"], v: Float[Array, "B K S U"]
) -> Float[Array, "B N T U"]:
    """``w v`` in float32; query head ``n`` reads value head ``n // G``."""
    w, shape = _grouped(w, v)
    y = jnp.matmul(w, v, preferred_element_type=jnp.float32)
    return y.reshape(*shape, v.shape[3])


def transposed_value_product(
    w: Float[Array, "B N T S"], x: Float[Array, "B N T X"], like: Float[Array, "B K S _"]
) -> Float[Array, "B K S X"]:
    """``wᵀ x`` in float32, summed over the query heads that share a head of ``like``."""
    w, _ = _grouped(w, like)
    x, _ = _grouped(x, like)
    return jnp.matmul(_turned(w), x, preferred_element_type=jnp.float32)


def _turned(x: Array) -> Array:
    return by_rows(x.swapaxes(2, 3)) if narrow_on_cpu(x) else x.swapaxes(2, 3)


def _grouped(x: Array, like: Array) -> tuple[Array, tuple[int, int, int]]:
    """Query heads that share a key head, one under the other: ``[B K G*T X]``; and ``B N T``."""
    B, N, T, X = x.shape
    K = like.shape[1]
    return (x if N == K else x.reshape(B, K, N // K * T, X)), (B, N, T)

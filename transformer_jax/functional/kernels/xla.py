"""Attention as three matrix products around a softmax, the whole ``[B N T S]`` held at once.

Heads come first: queries ``[B N T H]``, keys ``[B K S H]``, values ``[B K S U]``. The products
here are those of the other kernels too.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from transformer_jax.functional._backend import own_backward
from transformer_jax.functional.dropout import dropout
from transformer_jax.functional.masks import Mask

__all__ = [
    "BLIND",
    "HIDDEN",
    "keys_product",
    "rows_product",
    "run",
    "scores",
    "supports",
    "values_product",
    "weights",
]

# What a hidden score becomes: its exponential is zero beside any score that can be seen, and
# differences stay finite where -inf would give NaN. Rows whose largest score is not above
# BLIND see nothing.
HIDDEN = -1e30
BLIND = -1e29
# On CPU, causal queries are cut into pieces of at least so many, from so many on: each piece meets
# only the keys up to its last query. Measured 1.1 to 1.3 times as fast at 256 and 512, and not at
# all at 128.
PIECE = 64
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

    The backward pass is left to autodiff: writing it out was not faster at any length measured.
    """
    T, S = q.shape[2], k.shape[2]
    key = key if dropout_rate > 0.0 else None
    plan = None if mask is None or bias is not None or key is not None else _plan(T, S, mask)
    if mask is not None and plan:
        out = []
        for t0, t, s in plan:
            w = weights(
                q[:, :, t0 : t0 + t], k[:, :, :s], mask.block(t0, t, 0, s), None, scale, softcap
            )
            out.append(values_product(w.astype(v.dtype), v[:, :, :s]))
        return jnp.concatenate(out, 2).astype(q.dtype)
    allowed = None if mask is None else mask.array(T, S)
    w = weights(q, k, allowed, bias, scale, softcap)
    w = dropout(w, dropout_rate, key)
    return values_product(w.astype(v.dtype), v).astype(q.dtype)


def _plan(T: int, S: int, mask: Mask) -> list[tuple[int, int, int]]:
    """``(first query, queries, keys)`` of each piece; nothing where it is all one."""
    if not (own_backward() and mask.causal and isinstance(mask.offset, int) and T >= LONG):
        return []
    size = max(PIECE, math.ceil(T / PIECES))
    return [
        (t0, t, min(max(t0 + t + mask.offset, 1), S))
        for t0 in range(0, T, size)
        for t in (min(size, T - t0),)
    ]


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
        s = jnp.where(allowed, s, HIDDEN)
    top = jax.lax.stop_gradient(s.max(-1, keepdims=True))
    e = jnp.exp(s - jnp.maximum(top, HIDDEN))
    total = e.sum(-1, keepdims=True)
    if bias is None and allowed is None:
        return e / total
    seen = top > BLIND
    return e * jnp.where(seen, 1.0 / jnp.where(seen, total, 1.0), 0.0)


def scores(
    q: Float[Array, "B N T H"], k: Float[Array, "B K S H"], scale: float, softcap: float | None
) -> Float[Array, "B N T S"]:
    """``q kᵀ · scale`` in float32, soft-capped to ``±softcap`` if asked (before bias and mask)."""
    # Scaling q instead of the scores touches T·H numbers instead of T·S; in bfloat16 it would
    # round, unless the scale is a power of two.
    if q.dtype == jnp.float32 or math.frexp(scale)[0] == 0.5:
        s = keys_product(q * jnp.asarray(scale, q.dtype), k)
    else:
        s = keys_product(q, k) * scale
    return s if softcap is None else softcap * jnp.tanh(s / softcap)


def keys_product(q: Float[Array, "B N T H"], k: Float[Array, "B K S H"]) -> Float[Array, "B N T S"]:
    """``q kᵀ`` in float32; query head ``n`` meets key head ``n // G``."""
    q, shape = _grouped(q, k)
    if own_backward() and q.shape[2] <= FEW:
        s = jnp.matmul(k, q.swapaxes(2, 3), preferred_element_type=jnp.float32).swapaxes(2, 3)
    else:
        s = jnp.matmul(q, k.swapaxes(2, 3), preferred_element_type=jnp.float32)
    return s.reshape(*shape, k.shape[2])


def values_product(
    w: Float[Array, "B N T S"], v: Float[Array, "B K S U"]
) -> Float[Array, "B N T U"]:
    """``w v`` in float32; query head ``n`` reads value head ``n // G``."""
    w, shape = _grouped(w, v)
    y = jnp.matmul(w, v, preferred_element_type=jnp.float32)
    return y.reshape(*shape, v.shape[3])


def rows_product(
    w: Float[Array, "B N T S"], x: Float[Array, "B N T X"], like: Float[Array, "B K S _"]
) -> Float[Array, "B K S X"]:
    """``wᵀ x`` in float32, summed over the query heads that share a head of ``like``."""
    w, _ = _grouped(w, like)
    x, _ = _grouped(x, like)
    return jnp.matmul(w.swapaxes(2, 3), x, preferred_element_type=jnp.float32)


def _grouped(x: Array, like: Array) -> tuple[Array, tuple[int, int, int]]:
    """Query heads that share a key head, one under the other: ``[B K G*T X]``; and ``B N T``."""
    B, N, T, X = x.shape
    K = like.shape[1]
    return (x if N == K else x.reshape(B, K, N // K * T, X)), (B, N, T)

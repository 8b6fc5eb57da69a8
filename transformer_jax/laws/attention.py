"""Laws of attention: masks, rows of weights, and kernels compared with their formula.

Arrays are heads-first: queries ``[B N T H]``, keys ``[B K S H]``, values ``[B K S U]``. Masks are
True where a query may attend: arrays that broadcast to ``[B N T S]``, or masks of this package.
"""

import math
from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from transformer_jax.core.arguments import checked_arguments
from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.masks import Mask
from transformer_jax.functional.scores import ScaledDot, scaled_dot
from transformer_jax.laws.finding import Finding, Place, difference, errors, finding, law, worst

__all__ = [
    "attention_formula",
    "attention_kernel",
    "mask_polarity",
    "masked_rows",
    "weights_sum_to_one",
    "with_gradients",
]

AnyArray = Array | np.ndarray
AnyMask = Mask | Bool[Array | np.ndarray, "..."] | None
# Outputs [B N T U] from queries, keys, values and a mask.
Attend = Callable[..., AnyArray]
# (Output, and gradients of queries, keys and values), given a gradient of the output [B N T U].
# Without gradients, the tuple has only the output.
Kernel = Callable[..., tuple[AnyArray, ...]]
NAMES = ("output", "gradient of queries", "gradient of keys", "gradient of values")


@checked_arguments
def with_gradients(attend: Attend) -> Kernel:
    """Returns attention with its gradients, for a function that JAX can differentiate.

    Example:
        >>> kernel = with_gradients(lambda q, k, v, mask: q + k + v)
        >>> x = np.ones((1, 1, 2, 3), np.float32)
        >>> [array.shape for array in kernel(x, x, x, x, None)]
        [(1, 1, 2, 3), (1, 1, 2, 3), (1, 1, 2, 3), (1, 1, 2, 3)]
    """

    @jax.jit
    def run(q: Array, k: Array, v: Array, cotangent: Array, mask: AnyMask) -> tuple[Array, ...]:
        y, back = jax.vjp(lambda q, k, v: attend(q, k, v, mask), q, k, v)
        return y, *back(cotangent)

    return run


@law("Each query attends to exactly the keys at which its mask is True.")
def mask_polarity(
    attend: Attend,
    q: Float[AnyArray, "B N T H"],
    k: Float[AnyArray, "B K S H"],
    mask: AnyMask,
    *,
    tolerance: float = 0.0,
) -> Finding:
    """Checks which keys have a weight: outputs are sums of values, so unit values show weights.

    Args:
        attend: Maps queries, keys, values of heads of size ``H`` and the mask to outputs.
        q: Queries.
        k: Keys.
        mask: True where a query may attend; every query sees a key: see :func:`masked_rows`.
        tolerance: Largest weight of an invisible key.

    Example:
        >>> x, mask = np.eye(3, dtype=np.float32)[None, None], np.tri(3, dtype=bool)[None, None]
        >>> attend = lambda q, k, v, mask: attention_formula(q, k, v, v, mask)[0]
        >>> mask_polarity(attend, x, x, mask).holds
        True
        >>> mask_polarity(lambda q, k, v, mask: attend(q, k, v, ~mask), x, x, mask).where
        'row 0, head 0: query 0 does not read key 0'
    """
    (B, N, T, H), (_, K, S, _) = q.shape, k.shape
    visible, columns = _visible(mask, B, N, T, S), []
    for first in range(0, S, H):  # some kernels require values of the same size as keys
        v = np.broadcast_to(np.eye(S, H, -first, np.float32), (B, K, S, H))
        columns.append(np.asarray(attend(q, k, v, mask), np.float64))
    weights = np.concatenate(columns, axis=-1)[..., :S]
    hidden = np.where(visible, 0, np.where(np.isnan(weights), math.inf, np.abs(weights)))
    blind = np.where(visible & ~(weights > 0), math.inf, 0)
    place = worst(
        _of_weights(hidden, "row {}, head {}: query {} reads key {}"),
        _of_weights(blind, "row {}, head {}: query {} does not read key {}"),
    )
    return finding("mask_polarity", place, tolerance)


@law("A query that sees no key gives zero and has no gradient, nor has a key that no query sees.")
def masked_rows(
    kernel: Kernel,
    q: Float[AnyArray, "B N T H"],
    k: Float[AnyArray, "B K S H"],
    v: Float[AnyArray, "B K S U"],
    mask: AnyMask,
    *,
    tolerance: float = 0.0,
) -> Finding:
    """Checks queries that see no key, such as padding that attends to padding, and unseen keys.

    Args:
        kernel: Maps queries, keys, values, a gradient of the output and the mask to output and
            gradients: :func:`with_gradients`. Without gradients it returns a tuple of length 1.
        q: Queries.
        k: Keys.
        v: Values.
        mask: A mask with at least one row that is False everywhere.
        tolerance: Largest output or gradient of such a query or key.

    Example:
        >>> x, mask = np.ones((1, 1, 2, 4), np.float32), np.array([[1, 1], [0, 0]], bool)
        >>> masked_rows(attention_formula, x, x, x, mask[None, None]).holds
        True
        >>> mean = lambda q, k, v, cotangent, mask: (v.mean(2, keepdims=True) + 0 * q,)
        >>> masked_rows(mean, x, x, x, mask[None, None]).where
        'output: row 0, head 0, query 1'
    """
    (B, N, T, _), (_, K, S, _) = q.shape, k.shape
    visible = _visible(mask, B, N, T, S)
    masked = ~np.any(visible, axis=-1)
    if not masked.any():
        raise ArgumentError("laws: every query sees a key: give a mask with a fully masked row")
    unseen = ~np.any(visible.reshape(B, K, -1, S), axis=2)
    cotangent = np.random.default_rng(0).standard_normal((B, N, T, v.shape[3]), np.float32)
    found, places = kernel(q, k, v, cotangent, mask), []
    for n, array in enumerate(map(np.asarray, found)):
        where = masked if n < 2 else unseen
        places.append(_named(n, difference(array, np.zeros_like(array), _axes(n), where)))
    return finding("masked_rows", worst(*places), tolerance)


@law("Each row of weights sums to one over its visible keys, and is zero elsewhere.")
def weights_sum_to_one(
    weights: Float[AnyArray, "*rows T S"],
    visible: Bool[AnyArray, "..."] | None = None,
    *,
    tolerance: float = 1e-6,
) -> Finding:
    """Checks that attention weights, or attention maps of a model, are distributions.

    Args:
        weights: Weights of queries ``T`` over keys ``S``.
        visible: True where a query may attend; a row that is False everywhere has weights of zero.
        tolerance: Largest deviation of a sum. A weight below zero, or a nonzero one of an invisible
            key, breaks the law whatever its size.

    Example:
        >>> weights_sum_to_one(np.array([[0.25, 0.75], [1.0, 0.0]])).holds
        True
        >>> weights_sum_to_one(np.array([[0.25, 0.75], [0.9, 0.0]])).where
        'row 1'
        >>> weights_sum_to_one(np.array([[0.25, 0.75]]), np.array([[True, False]])).where
        'weight [0, 1] of an invisible key'
    """
    weights = np.asarray(weights, np.float64)
    visible = np.broadcast_to(True if visible is None else np.asarray(visible), weights.shape)
    place = worst(
        _largest(errors(weights.sum(-1), np.any(visible, axis=-1)), "row {}"),
        _largest(np.where(weights < 0, math.inf, 0), "weight {} is below zero"),
        _largest(np.where(~visible & (weights != 0), math.inf, 0), "weight {} of an invisible key"),
    )
    return finding("weights_sum_to_one", place, tolerance)


@law("A kernel of attention computes its formula in float64, forwards and backwards.")
def attention_kernel(
    kernel: Kernel,
    q: Float[AnyArray, "B N T H"],
    k: Float[AnyArray, "B K S H"],
    v: Float[AnyArray, "B K S U"],
    mask: AnyMask = None,
    *,
    score: ScaledDot = scaled_dot,
    bias: Float[AnyArray, "#B #N #T S"] | None = None,
    tolerance: float = 1e-5,
) -> Finding:
    """Checks outputs and gradients against :func:`attention_formula`.

    Args:
        kernel: Maps queries, keys, values, a gradient of the output and the mask to output and
            gradients: :func:`with_gradients`. Without gradients it returns a tuple of length 1.
        q: Queries.
        k: Keys, with the same number of heads or fewer.
        v: Values.
        mask: True where a query may attend; None is everywhere.
        score: Scale and soft cap that the kernel uses.
        bias: Bias that the kernel adds to scores.
        tolerance: Largest difference of an output or gradient.

    Example:
        >>> from transformer_jax.functional.attention import attend_heads_first
        >>> x = np.random.default_rng(0).standard_normal((1, 2, 3, 4), np.float32)
        >>> ours = with_gradients(lambda q, k, v, mask: attend_heads_first(q, k, v))
        >>> attention_kernel(ours, x, x, x).holds
        True
        >>> attention_kernel(ours, x, x, x, score=ScaledDot(scale=1.0)).holds
        False
    """
    cotangent = np.random.default_rng(0).standard_normal((*q.shape[:3], v.shape[3]), np.float32)
    found = kernel(q, k, v, cotangent, mask)
    wanted = attention_formula(q, k, v, cotangent, mask, score=score, bias=bias)
    places = []
    for n, (one, other) in enumerate(zip(found, wanted, strict=False)):
        places.append(_named(n, difference(one, other, _axes(n))))
    return finding("attention_kernel", worst(*places), tolerance)


@checked_arguments
def attention_formula(
    q: Float[AnyArray, "B N T H"],
    k: Float[AnyArray, "B K S H"],
    v: Float[AnyArray, "B K S U"],
    cotangent: Float[AnyArray, "B N T U"],
    mask: AnyMask = None,
    *,
    score: ScaledDot = scaled_dot,
    bias: Float[AnyArray, "#B #N #T S"] | None = None,
) -> tuple[Float[np.ndarray, "..."], ...]:
    """Computes ``softmax(q kᵀ · scale + bias) v`` and its gradients with NumPy, in float64.

    Fully masked rows give zeros. Vaswani et al. 2017, section 3.2.1.

    Args:
        q: Queries.
        k: Keys, with the same number of heads or fewer.
        v: Values.
        cotangent: Gradient of the output.
        mask: True where a query may attend; None is everywhere.
        score: Scale and soft cap of scores.
        bias: Added to the scores; a key whose bias is -inf is invisible.

    Returns:
        The output, and gradients of queries, keys and values.

    Example:
        >>> x = np.eye(2)[None, None]
        >>> attention_formula(x, x, x, x, score=ScaledDot(scale=1.0))[0][0, 0].round(6)
        array([[0.731059, 0.268941],
               [0.268941, 0.731059]])
    """
    q, k, v, cotangent = (np.asarray(array, np.float64) for array in (q, k, v, cotangent))
    (B, N, T, H), (_, K, S, _) = q.shape, k.shape
    bias = np.zeros((1, 1, 1, S)) if bias is None else np.asarray(bias, np.float64)
    visible = _visible(mask, B, N, T, S) & (bias > -1e29)
    scale, cap = score.scale_of(H), score.softcap
    keys, values = (array.repeat(N // K, axis=1) for array in (k, v))
    s = q @ keys.swapaxes(2, 3) * scale
    s, slope = (s, 1) if cap is None else (cap * np.tanh(s / cap), 1 - np.tanh(s / cap) ** 2)
    s = np.where(visible, s + np.where(visible, bias, 0), -1e30)
    e = np.where(visible, np.exp(s - s.max(-1, keepdims=True)), 0)
    w = e / np.maximum(e.sum(-1, keepdims=True), 1e-300)
    dw = cotangent @ values.swapaxes(2, 3)
    ds = w * (dw - (w * dw).sum(-1, keepdims=True)) * slope * scale
    of_groups = lambda array: array.reshape(B, K, N // K, S, -1).sum(2)
    dk, dv = (of_groups(one.swapaxes(2, 3) @ other) for one, other in ((ds, q), (w, cotangent)))
    return w @ values, ds @ keys, dk, dv


def _visible(mask: AnyMask, B: int, N: int, T: int, S: int) -> Bool[np.ndarray, "{B} {N} {T} {S}"]:
    array = mask.array(T, S) if isinstance(mask, Mask) else mask
    return np.broadcast_to(True if array is None else np.asarray(array), (B, N, T, S))


def _axes(n: int) -> tuple[str, str, str]:
    """Names of the axes of a kernel's result with index ``n``."""
    return "row", "head", "query" if n < 2 else "key"


def _named(n: int, place: Place) -> Place:
    return place[0], f"{NAMES[n]}: {place[1]}"


def _of_weights(table: Float[np.ndarray, "B N T S"], words: str) -> Place:
    index = np.unravel_index(int(np.argmax(table)), table.shape)
    return float(table[index]), words.format(*index)


def _largest(table: Float[np.ndarray, "..."], words: str) -> Place:
    index = np.unravel_index(int(np.argmax(table)), table.shape)
    place = list(map(int, index)) if len(index) > 1 else int(index[0])
    return float(table[index]), words.format(place)

"""Attention as three functions: a score, a softmax under a mask, and mixing.

``attend(q, k, v, mask, score=score)`` is ``mix(masked_softmax(score(q, k), mask), v)``. Arrays are
heads-first.
"""

import dataclasses
import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from transformer_jax.functional.linear import make_row_major
from transformer_jax.functional.real_arguments import real_arguments

__all__ = [
    "FULLY_MASKED_THRESHOLD",
    "MASK_VALUE",
    "ScaledDot",
    "Score",
    "dot",
    "dot_product_scores",
    "dot_product_weights",
    "masked_softmax",
    "mix",
    "query_key_product",
    "scaled_dot",
    "transposed_value_product",
]

# The score of a masked key: its exponential is zero beside that of any visible key, and differences
# stay finite where -inf would give NaN. A row whose largest score is not above
# FULLY_MASKED_THRESHOLD sees no key.
MASK_VALUE = -1e30
FULLY_MASKED_THRESHOLD = -1e29
# XLA:CPU copies the transposed operand of a batched product. Up to this many queries a head, as in
# decoding, it is better to copy the queries than the keys.
FEW_QUERIES = 8

# How well each key fits each query: [B N T H] and [B N S J] to [B N T S]. Parameters of a score are
# those of a closure.
Score = Callable[[Array, Array], Array]


@dataclasses.dataclass(frozen=True)
class ScaledDot:
    """The score ``q kᵀ · scale``, then ``c tanh(s / c)`` if there is a cap ``c``, in float32.

    Vaswani et al. 2017, 3.2.1; rows L8, B9.

    Attributes:
        scale: Multiplies ``q kᵀ``; None is ``1 / √H``, which keeps the scores' variance (row B8).
        softcap: Bounds scores to ``±softcap``, before bias and mask.

    Example:
        >>> q = k = jnp.eye(2)[None, None]
        >>> ScaledDot(scale=2.0)(q, k)[0, 0]
        Array([[2., 0.],
               [0., 2.]], dtype=float32)
    """

    scale: float | None = None
    softcap: float | None = None

    def __call__(
        self, q: Float[Array, "B N T H"], k: Float[Array, "B K S H"]
    ) -> Float[Array, "B N T S"]:
        """The scores; query head ``n`` meets key head ``n // G``."""
        return dot_product_scores(q, k, self.scale_of(q.shape[3]), self.softcap)

    def scale_of(self, head_dim: int) -> float:
        """What multiplies products of heads of this size."""
        return head_dim**-0.5 if self.scale is None else self.scale


scaled_dot = ScaledDot()
dot = ScaledDot(scale=1.0)  # Luong et al. 2015, 3.1; row T3


@real_arguments
def masked_softmax(
    scores: Float[Array, "B N T S"], allowed: Bool[Array, "#B #N #T #S"] | None = None
) -> Float[Array, "B N T S"]:
    """Softmax over the visible keys; a row of zeros, without gradient, where none is visible.

    Keys with a score of ``-inf`` count as masked if there is a mask.

    Args:
        scores: One for each query and key.
        allowed: True where a query sees a key; None is everywhere.

    Example:
        >>> masked_softmax(jnp.zeros((1, 1, 2, 2)), jnp.array([[[[True], [False]]]]))[0, 0]
        Array([[0.5, 0.5],
               [0. , 0. ]], dtype=float32)
    """
    if allowed is not None:
        scores = jnp.where(allowed, scores, MASK_VALUE)
    top = lax.stop_gradient(scores.max(-1, keepdims=True))
    e = jnp.exp(scores - jnp.maximum(top, MASK_VALUE))
    total = e.sum(-1, keepdims=True)
    if allowed is None:
        return e / total
    visible = top > FULLY_MASKED_THRESHOLD
    return e * jnp.where(visible, 1.0 / jnp.where(visible, total, 1.0), 0.0)


@real_arguments
def mix(w: Float[Array, "B N T S"], v: Float[Array, "B K S U"]) -> Float[Array, "B N T U"]:
    """``w v`` in float32, what each query reads; query head ``n`` reads value head ``n // G``.

    Example:
        >>> mix(jnp.array([[[[0.25, 0.75]]]]), jnp.array([[[[0.0], [4.0]]]]))[0, 0]
        Array([[3.]], dtype=float32)
    """
    w, shape = _grouped(w, v)
    y = jnp.matmul(w, v, preferred_element_type=jnp.float32)
    return y.reshape(*shape, v.shape[3])


@real_arguments
def dot_product_weights(
    q: Float[Array, "B N T H"],
    k: Float[Array, "B K S H"],
    allowed: Bool[Array, "#B #N #T #S"] | None,
    bias: Float[Array, "#B #N #T S"] | None,
    score: ScaledDot,
) -> Float[Array, "B N T S"]:
    """The softmax of ``score`` plus ``bias``, in float32.

    Example:
        >>> x = jnp.zeros((1, 1, 2, 4))
        >>> dot_product_weights(x, x, None, None, scaled_dot)[0, 0]
        Array([[0.5, 0.5],
               [0.5, 0.5]], dtype=float32)
    """
    s = score(q, k)
    if bias is not None:
        s = s + bias.astype(s.dtype)
        allowed = jnp.ones((1, 1, 1, 1), bool) if allowed is None else allowed  # it may hold -inf
    return masked_softmax(s, allowed)


@real_arguments
def dot_product_scores(
    q: Float[Array, "B N T H"], k: Float[Array, "B K S H"], scale: float, softcap: float | None
) -> Float[Array, "B N T S"]:
    """``q kᵀ · scale`` in float32, bounded to ``±softcap`` if there is one.

    Example:
        >>> q = k = jnp.full((1, 1, 1, 1), 3.0)
        >>> dot_product_scores(q, k, 1.0, 5.0).round(2).item()
        4.730000019073486
    """
    # Scaling q instead of the scores touches T·H numbers instead of T·S; in bfloat16 it would
    # round, unless the scale is a power of two.
    if q.dtype == jnp.float32 or math.frexp(scale)[0] == 0.5:
        s = query_key_product(q * jnp.asarray(scale, q.dtype), k)
    else:
        s = query_key_product(q, k) * scale
    return s if softcap is None else softcap * jnp.tanh(s / softcap)


@real_arguments
def query_key_product(
    q: Float[Array, "B N T H"], k: Float[Array, "B K S H"]
) -> Float[Array, "B N T S"]:
    """``q kᵀ`` in float32; query head ``n`` meets key head ``n // G``."""
    q, shape = _grouped(q, k)
    if isinstance(q.shape[2], int) and q.shape[2] <= FEW_QUERIES:
        s = lax.platform_dependent(q, k, cpu=_keys_first, default=_queries_first)
    else:
        s = _queries_first(q, k)
    return s.reshape(*shape, k.shape[2])


@real_arguments
def transposed_value_product(
    w: Float[Array, "B N T S"], x: Float[Array, "B N T X"], like: Float[Array, "B K S _"]
) -> Float[Array, "B K S X"]:
    """``wᵀ x`` in float32, summed over the query heads that share a head of ``like``."""
    w, _ = _grouped(w, like)
    x, _ = _grouped(x, like)
    return jnp.matmul(_transposed(w), x, preferred_element_type=jnp.float32)


def _keys_first(q, k):
    return jnp.matmul(k, q.swapaxes(2, 3), preferred_element_type=jnp.float32).swapaxes(2, 3)


def _queries_first(q, k):
    return jnp.matmul(q, _transposed(k), preferred_element_type=jnp.float32)


def _transposed(x: Array) -> Array:
    return make_row_major(x.swapaxes(2, 3))


def _grouped(x: Array, like: Array) -> tuple[Array, tuple[int, int, int]]:
    """Query heads of each key head along one axis, ``[B K G*T X]``, and the sizes ``B N T``."""
    B, N, T, X = x.shape
    K = like.shape[1]
    return (x if N == K else x.reshape(B, K, N // K * T, X)), (B, N, T)

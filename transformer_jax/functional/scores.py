"""Attention as three functions: a score, a softmax under a mask, and mixing.

``attend(q, k, v, mask, score=score)`` is ``mix(masked_softmax(score(q, k), mask), v)``. Arrays are
heads-first. :class:`Scores` is the input of the softmax as a single value, for every kernel.
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.core.arguments import check_values
from transformer_jax.core.config_fields import Positive
from transformer_jax.core.errors import ArgumentError
from transformer_jax.core.trees import Child
from transformer_jax.functional.array_arguments import real_arguments
from transformer_jax.functional.kernels import products
from transformer_jax.functional.layers import soft_cap, soft_cap_slope
from transformer_jax.functional.masks import Mask

__all__ = [
    "ALL_KEYS",
    "FULLY_MASKED_THRESHOLD",
    "MASK_VALUE",
    "ScaledDot",
    "Score",
    "Scores",
    "Shaped",
    "dot",
    "masked_softmax",
    "mix",
    "query_key_product",
    "scaled_dot",
    "transposed_value_product",
]

# The score of a masked key: its exponential is zero next to any visible key's, and differences stay
# finite where -inf would give NaN. A row whose largest score is not above FULLY_MASKED_THRESHOLD
# sees no key.
MASK_VALUE = -1e30
FULLY_MASKED_THRESHOLD = -1e29

# Scores how well each key matches each query: [B N T H] and [B N S J] to [B N T S]. A score with
# parameters is a closure.
Score = Callable[[Array, Array], Array]

# Queries, keys or values, or their shapes alone.
Shaped = Array | np.ndarray | jax.ShapeDtypeStruct


@dataclasses.dataclass(frozen=True)
class ScaledDot:
    """The score ``q kᵀ · scale``, then ``c tanh(s / c)`` if there is a cap ``c``, in float32.

    Vaswani et al. 2017, section 3.2.1.

    Attributes:
        scale: Multiplies ``q kᵀ``; None is ``1 / √H``, which keeps the scores' variance.
        softcap: Bounds scores to ``±softcap``, before bias and mask.

    Example:
        >>> q = k = jnp.eye(2)[None, None]
        >>> ScaledDot(scale=2.0)(q, k)[0, 0]
        Array([[2., 0.],
               [0., 2.]], dtype=float32)
        >>> ScaledDot(scale=100.0, softcap=5.0)(q, k)[0, 0]
        Array([[5., 0.],
               [0., 5.]], dtype=float32)
    """

    scale: float | None = None
    softcap: float | None = None

    def __post_init__(self) -> None:
        kinds = {"scale": float | None, "softcap": Positive | None}
        check_values("ScaledDot: ", kinds, {name: getattr(self, name) for name in kinds})

    def __call__(
        self, q: Float[Array, "B N T H"], k: Float[Array, "B K S H"]
    ) -> Float[Array, "B N T S"]:
        """Returns the scores; query head ``n`` uses key head ``n // G``."""
        scale = self.scale_of(q.shape[3])
        # Scaling q instead of the scores touches T·H values instead of T·S; in bfloat16 it would
        # round, unless the scale is a power of two.
        if q.dtype == jnp.float32 or math.frexp(scale)[0] == 0.5:
            s = query_key_product(q * jnp.asarray(scale, q.dtype), k)
        else:
            s = query_key_product(q, k) * scale
        return soft_cap(s, self.softcap)

    def scale_of(self, head_dim: int) -> float:
        """The factor of the products for this head size."""
        return head_dim**-0.5 if self.scale is None else self.scale

    @property
    def capped(self) -> bool:
        """Returns whether scores are bounded."""
        return self.softcap is not None

    def slope(self, scores: Float[Array, "B N T S"]) -> Float[Array, "B N T S"] | float:
        """The derivative of scores with respect to ``q kᵀ · scale``."""
        return soft_cap_slope(scores, self.softcap)


scaled_dot = ScaledDot()
dot = ScaledDot(scale=1.0)  # Luong et al. 2015, section 3.1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Scores:
    """The input of the softmax over keys: ``score(q, k) + bias``, under a mask.

    It is a pytree of the mask and the bias.

    Attributes:
        mask: Which keys each query sees; None is all.
        bias: Added to the scores, ``[#B #N #T S]``, or None.
        score: Function of queries and keys.
    """

    mask: Child[Mask] | None = None
    bias: Child[Array] | None = None
    score: Score = dataclasses.field(default=scaled_dot, metadata={"static": True})

    def weights(
        self, q: Float[Array, "B N T H"], k: Float[Array, "B K S J"]
    ) -> Float[Array, "B N T S"]:
        """Returns the weight of each key for each query, in float32.

        Raises:
            ArgumentError: The score returns the wrong shape.

        Example:
            >>> x = jnp.zeros((1, 1, 2, 4))
            >>> Scores().weights(x, x)[0, 0]
            Array([[0.5, 0.5],
                   [0.5, 0.5]], dtype=float32)
        """
        return self.softmax(self.before_mask(q, k))

    def before_mask(
        self, q: Float[Array, "B N T H"], k: Float[Array, "B K S J"]
    ) -> Float[Array, "B N T S"]:
        """Returns ``score(q, k) + bias``, in float32.

        Raises:
            ArgumentError: The score returns the wrong shape.
        """
        (B, N, T, _), (_, K, S, _) = q.shape, k.shape
        if isinstance(self.score, ScaledDot):
            s = self.score(q, k)
        else:
            s = self.score(q, k if K == N else jnp.repeat(k, N // K, axis=1))
            if s.shape != (B, N, T, S):
                raise ArgumentError(
                    f"attend: score gives shape {s.shape}, not [B N T S] = {(B, N, T, S)}"
                )
            s = products.widen(s)
        return s if self.bias is None else s + self.bias.astype(s.dtype)

    def softmax(self, s: Float[Array, "B N T S"]) -> Float[Array, "B N T S"]:
        """Returns the softmax of the values of :meth:`before_mask`, over visible keys."""
        allowed = None if self.mask is None else self.mask.array(*s.shape[2:])
        if allowed is None and not (isinstance(self.score, ScaledDot) and self.bias is None):
            allowed = jnp.ones((1, 1, 1, 1), bool)  # scores and biases may be -inf
        return masked_softmax(s, allowed)

    def last_queries(self, count: int, skip: int) -> "Scores":
        """Returns the same for the last ``count`` queries, after ``skip`` earlier ones."""
        mask = None if self.mask is None else self.mask.skip_queries(skip)
        bias = None if self.bias is None else self.bias[:, :, -count:]
        return dataclasses.replace(self, mask=mask, bias=bias)

    def part_of_queries(self, index: Int[Array, ""], size: int) -> "Scores":
        """Returns the same for the ``index``-th block of ``size`` queries, without a bias."""
        mask = None if self.mask is None else self.mask.part_of_queries(index * size, size)
        return dataclasses.replace(self, mask=mask)

    def of_one_sequence(self, B: int, N: int, T: int, S: int) -> "Scores":
        """Returns the same with ``B`` sequences of ``N`` heads as one sequence of ``B·N`` heads."""
        bias = None if self.bias is None else jnp.tile(self.bias, (1, B, 1, 1))
        mask, dense = self.mask, None if self.mask is None else self.mask.array(T, S)
        # Not "> 1", which is undecidable for a symbolic size.
        if dense is not None and dense.shape[0] != 1:
            mask = Mask(dense=jnp.repeat(dense[:, 0], N, axis=0)[None])
        return dataclasses.replace(self, mask=mask, bias=bias)


ALL_KEYS = Scores()  # scaled dot products of queries and all keys


@real_arguments
def masked_softmax(
    scores: Float[Array, "B N T S"], allowed: Bool[Array, "#B #N #T #S"] | None = None
) -> Float[Array, "B N T S"]:
    """Softmax over the visible keys; a row without any is zeros and has no gradient.

    Keys with a score of ``-inf`` count as masked if there is a mask.

    Args:
        scores: One score per query and key.
        allowed: True where a query sees a key; None is everywhere.

    Example:
        >>> masked_softmax(jnp.zeros((1, 1, 2, 2)), jnp.array([[[[True], [False]]]]))[0, 0]
        Array([[0.5, 0.5],
               [0. , 0. ]], dtype=float32)
    """
    if allowed is None:
        return _softmax(scores)
    return lax.platform_dependent(
        scores, allowed, cuda=_masked_softmax_of_single_uses, default=_masked_softmax
    )


def _softmax(scores: Array) -> Array:
    top = lax.stop_gradient(scores.max(-1, keepdims=True))
    e = jnp.exp(scores - jnp.maximum(top, MASK_VALUE))
    return e / e.sum(-1, keepdims=True)


def _masked_softmax(scores: Array, allowed: Array) -> Array:
    scores = jnp.where(allowed, scores, MASK_VALUE)
    top = lax.stop_gradient(scores.max(-1, keepdims=True))
    e = jnp.exp(scores - jnp.maximum(top, MASK_VALUE))
    total = e.sum(-1, keepdims=True)
    visible = top > FULLY_MASKED_THRESHOLD
    return e * jnp.where(visible, 1.0 / jnp.where(visible, total, 1.0), 0.0)


def _masked_softmax_of_single_uses(scores: Array, allowed: Array) -> Array:
    """The same for XLA:GPU, which makes one kernel of it if each reduction is used once."""
    scores = jnp.maximum(jnp.where(allowed, scores, MASK_VALUE), MASK_VALUE)
    top = lax.stop_gradient(scores.max(-1, keepdims=True))
    e = jnp.where(scores <= FULLY_MASKED_THRESHOLD, 0.0, jnp.exp(scores - top))
    # The sum is at least 1, the term of the largest score, or 0 if no key is visible.
    return e / jnp.maximum(e.sum(-1, keepdims=True), 0.5)


@real_arguments
def mix(w: Float[Array, "B N T S"], v: Float[Array, "B K S U"]) -> Float[Array, "B N T U"]:
    """``w v`` in float32, the output for each query; query head ``n`` reads value head ``n // G``.

    Example:
        >>> mix(jnp.array([[[[0.25, 0.75]]]]), jnp.array([[[[0.0], [4.0]]]]))[0, 0]
        Array([[3.]], dtype=float32)
    """
    w, shape = _grouped(w, v)
    y = products.value_product(w, v)
    return y.reshape(*shape, v.shape[3])


@real_arguments
def query_key_product(
    q: Float[Array, "B N T H"], k: Float[Array, "B K S H"]
) -> Float[Array, "B N T S"]:
    """``q kᵀ`` in float32; query head ``n`` uses key head ``n // G``."""
    q, shape = _grouped(q, k)
    return products.query_key_product(q, k).reshape(*shape, k.shape[2])


@real_arguments
def transposed_value_product(
    w: Float[Array, "B N T S"], x: Float[Array, "B N T X"], like: Float[Array, "B K S _"]
) -> Float[Array, "B K S X"]:
    """``wᵀ x`` in float32, summed over the query heads that share a head of ``like``."""
    w, _ = _grouped(w, like)
    x, _ = _grouped(x, like)
    return jnp.matmul(
        products.make_row_major(w.swapaxes(2, 3)), x, preferred_element_type=jnp.float32
    )


def _grouped(x: Array, like: Array) -> tuple[Array, tuple[int, int, int]]:
    """Query heads of each key head along one axis, ``[B K G*T X]``, and the sizes ``B N T``."""
    B, N, T, X = x.shape
    K = like.shape[1]
    return (x if N == K else x.reshape(B, K, N // K * T, X)), (B, N, T)

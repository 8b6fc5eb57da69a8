"""Cross-entropy as a sum and its weight, and the map from vectors to logits."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Float32, Int

from transformer_jax.functional.linear import matmul
from transformer_jax.functional.partitioning import unshard_fsdp
from transformer_jax.functional.real_arguments import real_arguments
from transformer_jax.functional.trained_rows import with_gradient_of_rows

__all__ = [
    "OutputTable",
    "cross_entropy",
    "linear_logits",
    "token_cross_entropy",
]

TABLE_AXES = ("vocab", "embed")  # of every output table
PADDING = -1e9  # logit of a token that does not exist


@real_arguments
def token_cross_entropy(
    logits: Float[Array, "*rows V"], targets: Int[Array, "*rows"], label_smoothing: float = 0.0
) -> Float[Array, "*rows"]:
    """The cross-entropy of every row, in nats: ``−Σ_v q_v log softmax(logits)_v``.

    The wanted distribution ``q`` gives ``1 − s`` to the target and spreads ``s = label_smoothing``
    evenly over all ``V`` tokens, the target among them; ``s = 0`` is ``−log p(target)``.
    Computed in float32, or in float64 for float64 logits. A forbidden token (logit −∞) is fine
    without smoothing, and makes the loss infinite with it. The gradient is our own, and
    reverse-mode only: ``softmax(logits) − q``.

    Source: Szegedy et al. 2015, https://arxiv.org/abs/1512.00567, section 7.

    Example:
        >>> token_cross_entropy(jnp.zeros((1, 4)), jnp.array([2])) == jnp.log(4.0)
        Array([ True], dtype=bool)
    """
    return _token_losses(logits, targets, label_smoothing)


@real_arguments
def cross_entropy(
    logits: Float[Array, "*rows V"],
    targets: Int[Array, "*rows"],
    weights: Float[Array, "*rows"] | None = None,
    label_smoothing: float = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The weighted sum of :func:`token_cross_entropy`, and the sum of the weights.

    Divide once, after adding up both over all micro-batches and devices. A row of weight 0 adds
    exactly nothing to the sum or to any gradient, whatever its logits (NaN too) and target.
    Targets elsewhere are in ``[0, V)``.

    Example:
        >>> targets, weights = jnp.array([0, 1]), jnp.array([1.0, 0.0])
        >>> total, weight = cross_entropy(jnp.zeros((2, 4)), targets, weights)
        >>> f"{total:.4f} {weight:.1f}"
        '1.3863 1.0'
    """
    losses = token_cross_entropy(logits, targets, label_smoothing)
    weights = jnp.ones_like(losses) if weights is None else weights.astype(losses.dtype)
    return weighted(losses, weights).sum(), weights.sum()


@real_arguments
def linear_logits(
    x: Float[Array, "*rows D"],
    table: Float[Array, "V D"],
    *,
    bias: Float[Array, " V"] | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
) -> Float[Array, "*rows V"]:
    """The score of every token: ``z = scale · x tableᵀ + bias``, then ``c tanh(z / c)`` if capped.

    The product is of numbers in the dtype of ``x``, the result at least float32.

    Args:
        x: What the model ends with.
        table: One row a token, often the embedding itself.
        bias: Added after scaling.
        scale: Multiplies the product.
        softcap: The bound ``c`` on the size of a logit, as in Gemma 2.

    Example:
        >>> linear_logits(jnp.array([[1.0, 2.0]]), jnp.eye(2), scale=0.5)
        Array([[0.5, 1. ]], dtype=float32)
    """
    z = matmul(x, table.astype(x.dtype), x.ndim - 1, 1)
    if scale != 1.0:
        z = z * scale
    if bias is not None:
        z = z + bias.astype(z.dtype).reshape((1,) * (z.ndim - 1) + bias.shape)
    return z if softcap is None else softcap * jnp.tanh(z / softcap)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OutputTable:
    """How vectors become logits: ``softcap(scale · x tableᵀ + bias)``. A tree of its arrays.

    Where ``rows`` are given, they alone are trained: ``table`` has the same numbers at ``ids`` and
    counts as a constant, so that no gradient of a whole table is made.
    """

    table: Any  # [V D]
    bias: Any = None  # [V] or None
    scale: float = dataclasses.field(default=1.0, metadata={"static": True})
    softcap: float | None = dataclasses.field(default=None, metadata={"static": True})
    rows: Any = None  # [A D] or None
    ids: tuple[int, ...] = dataclasses.field(default=(), metadata={"static": True})

    def logits(self, hidden: Float[Array, "*rows D"]) -> Float32[Array, "*rows V"]:
        """Scores over the vocabulary, in float32."""
        if self.scale != 1.0:
            hidden = hidden * self.scale
        contract = (((hidden.ndim - 1,), (1,)), ((), ()))
        table = unshard_fsdp(self.table, TABLE_AXES, hidden.dtype)
        out = lax.dot_general(hidden, table, contract, preferred_element_type=jnp.float32)
        if self.rows is not None:
            out = with_gradient_of_rows(self.ids, out, hidden, self.rows)
        if self.bias is not None:
            out = out + self.bias.reshape((1,) * (out.ndim - 1) + self.bias.shape)
        return out if self.softcap is None else self.softcap * jnp.tanh(out / self.softcap)


def weighted(losses, weights):
    # By selection: a product would let NaN through where the weight is 0.
    return jnp.where(weights != 0, weights * losses, 0)


class VocabularySplit(NamedTuple):
    """Inside ``jax.shard_map``: each device has the logits of a part of the vocabulary.

    Attributes:
        over: The mesh axis along which the parts lie, all of one size.
        size: Tokens of the vocabulary; further logits are padding.
    """

    over: str
    size: int

    def columns(self, z: Array) -> Int[Array, "*rows V"]:
        """The token of each logit of this device."""
        columns = lax.broadcasted_iota(jnp.int32, z.shape, z.ndim - 1)
        return columns + lax.axis_index(self.over) * z.shape[-1]

    def masked(self, z: Array) -> Array:
        """Logits whose padding has no probability."""
        padded = self.size < z.shape[-1] * lax.axis_size(self.over)
        return jnp.where(self.columns(z) < self.size, z, PADDING) if padded else z

    def sum(self, z: Array) -> Array:
        """The sum over the vocabulary, of all devices."""
        return lax.psum(
            jnp.where(self.columns(z) < self.size, z, 0).sum(-1, keepdims=True), self.over
        )


def row_losses(z, targets, label_smoothing: float, split: VocabularySplit | None = None):
    """The loss of each row of logits that are wide enough, and what its softmax is made of."""
    high = z.max(-1, keepdims=True)
    high = high if split is None else lax.pmax(high, split.over)
    exps = jnp.exp(z - high)
    if split is None:
        total = exps.sum(-1, keepdims=True)
        wanted = jnp.take_along_axis(z, targets[..., None], axis=-1)
    else:
        here = split.columns(z) == targets[..., None]
        sums = exps.sum(-1, keepdims=True), jnp.where(here, z, 0).sum(-1, keepdims=True)
        total, wanted = lax.psum(sums, split.over)
    losses = jnp.log(total) + high - wanted
    if label_smoothing:
        mean = z.mean(-1, keepdims=True) if split is None else split.sum(z) / split.size
        losses = losses + label_smoothing * (wanted - mean)
    return losses[..., 0], high, total


def logit_gradients(
    z, high, total, targets, factor, label_smoothing: float, split: VocabularySplit | None = None
):
    """The gradient of ``Σ factor · loss`` in the logits."""
    factor = factor[..., None]
    # In the words of row_losses, so that the exponentials are taken once. The one-hot is a
    # comparison: scattering is slower, or as slow, on every platform.
    softmax = jnp.exp(z - high) * (factor / total)
    columns = lax.broadcasted_iota(targets.dtype, z.shape, z.ndim - 1)
    columns = columns if split is None else split.columns(z)
    here = columns == targets[..., None]
    slope = softmax - jnp.where(here, (1 - label_smoothing) * factor, 0)
    if label_smoothing:
        size = z.shape[-1] if split is None else split.size
        spread = label_smoothing / size * factor
        slope = slope - (spread if split is None else jnp.where(columns < size, spread, 0))
    return jnp.where(factor != 0, slope, 0)


def _widen(x):
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _token_losses(logits, targets, label_smoothing):
    return row_losses(_widen(logits), targets, label_smoothing)[0]


def _token_forward(logits, targets, label_smoothing):
    losses, high, total = row_losses(_widen(logits), targets, label_smoothing)
    return losses, (logits, high, total, targets)


def _token_backward(label_smoothing, saved, g):
    logits, high, total, targets = saved
    slope = logit_gradients(_widen(logits), high, total, targets, g, label_smoothing)
    return slope.astype(logits.dtype), None


_token_losses = jax.custom_vjp(_token_losses, nondiff_argnums=(2,))
_token_losses.defvjp(_token_forward, _token_backward)

"""Cross-entropy as a sum and its weight, and the map from hidden states to logits."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.core.trees import Child
from transformer_jax.functional.array_arguments import real_arguments
from transformer_jax.functional.kernels import cross_entropy as kernels
from transformer_jax.functional.kernels.products import matmul_transposed
from transformer_jax.functional.kernels.vocabulary import TABLE_AXES
from transformer_jax.functional.layers import soft_cap
from transformer_jax.functional.partitioning import unshard_fsdp
from transformer_jax.functional.sparse_table_gradient import with_gradient_of_rows

__all__ = ["OutputTable", "cross_entropy", "linear_cross_entropy", "token_cross_entropy"]


@real_arguments
def token_cross_entropy(
    logits: Float[Array, "*rows V"], targets: Int[Array, "*rows"], label_smoothing: float = 0.0
) -> Float[Array, "*rows"]:
    """The cross-entropy of each row, in nats: ``−Σ_v q_v log softmax(logits)_v``.

    The target distribution ``q`` gives ``1 − s`` to the target and spreads ``s = label_smoothing``
    evenly over all ``V`` tokens, including the target; ``s = 0`` is ``−log p(target)``.
    Computed in float32, or in float64 for float64 logits. A forbidden token (logit −∞) is fine
    without smoothing, but makes the loss infinite with it. Reverse mode only: the gradient is
    ``softmax(logits) − q``.

    Szegedy et al. 2015, https://arxiv.org/abs/1512.00567, section 7.

    Example:
        >>> token_cross_entropy(jnp.zeros((1, 4)), jnp.array([2])) == jnp.log(4.0)
        Array([ True], dtype=bool)
    """
    return kernels.token_cross_entropy(logits, targets, label_smoothing)


@real_arguments
def cross_entropy(
    logits: Float[Array, "*rows V"],
    targets: Int[Array, "*rows"],
    weights: Float[Array, "*rows"] | None = None,
    label_smoothing: float = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Returns the weighted sum of :func:`token_cross_entropy`, and the sum of the weights.

    Divide once, after adding up both over all micro-batches and devices. A row of weight 0 adds
    exactly nothing to the sum or to any gradient, whatever its logits (even NaN) and target.
    Targets of all other rows are in ``[0, V)``.

    Example:
        >>> targets, weights = jnp.array([0, 1]), jnp.array([1.0, 0.0])
        >>> total, weight = cross_entropy(jnp.zeros((2, 4)), targets, weights)
        >>> f"{total:.4f} {weight:.1f}"
        '1.3863 1.0'
    """
    losses = token_cross_entropy(logits, targets, label_smoothing)
    weights = jnp.ones_like(losses) if weights is None else weights.astype(losses.dtype)
    return kernels.weighted(losses, weights).sum(), weights.sum()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OutputTable:
    """The map from hidden states to logits: ``softcap(scale · x tableᵀ + bias)``.

    If ``rows`` are given, only they are trained: ``table`` has the same values at ``ids`` and is a
    constant, so the gradient of the full table is never made. An output table is a pytree.

    Attributes:
        table: ``[V D]``, one row per token; often the embedding itself.
        bias: ``[V]``, or None.
        scale: Multiplies the product.
        softcap: The bound ``c`` of ``c tanh(z / c)``, as in Gemma 2; None is no bound.
        rows: Trained rows ``[A D]``, or None.
        ids: Their tokens.
        storage: How a loss stores logits.

    Example:
        >>> OutputTable(jnp.eye(2), scale=0.5).logits(jnp.array([[1.0, 2.0]]))
        Array([[0.5, 1. ]], dtype=float32)
    """

    table: Child[Array]
    bias: Child[Array] | None = None
    scale: float = dataclasses.field(default=1.0, metadata={"static": True})
    softcap: float | None = dataclasses.field(default=None, metadata={"static": True})
    rows: Child[Array] | None = None
    ids: tuple[int, ...] = dataclasses.field(default=(), metadata={"static": True})
    storage: kernels.LogitsStorage = dataclasses.field(
        default=kernels.STORAGE, metadata={"static": True}
    )

    def logits(self, hidden: Float[Array, "*rows D"]) -> Float[Array, "*rows V"]:
        """Returns scores over the vocabulary, in at least float32."""
        if self.scale != 1.0:
            hidden = hidden * self.scale
        out = matmul_transposed(hidden, unshard_fsdp(self.table, TABLE_AXES, hidden.dtype))
        if self.rows is not None:
            out = with_gradient_of_rows(self.ids, out, hidden, self.rows)
        if self.bias is not None:
            out = out + self.bias.reshape((1,) * (out.ndim - 1) + self.bias.shape)
        return soft_cap(out, self.softcap)

    def stored_logits(self, hidden: Float[Array, "*rows D"]) -> Float[Array, "*rows V"]:
        """Returns :meth:`logits`, rounded if the loss stores them in bfloat16."""
        out = self.logits(hidden)
        return out if self.storage.dtype == "float32" else kernels.rounded_logits(out)


@real_arguments
def linear_cross_entropy(
    hidden: Float[Array, "*rows D"],
    output: OutputTable,
    targets: Int[Array, "*rows"],
    weights: Float[Array, "*rows"] | None = None,
    *,
    label_smoothing: float = 0.0,
    chunk: int | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The loss of a model: :func:`cross_entropy` of the logits that ``output`` computes.

    Its fused form never holds all logits: see :mod:`.kernels.cross_entropy`.

    Args:
        hidden: The model's last hidden states.
        output: The map from hidden states to logits.
        targets: The correct tokens, in ``[0, V)`` where the weight is not 0.
        weights: Weight of each row; 1 by default.
        label_smoothing: As in :func:`token_cross_entropy`.
        chunk: Rows whose logits are held at a time, by default as ``output.storage`` says. 0
            computes the logits of all rows with :meth:`OutputTable.stored_logits`, and the gradient
            by autodiff. Without a size, the logits are fused in chunks if they take more than
            ``output.storage.most`` bytes on a device, which for a model's table on a device of much
            memory is more than 1 GiB: see :func:`.with_attention_kernels`. The number of chunks
            changes the order of sums.

    Returns:
        The weighted sum of the losses, and the sum of the weights.

    Example:
        >>> hidden, output = jnp.ones((6, 3)), OutputTable(jnp.ones((4, 3)))
        >>> total, weight = linear_cross_entropy(hidden, output, jnp.arange(6) % 4, chunk=4)
        >>> f"{total / weight:.4f}"
        '1.3863'
    """
    if chunk == 0:
        return cross_entropy(output.stored_logits(hidden), targets, weights, label_smoothing)
    storage = output.storage if chunk is None else output.storage._replace(chunk=chunk)
    trained = None if output.rows is None else output.ids
    head = kernels.FusedLoss(output.scale, output.softcap, label_smoothing, storage, trained)
    return kernels.linear_cross_entropy(
        head, hidden, output.table, output.rows, output.bias, targets, weights
    )

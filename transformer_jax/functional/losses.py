"""Cross-entropy as a sum and its weight, alone or fused with the output projection."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Float32, Int

from transformer_jax.functional.linear import matmul, sum_rows, transposed_matmul
from transformer_jax.functional.partitioning import (
    constrain,
    current_mesh,
    partition_spec,
    unshard_fsdp,
)

TABLE_AXES = ("vocab", "embed")  # of every output table
LARGE = 2**30  # bytes of logits that a device holds at a time, unless a chunk is given


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
    return _weighted(losses, weights).sum(), weights.sum()


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
    """How vectors become logits: ``softcap(scale · x tableᵀ + bias)``. A tree of its arrays."""

    table: Any  # [V D]
    bias: Any = None  # [V] or None
    scale: float = dataclasses.field(default=1.0, metadata={"static": True})
    softcap: float | None = dataclasses.field(default=None, metadata={"static": True})

    def logits(self, hidden: Float[Array, "*rows D"]) -> Float32[Array, "*rows V"]:
        """Scores over the vocabulary, in float32."""
        if self.scale != 1.0:
            hidden = hidden * self.scale
        contract = (((hidden.ndim - 1,), (1,)), ((), ()))
        table = unshard_fsdp(self.table, TABLE_AXES, hidden.dtype)
        out = lax.dot_general(hidden, table, contract, preferred_element_type=jnp.float32)
        if self.bias is not None:
            out = out + self.bias.reshape((1,) * (out.ndim - 1) + self.bias.shape)
        return out if self.softcap is None else self.softcap * jnp.tanh(out / self.softcap)


def fused_linear_cross_entropy(
    x: Float[Array, "*rows D"],
    output: OutputTable,
    targets: Int[Array, "*rows"],
    weights: Float[Array, "*rows"] | None = None,
    *,
    label_smoothing: float = 0.0,
    chunk: int | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """:func:`cross_entropy` of the logits of ``output``, without keeping the logits.

    The gradients are made in the forward pass, while the logits are at hand, so the backward
    pass only multiplies them by its cotangent. Where nothing is differentiated, only the loss is
    computed. Reverse-mode only.

    Args:
        x: What the model ends with.
        output: How ``x`` becomes logits.
        targets: The tokens wanted, in ``[0, V)`` where the weight is not 0.
        weights: Of each row; 1 by default.
        label_smoothing: As in :func:`token_cross_entropy`.
        chunk: Rows whose logits are held at a time; 0 holds those of all rows, None those of all
            rows too, unless they take more than ``LARGE`` bytes on a device.

    Returns:
        The weighted sum of the losses, and the sum of the weights.

    Example:
        >>> x, output, targets = jnp.ones((6, 3)), OutputTable(jnp.ones((4, 3))), jnp.arange(6) % 4
        >>> total, weight = fused_linear_cross_entropy(x, output, targets, chunk=4)
        >>> f"{total / weight:.4f}"
        '1.3863'
    """
    D = x.shape[-1]
    wide = jnp.promote_types(x.dtype, jnp.float32)
    weights = jnp.ones(targets.shape, wide) if weights is None else weights.astype(wide)
    head = _Head(output.scale, output.softcap, label_smoothing, chunk)
    flat = x.reshape(-1, D), output.table, output.bias, targets.reshape(-1), weights.reshape(-1)
    return _fused(head, *flat), weights.sum()


def _weighted(losses, weights):
    # By selection: a product would let NaN through where the weight is 0.
    return jnp.where(weights != 0, weights * losses, 0)


def _losses(z, targets, label_smoothing: float, over: str | None = None):
    """The loss of each row of logits that are wide enough, and what its softmax is made of.

    ``over`` is the mesh axis that splits the vocabulary, inside ``jax.shard_map``.
    """
    high = z.max(-1, keepdims=True)
    high = high if over is None else lax.pmax(high, over)
    exps = jnp.exp(z - high)
    total = exps.sum(-1, keepdims=True)
    if over is None:
        wanted = jnp.take_along_axis(z, targets[..., None], axis=-1)
    else:
        total = lax.psum(total, over)
        here = _columns(z, targets, over) == targets[..., None]
        wanted = lax.psum(jnp.where(here, z, 0).sum(-1, keepdims=True), over)
    losses = jnp.log(total) + high - wanted
    if label_smoothing:
        mean = z.mean(-1, keepdims=True)
        mean = mean if over is None else lax.pmean(mean, over)
        losses = losses + label_smoothing * (wanted - mean)
    return losses[..., 0], high, total


def _slope(z, high, total, targets, factor, label_smoothing: float, over: str | None = None):
    """The gradient of ``Σ factor · loss`` in the logits."""
    factor = factor[..., None]
    # In the words of _losses, so that the exponentials are taken once. The one-hot is a
    # comparison: scattering is slower, or as slow, on every platform.
    softmax = jnp.exp(z - high) * (factor / total)
    here = _columns(z, targets, over) == targets[..., None]
    slope = softmax - jnp.where(here, (1 - label_smoothing) * factor, 0)
    if label_smoothing:
        parts = 1 if over is None else lax.axis_size(over)
        slope = slope - label_smoothing / (z.shape[-1] * parts) * factor
    return jnp.where(factor != 0, slope, 0)


def _columns(z, targets, over: str | None):
    """The token of each logit that is on this device."""
    columns = lax.broadcasted_iota(targets.dtype, z.shape, z.ndim - 1)
    return columns if over is None else columns + lax.axis_index(over) * z.shape[-1]


def _widen(x):
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _token_losses(logits, targets, label_smoothing):
    return _losses(_widen(logits), targets, label_smoothing)[0]


def _token_forward(logits, targets, label_smoothing):
    losses, high, total = _losses(_widen(logits), targets, label_smoothing)
    return losses, (logits, high, total, targets)


def _token_backward(label_smoothing, saved, g):
    logits, high, total, targets = saved
    slope = _slope(_widen(logits), high, total, targets, g, label_smoothing)
    return slope.astype(logits.dtype), None


_token_losses = jax.custom_vjp(_token_losses, nondiff_argnums=(2,))
_token_losses.defvjp(_token_forward, _token_backward)


class _Head(NamedTuple):
    """What :func:`fused_linear_cross_entropy` does besides multiplying."""

    scale: float
    softcap: float | None
    label_smoothing: float
    chunk: int | None
    over: str | None = None  # the mesh axis that splits the vocabulary, inside a shard_map

    def logits(self, x, table, bias):
        return linear_logits(x, table, bias=bias, scale=self.scale, softcap=self.softcap)


def _num_chunks(head: _Head, rows: int, V: int) -> int:
    """How many chunks the rows of a device are divided into."""
    if head.chunk is not None:
        return -(-rows // max(1, min(head.chunk or rows, rows)))
    count = -(-4 * rows * V // LARGE)
    # A number that divides the rows needs no padding.
    return next((n for n in range(count, 2 * count) if rows % n == 0), count)


def _chunks(count: int, x, targets, weights):
    """The rows as ``[chunks, rows, ...]``, with rows of weight 0 to fill the last."""
    rows = len(targets)
    size = -(-rows // count)

    def cut(a):
        a = jnp.pad(a, ((0, count * size - rows),) + ((0, 0),) * (a.ndim - 1))
        # Chunk i is every count-th row from i on: each device then works on each chunk.
        return a.reshape(size, count, *a.shape[1:]).swapaxes(0, 1)

    return cut(x), cut(targets), cut(weights)


def _merge_chunks(chunks, rows: int):
    return chunks.swapaxes(0, 1).reshape(-1, *chunks.shape[2:])[:rows]


def _block_losses(head: _Head, table, bias, x, targets, weights):
    z = head.logits(x, table, bias)
    return _weighted(_losses(z, targets, head.label_smoothing, head.over)[0], weights)


def _block_gradients(head: _Head, table, bias, x, targets, weights):
    z = head.logits(x, table, bias)
    losses, high, total = _losses(z, targets, head.label_smoothing, head.over)
    d = _slope(z, high, total, targets, weights, head.label_smoothing, head.over)
    if head.softcap is not None:
        d = d * (1 - jnp.square(z / head.softcap))
    dbias = None if bias is None else sum_rows(d)
    d = (d if head.scale == 1.0 else d * head.scale).astype(x.dtype)
    dx = matmul(d, table.astype(x.dtype), 1, 0)
    dx = dx if head.over is None else lax.psum(dx, head.over)
    # The gradient of the table stays transposed until it is whole: see :func:`kernel_gradient`.
    return losses, dx.astype(x.dtype), transposed_matmul(x, d), dbias


def _total(head: _Head, x, table, bias, targets, weights):
    """The loss of a device's rows."""

    def add(total, chunk):
        return total + _block_losses(head, table, bias, *chunk).sum(), None

    chunks = _chunks(_num_chunks(head, len(targets), len(table)), x, targets, weights)
    if len(chunks[0]) == 1:
        return add(0, [c[0] for c in chunks])[0]
    return lax.scan(add, jnp.zeros((), weights.dtype), chunks)[0]


def _total_and_gradients(head: _Head, x, table, bias, targets, weights):
    """The loss of a device's rows, and its gradients: ``dtable`` as ``[D V]``."""

    def add(sums, chunk):
        losses, dx, *more = _block_gradients(head, table, bias, *chunk)
        sums = jax.tree.map(jnp.add, sums, (_weighted(losses, chunk[2]).sum(), *more))
        return sums, (dx, jnp.where(chunk[2] != 0, losses, 0))

    chunks = _chunks(_num_chunks(head, len(targets), len(table)), x, targets, weights)
    wide = weights.dtype
    dbias = None if bias is None else jnp.zeros(bias.shape, wide)
    sums = (jnp.zeros((), wide), jnp.zeros(table.shape[::-1], wide), dbias)
    if len(chunks[0]) == 1:
        sums, rows = add(sums, [c[0] for c in chunks])
        rows = jax.tree.map(lambda a: a[None], rows)
    else:
        sums, rows = lax.scan(add, sums, chunks)
    dx, dweights = (_merge_chunks(a, len(targets)) for a in rows)
    total, dtable, dbias = sums
    return total, dx, dtable, dbias, dweights


def _on_devices(function, head: _Head, x, table, bias, targets, weights):
    """``function`` of each device's rows, and of its part of the vocabulary.

    Sums are added up over the devices once, after all chunks; the gradient of the table lies as the
    table is stored.
    """
    mesh = current_mesh()
    rows = None
    if mesh is not None:
        rows = partition_spec(("batch",), targets.shape, {**mesh.shape, "tensor": 1})[0]
    if mesh is None or rows is None:
        return function(head, x, unshard_fsdp(table, TABLE_AXES, x.dtype), bias, targets, weights)
    over = (rows,) if isinstance(rows, str) else rows
    stored = partition_spec(TABLE_AXES, table.shape, mesh.shape)
    vocab, width = stored
    chunk = head.chunk and -(-head.chunk // math.prod(mesh.shape[axis] for axis in over))
    head = head._replace(over=vocab, chunk=chunk)

    def part(x, table, bias, targets, weights):
        table = table.astype(x.dtype)
        if width is not None:
            table = lax.all_gather(table, width, axis=1, tiled=True)
        found = function(head, x, table, bias, targets, weights)
        if function is _total:
            return lax.psum(found, over)
        total, dx, dtable, dbias, dweights = found
        total, dbias = lax.psum((total, dbias), over)
        if width is not None:
            dtable = lax.psum_scatter(dtable, width, scatter_dimension=0, tiled=True)
        rest = tuple(axis for axis in over if axis != width)
        return total, dx, lax.psum(dtable, rest) if rest else dtable, dbias, dweights

    of_bias = P() if bias is None else P(vocab)
    out = P() if function is _total else (P(), P(rows), P(width, vocab), of_bias, P(rows))
    mapped = jax.shard_map(
        part,
        in_specs=(P(rows), stored, of_bias, P(rows), P(rows)),
        out_specs=out,
        check_vma=False,
    )
    return mapped(x, table, bias, targets, weights)


def _fused(head, x, table, bias, targets, weights):
    return _on_devices(_total, head, x, table, bias, targets, weights)


def _fused_forward(head, x, table, bias, targets, weights):
    found = _on_devices(_total_and_gradients, head, x, table, bias, targets, weights)
    total, dx, dtable, dbias, dweights = found
    dtable = constrain(dtable, TABLE_AXES[::-1])
    dtable = lax.optimization_barrier(dtable).T.astype(table.dtype)
    dbias = None if bias is None or dbias is None else dbias.astype(bias.dtype)
    return total, (dx, dtable, dbias, dweights)


def _fused_backward(head, saved, g):
    dx, dtable, dbias, dweights = jax.tree.map(lambda a: g.astype(a.dtype) * a, saved)
    return dx, dtable, dbias, None, dweights


_fused = jax.custom_vjp(_fused, nondiff_argnums=(0,))
_fused.defvjp(_fused_forward, _fused_backward)

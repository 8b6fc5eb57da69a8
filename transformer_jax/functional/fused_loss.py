"""Cross-entropy of an output projection, fused: no more logits than fit are held at a time."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from transformer_jax.functional.linear import matmul, sum_rows, transposed_matmul
from transformer_jax.functional.losses import (
    TABLE_AXES,
    OutputTable,
    VocabularySplit,
    linear_logits,
    logit_gradients,
    row_losses,
    weighted,
)
from transformer_jax.functional.partitioning import (
    axis_size,
    constrain,
    current_mesh,
    partition_spec,
    unshard_fsdp,
)
from transformer_jax.functional.parts import LANES, sum_to_parts
from transformer_jax.functional.real_arguments import real_arguments

__all__ = ["LARGE", "fused_linear_cross_entropy"]

LARGE = 2**30  # bytes of logits that a device holds at a time, unless a chunk is given


@real_arguments
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
    trained = None if output.rows is None else output.ids
    head = _Head(output.scale, output.softcap, label_smoothing, chunk, trained)
    # Rows of a batch, and the positions in them: a mesh divides both.
    shape = (*targets.shape[:1], -1) if targets.ndim > 1 else (-1, 1)
    x, targets, weights = x.reshape(*shape, D), targets.reshape(shape), weights.reshape(shape)
    tables = output.table, output.rows, output.bias
    return _fused(head, x, *tables, targets, weights), weights.sum()


class _Head(NamedTuple):
    """What :func:`fused_linear_cross_entropy` does besides multiplying."""

    scale: float
    softcap: float | None
    label_smoothing: float
    chunk: int | None
    trained: tuple[int, ...] | None = None  # tokens whose rows of the table are; None is all
    split: VocabularySplit | None = None

    def logits(self, x, table, bias):
        z = linear_logits(x, table, bias=bias, scale=self.scale, softcap=self.softcap)
        return z if self.split is None else self.split.masked(z)

    def table_gradient(self, x, d):
        """The gradient of the trained rows, transposed, from that of the logits of a device.

        It stays transposed until it is whole: see :func:`kernel_gradient`.
        """
        if self.trained is None:
            return transposed_matmul(x, d)
        ids = jnp.asarray(self.trained, jnp.int32)
        if self.split is not None:  # those of other devices are beyond the columns of this one
            ids = ids - lax.axis_index(self.split.over) * d.shape[-1]
            ids = jnp.where(ids < 0, d.shape[-1], ids)
        return transposed_matmul(x, jnp.take(d, ids, axis=-1, mode="fill", fill_value=0))


def _num_chunks(head: _Head, rows: int, V: int) -> int:
    """How many chunks the rows of a device are divided into."""
    if head.chunk is not None:
        return max(1, -(-rows // max(1, min(head.chunk or rows, rows))))
    count = max(1, -(-4 * rows * V // LARGE))
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
    return weighted(row_losses(z, targets, head.label_smoothing, head.split)[0], weights)


def _block_gradients(head: _Head, table, bias, x, targets, weights):
    z = head.logits(x, table, bias)
    losses, high, total = row_losses(z, targets, head.label_smoothing, head.split)
    d = logit_gradients(z, high, total, targets, weights, head.label_smoothing, head.split)
    if head.softcap is not None:
        d = d * (1 - jnp.square(z / head.softcap))
    dbias = None if bias is None else sum_rows(d)
    d = (d if head.scale == 1.0 else d * head.scale).astype(x.dtype)
    dx = matmul(d, table.astype(x.dtype), 1, 0)
    dx = dx if head.split is None else lax.psum(dx, head.split.over)
    return losses, dx.astype(x.dtype), head.table_gradient(x, d), dbias


def _total(head: _Head, x, table, bias, targets, weights):
    """The loss of a device's rows."""

    def add(total, chunk):
        return total + _block_losses(head, table, bias, *chunk).sum(), None

    chunks = _chunks(_num_chunks(head, len(targets), len(table)), x, targets, weights)
    if len(chunks[0]) == 1:
        return add(0, [c[0] for c in chunks])[0]
    return lax.scan(add, jnp.zeros((), weights.dtype), chunks)[0]


def _total_and_gradients(head: _Head, x, table, bias, targets, weights):
    """The loss of a device's rows, and its gradients: ``dtable`` as ``[D V]``, or ``[D A]``."""

    def add(sums, chunk):
        losses, dx, *more = _block_gradients(head, table, bias, *chunk)
        sums = jax.tree.map(jnp.add, sums, (weighted(losses, chunk[2]).sum(), *more))
        return sums, (dx, jnp.where(chunk[2] != 0, losses, 0))

    chunks = _chunks(_num_chunks(head, len(targets), len(table)), x, targets, weights)
    wide = weights.dtype
    dbias = None if bias is None else jnp.zeros(bias.shape, wide)
    count = len(table) if head.trained is None else len(head.trained)
    sums = (jnp.zeros((), wide), jnp.zeros((table.shape[1], count), wide), dbias)
    if len(chunks[0]) == 1:
        sums, rows = add(sums, [c[0] for c in chunks])
        rows = jax.tree.map(lambda a: a[None], rows)
    else:
        sums, rows = lax.scan(add, sums, chunks)
    dx, dweights = (_merge_chunks(a, len(targets)) for a in rows)
    total, dtable, dbias = sums
    return total, dx, dtable, dbias, dweights


class _TableParts(NamedTuple):
    """How an output table is stored on a mesh, and how a device uses it: inside ``shard_map``.

    It is used with all columns, and with the device's part of the rows if there is a tensor axis.
    A vocabulary that the tensor axis does not divide is stored by columns and padded for use.
    """

    stored: P
    size: int  # rows of the whole table
    tensor: int  # devices along the tensor axis
    over: tuple[str, ...]  # mesh axes whose devices have different rows of the batch or positions

    @property
    def padded(self) -> int:
        """Rows on all devices, padding included."""
        part = -(-self.size // self.tensor)
        return self.tensor * (-(-part // LANES) * LANES if part > LANES else part)

    @property
    def by_columns(self) -> bool:
        """Whether the tensor axis splits the stored columns."""
        return self.stored[1] == ("tensor", "fsdp") or self.stored[1] == "tensor"

    @property
    def fsdp(self) -> bool:
        """Whether ``fsdp`` splits the stored columns."""
        return self.stored[1] in ("fsdp", ("tensor", "fsdp"))

    @property
    def split(self) -> VocabularySplit | None:
        """How the vocabulary is split in use."""
        by_rows = self.stored[0] is not None
        return VocabularySplit("tensor", self.size) if by_rows or self.by_columns else None

    def use(self, table: Array) -> Array:
        """From the stored part to the rows that this device uses."""
        if self.fsdp:
            table = lax.all_gather(table, "fsdp", axis=1, tiled=True)
        if self.by_columns:
            table = jnp.pad(table, ((0, self.padded - self.size), (0, 0)))
            table = lax.all_to_all(table, "tensor", 0, 1, tiled=True)
        return table

    def store(self, gradient: Array) -> Array:
        """From the gradient of the used rows, ``[D V]``, to that of the stored part."""
        if self.by_columns:
            gradient = lax.all_to_all(gradient, "tensor", 0, 1, tiled=True)[:, : self.size]
        if self.fsdp:
            gradient = sum_to_parts(gradient, "fsdp", 0)
        return lax.psum(
            gradient, [axis for axis in self.over if not (self.fsdp and axis == "fsdp")]
        )

    def use_bias(self, bias: Array) -> Array:
        """The part of the bias that this device uses."""
        if not self.by_columns:
            return bias
        part = self.padded // self.tensor
        bias = jnp.pad(bias, (0, self.padded - self.size))
        return lax.dynamic_slice_in_dim(bias, lax.axis_index("tensor") * part, part)

    def store_bias(self, gradient: Array) -> Array:
        """From the gradient of the used part of the bias to that of the stored part."""
        gradient = lax.psum(gradient, self.over)
        if not self.by_columns:
            return gradient
        return lax.all_gather(gradient, "tensor", tiled=True)[: self.size]


def _on_devices(function, head: _Head, x, table, bias, targets, weights):
    """``function`` of each device's rows, and of its part of the vocabulary.

    Sums are added up over the devices once, after all chunks; the gradient of the table lies as the
    table is stored.
    """
    flat = lambda a: a.reshape(-1, *a.shape[2:])
    mesh = current_mesh()
    devices = math.prod(axis_size(axis) for axis in ("data", "fsdp"))
    if mesh is None or not {"data", "fsdp", "tensor"} <= {*mesh.shape} or len(targets) % devices:
        table = unshard_fsdp(table, TABLE_AXES, x.dtype)
        return _unflat(function(head, flat(x), table, bias, flat(targets), flat(weights)), x)
    positions = partition_spec((None, "sequence"), targets.shape, mesh.shape)[1]
    over = ("data", "fsdp") if positions is None else ("data", "fsdp", positions)
    rows = P(("data", "fsdp"), positions)
    stored = partition_spec(TABLE_AXES, table.shape, mesh.shape)
    parts = _TableParts(stored, len(table), mesh.shape["tensor"], over)
    chunk = head.chunk and -(-head.chunk // math.prod(mesh.shape[axis] for axis in over))
    head = head._replace(split=parts.split, chunk=chunk)

    def part(x, table, bias, targets, weights):
        bias = None if bias is None else parts.use_bias(bias)
        used = parts.use(table.astype(x.dtype))
        found = function(head, flat(x), used, bias, flat(targets), flat(weights))
        if function is _total:
            return lax.psum(found, over)
        total, dx, dtable, dbias, dweights = _unflat(found, x)
        dbias = None if dbias is None else parts.store_bias(dbias)
        if head.trained is None:
            dtable = parts.store(dtable)
        else:
            dtable = lax.psum(dtable, over if parts.split is None else (*over, parts.split.over))
        return lax.psum(total, over), dx, dtable, dbias, dweights

    of_bias = P(stored[0])
    of_table = P(*stored[::-1]) if head.trained is None else P()
    out = P() if function is _total else (P(), rows, of_table, of_bias, rows)
    mapped = jax.shard_map(
        part,
        in_specs=(rows, stored, of_bias, rows, rows),
        out_specs=out,
        check_vma=False,
    )
    return mapped(x, table, bias, targets, weights)


def _unflat(found, x):
    """What :func:`_total_and_gradients` found of rows, by the leading axes of ``x``; or a total."""
    if not isinstance(found, tuple):
        return found
    total, dx, dtable, dbias, dweights = found
    return total, dx.reshape(x.shape), dtable, dbias, dweights.reshape(x.shape[:-1])


def _fused(head, x, table, rows, bias, targets, weights):
    del rows  # the table has the same numbers
    return _on_devices(_total, head, x, table, bias, targets, weights)


def _fused_forward(head, x, table, rows, bias, targets, weights):
    found = _on_devices(_total_and_gradients, head, x, table, bias, targets, weights)
    total, dx, trained, dbias, dweights = found
    dtable = drows = None
    if head.trained is None:
        trained = constrain(trained, TABLE_AXES[::-1])
        dtable = lax.optimization_barrier(trained).T.astype(table.dtype)
    else:
        drows = trained.T.astype(rows.dtype)
    dbias = None if bias is None or dbias is None else dbias.astype(bias.dtype)
    return total, (dx, dtable, drows, dbias, dweights)


def _fused_backward(head, saved, g):
    dx, dtable, drows, dbias, dweights = jax.tree.map(lambda a: g.astype(a.dtype) * a, saved)
    return dx, dtable, drows, dbias, None, dweights


_fused = jax.custom_vjp(_fused, nondiff_argnums=(0,))
_fused.defvjp(_fused_forward, _fused_backward)

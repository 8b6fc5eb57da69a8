"""Cross-entropy of logits and of an output projection, with hand-written gradients.

The fused form computes the gradients in the forward pass, from the logits of each chunk; the
backward pass only multiplies them by its cotangent. Without differentiation, only the loss is
computed. Reverse mode only.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, PyTree

from transformer_jax.functional.kernels.products import (
    exponential_sums,
    kernel_gradient,
    matmul,
    rounded_matmul,
    sum_rows,
    widen,
)
from transformer_jax.functional.kernels.vocabulary import TABLE_AXES, TableParts, VocabularySplit
from transformer_jax.functional.layers import soft_cap, soft_cap_slope
from transformer_jax.functional.partitioning import (
    axis_size,
    constrain,
    current_mesh,
    partition_spec,
    unshard_fsdp,
)

__all__ = [
    "LARGE",
    "STORAGE",
    "FusedLoss",
    "LogitsStorage",
    "linear_cross_entropy",
    "logits_limit",
    "num_chunks",
    "rounded_logits",
    "token_cross_entropy",
    "weighted",
]

# The loss, and the gradients of states, table, bias and weights.
Gradients = tuple[Array, Array, Array, Array | None, Array]

# Most bytes of logits on a device at a time, if no chunk is given: on any device, and on devices
# with much memory a 32nd of it, by ``device_kind``. A chunk reads and writes the gradient of the
# table once more, so few chunks are faster; not the memory that is free decides, but the kind of
# device, so that all processes and a resumed run compute the same sums.
LARGE = 2**30
_LIMITS = {
    "NVIDIA A100-SXM4-80GB": 85 * 10**9 // 32,
    "NVIDIA H100 80GB HBM3": 85 * 10**9 // 32,
    "NVIDIA H200": 150 * 10**9 // 32,
}


def logits_limit(kind: str) -> int:
    """Returns the most bytes of logits that a kind of device holds, if no chunk is given.

    Example:
        >>> logits_limit("cpu") == LARGE, logits_limit("NVIDIA H200") / LARGE > 4
        (True, True)
    """
    return _LIMITS.get(kind, LARGE)


class LogitsStorage(NamedTuple):
    """The form in which a loss stores logits on a device.

    Attributes:
        dtype: Dtype of the stored logits; sums over them are float32, or wider if the logits are.
            bfloat16 rounds the product of states and table, before scale, bias and bound.
        chunk: Rows whose logits are stored at a time; None is chosen by their bytes.
        most: Most bytes of logits at a time, if ``chunk`` is None.
    """

    dtype: Literal["float32", "bfloat16"] = "float32"
    chunk: int | None = None
    most: int = LARGE

    def on_each(self, devices: int) -> "LogitsStorage":
        """Returns the part of a chunk that each of some devices stores.

        Example:
            >>> LogitsStorage(chunk=10).on_each(4).chunk
            3
        """
        return self._replace(chunk=self.chunk and -(-self.chunk // devices))

    def least_chunks(self, rows: int, V: int) -> int:
        """Returns the least number of chunks of ``rows``.

        Example:
            >>> LogitsStorage().least_chunks(16_384, 50_304)
            4
            >>> LogitsStorage("bfloat16").least_chunks(16_384, 50_304)
            2
        """
        if self.chunk is not None:
            return max(1, -(-rows // max(1, min(self.chunk or rows, rows))))
        return max(1, -(-jnp.dtype(self.dtype).itemsize * rows * V // self.most))


STORAGE = LogitsStorage()


def num_chunks(rows: int, V: int, storage: LogitsStorage = STORAGE) -> int:
    """Returns the number of chunks of ``rows``.

    Unless the size of a chunk is given, a number that divides the rows, if there is one below twice
    the least, needs no padding.

    Example:
        >>> h200 = LogitsStorage(most=logits_limit("NVIDIA H200"))
        >>> num_chunks(16_384, 50_304), num_chunks(16_384, 50_304, h200)
        (4, 1)
    """
    count = storage.least_chunks(rows, V)
    if storage.chunk is not None:
        return count
    return next((n for n in range(count, 2 * count) if rows % n == 0), count)


def rounded_logits(z: Array) -> Array:
    """Returns logits in bfloat16; a barrier keeps XLA from storing them wider.

    Example:
        >>> rounded_logits(jnp.array([1.001]))
        Array([1], dtype=bfloat16)
    """
    return lax.optimization_barrier(z.astype(jnp.bfloat16))


def weighted(losses: Float[Array, "*rows"], weights: Float[Array, "*rows"]) -> Array:
    """Returns ``weights · losses``, by selection: 0 where a weight is 0, whatever the loss."""
    return jnp.where(weights != 0, weights * losses, 0)


def row_losses(
    z: Array, targets: Array, label_smoothing: float, split: VocabularySplit | None = None
) -> tuple[Array, Array, Array]:
    """Returns the loss of each row, and the maximum and the normalizer of its softmax.

    ``log Σ exp z − z_y + s (z_y − mean z)``, which is ``(1 − s) (−log p_y) + s mean (−log p)``.
    """
    if split is None:
        high, total, logits = exponential_sums(z)
        target_logits = jnp.take_along_axis(z, targets[..., None], axis=-1)
    else:
        high = lax.pmax(z.max(-1, keepdims=True), split.over)
        here = split.columns(z) == targets[..., None]
        sums = [jnp.exp(z - high), jnp.where(here, z, 0)]
        total, target_logits = lax.psum([one.sum(-1, keepdims=True) for one in sums], split.over)
    losses = jnp.log(total) + high - target_logits
    if label_smoothing:
        mean = logits / z.shape[-1] if split is None else split.sum(z) / split.size
        losses = losses + label_smoothing * (target_logits - mean)
    return losses[..., 0], high, total


def logit_gradients(
    z: Array,
    high: Array,
    total: Array,
    targets: Array,
    factor: Array,
    label_smoothing: float,
    split: VocabularySplit | None = None,
) -> Array:
    """Returns the gradient of ``Σ factor · loss`` with respect to the logits."""
    factor = factor[..., None]
    # Written as in row_losses, so that the exponentials are computed once. The one-hot is a
    # comparison: scattering is no faster on any platform.
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


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def token_cross_entropy(
    logits: Float[Array, "*rows V"], targets: Int[Array, "*rows"], label_smoothing: float = 0.0
) -> Float[Array, "*rows"]:
    """The cross-entropy of every row, whose gradient is ``softmax(logits) − q``."""
    return row_losses(widen(logits), targets, label_smoothing)[0]


def _token_forward(
    logits: Array, targets: Array, label_smoothing: float
) -> tuple[Array, tuple[Array, ...]]:
    losses, high, total = row_losses(widen(logits), targets, label_smoothing)
    return losses, (logits, high, total, targets)


def _token_backward(
    label_smoothing: float, saved: tuple[Array, ...], g: Array
) -> tuple[Array, None]:
    logits, high, total, targets = saved
    slope = logit_gradients(widen(logits), high, total, targets, g, label_smoothing)
    return slope.astype(logits.dtype), None


token_cross_entropy.defvjp(_token_forward, _token_backward)


class FusedLoss(NamedTuple):
    """The settings of the loss: everything except its arrays."""

    scale: float
    cap: float | None
    label_smoothing: float
    storage: LogitsStorage = STORAGE
    trained: tuple[int, ...] | None = None  # tokens whose table rows are trained; None is all
    split: VocabularySplit | None = None

    def logits(self, x: Array, table: Array, bias: Array | None) -> Array:
        """Returns the scores of a device's part of the vocabulary, in at least float32."""
        z = self.products(x, table.astype(x.dtype))
        if self.scale != 1.0:
            z = z * self.scale
        if bias is not None:
            z = z + bias.astype(z.dtype).reshape((1,) * (z.ndim - 1) + bias.shape)
        z = soft_cap(z, self.cap)
        return z if self.split is None else self.split.masked(z)

    def products(self, x: Array, table: Array) -> Array:
        """Returns the products of states and table as they are stored, in at least float32."""
        axis = x.ndim - 1
        if self.storage.dtype == "float32":
            return matmul(x, table, axis, 1)
        rounds = x.dtype == jnp.bfloat16
        z = rounded_matmul(x, table, ((axis,), (1,))) if rounds else matmul(x, table, axis, 1)
        return rounded_logits(z).astype(jnp.promote_types(x.dtype, jnp.float32))

    def table_gradient(self, x: Array, d: Array) -> Array:
        """Returns the gradient of the trained rows from a device's logits."""
        if self.trained is not None:
            ids = jnp.asarray(self.trained, jnp.int32)
            if self.split is not None:  # tokens of other devices are outside its columns
                ids = ids - lax.axis_index(self.split.over) * d.shape[-1]
                ids = jnp.where(ids < 0, d.shape[-1], ids)
            d = jnp.take(d, ids, axis=-1, mode="fill", fill_value=0)
        return kernel_gradient(d, x)


def linear_cross_entropy(
    head: FusedLoss,
    x: Float[Array, "*rows D"],
    table: Float[Array, "V D"],
    rows: Float[Array, "A D"] | None,
    bias: Float[Array, " V"] | None,
    targets: Int[Array, "*rows"],
    weights: Float[Array, "*rows"] | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Computes :func:`.losses.linear_cross_entropy` without keeping the logits."""
    D = x.shape[-1]
    wide = jnp.promote_types(x.dtype, jnp.float32)
    weights = jnp.ones(targets.shape, wide) if weights is None else weights.astype(wide)
    # Rows of a batch, and the positions in them: a mesh divides both.
    shape = (*targets.shape[:1], -1) if targets.ndim > 1 else (-1, 1)
    x, targets, weights = x.reshape(*shape, D), targets.reshape(shape), weights.reshape(shape)
    return _fused(head, x, table, rows, bias, targets, weights), weights.sum()


def _chunks(count: int, x: Array, targets: Array, weights: Array) -> tuple[Array, Array, Array]:
    """The rows as ``[chunks, rows, ...]``, where rows of weight 0 fill the last chunk."""
    rows = len(targets)
    size = -(-rows // count)

    def cut(a: Array) -> Array:
        a = jnp.pad(a, ((0, count * size - rows),) + ((0, 0),) * (a.ndim - 1))
        # Chunk i is every count-th row from i on, so each device works on every chunk.
        return a.reshape(size, count, *a.shape[1:]).swapaxes(0, 1)

    return cut(x), cut(targets), cut(weights)


def _merge_chunks(chunks: Array, rows: int) -> Array:
    return chunks.swapaxes(0, 1).reshape(-1, *chunks.shape[2:])[:rows]


def _block_losses(
    head: FusedLoss, table: Array, bias: Array | None, x: Array, targets: Array, weights: Array
) -> Array:
    z = head.logits(x, table, bias)
    return weighted(row_losses(z, targets, head.label_smoothing, head.split)[0], weights)


def _block_gradients(
    head: FusedLoss, table: Array, bias: Array | None, x: Array, targets: Array, weights: Array
) -> tuple[Array, Array, Array, Array | None]:
    z = head.logits(x, table, bias)
    losses, high, total = row_losses(z, targets, head.label_smoothing, head.split)
    d = logit_gradients(z, high, total, targets, weights, head.label_smoothing, head.split)
    if head.cap is not None:
        d = d * soft_cap_slope(z, head.cap)
    dbias = None if bias is None else sum_rows(d)
    d = (d if head.scale == 1.0 else d * head.scale).astype(x.dtype)
    dx = matmul(d, table.astype(x.dtype), 1, 0)
    dx = dx if head.split is None else lax.psum(dx, head.split.over)
    return losses, dx.astype(x.dtype), head.table_gradient(x, d), dbias


def _total(
    head: FusedLoss, x: Array, table: Array, bias: Array | None, targets: Array, weights: Array
) -> Array:
    """The loss of a device's rows."""

    def add(total: Array | int, chunk: Sequence[Array]) -> tuple[Array, None]:
        return total + _block_losses(head, table, bias, *chunk).sum(), None

    chunks = _chunks(num_chunks(len(targets), len(table), head.storage), x, targets, weights)
    if len(chunks[0]) == 1:
        return add(0, [c[0] for c in chunks])[0]
    return lax.scan(add, jnp.zeros((), weights.dtype), chunks)[0]


def _total_and_gradients(
    head: FusedLoss, x: Array, table: Array, bias: Array | None, targets: Array, weights: Array
) -> Gradients:
    """The loss of a device's rows, and its gradients."""

    def add(sums: PyTree, chunk: Sequence[Array]) -> tuple[PyTree, tuple[Array, Array]]:
        losses, dx, *more = _block_gradients(head, table, bias, *chunk)
        sums = jax.tree.map(jnp.add, sums, (weighted(losses, chunk[2]).sum(), *more))
        return sums, (dx, jnp.where(chunk[2] != 0, losses, 0))

    chunks = _chunks(num_chunks(len(targets), len(table), head.storage), x, targets, weights)
    wide = weights.dtype
    dbias = None if bias is None else jnp.zeros(bias.shape, wide)
    count = len(table) if head.trained is None else len(head.trained)
    sums = (jnp.zeros((), wide), jnp.zeros((count, table.shape[1]), wide), dbias)
    if len(chunks[0]) == 1:
        sums, rows = add(sums, [c[0] for c in chunks])
        rows = jax.tree.map(lambda a: a[None], rows)
    else:
        sums, rows = lax.scan(add, sums, chunks)
    dx, dweights = (_merge_chunks(a, len(targets)) for a in rows)
    total, dtable, dbias = sums
    return total, dx, dtable, dbias, dweights


def _on_devices(
    function: Callable[..., PyTree],
    head: FusedLoss,
    x: Array,
    table: Array,
    bias: Array | None,
    targets: Array,
    weights: Array,
) -> PyTree:
    """Applies ``function`` to each device's rows and part of the vocabulary.

    Sums are added up over the devices once, after all chunks. The gradient of the table has the
    layout in which the table is stored.
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
    parts = TableParts(stored, len(table), mesh.shape["tensor"], over)
    storage = head.storage.on_each(math.prod(mesh.shape[axis] for axis in over))
    head = head._replace(split=parts.split, storage=storage)

    def part(x: Array, table: Array, bias: Array | None, targets: Array, weights: Array) -> PyTree:
        bias = None if bias is None else parts.use_bias(bias)
        used = parts.use(table.astype(x.dtype))
        results = function(head, flat(x), used, bias, flat(targets), flat(weights))
        if function is _total:
            return lax.psum(results, over)
        total, dx, dtable, dbias, dweights = _unflat(results, x)
        dbias = None if dbias is None else parts.store_bias(dbias)
        if head.trained is None:
            dtable = parts.store(dtable.T).T
        else:
            dtable = lax.psum(dtable, over if parts.split is None else (*over, parts.split.over))
        return lax.psum(total, over), dx, dtable, dbias, dweights

    of_bias = P(stored[0])
    of_table = stored if head.trained is None else P()
    out = P() if function is _total else (P(), rows, of_table, of_bias, rows)
    mapped = jax.shard_map(
        part,
        in_specs=(rows, stored, of_bias, rows, rows),
        out_specs=out,
        check_vma=False,
    )
    return mapped(x, table, bias, targets, weights)


def _unflat(results: PyTree, x: Array) -> PyTree:
    """Restores the leading axes of ``x`` in results of :func:`_total_and_gradients`."""
    if not isinstance(results, tuple):
        return results
    total, dx, dtable, dbias, dweights = results
    return total, dx.reshape(x.shape), dtable, dbias, dweights.reshape(x.shape[:-1])


def _fused(
    head: FusedLoss,
    x: Array,
    table: Array,
    rows: Array | None,
    bias: Array | None,
    targets: Array,
    weights: Array,
) -> Array:
    del rows  # the table has the same values
    return _on_devices(_total, head, x, table, bias, targets, weights)


def _fused_forward(
    head: FusedLoss,
    x: Array,
    table: Array,
    rows: Array | None,
    bias: Array | None,
    targets: Array,
    weights: Array,
) -> tuple[Array, PyTree]:
    results = _on_devices(_total_and_gradients, head, x, table, bias, targets, weights)
    total, dx, trained, dbias, dweights = results
    dtable = drows = None
    if head.trained is None:
        dtable = constrain(trained, TABLE_AXES).astype(table.dtype)
    else:
        drows = trained.astype(cast(Array, rows).dtype)
    dbias = None if bias is None or dbias is None else dbias.astype(bias.dtype)
    return total, (dx, dtable, drows, dbias, dweights)


def _fused_backward(head: FusedLoss, saved: PyTree, g: Array) -> tuple[PyTree, ...]:
    dx, dtable, drows, dbias, dweights = jax.tree.map(lambda a: g.astype(a.dtype) * a, saved)
    return dx, dtable, drows, dbias, None, dweights


_fused = jax.custom_vjp(_fused, nondiff_argnums=(0,))
_fused.defvjp(_fused_forward, _fused_backward)

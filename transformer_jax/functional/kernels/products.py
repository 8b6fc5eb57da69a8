"""Matrix products and sums in the layout or order that XLA runs fastest on CPUs and NVIDIA's GPUs.

``lax.platform_dependent`` keeps XLA's own form on other devices when a program is lowered. Branches
are module functions, not closures, so that JAX traces each of them once.
"""

import math
from typing import TypeVar

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree, Shaped

from transformer_jax.functional.array_arguments import real_arguments
from transformer_jax.functional.partitioning import axis_size

__all__ = [
    "Saved",
    "apart",
    "as_row",
    "exponential_sums",
    "inverse_rms",
    "kernel_gradient",
    "make_row_major",
    "matmul",
    "matmul_transposed",
    "mean_of_rows",
    "query_key_product",
    "rounded_matmul",
    "side_by_side",
    "split_columns",
    "sum_rows",
    "transposed_matmul",
    "value_product",
    "widen",
]

AnyArray = TypeVar("AnyArray", Array, np.ndarray)
Saved = PyTree  # what a backward pass reads

# XLA:CPU copies the transposed operand of a batched product. Up to this many queries per head, as
# in decoding, copying the queries is cheaper than copying the keys.
FEW_QUERIES = 8
# XLA:GPU puts products written as sums into one kernel, together with the softmax between them. Up
# to these sizes, reading the keys again for each query takes less time than launching more kernels.
FEW_KEYS = 512
FEW_PRODUCTS = 2**23


def widen(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns ``x`` in float32, or in its own dtype where it is wider.

    Example:
        >>> widen(jnp.ones(2, jnp.bfloat16)).dtype
        dtype('float32')
    """
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


@real_arguments
def matmul(a: Float[Array, "..."], b: Float[Array, "..."], i: int, j: int) -> Float[Array, "..."]:
    """Returns the product over axis ``i`` of ``a`` and ``j`` of ``b``, in at least float32.

    Example:
        >>> matmul(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]]), 1, 1)
        Array([[11.]], dtype=float32)
    """
    wide = jnp.promote_types(jnp.promote_types(a.dtype, b.dtype), jnp.float32)
    return lax.dot_general(a, b, (((i,), (j,)), ((), ())), preferred_element_type=wide)


def matmul_transposed(x: Float[Array, "*rows D"], b: Float[Array, "F D"]) -> Array:
    """Returns ``x bᵀ``, in at least float32.

    Example:
        >>> matmul_transposed(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0], [5.0, 6.0]]))
        Array([[11., 17.]], dtype=float32)
    """
    if not _is_one_row(x):
        return _product_of_rows(x, b)
    return lax.platform_dependent(x, b, tpu=_product_of_two_rows, default=_product_of_rows)


def _product_of_rows(x: Array, b: Array) -> Array:
    return matmul(x, b, x.ndim - 1, 1)


# Of the product of a single row, as in decoding, XLA:TPU makes sums on its vector units, for which
# it expects three to fourteen times the cycles of a product of two rows: there, zeros are added.


def _product_of_two_rows(x: Array, b: Array) -> Array:
    product = _product_of_rows(_and_zeros(x.reshape(1, -1)), b)
    return product[:1].reshape(*x.shape[:-1], -1)


def _and_zeros(row: Array) -> Array:
    return jnp.pad(row, ((0, 0),) * (row.ndim - 2) + ((0, 1), (0, 0)))


@real_arguments
def sum_rows(x: Float[Array, "*rows F"], dtype: DTypeLike | None = None) -> Float[Array, " F"]:
    """Returns the sum over all axes but the last; on CPU, as a product with ones.

    XLA:CPU multiplies matrices faster than it reduces.

    Args:
        x: Rows to sum.
        dtype: Dtype of the result; by default float32, or the dtype of ``x`` if wider.

    Example:
        >>> sum_rows(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
        Array([4., 6.], dtype=float32)
    """
    total = lax.platform_dependent(x, cpu=_sum_as_product, default=_plain_sum)
    return total if dtype is None else total.astype(dtype)


def _sum_as_product(x: Array) -> Array:
    rows = x.reshape(-1, x.shape[-1])
    return matmul(jnp.ones((1, rows.shape[0]), x.dtype), rows, 1, 0)[0]


def _plain_sum(x: Array) -> Array:
    return x.sum(range(x.ndim - 1), dtype=jnp.promote_types(x.dtype, jnp.float32))


def mean_of_rows(x: Array) -> Array:
    """Returns the mean of each row, as an axis of size 1."""
    cuda = _mean_of_one_row if _is_one_row(x) else _plain_mean
    return lax.platform_dependent(x, cpu=_mean_as_product, cuda=cuda, default=_plain_mean)


def inverse_rms(x: Array, eps: float | Array) -> Array:
    """Returns ``1 / √(mean(x²) + ε)`` of each row, as an axis of size 1."""
    if not _is_one_row(x):
        return _inverse_rms(x, eps)
    return lax.platform_dependent(x, eps, cuda=_inverse_rms_of_one_row, default=_inverse_rms)


def _is_one_row(x: Array) -> bool:
    return all(isinstance(size, int) and size == 1 for size in x.shape[:-1])


def _mean_as_product(x: Array) -> Array:
    D, contract = x.shape[-1], (((x.ndim - 1,), (0,)), ((), ()))
    return lax.dot_general(
        x, jnp.full((D, 1), 1 / D, x.dtype), contract, precision=lax.Precision.HIGHEST
    )


def _plain_mean(x: Array) -> Array:
    return x.mean(-1, keepdims=True)


# XLA:GPU makes one kernel of a norm, and of a product of one row with it, unless an operation with
# a constant follows a sum: that of a single row is a number, and so is the constant.


def _mean_of_one_row(x: Array) -> Array:
    return (x * (1 / x.shape[-1])).sum(-1, keepdims=True)


def _inverse_rms(x: Array, eps: float | Array) -> Array:
    return lax.rsqrt(mean_of_rows(jnp.square(x)) + eps)


def _inverse_rms_of_one_row(x: Array, eps: float | Array) -> Array:
    return lax.rsqrt(_mean_of_one_row(jnp.square(x) + eps))


def exponential_sums(z: Float[Array, "*rows V"]) -> tuple[Array, Array, Array]:
    """Returns the maximum ``m``, ``Σ exp(z − m)`` and ``Σ z`` of each row, as axes of size 1.

    On NVIDIA's GPUs all are made in one pass over the row: Milakov and Gimelshein 2018,
    https://arxiv.org/abs/1805.02867.

    Example:
        >>> [float(one[0]) for one in exponential_sums(jnp.array([2.0, 2.0]))]
        [2.0, 2.0, 4.0]
    """
    # One pass would gather a vocabulary that is split over devices.
    cuda = _exponentials if axis_size("tensor") > 1 else _exponentials_in_one_pass
    return lax.platform_dependent(z, cuda=cuda, default=_exponentials)


def _exponentials(z: Array) -> tuple[Array, Array, Array]:
    high = z.max(-1, keepdims=True)
    return high, jnp.exp(z - high).sum(-1, keepdims=True), z.sum(-1, keepdims=True)


def _exponentials_in_one_pass(z: Array) -> tuple[Array, Array, Array]:
    zero = jnp.zeros((), z.dtype)
    found = lax.reduce(
        (z, jnp.ones_like(z), z), (zero - jnp.inf, zero, zero), _of_both, (z.ndim - 1,)
    )
    high, exponentials, total = (one[..., None] for one in found)
    return high, exponentials, total


def _of_both(a: tuple[Array, ...], b: tuple[Array, ...]) -> tuple[Array, Array, Array]:
    """The three numbers of a row from those of two parts."""
    high = jnp.maximum(a[0], b[0])
    # The difference of two infinite maxima would not be a number.
    part = lambda m, total: jnp.where(m == high, total, total * jnp.exp(m - high))
    return high, part(*a[:2]) + part(*b[:2]), a[2] + b[2]


@real_arguments
def transposed_matmul(a: Float[Array, "rows A"], b: Float[Array, "rows B"]) -> Float[Array, "A B"]:
    """Returns the sum of the outer products of all rows, ``aᵀ b``, in at least float32.

    Example:
        >>> transposed_matmul(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]]))
        Array([[3., 4.],
               [6., 8.]], dtype=float32)
    """
    if not a.dtype == b.dtype == jnp.bfloat16:
        return _rows_product(a, b)
    return lax.platform_dependent(a, b, cpu=_row_major_product, default=_rows_product)


def _rows_product(a: Array, b: Array) -> Array:
    return matmul(a, b, 0, 0)


def _row_major_product(a: Array, b: Array) -> Array:
    # The layout of the result is fixed too: XLA:CPU fails if it would transpose the result.
    return _row_major(matmul(_row_major(a.T), b, 1, 0))


@real_arguments
def kernel_gradient(a: Float[Array, "rows A"], b: Float[Array, "rows B"]) -> Float[Array, "A B"]:
    """The gradient of a kernel: :func:`transposed_matmul` in the fastest form.

    XLA:CPU multiplies by a transposed operand up to twice as fast if it is the narrower one. So on
    CPU, if ``a`` is wider, this is ``(bᵀ a)ᵀ``; a barrier keeps XLA from undoing it.

    Example:
        >>> kernel_gradient(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]]))
        Array([[3., 4.],
               [6., 8.]], dtype=float32)
    """
    if a.shape[1] <= b.shape[1]:
        return transposed_matmul(a, b)
    return lax.platform_dependent(a, b, cpu=_swapped_product, default=transposed_matmul)


def _swapped_product(a: Array, b: Array) -> Array:
    return lax.optimization_barrier(transposed_matmul(b, a)).T


def make_row_major(x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """Returns ``x``; on CPU and in bfloat16, with the last axis contiguous in memory.

    XLA folds a transposition into the following product, and XLA:CPU has no bfloat16 product for
    most of the resulting layouts: it widens both operands to float32, which takes four times as
    long if the processor multiplies bfloat16 natively.

    Example:
        >>> make_row_major(jnp.ones((2, 3)).T).shape
        (3, 2)
    """
    if x.dtype != jnp.bfloat16:
        return x
    return lax.platform_dependent(x, cpu=_row_major, default=lambda x: x)


def _row_major(x: Array) -> Array:
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def rounded_matmul(a: Array, b: Array, axes: tuple[tuple[int, ...], tuple[int, ...]]) -> Array:
    """Returns the product over pairs of ``axes``, in the dtype of ``a``.

    Accelerators sum bfloat16 products in float32 and round as they write. Requesting a float32
    result would write twice the bytes there; XLA:CPU needs the request.
    """
    contract = (axes, ((), ()))
    plain = lambda a, b: lax.dot_general(a, b, contract)
    if jnp.promote_types(a.dtype, jnp.float32) == a.dtype:
        return plain(a, b)
    wide = lambda a, b: lax.dot_general(a, b, contract, preferred_element_type=jnp.float32)
    return lax.platform_dependent(a, b, cpu=lambda a, b: wide(a, b).astype(a.dtype), default=plain)


def query_key_product(
    q: Float[Array, "B N T H"], k: Float[Array, "B N S H"]
) -> Float[Array, "B N T S"]:
    """Returns ``q kᵀ`` in float32; on CPU, a few queries are transposed instead of all keys.

    Example:
        >>> query_key_product(jnp.ones((1, 1, 1, 3)), jnp.ones((1, 1, 2, 3)))[0, 0]
        Array([[3., 3.]], dtype=float32)
    """
    if not isinstance(q.shape[2], int) or q.shape[2] > FEW_QUERIES:
        return _queries_first(q, k)
    cuda = (
        _query_key_sums
        if _are_few(q.shape[2], k.shape[2], (*q.shape, k.shape[2]))
        else _queries_first
    )
    tpu = _two_queries_first if q.shape[2] == 1 else _queries_first
    return lax.platform_dependent(q, k, cpu=_keys_first, cuda=cuda, tpu=tpu, default=_queries_first)


def _are_few(T: int, S: int, sizes: tuple[int, ...]) -> bool:
    known = all(isinstance(size, int) for size in sizes)
    return known and T <= FEW_QUERIES and S <= FEW_KEYS and math.prod(sizes) <= FEW_PRODUCTS


def _queries_first(q: Array, k: Array) -> Array:
    transposed = make_row_major(k.swapaxes(2, 3))
    return jnp.matmul(q, transposed, preferred_element_type=jnp.float32)


def _two_queries_first(q: Array, k: Array) -> Array:
    return _queries_first(_and_zeros(q), k)[:, :, :1]


def _keys_first(q: Array, k: Array) -> Array:
    return jnp.matmul(k, q.swapaxes(2, 3), preferred_element_type=jnp.float32).swapaxes(2, 3)


def _query_key_sums(q: Array, k: Array) -> Array:
    products = widen(q)[:, :, :, None] * widen(k)[:, :, None]
    return products.sum(-1).astype(jnp.float32)


@real_arguments
def value_product(
    w: Float[Array, "B N T S"], v: Float[Array, "B N S U"]
) -> Float[Array, "B N T U"]:
    """Returns ``w v`` in float32.

    Example:
        >>> value_product(jnp.ones((1, 1, 1, 2)), jnp.ones((1, 1, 2, 3)))[0, 0]
        Array([[2., 2., 2.]], dtype=float32)
    """
    alone = isinstance(w.shape[2], int) and w.shape[2] == 1
    few = _are_few(w.shape[2], w.shape[3], (*w.shape, v.shape[3]))
    if not alone and not few:
        return _weights_first(w, v)
    cuda = _value_sums if few else _weights_first
    tpu = _two_weights_first if alone else _weights_first
    return lax.platform_dependent(w, v, cuda=cuda, tpu=tpu, default=_weights_first)


def _weights_first(w: Array, v: Array) -> Array:
    return jnp.matmul(w, v, preferred_element_type=jnp.float32)


def _two_weights_first(w: Array, v: Array) -> Array:
    return _weights_first(_and_zeros(w), v)[:, :, :1]


def _value_sums(w: Array, v: Array) -> Array:
    products = widen(w)[..., None] * widen(v)[:, :, None]
    return products.sum(3).astype(jnp.float32)


def split_columns(
    x: Float[Array, "B T F"], ends: tuple[int, ...]
) -> tuple[Float[Array, "B T _"], ...]:
    """Splits the last axis at ``ends``; the last part is the rest.

    Leading axes are merged, since XLA:CPU turns three-dimensional slices into concatenations when
    it writes a cache. They are not merged if sizes are symbolic, because their product may be
    inconclusive, or if positions are split over a mesh.

    Example:
        >>> [part.shape for part in split_columns(jnp.ones((1, 2, 5)), (3,))]
        [(1, 2, 3), (1, 2, 2)]
    """
    B, T, F = x.shape
    rows = x.reshape(-1, F) if isinstance(T, int) and axis_size("context") == 1 else x
    return tuple(part.reshape(B, T, part.shape[-1]) for part in jnp.split(rows, ends, axis=-1))


def side_by_side(parts: list[AnyArray], groups: int) -> AnyArray:
    """Concatenates arrays along their last axis, or along each of its ``groups`` equal parts."""
    # In host memory, NumPy copies faster than a program for each shape is compiled.
    xp = np if isinstance(parts[0], np.ndarray) else jnp
    if groups == 1:
        return xp.concatenate(parts, axis=-1)
    rows = parts[0].shape[:-1]
    grouped = [part.reshape(*rows, groups, -1) for part in parts]
    return xp.concatenate(grouped, axis=-1).reshape(*rows, -1)


def apart(y: Array, widths: list[int], groups: int) -> list[Array]:
    """Splits the result of :func:`side_by_side` again."""
    rows = y.shape[:-1]
    grouped = y.reshape(*rows, groups, -1)
    ends = [sum(widths[:i]) // groups for i in range(1, len(widths))]
    return [part.reshape(*rows, -1) for part in jnp.split(grouped, ends, axis=-1)]


def as_row(v: Float[Array, " D"], x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns a vector with the dtype and the number of axes of ``x``.

    Example:
        >>> as_row(jnp.ones(3), jnp.ones((2, 4, 3))).shape
        (1, 1, 3)
    """
    return v.astype(x.dtype).reshape((1,) * (x.ndim - 1) + v.shape)

"""The linear map of the last axis, and the matrix products that its gradients are made of.

Where XLA:CPU needs another formulation of the same numbers than accelerators do, both stand here
and ``lax.platform_dependent`` keeps one of them when a program is lowered.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float, Shaped

from transformer_jax.functional.partitioning import (
    Axes,
    constrain,
    unshard_fsdp,
    unshard_fsdp_again,
)
from transformer_jax.functional.real_arguments import real_arguments

__all__ = [
    "kernel_gradient",
    "linear",
    "linear_transposed",
    "make_row_major",
    "matmul",
    "sum_rows",
    "transposed_matmul",
]


@real_arguments
def linear(
    x: Float[Array, "*rows D"],
    kernel: Float[Array, "D F"],
    bias: Float[Array, " F"] | None = None,
    axes: Axes | None = None,
) -> Float[Array, "*rows F"]:
    """The same affine map at every position: ``x W + b``.

    The parameters are cast to the dtype of ``x``; products of bfloat16 numbers are summed in
    float32 before they are rounded. Each gradient has its parameter's dtype. Reverse mode only.

    Args:
        x: Rows to map.
        kernel: ``W``.
        bias: ``b``, if there is one.
        axes: Logical axes of the kernel. On a mesh a kernel that is split over ``fsdp`` is gathered
            for the product, in the dtype of ``x``, and again for the backward pass.

    Source: rows U8 and T13, ``FFN(x) = max(0, x W1 + b1) W2 + b2``, are two of these.

    Example:
        >>> x = jnp.array([[1.0, 2.0]])
        >>> linear(x, jnp.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]), jnp.array([0.0, 0.0, 10.0]))
        Array([[ 1.,  2., 13.]], dtype=float32)
    """
    return _linear(x, kernel, bias, axes)


@real_arguments
def linear_transposed(
    x: Float[Array, "*rows D"],
    kernel: Float[Array, "F D"],
    bias: Float[Array, " F"] | None = None,
    axes: Axes | None = None,
) -> Float[Array, "*rows F"]:
    """The map of :func:`linear` with a transposed kernel: ``x Wᵀ + b``.

    Fastest for few rows and weights that come from memory, since the weights of each output are
    contiguous. Not the same as ``linear(x, kernel.T)``, with which GPT-2 small takes four times as
    long for a single row on XLA:CPU. ``axes`` are the logical axes of the kernel.

    Example:
        >>> linear_transposed(jnp.array([[1.0, 2.0]]), jnp.array([[1.0, 0.0], [1.0, 1.0]]))
        Array([[1., 3.]], dtype=float32)
    """
    y = matmul(x, unshard_fsdp(kernel, axes, x.dtype), x.ndim - 1, 1).astype(x.dtype)
    return y if bias is None else y + _as_row(bias, y)


@real_arguments
def sum_rows(x: Float[Array, "*rows F"], dtype=None) -> Float[Array, " F"]:
    """The sum over all axes but the last; on CPU as a product with ones, at the speed of a matmul.

    Args:
        x: Rows to sum.
        dtype: Dtype of the result; by default float32, or that of ``x`` where it is wider.

    Example:
        >>> sum_rows(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
        Array([4., 6.], dtype=float32)
    """
    total = lax.platform_dependent(x, cpu=_sum_rows_as_product, default=_sum_rows)
    return total if dtype is None else total.astype(dtype)


@real_arguments
def matmul(a: Float[Array, "..."], b: Float[Array, "..."], i: int, j: int) -> Float[Array, "..."]:
    """The product over axis ``i`` of ``a`` and axis ``j`` of ``b``, summed in at least float32.

    Example:
        >>> matmul(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]]), 1, 1)
        Array([[11.]], dtype=float32)
    """
    wide = jnp.promote_types(jnp.promote_types(a.dtype, b.dtype), jnp.float32)
    return lax.dot_general(a, b, (((i,), (j,)), ((), ())), preferred_element_type=wide)


@real_arguments
def transposed_matmul(a: Float[Array, "rows A"], b: Float[Array, "rows B"]) -> Float[Array, "A B"]:
    """The sum of the outer products of all rows, ``aᵀ b``, in at least float32.

    Example:
        >>> transposed_matmul(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]]))
        Array([[3., 4.],
               [6., 8.]], dtype=float32)
    """
    if a.dtype == b.dtype == jnp.bfloat16:
        default = lambda a, b: matmul(a, b, 0, 0)
        return lax.platform_dependent(a, b, cpu=_transposed_matmul_bfloat16, default=default)
    return matmul(a, b, 0, 0)


@real_arguments
def kernel_gradient(a: Float[Array, "rows A"], b: Float[Array, "rows B"]) -> Float[Array, "A B"]:
    """The same as :func:`transposed_matmul`, as fast as possible: the gradient of a kernel.

    XLA:CPU multiplies by a transposed operand up to twice as fast if that is the narrower of
    the two. So where ``a`` is the wider, this is ``(bᵀ a)ᵀ`` there, behind a barrier without
    which XLA would put it back.

    Example:
        >>> kernel_gradient(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]]))
        Array([[3., 4.],
               [6., 8.]], dtype=float32)
    """
    if a.shape[1] <= b.shape[1]:
        return transposed_matmul(a, b)
    swapped = lambda a, b: lax.optimization_barrier(transposed_matmul(b, a)).T
    return lax.platform_dependent(a, b, cpu=swapped, default=transposed_matmul)


def make_row_major(x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """``x``; on CPU and in bfloat16, laid out with its last axis contiguous in memory.

    XLA folds a transposition into the product that follows, and XLA:CPU has no bfloat16 product
    for most of the results: it widens both operands to float32, which takes four times as long
    where the processor multiplies bfloat16.

    Example:
        >>> make_row_major(jnp.ones((2, 3)).T).shape
        (3, 2)
    """
    if x.dtype != jnp.bfloat16:
        return x
    return lax.platform_dependent(x, cpu=_row_major, default=lambda x: x)


def _row_major(x):
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def _transposed_matmul_bfloat16(a, b):
    # The layout of the result is fixed too: XLA:CPU fails where it would transpose the result.
    return _row_major(matmul(_row_major(a.T), b, 1, 0))


def _sum_rows_as_product(x):
    rows = x.reshape(-1, x.shape[-1])
    return matmul(jnp.ones((1, rows.shape[0]), x.dtype), rows, 1, 0)[0]


def _sum_rows(x):
    return x.sum(range(x.ndim - 1), dtype=jnp.promote_types(x.dtype, jnp.float32))


def _as_row(bias, y):
    return bias.astype(y.dtype).reshape((1,) * (y.ndim - 1) + bias.shape)


def _rounded_matmul(a, b, axes):
    """The product over pairs of ``axes``, in the dtype of ``a``.

    Accelerators sum bfloat16 products in float32 and round as they write. Asking for a float32
    result would write twice the bytes there; XLA:CPU has to be asked.
    """
    contract = (axes, ((), ()))
    plain = lambda a, b: lax.dot_general(a, b, contract)
    if jnp.promote_types(a.dtype, jnp.float32) == a.dtype:
        return plain(a, b)
    wide = lambda a, b: lax.dot_general(a, b, contract, preferred_element_type=jnp.float32)
    return lax.platform_dependent(a, b, cpu=lambda a, b: wide(a, b).astype(a.dtype), default=plain)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _linear(x, kernel, bias, axes):
    y = _rounded_matmul(x, unshard_fsdp(kernel, axes, x.dtype), ((x.ndim - 1,), (0,)))
    return y if bias is None else y + _as_row(bias, y)


def _linear_forward(x, kernel, bias, axes):
    return _linear(x, kernel, bias, axes), (x, kernel, bias)


def _linear_backward(axes, saved, g):
    x, stored, bias = saved
    kernel, g = unshard_fsdp_again(stored, axes, x.dtype, g)
    dx = _rounded_matmul(g, kernel, ((g.ndim - 1,), (1,)))
    dkernel = lax.platform_dependent(x, g, cpu=_kernel_gradient_of_rows, default=_kernel_gradient)
    if axes is not None:
        dkernel = constrain(dkernel, axes)
    return dx, dkernel.astype(stored.dtype), None if bias is None else sum_rows(g, bias.dtype)


def _kernel_gradient_of_rows(x, g):
    return kernel_gradient(*(a.reshape(-1, a.shape[-1]) for a in (x, g)))


def _kernel_gradient(x, g):
    # Rows keep their axes, which are sharded: merging them could move data between devices.
    rows = tuple(range(x.ndim - 1))
    product = lax.dot_general(x, g, ((rows, rows), ((), ())))
    return product.astype(jnp.promote_types(x.dtype, jnp.float32))


_linear.defvjp(_linear_forward, _linear_backward)

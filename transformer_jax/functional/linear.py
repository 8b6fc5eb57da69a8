"""The linear map of the last axis, with a backward pass written for the platform."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from transformer_jax.functional._backend import by_rows, narrow_on_cpu, own_backward


def linear(
    x: Float[Array, "*rows D"],
    kernel: Float[Array, "D F"],
    bias: Float[Array, " F"] | None = None,
) -> Float[Array, "*rows F"]:
    """The same affine map at every position: ``x W + b``.

    Computes in the dtype of ``x``, to which the parameters are cast; products of narrow numbers
    are summed in float32 before they are rounded. Each gradient has its parameter's dtype.
    On CPU the backward pass is our own and reverse-mode only (no ``jax.jvp``).

    Source: rows U8 and T13, ``FFN(x) = max(0, x W1 + b1) W2 + b2``, are two of these.

    Example:
        >>> x = jnp.array([[1.0, 2.0]])
        >>> linear(x, jnp.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]), jnp.array([0.0, 0.0, 10.0]))
        Array([[ 1.,  2., 13.]], dtype=float32)
    """
    return (_linear if own_backward() else _affine)(x, kernel, bias)


def linear_transposed(
    x: Float[Array, "*rows D"],
    kernel: Float[Array, "F D"],
    bias: Float[Array, " F"] | None = None,
) -> Float[Array, "*rows F"]:
    """The map of :func:`linear` with its kernel the other way round: ``x Wᵀ + b``.

    A product of few rows reads weights that come from memory fastest so: those of each output lie
    in one piece. Not the same as ``linear(x, kernel.T)``, with which GPT-2 small takes four times
    as long for a single row on XLA:CPU.

    Example:
        >>> linear_transposed(jnp.array([[1.0, 2.0]]), jnp.array([[1.0, 0.0], [1.0, 1.0]]))
        Array([[1., 3.]], dtype=float32)
    """
    y = matmul(x, kernel.astype(x.dtype), x.ndim - 1, 1).astype(x.dtype)
    return y if bias is None else y + _as_row(bias, y)


def sum_rows(x: Float[Array, "*rows F"], dtype=None) -> Float[Array, " F"]:
    """The sum over all rows; on CPU as a product with ones, which runs at the speed of a gemm.

    Args:
        x: What to sum over all axes but the last.
        dtype: Of the sum; by default float32, or that of ``x`` where it is wider.

    Example:
        >>> sum_rows(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
        Array([4., 6.], dtype=float32)
    """
    rows = x.reshape(-1, x.shape[-1])
    if own_backward():
        total = matmul(jnp.ones((1, rows.shape[0]), x.dtype), rows, 1, 0)[0]
    else:
        total = rows.sum(0, dtype=jnp.promote_types(x.dtype, jnp.float32))
    return total if dtype is None else total.astype(dtype)


def matmul(a: Float[Array, "..."], b: Float[Array, "..."], i: int, j: int) -> Float[Array, "..."]:
    """The product over axis ``i`` of ``a`` and axis ``j`` of ``b``, summed in at least float32.

    Example:
        >>> matmul(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]]), 1, 1)
        Array([[11.]], dtype=float32)
    """
    wide = jnp.promote_types(jnp.promote_types(a.dtype, b.dtype), jnp.float32)
    return lax.dot_general(a, b, (((i,), (j,)), ((), ())), preferred_element_type=wide)


def transposed_matmul(a: Float[Array, "rows A"], b: Float[Array, "rows B"]) -> Float[Array, "A B"]:
    """The sum of the outer products of all rows, ``aᵀ b``, in at least float32.

    Example:
        >>> transposed_matmul(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]]))
        Array([[3., 4.],
               [6., 8.]], dtype=float32)
    """
    if narrow_on_cpu(a) and narrow_on_cpu(b):
        # The result has its place too: XLA:CPU stops with an error where it would turn that.
        return by_rows(matmul(by_rows(a.T), b, 1, 0))
    return matmul(a, b, 0, 0)


def kernel_gradient(a: Float[Array, "rows A"], b: Float[Array, "rows B"]) -> Float[Array, "A B"]:
    """The same as :func:`transposed_matmul`, as fast as may be: the gradient of a kernel.

    XLA:CPU multiplies by a transposed operand up to twice as fast if that is the narrower of
    the two. So where ``a`` is the wider, this is ``(bᵀ a)ᵀ`` there, behind a barrier without
    which XLA would put it back.

    Example:
        >>> kernel_gradient(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]]))
        Array([[3., 4.],
               [6., 8.]], dtype=float32)
    """
    if own_backward() and a.shape[1] > b.shape[1]:
        return lax.optimization_barrier(transposed_matmul(b, a)).T
    return transposed_matmul(a, b)


def _affine(x, kernel, bias):
    # Accelerators sum bfloat16 products in float32 by themselves. Asking for a float32 result
    # here would make autodiff's backward products float32 too, and several times slower.
    y = x @ kernel.astype(x.dtype)
    return y if bias is None else y + _as_row(bias, y)


def _as_row(bias, y):
    return bias.astype(y.dtype).reshape((1,) * (y.ndim - 1) + bias.shape)


@jax.custom_vjp
def _linear(x, kernel, bias):
    y = matmul(x, kernel.astype(x.dtype), x.ndim - 1, 0).astype(x.dtype)
    return y if bias is None else y + _as_row(bias, y)


def _linear_forward(x, kernel, bias):
    return _linear(x, kernel, bias), (x, kernel, bias)


def _linear_backward(saved, g):
    x, kernel, bias = saved
    dx = matmul(g, kernel.astype(x.dtype), g.ndim - 1, 1).astype(x.dtype)
    x, rows = x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])
    dkernel = kernel_gradient(x, rows).astype(kernel.dtype)
    return dx, dkernel, None if bias is None else sum_rows(g, bias.dtype)


_linear.defvjp(_linear_forward, _linear_backward)

"""Fast forms of the formulas of :mod:`.layers` for XLA:CPU, behind the same names.

Matrix products and sums have the layout or order that XLA:CPU runs fastest;
``lax.platform_dependent`` keeps XLA's own form on accelerators when a program is lowered. Layers
have backward passes of their own, made of these products, in reverse mode only. Each layer equals
its formula in float64 to 1e-12: ``tests/functional/test_layers.py``.
"""

import functools
import math

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
    "gelu",
    "gelu_tanh",
    "kernel_gradient",
    "layer_norm",
    "linear",
    "linear_transposed",
    "make_row_major",
    "matmul",
    "query_key_product",
    "rms_norm",
    "sum_rows",
    "transposed_matmul",
    "widen",
]

# XLA:CPU copies the transposed operand of a batched product. Up to this many queries a head, as in
# decoding, it is better to copy the queries than the keys.
FEW_QUERIES = 8

# --- products and sums ---------------------------------------------------------------------------


def widen(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns ``x`` in float32, or in its own dtype where it is wider.

    Example:
        >>> widen(jnp.ones(2, jnp.bfloat16)).dtype
        dtype('float32')
    """
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


@real_arguments
def matmul(a: Float[Array, "..."], b: Float[Array, "..."], i: int, j: int) -> Float[Array, "..."]:
    """Returns the product over axis ``i`` of ``a`` and axis ``j`` of ``b``, in at least float32.

    Example:
        >>> matmul(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]]), 1, 1)
        Array([[11.]], dtype=float32)
    """
    wide = jnp.promote_types(jnp.promote_types(a.dtype, b.dtype), jnp.float32)
    return lax.dot_general(a, b, (((i,), (j,)), ((), ())), preferred_element_type=wide)


@real_arguments
def sum_rows(x: Float[Array, "*rows F"], dtype=None) -> Float[Array, " F"]:
    """Returns the sum over all axes but the last; on CPU as a product with ones.

    XLA:CPU multiplies matrices faster than it reduces.

    Args:
        x: Rows to sum.
        dtype: Dtype of the result; by default float32, or the dtype of ``x`` where it is wider.

    Example:
        >>> sum_rows(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
        Array([4., 6.], dtype=float32)
    """

    def as_product(x):
        rows = x.reshape(-1, x.shape[-1])
        return matmul(jnp.ones((1, rows.shape[0]), x.dtype), rows, 1, 0)[0]

    def plain(x):
        return x.sum(range(x.ndim - 1), dtype=jnp.promote_types(x.dtype, jnp.float32))

    total = lax.platform_dependent(x, cpu=as_product, default=plain)
    return total if dtype is None else total.astype(dtype)


def _mean(x):
    """Returns the mean of each row, as an axis of size 1."""

    def as_product(x):
        D = x.shape[-1]  # XLA:CPU multiplies faster than it reduces
        return lax.dot_general(
            x,
            jnp.full((D, 1), 1 / D, x.dtype),
            (((x.ndim - 1,), (0,)), ((), ())),
            precision=lax.Precision.HIGHEST,
        )

    return lax.platform_dependent(x, cpu=as_product, default=lambda x: x.mean(-1, keepdims=True))


@real_arguments
def transposed_matmul(a: Float[Array, "rows A"], b: Float[Array, "rows B"]) -> Float[Array, "A B"]:
    """Returns the sum of the outer products of all rows, ``aᵀ b``, in at least float32.

    Example:
        >>> transposed_matmul(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]]))
        Array([[3., 4.],
               [6., 8.]], dtype=float32)
    """
    plain = lambda a, b: matmul(a, b, 0, 0)
    if not a.dtype == b.dtype == jnp.bfloat16:
        return plain(a, b)
    # The layout of the result is fixed too: XLA:CPU fails where it would transpose the result.
    rows_first = lambda a, b: _row_major(matmul(_row_major(a.T), b, 1, 0))
    return lax.platform_dependent(a, b, cpu=rows_first, default=plain)


@real_arguments
def kernel_gradient(a: Float[Array, "rows A"], b: Float[Array, "rows B"]) -> Float[Array, "A B"]:
    """The gradient of a kernel: :func:`transposed_matmul`, as fast as possible.

    XLA:CPU multiplies by a transposed operand up to twice as fast if it is the narrower. So a wider
    ``a`` makes this ``(bᵀ a)ᵀ`` there, behind a barrier without which XLA would put it back.

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
    """Returns ``x``; on CPU and in bfloat16, with its last axis contiguous in memory.

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


def _rounded_matmul(a, b, axes):
    """Returns the product over pairs of ``axes``, in the dtype of ``a``.

    Accelerators sum bfloat16 products in float32 and round as they write. Asking for a float32
    result would write twice the bytes there; XLA:CPU has to be asked.
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
    """Returns ``q kᵀ`` in float32; on CPU few queries are transposed instead of all keys.

    Example:
        >>> query_key_product(jnp.ones((1, 1, 1, 3)), jnp.ones((1, 1, 2, 3)))[0, 0]
        Array([[3., 3.]], dtype=float32)
    """

    def queries_first(q, k):
        transposed = make_row_major(k.swapaxes(2, 3))
        return jnp.matmul(q, transposed, preferred_element_type=jnp.float32)

    def keys_first(q, k):
        product = jnp.matmul(k, q.swapaxes(2, 3), preferred_element_type=jnp.float32)
        return product.swapaxes(2, 3)

    if isinstance(q.shape[2], int) and q.shape[2] <= FEW_QUERIES:
        return lax.platform_dependent(q, k, cpu=keys_first, default=queries_first)
    return queries_first(q, k)


def _as_row(v, x):
    return v.astype(x.dtype).reshape((1,) * (x.ndim - 1) + v.shape)


# --- linear maps ---------------------------------------------------------------------------------


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
    rows = tuple(range(x.ndim - 1))
    merged = lambda x, g: kernel_gradient(*(a.reshape(-1, a.shape[-1]) for a in (x, g)))
    # Elsewhere rows keep their axes, which are sharded: merging them could move data.
    apart = lambda x, g: widen(lax.dot_general(x, g, ((rows, rows), ((), ()))))
    dkernel = lax.platform_dependent(x, g, cpu=merged, default=apart)
    if axes is not None:
        dkernel = constrain(dkernel, axes)
    return dx, dkernel.astype(stored.dtype), None if bias is None else sum_rows(g, bias.dtype)


_linear.defvjp(_linear_forward, _linear_backward)


def linear(
    x: Float[Array, "*rows D"],
    kernel: Float[Array, "D F"],
    bias: Float[Array, " F"] | None = None,
    axes: Axes | None = None,
) -> Float[Array, "*rows F"]:
    """``x W + b``; the gradients of ``W`` and ``b`` are matrix products."""
    return _linear(x, kernel, bias, axes)


def linear_transposed(
    x: Float[Array, "*rows D"],
    kernel: Float[Array, "F D"],
    bias: Float[Array, " F"] | None = None,
    axes: Axes | None = None,
) -> Float[Array, "*rows F"]:
    """``x Wᵀ + b``; the product reads the weights of each output one after another."""
    y = matmul(x, unshard_fsdp(kernel, axes, x.dtype), x.ndim - 1, 1).astype(x.dtype)
    return y if bias is None else y + _as_row(bias, y)


# --- norms: backward passes normalize x again, which is cheaper than saving the result -----------


def _standard(x, eps):
    """Rows at mean 0 and variance 1, their means, and the factors that scaled them.

    The rounded mean of equal numbers is none of them, and their distance from it, divided by
    ``√ε``, would be of order 1 for rows of 12345.6: the mean of the difference is subtracted too.
    """
    x = widen(x)
    mean = _mean(x)
    rest = _mean(x - mean)
    centred = (x - mean) - rest
    scale = lax.rsqrt(_mean(jnp.square(centred)) + eps)
    return centred * scale, (mean, rest), scale


def _unit(x, eps):
    """Rows at root mean square 1, and the factors that scaled them."""
    x = widen(x)
    scale = lax.rsqrt(_mean(jnp.square(x)) + eps)
    return x * scale, scale


def _scaled(n, gain, bias, dtype):
    y = n * _as_row(gain, n)
    return (y if bias is None else y + _as_row(bias, n)).astype(dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_norm(
    x: Float[Array, "*rows D"],
    gain: Float[Array, " D"],
    bias: Float[Array, " D"] | None,
    eps: float,
) -> Float[Array, "*rows D"]:
    """``(x − μ) / √(σ² + ε) · gain + bias``, with statistics in at least float32."""
    return _scaled(_standard(x, eps)[0], gain, bias, x.dtype)


def _layer_forward(x, gain, bias, eps):
    n, means, scale = _standard(x, eps)
    return _scaled(n, gain, bias, x.dtype), (x, means, scale, gain, bias)


def _layer_backward(eps, saved, g):
    x, (mean, rest), scale, gain, bias = saved
    n = ((widen(x) - mean) - rest) * scale
    g = widen(g)
    h = g * _as_row(gain, n)
    dx = scale * (h - _mean(h) - n * _mean(h * n))
    dbias = None if bias is None else sum_rows(g, bias.dtype)
    return dx.astype(x.dtype), sum_rows(g * n, gain.dtype), dbias


layer_norm.defvjp(_layer_forward, _layer_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def rms_norm(
    x: Float[Array, "*rows D"], gain: Float[Array, " D"], eps: float
) -> Float[Array, "*rows D"]:
    """``x / √(mean(x²) + ε) · gain``, with statistics in at least float32."""
    return _scaled(_unit(x, eps)[0], gain, None, x.dtype)


def _rms_forward(x, gain, eps):
    n, scale = _unit(x, eps)
    return _scaled(n, gain, None, x.dtype), (x, scale, gain)


def _rms_backward(eps, saved, g):
    x, scale, gain = saved
    n, g = widen(x) * scale, widen(g)
    h = g * _as_row(gain, n)
    dx = scale * (h - n * _mean(h * n))
    return dx.astype(x.dtype), sum_rows(g * n, gain.dtype)


rms_norm.defvjp(_rms_forward, _rms_backward)

# --- GELU ----------------------------------------------------------------------------------------

# Differentiated, both GELUs save the slope instead of x: value and slope share terms.
CUBIC = 0.044715
_FLAT = 1e6  # squares of numbers where the tanh is 1 in every type
_SLOPE = math.sqrt(2 / math.pi)


def _normal(x):
    return 0.5 * (1 + lax.erf(x * math.sqrt(0.5)))


def _near_normal(x):
    """An approximation of ``Φ`` by a tanh, and the slope of that tanh."""
    t = jnp.tanh(_SLOPE * (x + CUBIC * x * x * x))
    return 0.5 * (1 + t), 1 - t * t


def _with_slope(x, y, slope):
    """Both in the dtype of ``x``; the barrier keeps XLA:CPU from computing the slope backward."""
    both = y.astype(x.dtype), slope.astype(x.dtype)
    barrier = lambda *both: lax.optimization_barrier(both)
    return lax.platform_dependent(*both, cpu=barrier, default=lambda *both: both)


@jax.custom_vjp
def gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``x Φ(x)``, computed in at least float32."""
    wide = widen(x)
    return (wide * _normal(wide)).astype(x.dtype)


def _gelu_forward(x):
    wide = widen(x)
    p = _normal(wide)
    density = jnp.exp(-0.5 * wide * wide) / math.sqrt(2 * math.pi)
    return _with_slope(x, wide * p, p + wide * density)


@jax.custom_vjp
def gelu_tanh(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))``, computed in at least float32."""
    wide = widen(x)
    return (wide * _near_normal(wide)[0]).astype(x.dtype)


def _gelu_tanh_forward(x):
    wide = widen(x)
    p, flat = _near_normal(wide)
    # The tanh is flat long before the square of x overflows, and nothing times infinity is none.
    curve = 0.5 * _SLOPE * (1 + 3 * CUBIC * jnp.minimum(wide * wide, _FLAT))
    return _with_slope(x, wide * p, p + wide * flat * curve)


def _gelu_backward(slope, g):
    return (g * slope,)


gelu.defvjp(_gelu_forward, _gelu_backward)
gelu_tanh.defvjp(_gelu_tanh_forward, _gelu_backward)

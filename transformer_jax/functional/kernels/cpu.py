"""Layers for XLA:CPU with hand-written backward passes, called by the formulas of :mod:`.layers`.

They use the :mod:`.products` that XLA:CPU runs fastest, and support reverse mode only. Each equals
its formula in float64 to 1e-12: ``tests/functional/test_layers.py``.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from transformer_jax.functional.kernels.products import (
    as_row,
    kernel_gradient,
    matmul,
    mean_of_rows,
    rounded_matmul,
    sum_rows,
    widen,
)
from transformer_jax.functional.partitioning import (
    Axes,
    constrain,
    unshard_fsdp,
    unshard_fsdp_again,
)

__all__ = ["gelu", "gelu_tanh", "layer_norm", "linear", "linear_transposed", "rms_norm"]

# --- linear maps ---------------------------------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _linear(x, kernel, bias, axes):
    y = rounded_matmul(x, unshard_fsdp(kernel, axes, x.dtype), ((x.ndim - 1,), (0,)))
    return y if bias is None else y + as_row(bias, y)


def _linear_forward(x, kernel, bias, axes):
    return _linear(x, kernel, bias, axes), (x, kernel, bias)


def _linear_backward(axes, saved, g):
    x, stored, bias = saved
    kernel, g = unshard_fsdp_again(stored, axes, x.dtype, g)
    dx = rounded_matmul(g, kernel, ((g.ndim - 1,), (1,)))
    dkernel = lax.platform_dependent(x, g, cpu=_gradient_of_rows, default=_gradient_of_axes)
    if axes is not None:
        dkernel = constrain(dkernel, axes)
    return dx, dkernel.astype(stored.dtype), None if bias is None else sum_rows(g, bias.dtype)


def _gradient_of_rows(x, g):
    return kernel_gradient(*(a.reshape(-1, a.shape[-1]) for a in (x, g)))


def _gradient_of_axes(x, g):
    # Rows keep their axes, which are sharded: merging them could move data between devices.
    rows = tuple(range(x.ndim - 1))
    return widen(lax.dot_general(x, g, ((rows, rows), ((), ()))))


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
    return y if bias is None else y + as_row(bias, y)


# --- norms: backward passes normalize x again, which is cheaper than saving the result -----------


def _standard(x, eps):
    """Rows with mean 0 and variance 1, their means, and the factors that scaled them.

    The rounded mean of equal values differs from them, and the difference, divided by ``√ε``, would
    be of order 1 for rows of 12345.6. So the mean of the difference is subtracted too.
    """
    x = widen(x)
    mean = mean_of_rows(x)
    rest = mean_of_rows(x - mean)
    centred = (x - mean) - rest
    scale = lax.rsqrt(mean_of_rows(jnp.square(centred)) + eps)
    return centred * scale, (mean, rest), scale


def _unit(x, eps):
    """Rows with root mean square 1, and the factors that scaled them."""
    x = widen(x)
    scale = lax.rsqrt(mean_of_rows(jnp.square(x)) + eps)
    return x * scale, scale


def _scaled(n, gain, bias, dtype):
    y = n * as_row(gain, n)
    return (y if bias is None else y + as_row(bias, n)).astype(dtype)


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
    h = g * as_row(gain, n)
    dx = scale * (h - mean_of_rows(h) - n * mean_of_rows(h * n))
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
    h = g * as_row(gain, n)
    dx = scale * (h - n * mean_of_rows(h * n))
    return dx.astype(x.dtype), sum_rows(g * n, gain.dtype)


rms_norm.defvjp(_rms_forward, _rms_backward)

# --- GELU ----------------------------------------------------------------------------------------

# In the forward pass, both GELUs save the slope instead of x: value and slope share terms.
CUBIC = 0.044715
_FLAT = 1e6  # squares of values at which the tanh is 1 in every dtype
_SLOPE = math.sqrt(2 / math.pi)


def _normal(x):
    return 0.5 * (1 + lax.erf(x * math.sqrt(0.5)))


def _near_normal(x):
    """An approximation of ``Φ`` by a tanh, and the slope of that tanh."""
    t = jnp.tanh(_SLOPE * (x + CUBIC * x * x * x))
    return 0.5 * (1 + t), 1 - t * t


def _with_slope(x, y, slope):
    """Returns both in the dtype of ``x``; the barrier keeps XLA:CPU from delaying the slope."""
    both = y.astype(x.dtype), slope.astype(x.dtype)
    return lax.platform_dependent(*both, cpu=_barrier, default=_pair)


def _barrier(y, slope):
    return lax.optimization_barrier((y, slope))


def _pair(y, slope):
    return y, slope


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
    # The tanh is flat long before the square of x overflows; 0 times infinity would be NaN.
    curve = 0.5 * _SLOPE * (1 + 3 * CUBIC * jnp.minimum(wide * wide, _FLAT))
    return _with_slope(x, wide * p, p + wide * flat * curve)


def _gelu_backward(slope, g):
    return (g * slope,)


gelu.defvjp(_gelu_forward, _gelu_backward)
gelu_tanh.defvjp(_gelu_tanh_forward, _gelu_backward)

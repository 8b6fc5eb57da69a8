"""Activation functions by name."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from transformer_jax.functional.real_arguments import real_arguments

_CUBIC = 0.044715
_FLAT = 1e6  # squares of numbers where the tanh is 1 in every type
_SLOPE = math.sqrt(2 / math.pi)


@real_arguments
def relu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``max(x, 0)``, with gradient 0 at 0 (row U8).

    Example:
        >>> relu(jnp.array([-1.0, 2.0]))
        Array([0., 2.], dtype=float32)
    """
    return jax.nn.relu(x)


@real_arguments
def silu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``x · sigmoid(x)``, also called swish.

    Source: Elfwing et al. 2017, https://arxiv.org/abs/1702.03118.

    Example:
        >>> f"{silu(jnp.float32(1.0)):.4f}"
        '0.7311'
    """
    return jax.nn.silu(x)


@real_arguments
def quick_gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``x · sigmoid(1.702 x)``, the sigmoid approximation of :func:`gelu`.

    Source: Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415.

    Example:
        >>> f"{quick_gelu(jnp.float32(1.0)):.4f}"
        '0.8458'
    """
    return x * jax.nn.sigmoid(1.702 * x)


@real_arguments
def tanh(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``tanh(x)``.

    Example:
        >>> f"{tanh(jnp.float32(1.0)):.4f}"
        '0.7616'
    """
    return jnp.tanh(x)


@real_arguments
def gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``x Φ(x)``, where ``Φ`` is the standard normal distribution, by the error function.

    Source: Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415.

    Example:
        >>> f"{gelu(jnp.float32(1.0)):.4f}"
        '0.8413'
    """
    return _gelu(x)


@real_arguments
def gelu_tanh(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))``, the tanh approximation of :func:`gelu`.

    Source: Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415; the GELU of GPT-2.

    Example:
        >>> f"{gelu_tanh(jnp.float32(1.0)):.4f}"
        '0.8412'
    """
    return _gelu_tanh(x)


def _widen(x):
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _normal(x):
    return 0.5 * (1 + lax.erf(x * math.sqrt(0.5)))


def _near_normal(x):
    """An approximation of ``Φ`` by a tanh, and the slope of that tanh."""
    t = jnp.tanh(_SLOPE * (x + _CUBIC * x * x * x))
    return 0.5 * (1 + t), 1 - t * t


# Differentiated, both GELUs save the slope instead of x: it is as large, and the terms that value
# and slope share are computed once. Reverse mode only.


@jax.custom_vjp
def _gelu(x):
    w = _widen(x)
    return (w * _normal(w)).astype(x.dtype)


def _gelu_forward(x):
    w = _widen(x)
    p = _normal(w)
    density = jnp.exp(-0.5 * w * w) / math.sqrt(2 * math.pi)
    return _with_slope(x, w * p, p + w * density)


@jax.custom_vjp
def _gelu_tanh(x):
    w = _widen(x)
    return (w * _near_normal(w)[0]).astype(x.dtype)


def _gelu_tanh_forward(x):
    w = _widen(x)
    p, flat = _near_normal(w)
    # The tanh is flat long before the square of x overflows, and nothing times infinity is none.
    curve = 0.5 * _SLOPE * (1 + 3 * _CUBIC * jnp.minimum(w * w, _FLAT))
    return _with_slope(x, w * p, p + w * flat * curve)


def _with_slope(x, y, slope):
    """Both in the dtype of ``x``; the barrier keeps XLA:CPU from computing the slope backward."""
    made = y.astype(x.dtype), slope.astype(x.dtype)
    return lax.platform_dependent(*made, cpu=_barrier, default=lambda y, slope: (y, slope))


def _barrier(y, slope):
    return lax.optimization_barrier((y, slope))


def _backward(slope, g):
    return (g * slope,)


_gelu.defvjp(_gelu_forward, _backward)
_gelu_tanh.defvjp(_gelu_tanh_forward, _backward)

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
    "quick_gelu": quick_gelu,
    "tanh": tanh,
}

"""Layer norm and RMS norm, whose backward passes normalize again instead of saving the result."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from transformer_jax.functional.linear import sum_rows
from transformer_jax.functional.real_arguments import real_arguments


@real_arguments
def layer_norm(
    x: Float[Array, "*rows D"],
    gain: Float[Array, " D"],
    bias: Float[Array, " D"] | None,
    eps: float,
) -> Float[Array, "*rows D"]:
    """Layer normalization, ``(x − μ) / √(σ² + ε) · gain + bias``, of each row.

    ``σ²`` is the population variance (divided by ``D``). Statistics are float32 whatever the
    dtype of ``x``, which is that of the result. With ``eps=0`` it is the formula of row U7, and
    a constant row gives NaN. Reverse mode only.

    Source: Ba et al. 2016, https://arxiv.org/abs/1607.06450.

    Example:
        >>> layer_norm(jnp.array([[5.0, 9.0]]), jnp.ones(2), jnp.zeros(2), eps=0.0)
        Array([[-1.,  1.]], dtype=float32)
    """
    return _layer_norm(x, gain, bias, eps)


@real_arguments
def rms_norm(
    x: Float[Array, "*rows D"], gain: Float[Array, " D"], eps: float
) -> Float[Array, "*rows D"]:
    """Root-mean-square normalization, ``x / √(mean(x²) + ε) · gain``, of each row.

    Nothing is subtracted. Statistics are float32 whatever the dtype of ``x``, which is that of
    the result. Reverse mode only.

    Source: Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467.

    Example:
        >>> rms_norm(jnp.array([[2.0, -2.0]]), jnp.array([1.0, 3.0]), eps=0.0)
        Array([[ 1., -3.]], dtype=float32)
    """
    return _rms_norm(x, gain, eps)


def _widen(x):
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _as_row(v, x):
    return v.astype(x.dtype).reshape((1,) * (x.ndim - 1) + v.shape)


def _mean(x):
    """The mean of each row, kept as an axis of 1."""
    return lax.platform_dependent(x, cpu=_mean_as_product, default=_plain_mean)


def _mean_as_product(x):
    D = x.shape[-1]  # XLA:CPU multiplies faster than it reduces
    return lax.dot_general(
        x,
        jnp.full((D, 1), 1 / D, x.dtype),
        (((x.ndim - 1,), (0,)), ((), ())),
        precision=lax.Precision.HIGHEST,
    )


def _plain_mean(x):
    return x.mean(-1, keepdims=True)


def _standard(x, eps):
    """Rows at mean 0 and variance 1, their means, and what they were multiplied by.

    The rounded mean of equal numbers is none of them, and their distance from it, divided by
    ``√ε``, would be of order 1 for rows of 12345.6: the mean of what is left is subtracted too.
    """
    x = _widen(x)
    mean = _mean(x)
    rest = _mean(x - mean)
    centred = (x - mean) - rest
    scale = lax.rsqrt(_mean(jnp.square(centred)) + eps)
    return centred * scale, (mean, rest), scale


def _unit(x, eps):
    """Rows at root mean square 1, and what they were multiplied by."""
    x = _widen(x)
    scale = lax.rsqrt(_mean(jnp.square(x)) + eps)
    return x * scale, scale


def _scaled(n, gain, bias, dtype):
    y = n * _as_row(gain, n)
    return (y if bias is None else y + _as_row(bias, n)).astype(dtype)


def _layer(x, gain, bias, eps):
    return _scaled(_standard(x, eps)[0], gain, bias, x.dtype)


def _rms(x, gain, eps):
    return _scaled(_unit(x, eps)[0], gain, None, x.dtype)


# Backward passes normalize x again, which is cheaper than writing and reading the result.

_layer_norm = jax.custom_vjp(_layer, nondiff_argnums=(3,))


def _layer_forward(x, gain, bias, eps):
    n, means, scale = _standard(x, eps)
    return _scaled(n, gain, bias, x.dtype), (x, means, scale, gain, bias)


def _layer_backward(eps, saved, g):
    x, (mean, rest), scale, gain, bias = saved
    n = ((_widen(x) - mean) - rest) * scale
    g = _widen(g)
    h = g * _as_row(gain, n)
    dx = scale * (h - _mean(h) - n * _mean(h * n))
    dbias = None if bias is None else sum_rows(g, bias.dtype)
    return dx.astype(x.dtype), sum_rows(g * n, gain.dtype), dbias


_layer_norm.defvjp(_layer_forward, _layer_backward)

_rms_norm = jax.custom_vjp(_rms, nondiff_argnums=(2,))


def _rms_forward(x, gain, eps):
    n, scale = _unit(x, eps)
    return _scaled(n, gain, None, x.dtype), (x, scale, gain)


def _rms_backward(eps, saved, g):
    x, scale, gain = saved
    n, g = _widen(x) * scale, _widen(g)
    h = g * _as_row(gain, n)
    dx = scale * (h - n * _mean(h * n))
    return dx.astype(x.dtype), sum_rows(g * n, gain.dtype)


_rms_norm.defvjp(_rms_forward, _rms_backward)

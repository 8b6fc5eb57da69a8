"""Layer norm and RMS norm, with a backward pass written for the platform."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from transformer_jax.functional._backend import own_backward
from transformer_jax.functional.linear import row_sums


def layer_norm(
    x: Float[Array, "*rows D"],
    gain: Float[Array, " D"],
    bias: Float[Array, " D"] | None,
    eps: float,
) -> Float[Array, "*rows D"]:
    """Each row at mean 0 and variance 1, then scaled: ``(x − μ) / √(σ² + ε) · gain + bias``.

    ``σ²`` is the population variance (divided by ``D``). Statistics are float32 whatever the
    dtype of ``x``, which is that of the result. With ``eps=0`` it is the formula of row U7, and
    a constant row gives NaN. On CPU the backward pass is our own and reverse-mode only.

    Source: Ba et al. 2016, https://arxiv.org/abs/1607.06450.

    Example:
        >>> layer_norm(jnp.array([[5.0, 9.0]]), jnp.ones(2), jnp.zeros(2), eps=0.0)
        Array([[-1.,  1.]], dtype=float32)
    """
    return (_layer_norm if own_backward() else _layer)(x, gain, bias, eps)


def rms_norm(
    x: Float[Array, "*rows D"], gain: Float[Array, " D"], eps: float
) -> Float[Array, "*rows D"]:
    """Each row at root mean square 1, then scaled: ``x / √(mean(x²) + ε) · gain``.

    Nothing is subtracted. Statistics are float32 whatever the dtype of ``x``, which is that of
    the result. On CPU the backward pass is our own and reverse-mode only.

    Source: Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467.

    Example:
        >>> rms_norm(jnp.array([[2.0, -2.0]]), jnp.array([1.0, 3.0]), eps=0.0)
        Array([[ 1., -3.]], dtype=float32)
    """
    return (_rms_norm if own_backward() else _rms)(x, gain, eps)


def _widen(x):
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _as_row(v, x):
    return v.astype(x.dtype).reshape((1,) * (x.ndim - 1) + v.shape)


def _standard(x, eps):
    """Rows at mean 0 and variance 1, and what they were multiplied by."""
    x = _widen(x)
    centred = x - x.mean(-1, keepdims=True)
    scale = lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + eps)
    return centred * scale, scale


def _unit(x, eps):
    """Rows at root mean square 1, and what they were multiplied by."""
    x = _widen(x)
    scale = lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + eps)
    return x * scale, scale


def _scaled(n, gain, bias, dtype):
    y = n * _as_row(gain, n)
    return (y if bias is None else y + _as_row(bias, n)).astype(dtype)


def _layer(x, gain, bias, eps):
    return _scaled(_standard(x, eps)[0], gain, bias, x.dtype)


def _rms(x, gain, eps):
    return _scaled(_unit(x, eps)[0], gain, None, x.dtype)


_layer_norm = jax.custom_vjp(_layer, nondiff_argnums=(3,))


def _layer_forward(x, gain, bias, eps):
    n, scale = _standard(x, eps)
    # An empty array carries the dtype of x: only arrays may be saved.
    saved = n, scale, gain, bias, jnp.empty(0, x.dtype)
    return _scaled(n, gain, bias, x.dtype), saved


def _layer_backward(eps, saved, g):
    n, scale, gain, bias, like = saved
    g = g.astype(n.dtype)
    h = g * _as_row(gain, n)
    dx = scale * (h - h.mean(-1, keepdims=True) - n * (h * n).mean(-1, keepdims=True))
    dbias = None if bias is None else row_sums(g, bias.dtype)
    return dx.astype(like.dtype), row_sums(g * n, gain.dtype), dbias


_layer_norm.defvjp(_layer_forward, _layer_backward)

_rms_norm = jax.custom_vjp(_rms, nondiff_argnums=(2,))


def _rms_forward(x, gain, eps):
    n, scale = _unit(x, eps)
    return _scaled(n, gain, None, x.dtype), (n, scale, gain, jnp.empty(0, x.dtype))


def _rms_backward(eps, saved, g):
    n, scale, gain, like = saved
    g = g.astype(n.dtype)
    h = g * _as_row(gain, n)
    dx = scale * (h - n * (h * n).mean(-1, keepdims=True))
    return dx.astype(like.dtype), row_sums(g * n, gain.dtype)


_rms_norm.defvjp(_rms_forward, _rms_backward)

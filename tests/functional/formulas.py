"""Formulas of functions with a backward pass of their own, in plain jax.numpy."""

import math

import jax
import jax.numpy as jnp
from jax import lax


def linear(x, kernel, bias=None, axes=None):
    y = x @ kernel
    return y if bias is None else y + bias


def linear_transposed(x, kernel, bias=None, axes=None):
    y = x @ kernel.T
    return y if bias is None else y + bias


def layer_norm(x, gain, bias, eps):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    y = (x - mean) / jnp.sqrt(variance + eps) * gain
    return y if bias is None else y + bias


def rms_norm(x, gain, eps):
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain


def gelu(x):
    return x * 0.5 * (1 + lax.erf(x / math.sqrt(2)))


def gelu_tanh(x):
    return x / 2 * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def token_cross_entropy(logits, targets, label_smoothing=0.0):
    log_p = jax.nn.log_softmax(logits)
    wanted = jnp.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]
    return -(1 - label_smoothing) * wanted - label_smoothing * log_p.mean(-1)


FORMULAS = {
    f.__name__: f
    for f in (linear, linear_transposed, layer_norm, rms_norm, gelu, gelu_tanh, token_cross_entropy)
}

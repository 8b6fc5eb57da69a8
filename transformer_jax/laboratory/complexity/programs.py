"""Layers of table 1 as functions of arrays, to be counted, timed and differentiated."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer_jax.functional.attention import attend
from transformer_jax.functional.convolution import convolve
from transformer_jax.functional.local_attention import local_attention
from transformer_jax.functional.recurrent import CELLS, recur
from transformer_jax.laboratory.complexity.layers import ATTENTION, Layer

__all__ = ["Program", "function_of", "inputs_of", "recurrent_step"]

Program = Callable[..., Array]  # inputs and parameters -> [n d]


def function_of(layer: Layer, dilation: int | None = None) -> Program:
    """The layer as a function of ``q, k, v``, of ``x, W, U``, or of ``x, kernel``.

    Attention keeps all weights in memory, as its formula is written.

    Args:
        layer: A layer.
        dilation: Of another layer of a dilated stack; None is that of ``layer``.

    Example:
        >>> layer = Layer("self-attention", 5, 2)
        >>> function_of(layer)(*inputs_of(layer)).shape
        (5, 2)
    """
    if layer.kind == "recurrent":
        return _recurrent
    if layer.kind in ATTENTION:
        heads = lambda x: x[None, :, None]
        if layer.kind == "self-attention":
            mixed = lambda q, k, v: attend(q, k, v, implementation="xla")
        else:
            mixed = lambda q, k, v: local_attention(q, k, v, layer.reach)
        return lambda q, k, v: mixed(heads(q), heads(k), heads(v))[0, :, 0]
    step = dilation or layer.dilation
    return lambda x, kernel: convolve(x[None], kernel, dilation=step, causal=True)[0]


def inputs_of(layer: Layer, seed: int = 0) -> tuple[Array, ...]:
    """Random inputs and parameters of the layer, which keep the variance of the vectors.

    Example:
        >>> [x.shape for x in inputs_of(Layer("convolution", 5, 2, 3))]
        [(5, 2), (3, 2, 2)]
    """
    n, d, k = layer.n, layer.d, layer.extent or 1
    shapes: list[tuple[int, ...]] = [(n, d)] * 3
    if layer.kind == "recurrent":
        shapes = [(n, d), (d, d), (d, d)]
    elif layer.kind not in ATTENTION:
        shapes = [(n, d), (k, d, d)]
    draw = np.random.default_rng(seed)
    arrays = [draw.standard_normal(shape, np.float32) for shape in shapes]
    scale = 1 if layer.kind in ATTENTION else (d * k) ** -0.5
    return tuple(jnp.asarray(x * (scale if i else 1)) for i, x in enumerate(arrays))


def _recurrent(
    x: Float[Array, "n d"], W: Float[Array, "d d"], U: Float[Array, "d d"]
) -> Float[Array, "n d"]:
    """``h_t = tanh(x_t W + h_{t-1} U)``."""
    start = (jnp.zeros((1, x.shape[1])),)
    return recur(CELLS["tanh"], (x @ W)[None], U, start)[0][0]


def recurrent_step(
    x: Float[Array, "n d"], W: Float[Array, "d d"], U: Float[Array, "d d"]
) -> Float[Array, "n d"]:
    """One step of the recurrence at all positions: each reads itself and the one before it.

    As many such steps as the path is long connect the first position with the last.

    Example:
        >>> x = jnp.array([[1.0], [2.0]])
        >>> recurrent_step(x, jnp.zeros((1, 1)), jnp.ones((1, 1)))[:, 0]
        Array([0.       , 0.7615942], dtype=float32)
    """
    before = jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])
    return recur(CELLS["tanh"], (x @ W)[:, None], U, (before,))[0][:, 0]

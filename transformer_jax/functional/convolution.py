"""Convolution over the positions of texts, contiguous or dilated, causal or not."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.real_arguments import real_arguments

__all__ = ["convolve", "gated_linear_unit"]


@real_arguments
def convolve(
    x: Float[Array, "B T D"],
    kernel: Float[Array, "K D F"],
    bias: Float[Array, " F"] | None = None,
    *,
    dilation: int = 1,
    causal: bool = False,
    segments: Int[Array, "B T"] | None = None,
) -> Float[Array, "B T F"]:
    """``y_t = Σ_j x_{t + (j - c) · dilation} W_j + b``, as many positions as there are inputs.

    The middle ``c`` is ``(K - 1) // 2``, of a causal convolution ``K - 1``: no output depends on a
    later input. Positions before and behind a text count as zeros. Products of bfloat16 numbers are
    summed in float32.

    Gehring et al. 2017, https://arxiv.org/abs/1705.03122; dilated: Kalchbrenner et al. 2016.

    Args:
        x: Inputs.
        kernel: ``W``, a matrix for each of ``K`` places.
        bias: ``b``, if there is one.
        dilation: Distance of neighbouring places.
        causal: Whether the last place is the position itself.
        segments: Of rows that hold several texts, which of them each position belongs to: inputs of
            other texts, and those of 0, which is padding, count as zeros. None is one text.

    Raises:
        ArgumentError: ``dilation`` is below 1.

    Example:
        >>> x = jnp.array([[[1.0], [2.0], [4.0]]])
        >>> kernel = jnp.array([1.0, 10.0, 100.0]).reshape(3, 1, 1)
        >>> convolve(x, kernel)[0, :, 0]
        Array([210., 421.,  42.], dtype=float32)
        >>> convolve(x, kernel, causal=True)[0, :, 0]
        Array([100., 210., 421.], dtype=float32)
    """
    if dilation < 1:
        raise ArgumentError(f"convolve: dilation is {dilation}: at least 1")
    reach = (kernel.shape[0] - 1) * dilation
    before = reach if causal else (kernel.shape[0] - 1) // 2 * dilation
    # One product with the inputs of all places side by side: on CPUs as fast as XLA's convolution,
    # which computes wrong numbers where it is dilated and devices share the positions of a text.
    beside = _side_by_side(x, kernel.shape[0], segments, dilation, before)
    flat = kernel.astype(x.dtype).reshape(-1, kernel.shape[-1])
    y = jnp.matmul(beside, flat, preferred_element_type=jnp.float32).astype(x.dtype)
    return y if bias is None else y + bias.astype(x.dtype).reshape(1, 1, -1)


def _side_by_side(
    x: Array, places: int, segments: Array | None, dilation: int, before: int
) -> Array:
    """The inputs of all places of each position; those of other texts are zeros."""
    T, found = x.shape[1], []
    for j in range(places):
        moved = j * dilation - before
        pad = [(0, 0), (max(-moved, 0), max(moved, 0))]
        near = slice(max(moved, 0), max(moved, 0) + T)
        values = jnp.pad(x, [*pad, (0, 0)])[:, near]
        if segments is not None:
            same = (jnp.pad(segments, pad)[:, near] == segments) & (segments != 0)
            values = jnp.where(same[:, :, None], values, 0)
        found.append(values)
    return jnp.concatenate(found, axis=-1)


@real_arguments
def gated_linear_unit(x: Float[Array, "*rows F"]) -> Float[Array, "*rows E"]:
    """``a ⊙ σ(b)``, where ``a`` and ``b`` are the halves of ``x``.

    Dauphin et al. 2017, https://arxiv.org/abs/1612.08083.

    Raises:
        ArgumentError: The last axis has no halves.

    Example:
        >>> gated_linear_unit(jnp.array([2.0, 4.0, 0.0, 0.0]))
        Array([1., 2.], dtype=float32)
    """
    if x.shape[-1] % 2:
        raise ArgumentError(f"gated_linear_unit: {x.shape[-1]} numbers have no halves")
    a, b = jnp.split(x, 2, axis=-1)
    return a * jax.nn.sigmoid(b)

"""Convolution over the positions of texts, contiguous or dilated, causal or not."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.array_arguments import real_arguments

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
    """``y_t = Σ_j x_{t + (j - c) · dilation} W_j + b``, one output per input position.

    The center ``c`` is ``(K - 1) // 2``, or ``K - 1`` for a causal convolution, where no output
    depends on a later input. Positions beyond either end of a text count as zeros. Products of
    bfloat16 values are summed in float32.

    Gehring et al. 2017, https://arxiv.org/abs/1705.03122; dilated: Kalchbrenner et al. 2016.

    Args:
        x: Inputs.
        kernel: ``W``, one matrix per tap, ``K`` in all.
        bias: ``b``, if there is one.
        dilation: Distance between neighbouring taps.
        causal: Whether the last tap is at the position itself.
        segments: The text that each position belongs to, in rows that hold several: inputs of other
            texts and of segment 0, which is padding, count as zeros. None is one text per row.

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
    # One product with the inputs of all taps side by side: on CPUs as fast as XLA's convolution,
    # which gives wrong results when it is dilated and the positions of a text are split over
    # devices.
    beside = _side_by_side(x, kernel.shape[0], segments, dilation, before)
    flat = kernel.astype(x.dtype).reshape(-1, kernel.shape[-1])
    y = jnp.matmul(beside, flat, preferred_element_type=jnp.float32).astype(x.dtype)
    return y if bias is None else y + bias.astype(x.dtype).reshape(1, 1, -1)


def _side_by_side(
    x: Array, places: int, segments: Array | None, dilation: int, before: int
) -> Array:
    """The inputs of all taps of each position, side by side; zeros for inputs of other texts."""
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
        ArgumentError: The last axis has odd size.

    Example:
        >>> gated_linear_unit(jnp.array([2.0, 4.0, 0.0, 0.0]))
        Array([1., 2.], dtype=float32)
    """
    if x.shape[-1] % 2:
        raise ArgumentError(f"gated_linear_unit: {x.shape[-1]} values cannot be split into halves")
    a, b = jnp.split(x, 2, axis=-1)
    return a * jax.nn.sigmoid(b)

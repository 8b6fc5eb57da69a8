"""Convolution over the positions of texts, contiguous or dilated, causal or not; rows H14, H25."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from transformer_jax.errors import ArgumentError

__all__ = ["convolve", "gated_linear_unit"]


def convolve(
    x: Float[Array, "B T D"],
    kernel: Float[Array, "K D F"],
    bias: Float[Array, " F"] | None = None,
    *,
    dilation: int = 1,
    causal: bool = False,
    lengths: Int[Array, " B"] | None = None,
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
        lengths: Tokens of each row; the others count as zeros. None is all.

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
    if lengths is not None:
        x = jnp.where((jnp.arange(x.shape[1])[None] < lengths[:, None])[:, :, None], x, 0)
    reach = (kernel.shape[0] - 1) * dilation
    before = reach if causal else (kernel.shape[0] - 1) // 2 * dilation
    y = lax.conv_general_dilated(
        x,
        kernel.astype(x.dtype),
        window_strides=(1,),
        padding=[(before, reach - before)],
        rhs_dilation=(dilation,),
        dimension_numbers=("NWC", "WIO", "NWC"),
        preferred_element_type=jnp.float32,
    ).astype(x.dtype)
    return y if bias is None else y + bias.astype(x.dtype).reshape(1, 1, -1)


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

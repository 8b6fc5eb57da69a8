"""Low-rank changes of linear maps: LoRA, its rank-stabilised scale, and DoRA."""

import math
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.array_arguments import real_arguments

__all__ = ["Variant", "column_gain", "column_norms", "lora_scale", "low_rank_kernel"]

Variant = Literal["lora", "rslora", "dora"]

_SHORT = 1e-12  # columns shorter than this count as zeros: in float32 their squares may be 0


def lora_scale(rank: int, alpha: float, variant: Variant = "lora") -> float:
    """The factor that the product of two low-rank matrices is multiplied by.

    ``α / r``, and ``α / √r`` for ``rslora``, whose outputs and gradients keep their size as the
    rank grows.

    Source: Hu et al. 2021, arXiv:2106.09685, section 4.1; Kalajdzievski 2023, arXiv:2312.03732.

    Raises:
        ArgumentError: ``rank`` is below 1.

    Example:
        >>> lora_scale(4, 16.0), lora_scale(4, 16.0, "rslora")
        (4.0, 8.0)
    """
    if rank < 1:
        raise ArgumentError(f"rank is {rank}: it must be at least 1")
    return alpha / math.sqrt(rank) if variant == "rslora" else alpha / rank


@real_arguments
def column_norms(kernel: Float[Array, "D F"]) -> Float[Array, " F"]:
    """The length of each column of a kernel (the weights of one output), in at least float32.

    Example:
        >>> column_norms(jnp.array([[3.0, 0.0], [4.0, 2.0]]))
        Array([5., 2.], dtype=float32)
    """
    wide = kernel.astype(jnp.promote_types(kernel.dtype, jnp.float32))
    return jnp.sqrt(jnp.square(wide).sum(0))


@real_arguments
def column_gain(
    kernel: Float[Array, "D F"],
    a: Float[Array, "D R"],
    b: Float[Array, "R F"],
    scale: float,
    magnitude: Float[Array, " F"],
) -> Float[Array, " F"]:
    """The factor of each column of ``W + s A B`` in DoRA: ``(‖W‖ + δ) / ‖W + s A B‖``.

    The direction of a column comes from the low-rank change; its length ``m = ‖W‖ + δ`` is a
    separate parameter. If ``B`` and ``δ`` are zeros it is exactly 1. No gradient flows through
    ``‖W + s A B‖`` (section 4.3 of the source).

    A column of ``W`` shorter than 1e-12, such as a zero column, has no direction: its gain is
    ``δ / ‖s A B‖``, or 1 where ``s A B`` is zero too. So it stays zero at step 0 without NaN,
    ``B`` trains from the first step and ``δ`` from the second.

    Args:
        kernel: ``W``.
        a: ``A``.
        b: ``B``.
        scale: ``s``.
        magnitude: ``δ``, the magnitude of each column minus the length of that column of ``W``.

    Source: Liu et al. 2024, DoRA, arXiv:2402.09353, equation 5.

    Example:
        >>> W, A, B = jnp.array([[3.0], [4.0]]), jnp.array([[1.0], [0.0]]), jnp.array([[-3.0]])
        >>> column_gain(W, A, B, 1.0, jnp.array([3.0]))  # columns of length 8 in a new direction
        Array([2.], dtype=float32)
        >>> column_gain(0 * W, A, B, 1.0, jnp.array([6.0]))
        Array([2.], dtype=float32)
    """
    norms = column_norms(kernel)
    a, b = a.astype(jnp.float32), b.astype(jnp.float32)
    wide, change = jax.lax.stop_gradient((kernel.astype(jnp.float32), scale * (a @ b)))
    short = norms < _SHORT
    lengths = jnp.where(short, 1.0, norms)
    # ‖W + C‖² = ‖W‖² + ⟨2 W + C, C⟩: the second term is exactly 0 if C is zero.
    more = ((2 * wide + change) * change).sum(0) / jnp.square(lengths)
    gain = (1 + magnitude / lengths) * jax.lax.rsqrt(jnp.maximum(1 + more, 1e-12))
    alone = column_norms(change)
    still = alone == 0
    of_change = jnp.where(still, 1.0, magnitude / jnp.where(still, 1.0, alone))
    return jnp.where(short, of_change, gain)


@real_arguments
def low_rank_kernel(
    kernel: Float[Array, "D F"],
    a: Float[Array, "D R"],
    b: Float[Array, "R F"],
    scale: float,
    magnitude: Float[Array, " F"] | None = None,
) -> Float[Array, "D F"]:
    """Merges a kernel and its low-rank change into one kernel, in float32.

    ``W + s A B``, with columns multiplied by :func:`column_gain` where there is a magnitude.

    Example:
        >>> W, A, B = jnp.eye(2), jnp.ones((2, 1)), jnp.array([[0.0, 1.0]])
        >>> low_rank_kernel(W, A, B, 0.5)
        Array([[1. , 0.5],
               [0. , 1.5]], dtype=float32)
    """
    wide = kernel.astype(jnp.float32)
    changed = wide + scale * (a.astype(jnp.float32) @ b.astype(jnp.float32))
    if magnitude is None:
        return changed
    return changed * column_gain(kernel, a, b, scale, magnitude)[None]

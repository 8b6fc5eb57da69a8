"""Images as sequences: square patches, convolutions with pooling, and sequence pooling."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.array_arguments import real_arguments

__all__ = ["convolve", "max_pool", "patchify", "sequence_pool"]


def patchify(
    images: Shaped[Array, "B height width channels"], size: int
) -> Shaped[Array, "B (height//{size})*(width//{size}) {size}*{size}*channels"]:
    """The pixels of each square patch as a row, with patches in line order from the top left.

    Within a patch, pixels are in line order too, and the channels of a pixel are adjacent.

    Source: Dosovitskiy et al. 2021, section 3.1: ``[H W C]`` becomes ``[N P²C]``.

    Args:
        images: Channels last.
        size: Side of a patch in pixels; it divides both sides of the images.

    Example:
        >>> patchify(jnp.arange(8).reshape(1, 2, 4, 1), 2)[0]
        Array([[0, 1, 4, 5],
               [2, 3, 6, 7]], dtype=int32)
    """
    B, height, width, channels = images.shape
    if size < 1 or height % size or width % size:
        raise ArgumentError(
            f"images of {height} x {width} pixels cannot be cut into patches of {size} x {size}: "
            f"the patch size must divide both"
        )
    rows, columns = height // size, width // size
    cut = images.reshape(B, rows, size, columns, size, channels)
    return jnp.swapaxes(cut, 2, 3).reshape(B, rows * columns, size * size * channels)


@real_arguments
def convolve(
    images: Float[Array, "B height width I"], kernel: Float[Array, "9*I O"]
) -> Float[Array, "B height width O"]:
    """Convolves images with a kernel of 3 × 3 pixels; pixels beyond the border are zero.

    Args:
        images: Channels last.
        kernel: One row per channel and kernel pixel, in line order from the top left, as in a
            patch.

    Example:
        >>> kernel = jnp.zeros((9, 1)).at[3].set(1)  # the pixel to the left
        >>> convolve(jnp.arange(1.0, 5.0).reshape(1, 2, 2, 1), kernel)[0, ..., 0]
        Array([[0., 1.],
               [0., 3.]], dtype=float32)
    """
    weights = kernel.reshape(3, 3, images.shape[-1], kernel.shape[-1])
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(images, weights, (1, 1), "SAME", dimension_numbers=layout)


@real_arguments
def max_pool(images: Float[Array, "B height width C"]) -> Float[Array, "B height//2 width//2 C"]:
    """The maxima of 3 × 3 pixels around every second pixel of every second line.

    Both sides are even. On XLA:CPU the gradient of these slices takes a fraction of the time of the
    gradient of ``reduce_window``.

    Example:
        >>> max_pool(jnp.arange(16.0).reshape(1, 4, 4, 1))[0, ..., 0]
        Array([[ 5.,  7.],
               [13., 15.]], dtype=float32)
    """
    return _halved(_halved(images, 1), 2)


def _halved(images: Float[Array, "B height width C"], axis: int) -> Float[Array, "B _ _ C"]:
    """The maxima of three pixels around every second one along an axis."""
    size, pad = images.shape[axis], [(0, 0)] * images.ndim
    even = jax.lax.slice_in_dim(images, 0, size - 1, 2, axis)
    odd = jax.lax.slice_in_dim(images, 1, size, 2, axis)
    pad[axis] = (1, 0)  # the odd pixel before the first is outside
    before = jnp.pad(
        jax.lax.slice_in_dim(odd, 0, size // 2 - 1, 1, axis), pad, constant_values=-jnp.inf
    )
    return jnp.maximum(jnp.maximum(before, even), odd)


@real_arguments
def sequence_pool(
    hidden: Float[Array, "B T D"], scores: Float[Array, "B T"]
) -> Float[Array, "B D"]:
    """The sum over a sequence, weighted by the softmax of its scores (Hassani et al. 2021).

    Example:
        >>> sequence_pool(jnp.array([[[2.0], [4.0]]]), jnp.zeros((1, 2)))
        Array([[3.]], dtype=float32)
    """
    weights = jax.nn.softmax(scores.astype(jnp.float32)).astype(hidden.dtype)
    return jnp.einsum("BT,BTD->BD", weights, hidden)

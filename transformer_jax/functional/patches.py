"""Images as sequences of square patches."""

import jax.numpy as jnp
from jaxtyping import Array, Shaped

from transformer_jax.core.errors import ArgumentError

__all__ = ["patchify"]


def patchify(
    images: Shaped[Array, "B height width channels"], size: int
) -> Shaped[Array, "B (height//{size})*(width//{size}) {size}*{size}*channels"]:
    """The pixels of each square patch, in a row: patches from the top left on, line by line.

    Within a patch its own lines follow one another, and the channels of a pixel stand together.

    Source: Dosovitskiy et al. 2021, section 3.1: ``[H W C]`` becomes ``[N P²C]``.

    Args:
        images: Channels last.
        size: How many pixels each side of a patch has; it divides both sides of the images.

    Example:
        >>> patchify(jnp.arange(8).reshape(1, 2, 4, 1), 2)[0]
        Array([[0, 1, 4, 5],
               [2, 3, 6, 7]], dtype=int32)
    """
    B, height, width, channels = images.shape
    if size < 1 or height % size or width % size:
        raise ArgumentError(
            f"images of {height} x {width} pixels cannot be cut into patches of {size} x {size}: "
            f"the size of a patch needs to divide both"
        )
    rows, columns = height // size, width // size
    cut = images.reshape(B, rows, size, columns, size, channels)
    return jnp.swapaxes(cut, 2, 3).reshape(B, rows * columns, size * size * channels)

"""Learned patch positions, and their interpolation to another image size."""

import math

import numpy as np
from jaxtyping import Float64, Shaped

from transformer_jax.models.config import ImageConfig

__all__ = ["bicubic_weights", "image_positions", "resized_positions"]

_A = -0.75  # parameter of the cubic, as in the common libraries


def image_positions(config: object) -> frozenset[str]:
    """The parameters of a model with one row per patch of an image."""
    image = getattr(config, "image", None)
    return frozenset({"encoder/positions/table"} if image is not None and image.image_size else ())


def resized_positions(
    table: Shaped[np.ndarray, "T D"], old: ImageConfig, new: ImageConfig
) -> Shaped[np.ndarray, "S D"]:
    """Returns positions for another image size, by bicubic interpolation of the patch positions.

    Rows of embeddings before the patches do not change if their number stays the same. Source:
    Dosovitskiy et al. 2021, section 3.2; the filter is the one in transformers.

    Args:
        table: Positions of the embeddings before the patches, then of the patches in line order.
        old: Configuration of the images that they are for.
        new: Configuration of the new images.

    Example:
        >>> table = np.array([[9.0], [0.0], [1.0], [0.0], [1.0]])
        >>> sizes = ImageConfig(4, patch_size=2), ImageConfig(8, patch_size=2)
        >>> resized_positions(table, *sizes)[:5, 0].round(2).tolist()
        [9.0, -0.11, 0.23, 0.77, 1.11]
    """
    if old.sequence_length == new.sequence_length and old.num_prefixes == new.num_prefixes:
        return table
    sides = [math.isqrt(sizes.num_patches) for sizes in (old, new)]
    first, patches = np.split(np.asarray(table), [old.num_prefixes])
    if old.num_prefixes != new.num_prefixes:
        # Rows of embeddings that the new model lacks are dropped; missing ones are zeros.
        first = np.concatenate([first, np.zeros_like(first, shape=(2, first.shape[1]))])
        first = first[: new.num_prefixes]
    weights = bicubic_weights(*sides)
    grid = patches.reshape(sides[0], sides[0], -1).astype(np.float64)
    grid = np.einsum("ih,jw,hwD->ijD", weights, weights, grid)
    return np.concatenate([first, grid.reshape(-1, grid.shape[-1]).astype(table.dtype)])


def bicubic_weights(old: int, new: int) -> Float64[np.ndarray, "{new} {old}"]:
    """Returns the weight of each old value in each new one, by cubic convolution (Keys 1981).

    Values are at the centers of equal parts of an interval; beyond its ends the last one is
    repeated.

    Example:
        >>> bicubic_weights(2, 2).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    place = (np.arange(new) + 0.5) * old / new - 0.5
    begin = np.floor(place).astype(int)
    weights = np.zeros((new, old))
    for step in range(-1, 3):
        x = np.abs(place - begin - step)
        near = (_A + 2) * x**3 - (_A + 3) * x**2 + 1
        far = _A * (x**3 - 5 * x**2 + 8 * x - 4)
        column = np.clip(begin + step, 0, old - 1)
        np.add.at(weights, (np.arange(new), column), np.where(x <= 1, near, far))
    return weights

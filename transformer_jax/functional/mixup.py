"""MixUp and CutMix: mixtures of the images of a batch."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_jax.functional.array_arguments import real_arguments

__all__ = ["Mixed", "cutmix", "mix_images", "mixup"]


class Mixed(NamedTuple):
    """Images of a batch, each mixed with another image of the same batch.

    Attributes:
        images: The mixtures.
        partners: The row of the other image.
        weight: Weight of the first image in the loss; the other has the rest.
    """

    images: Float[Array, "B height width C"]
    partners: Int[Array, " B"]
    weight: Float[Array, ""]


@real_arguments
def mix_images(
    images: Float[Array, "B height width C"],
    valid: Bool[Array, " B"],
    key: Key[Array, ""],
    alpha: float = 0.0,
    cut_alpha: float = 0.0,
) -> Mixed:
    """Returns the images of a batch mixed by MixUp or CutMix, or by one of them at random.

    The loss is ``weight · loss(labels) + (1 - weight) · loss(labels[partners])``.

    Args:
        images: Images of a batch.
        valid: False for rows that only fill the batch, which are mixed with nothing.
        key: Random key; the mixture is drawn once per batch.
        alpha: Parameter of MixUp's Beta distribution; 0 disables MixUp.
        cut_alpha: The same for CutMix; at least one of the two is above 0.

    Example:
        >>> images = jnp.arange(4.0).reshape(4, 1, 1, 1)
        >>> mixed = mix_images(images, jnp.array([True, True, True, False]), jax.random.key(0), 1.0)
        >>> mixed.partners
        Array([0, 2, 1, 3], dtype=int32)
    """
    which, how = jax.random.split(key)
    # Pairs the first row with the last, and so on; a row whose partner is empty stays unmixed.
    rows = jnp.arange(len(images), dtype=jnp.int32)
    partners = jnp.where(valid & valid[::-1], rows[::-1], rows)
    others = images[partners]
    if not cut_alpha:
        mixed, weight = mixup(images, others, how, alpha)
    elif not alpha:
        mixed, weight = cutmix(images, others, how, cut_alpha)
    else:
        mixed, weight = jax.lax.cond(
            jax.random.bernoulli(which),
            lambda: mixup(images, others, how, alpha),
            lambda: cutmix(images, others, how, cut_alpha),
        )
    return Mixed(mixed, partners, weight)


@real_arguments
def mixup(
    images: Float[Array, "B height width C"],
    others: Float[Array, "B height width C"],
    key: Key[Array, ""],
    alpha: float,
) -> tuple[Float[Array, "B height width C"], Float[Array, ""]]:
    """Returns ``λ images + (1 - λ) others`` and ``λ ~ Beta(alpha, alpha)`` (Zhang et al. 2018).

    Example:
        >>> mixed, weight = mixup(jnp.ones((1, 1, 1, 1)), jnp.zeros((1, 1, 1, 1)),
        ...                      jax.random.key(0), 1.0)
        >>> (mixed[0, 0, 0, 0] == weight).item()
        True
    """
    weight = jax.random.beta(key, alpha, alpha)
    return weight * images + (1 - weight) * others, weight


@real_arguments
def cutmix(
    images: Float[Array, "B height width C"],
    others: Float[Array, "B height width C"],
    key: Key[Array, ""],
    alpha: float,
) -> tuple[Float[Array, "B height width C"], Float[Array, ""]]:
    """Returns images with a rectangle taken from the other image, and the remaining share of area.

    The rectangle has the image's proportions and an area of ``1 - λ`` with
    ``λ ~ Beta(alpha, alpha)``. Its center is uniform, so part of it may be outside (Yun et al.
    2019, section 3.1).

    Example:
        >>> mixed, weight = cutmix(jnp.ones((1, 8, 8, 1)), jnp.zeros((1, 8, 8, 1)),
        ...                       jax.random.key(0), 1.0)
        >>> abs(mixed.mean() - weight).item() < 1e-6
        True
    """
    _, height, width, _ = images.shape
    of_area, down, right = jax.random.split(key, 3)
    side = jnp.sqrt(1 - jax.random.beta(of_area, alpha, alpha))
    rows = _inside(height, side, jax.random.uniform(down))
    columns = _inside(width, side, jax.random.uniform(right))
    cut = (rows[:, None] & columns[None])[None, :, :, None]
    weight = 1 - (rows.mean() * columns.mean()).astype(images.dtype)
    return jnp.where(cut, others, images), weight


def _inside(size: int, side: Float[Array, ""], middle: Float[Array, ""]) -> Bool[Array, " {size}"]:
    """The pixels in an interval of ``side`` times the size around a center from 0 to 1."""
    place = (jnp.arange(size) + 0.5) / size
    return jnp.abs(place - middle) < side / 2

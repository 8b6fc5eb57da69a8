"""Resizing and random changes of pictures, as functions of pixels and a key.

A key is an integer; random draws from it are the same on every machine and with every version of
NumPy (:func:`transformer_jax.data.plan.uniform`).
"""

import math
from typing import Literal

import numpy as np
from jaxtyping import Float64, UInt8
from PIL import Image

from transformer_jax.data.plan import hashed, uniform

__all__ = [
    "Filter",
    "Fit",
    "Pixels",
    "Resized",
    "centre_crop",
    "draws",
    "flip",
    "random_resized_crop",
    "resize",
    "resize_to",
    "shifted_crop",
    "split",
]

_MOST_RESIZED = 1 << 26  # pixels; of larger results, such as those of strips, only the center

Fit = Literal["crop", "squash"]
Filter = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]
Pixels = UInt8[np.ndarray, "height width C"]
Resized = UInt8[np.ndarray, "_ _ C"]


def draws(key: int, count: int) -> Float64[np.ndarray, " count"]:
    """Draws numbers from 0 (included) to 1 (excluded), given a key.

    Example:
        >>> draws(0, 2).round(3)
        array([0.139, 0.971])
    """
    return uniform(np.arange(count), int(key), 0)


def split(key: int, count: int) -> list[int]:
    """Splits a key into further keys.

    Example:
        >>> [new % 1000 for new in split(0, 2)]
        [225, 386]
    """
    return [int(new) for new in hashed(np.arange(count), int(key), 1)]


def resize(pixels: Pixels, height: int, width: int, filter: Filter = "bilinear") -> Resized:
    """Resizes a picture with a filter of Pillow.

    When shrinking, the filter covers all pixels that a new pixel replaces.

    Example:
        >>> resize(np.array([[[0], [100]]], np.uint8), 1, 4)[0, :, 0].tolist()
        [0, 25, 75, 100]
    """
    if pixels.shape[:2] == (height, width):
        return pixels
    return _resize(pixels, height, width, filter)


def _resize(
    pixels: Pixels,
    height: int,
    width: int,
    filter: Filter,
    box: tuple[float, float, float, float] | None = None,
) -> Resized:
    """Resizes a picture, or the part of it in a box: left, top, right and bottom."""
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    found = picture.resize((width, height), Image.Resampling[filter.upper()], box)
    return np.asarray(found).reshape(height, width, pixels.shape[-1])


def centre_crop(pixels: Pixels, height: int, width: int) -> Resized:
    """Returns the center of a picture.

    Example:
        >>> centre_crop(np.arange(4, dtype=np.uint8).reshape(1, 4, 1), 1, 2)[0, :, 0].tolist()
        [1, 2]
    """
    top, left = (
        (have - want) // 2 for have, want in zip(pixels.shape[:2], (height, width), strict=True)
    )
    return pixels[top : top + height, left : left + width]


def resize_to(
    pixels: Pixels,
    size: int,
    fit: Fit = "crop",
    filter: Filter = "bilinear",
    read: int | None = None,
) -> Resized:
    """Returns a square picture: the center, or everything with changed proportions.

    Args:
        pixels: The picture.
        size: Pixels per side.
        fit: ``crop`` makes the short side ``size`` and keeps the center; ``squash`` resizes both.
        filter: Filter of Pillow.
        read: Pixels per side of the center that will be read. With odd margins, a crop of a crop
            may lie one pixel off: the square lies where its center is that of the whole picture.

    Example:
        >>> resize_to(np.zeros((30, 60, 3), np.uint8), 20).shape
        (20, 20, 3)
        >>> line = np.arange(7, dtype=np.uint8).reshape(1, 7, 1).repeat(4, 0)  # from 0 to 6
        >>> [centre_crop(resize_to(line, 4, read=read), 1, 1).item() for read in (4, 1)]
        [2, 3]
    """
    if fit == "squash":
        return resize(pixels, size, size, filter)
    short, read = min(pixels.shape[:2]), size if read is None else read
    height, width = (side * size // short for side in pixels.shape[:2])
    top, left = ((side - read) // 2 - (size - read) // 2 for side in (height, width))
    if height * width <= _MOST_RESIZED:
        return resize(pixels, height, width, filter)[top : top + size, left : left + size]
    # Filters reach over at most 3 pixels, of the picture or of the result.
    reach = math.ceil(3 * max(1, size / short)) + 1
    above, before = max(0, top - reach), max(0, left - reach)
    below, after = min(height, top + size + reach), min(width, left + size + reach)
    down, right = pixels.shape[0] / height, pixels.shape[1] / width
    box = before * right, above * down, after * right, below * down
    part = _resize(pixels, below - above, after - before, filter, box)
    return part[top - above :, left - before :][:size, :size]


def flip(pixels: Pixels, key: int) -> Pixels:
    """Returns the picture or, with probability one half, its mirror image, left to right.

    Example:
        >>> [flip(np.array([[[1], [2]]], np.uint8), key)[0, 0, 0].item() for key in range(4)]
        [2, 1, 2, 2]
    """
    return pixels[:, ::-1] if draws(key, 1)[0] < 0.5 else pixels


def shifted_crop(pixels: Pixels, key: int, padding: int) -> Pixels:
    """Shifts a picture by at most ``padding`` pixels in each direction; new pixels are black.

    He et al. 2016, section 4.2.

    Example:
        >>> shifted_crop(np.ones((2, 2, 1), np.uint8), 3, 1)[..., 0].tolist()
        [[0, 0], [0, 1]]
    """
    height, width = pixels.shape[:2]
    padded = np.pad(pixels, ((padding, padding), (padding, padding), (0, 0)))
    top, left = (int(draw * (2 * padding + 1)) for draw in draws(key, 2))
    return padded[top : top + height, left : left + width]


def random_resized_crop(
    pixels: Pixels,
    key: int,
    size: int,
    area: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Resized:
    """Returns a random part of a picture, resized to a square (Szegedy et al. 2015, section 6).

    The area of the part, relative to the picture, is uniform in ``area``, and the logarithm of its
    aspect ratio is uniform. If ten parts do not fit, the result is the largest central part with an
    allowed aspect ratio.

    Args:
        pixels: The picture.
        key: Key of the part.
        size: Pixels per side of the result.
        area: Smallest and largest relative area.
        ratio: Smallest and largest width divided by height.

    Example:
        >>> random_resized_crop(np.zeros((30, 60, 3), np.uint8), 5, 8).shape
        (8, 8, 3)
    """
    height, width = pixels.shape[:2]
    numbers, bounds = draws(key, 40), (math.log(ratio[0]), math.log(ratio[1]))
    for share, shape, down, right in numbers.reshape(10, 4).tolist():
        wanted = height * width * (area[0] + share * (area[1] - area[0]))
        proportions = math.exp(bounds[0] + shape * (bounds[1] - bounds[0]))
        w, h = round(math.sqrt(wanted * proportions)), round(math.sqrt(wanted / proportions))
        if 0 < w <= width and 0 < h <= height:
            top, left = int(down * (height - h + 1)), int(right * (width - w + 1))
            return resize(pixels[top : top + h, left : left + w], size, size)
    w = min(width, round(height * ratio[1]))
    h = min(height, round(width / ratio[0]))
    return resize(centre_crop(pixels, h, w), size, size)

"""Sizes and random changes of pictures, as functions of pixels and a key.

A key is a whole number; what is drawn from it is the same on every machine and for every version
of NumPy (:func:`transformer_jax.data.plan.uniform`).
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

_STRIP = 64  # times its short side a picture is long at most when it is resized

Fit = Literal["crop", "squash"]
Filter = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]
Pixels = UInt8[np.ndarray, "height width C"]
Resized = UInt8[np.ndarray, "_ _ C"]


def draws(key: int, count: int) -> Float64[np.ndarray, " count"]:
    """Returns numbers from 0 up to, not including, 1, drawn from a key.

    Example:
        >>> draws(0, 2).round(3)
        array([0.139, 0.971])
    """
    return uniform(np.arange(count), int(key), 0)


def split(key: int, count: int) -> list[int]:
    """Returns further keys made from one.

    Example:
        >>> [new % 1000 for new in split(0, 2)]
        [225, 386]
    """
    return [int(new) for new in hashed(np.arange(count), int(key), 1)]


def resize(pixels: Pixels, height: int, width: int, filter: Filter = "bilinear") -> Resized:
    """Returns the picture in another size, by a filter of Pillow.

    When it shrinks a picture, the filter covers all pixels that a new one stands for.

    Example:
        >>> resize(np.array([[[0], [100]]], np.uint8), 1, 4)[0, :, 0].tolist()
        [0, 25, 75, 100]
    """
    if pixels.shape[:2] == (height, width):
        return pixels
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    found = np.asarray(picture.resize((width, height), Image.Resampling[filter.upper()]))
    return found.reshape(height, width, pixels.shape[-1])


def centre_crop(pixels: Pixels, height: int, width: int) -> Resized:
    """Returns the middle of a picture.

    Example:
        >>> centre_crop(np.arange(4, dtype=np.uint8).reshape(1, 4, 1), 1, 2)[0, :, 0].tolist()
        [1, 2]
    """
    top, left = (
        (have - want) // 2 for have, want in zip(pixels.shape[:2], (height, width), strict=True)
    )
    return pixels[top : top + height, left : left + width]


def resize_to(pixels: Pixels, size: int, fit: Fit = "crop", filter: Filter = "bilinear") -> Resized:
    """Returns a square picture: its middle, or all of it with other proportions.

    Args:
        pixels: The picture.
        size: Of a side.
        fit: ``crop`` makes the short side ``size`` and keeps the middle; ``squash`` resizes both.
        filter: Of Pillow.

    Example:
        >>> resize_to(np.zeros((30, 60, 3), np.uint8), 20).shape
        (20, 20, 3)
    """
    if fit == "squash":
        return resize(pixels, size, size, filter)
    short = min(pixels.shape[:2])
    # Of a long strip only the middle is resized, which would else need memory without bound.
    pixels = centre_crop(pixels, *(min(side, _STRIP * short) for side in pixels.shape[:2]))
    height, width = (side * size // short for side in pixels.shape[:2])
    return centre_crop(resize(pixels, height, width, filter), size, size)


def flip(pixels: Pixels, key: int) -> Pixels:
    """Returns the picture, or with probability one half its mirror image, left for right.

    Example:
        >>> [flip(np.array([[[1], [2]]], np.uint8), key)[0, 0, 0].item() for key in range(4)]
        [2, 1, 2, 2]
    """
    return pixels[:, ::-1] if draws(key, 1)[0] < 0.5 else pixels


def shifted_crop(pixels: Pixels, key: int, padding: int) -> Pixels:
    """Returns the picture moved by at most ``padding`` pixels each way; what is new is black.

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

    The area of the part is uniform in ``area``, times that of the picture, and the logarithm of its
    proportions is uniform. After ten parts that do not fit, the largest part in the middle with
    allowed proportions is taken.

    Args:
        pixels: The picture.
        key: Of the part.
        size: Of a side.
        area: Bounds of the area.
        ratio: Bounds of width divided by height.

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

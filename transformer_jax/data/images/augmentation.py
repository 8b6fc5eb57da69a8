"""Random changes of training pictures, determined by a key per row of a batch.

Crops, flips, RandAugment (a few random changes of equal strength) and random erasing.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

import numpy as np
from jaxtyping import Int, UInt8, UInt64
from PIL import Image, ImageEnhance, ImageOps

from transformer_jax.core.config_fields import Amount, Configuration, NotNegative, Share
from transformer_jax.core.errors import ConfigError
from transformer_jax.data.images.transforms import (
    Pixels,
    Resized,
    centre_crop,
    draws,
    flip,
    random_resized_crop,
    shifted_crop,
    split,
)
from transformer_jax.data.plan import ArrayPlan, hashed

__all__ = ["OPERATIONS", "Augmentation", "KeyedPlan", "KeyedRows", "random_augment", "random_erase"]

_GREY = 128  # value of pixels moved in from outside


# (picture, value) -> picture
Change = Callable[[Image.Image, float], Image.Image]


def _affine(coefficients: Callable[[float, int], tuple[float, ...]]) -> Change:
    def change(picture: Image.Image, value: float) -> Image.Image:
        fill = (_GREY,) * len(picture.getbands())
        data = coefficients(value, picture.width)
        transform = Image.Transform.AFFINE
        return picture.transform(
            picture.size, transform, data, fillcolor=fill if len(fill) > 1 else _GREY
        )

    return change


def _rotate(picture: Image.Image, degrees: float) -> Image.Image:
    fill = (_GREY,) * len(picture.getbands())
    return picture.rotate(degrees, fillcolor=fill if len(fill) > 1 else _GREY)


def _enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Change:
    return lambda picture, value: kind(picture).enhance(1 + value)


# The operations of Cubuk et al. 2020: largest value at strength 1, whether its sign is random, and
# the function of a picture and the value.
OPERATIONS: dict[str, tuple[float, bool, Change]] = {
    "identity": (0.0, False, lambda picture, value: picture),
    "auto_contrast": (0.0, False, lambda picture, value: ImageOps.autocontrast(picture)),
    "equalize": (0.0, False, lambda picture, value: ImageOps.equalize(picture)),
    "rotate": (30.0, True, _rotate),
    "solarize": (
        256.0,
        False,
        lambda picture, value: ImageOps.solarize(picture, 256 - round(value)),
    ),
    "color": (0.9, True, _enhance(ImageEnhance.Color)),
    "posterize": (4.0, False, lambda picture, value: ImageOps.posterize(picture, 8 - round(value))),
    "contrast": (0.9, True, _enhance(ImageEnhance.Contrast)),
    "brightness": (0.9, True, _enhance(ImageEnhance.Brightness)),
    "sharpness": (0.9, True, _enhance(ImageEnhance.Sharpness)),
    "shear_x": (0.3, True, _affine(lambda value, width: (1, value, 0, 0, 1, 0))),
    "shear_y": (0.3, True, _affine(lambda value, width: (1, 0, 0, value, 1, 0))),
    "translate_x": (0.3, True, _affine(lambda value, width: (1, 0, value * width, 0, 1, 0))),
    "translate_y": (0.3, True, _affine(lambda value, width: (1, 0, 0, 0, 1, value * width))),
}


def random_augment(pixels: Pixels, key: int, count: int = 2, strength: float = 0.3) -> Pixels:
    """Applies ``count`` random operations to a picture (Cubuk et al. 2020, section 3).

    Each operation is drawn uniformly from the paper's fourteen.

    Args:
        pixels: The picture.
        key: Key of the operations.
        count: Number of operations, the paper's N.
        strength: Strength of each, 0 to 1: the paper's M divided by 30.

    Example:
        >>> picture = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
        >>> [int(random_augment(picture, key).sum()) for key in (0, 1)]
        [6120, 1113]
    """
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    for which, sign in draws(key, 2 * count).reshape(count, 2).tolist():
        largest, signed, operation = list(OPERATIONS.values())[int(which * len(OPERATIONS))]
        value = largest * strength
        picture = operation(picture, -value if signed and sign < 0.5 else value)
    return np.asarray(picture).reshape(pixels.shape)


def random_erase(pixels: Pixels, key: int, probability: float = 0.25) -> Pixels:
    """Replaces a random rectangle of a picture by random pixels (Zhong et al. 2020).

    The rectangle covers 2 to 33 percent of the picture, with proportions of 0.3 to 3.3.

    Args:
        pixels: The picture.
        key: Key of the rectangle.
        probability: Probability of a rectangle.

    Example:
        >>> picture = np.zeros((8, 8, 1), np.uint8)
        >>> [int((random_erase(picture, key, 1.0) > 0).sum()) for key in (0, 1)]
        [17, 20]
    """
    height, width, C = pixels.shape
    chance, share, shape, down, right = draws(key, 5).tolist()
    if chance >= probability:
        return pixels
    area = height * width * (0.02 + 0.31 * share)
    proportions = 0.3 * (3.3 / 0.3) ** shape
    h = min(height, max(1, round((area * proportions) ** 0.5)))
    w = min(width, max(1, round((area / proportions) ** 0.5)))
    top, left = int(down * (height - h + 1)), int(right * (width - w + 1))
    changed = pixels.copy()
    noise: UInt8[np.ndarray, " n"] = (draws(key + 1, h * w * C) * 256).astype(np.uint8)
    changed[top : top + h, left : left + w] = noise.reshape(h, w, C)
    return changed


@dataclasses.dataclass(frozen=True)
class Augmentation(Configuration, group="augmentation"):
    """Random changes of training pictures; by default there are none."""

    # Random crop: shifted by at most padding pixels, or a part of random size.
    crop: Literal["none", "shift", "resized"] = "none"
    padding: Amount = 4  # largest shift, in pixels
    area: tuple[Share, Share] = (0.08, 1.0)  # smallest and largest area of a random part
    flip: bool = False  # mirror half of the pictures, left to right: not if sides have a meaning
    operations: Amount = 0  # RandAugment: number of random operations per picture
    strength: Share = 0.3  # strength of each operation: the paper's magnitude divided by 30
    erase: Share = 0.0  # probability of erasing a rectangle with noise
    mixup: NotNegative = 0.0  # MixUp: alpha of the shares of two mixed pictures
    cutmix: NotNegative = 0.0  # CutMix: alpha of the area taken from another picture

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.area[0] <= self.area[1]:
            raise ConfigError(f"augmentation.area is {self.area}: two shares in order, above 0")

    def __call__(self, pixels: Pixels, key: int, size: int) -> Resized:
        """Returns a changed picture of ``size`` pixels per side.

        Args:
            pixels: A square picture of at least that size.
            key: Key of the changes.
            size: Pixels per side of the result.

        Example:
            >>> picture = np.arange(64, dtype=np.uint8).reshape(8, 8, 1)
            >>> Augmentation(crop="resized", flip=True)(picture, 3, 4).shape
            (4, 4, 1)
        """
        crop, mirror, operations, erase = split(key, 4)
        if self.crop == "resized":
            pixels = random_resized_crop(pixels, crop, size, self.area)
        else:
            pixels = centre_crop(pixels, size, size)
            if self.crop == "shift":
                pixels = shifted_crop(pixels, crop, self.padding)
        if self.flip:
            pixels = flip(pixels, mirror)
        if self.operations:
            pixels = random_augment(
                np.ascontiguousarray(pixels), operations, self.operations, self.strength
            )
        return random_erase(pixels, erase, self.erase) if self.erase else pixels


@dataclasses.dataclass(frozen=True)
class KeyedRows:
    """The rows of a batch, with a key for each.

    Attributes:
        items: Rows of the plan.
        keys: One key per row.
    """

    items: Int[np.ndarray, " B"]
    keys: UInt64[np.ndarray, " B"]

    def __len__(self) -> int:
        return len(self.items)

    def select(self, rows: np.ndarray) -> "KeyedRows":
        """Selects rows, such as the rows of one process."""
        return KeyedRows(self.items[rows], self.keys[rows])


@dataclasses.dataclass(frozen=True)
class KeyedPlan:
    """A plan with a key for each row, determined only by the seed, the step and the row.

    Example:
        >>> plan = KeyedPlan(ArrayPlan(count=5, rows=2), seed=0)
        >>> (plan.batch(3).keys == plan.batch(3).keys).all().item(), plan.batch(3).items
        (True, array([4, 1]))
    """

    plan: ArrayPlan
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""
        return self.plan.steps_per_epoch

    @property
    def fingerprint(self) -> str:
        """Checksum of the plan."""
        return f"{self.plan.fingerprint} keys {self.seed}"

    def batch(self, step: int) -> KeyedRows:
        """The rows of batch ``step``, counted from 0 over all epochs, and their keys."""
        items = self.plan.batch(step)
        return KeyedRows(items, hashed(np.arange(len(items)), self.seed, step))

    def padding(self, start: int = 0) -> list[KeyedRows]:
        """Rows of every shape; see :class:`transformer_jax.training.task.Plan`."""
        return [
            KeyedRows(items, np.zeros(len(items), np.uint64)) for items in self.plan.padding(start)
        ]

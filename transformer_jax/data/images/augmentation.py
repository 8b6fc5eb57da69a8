"""Random changes of training pictures, determined by a key per row of a batch."""

import dataclasses
from typing import Any, Literal

import numpy as np
from jaxtyping import UInt64

from transformer_jax.core.config_fields import Amount, Configuration, NotNegative, Share
from transformer_jax.core.errors import ConfigError
from transformer_jax.data.images.randaugment import random_augment, random_erase
from transformer_jax.data.images.transforms import (
    Pixels,
    Resized,
    centre_crop,
    flip,
    random_resized_crop,
    shifted_crop,
    split,
)
from transformer_jax.data.plan import hashed

__all__ = ["Augmentation", "KeyedPlan", "KeyedRows"]


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
        items: Items of the plan, such as a :class:`.BatchPlan`.
        keys: One key per row.
    """

    items: Any
    keys: UInt64[np.ndarray, " B"]

    def __len__(self) -> int:
        return len(self.items)

    def select(self, rows: np.ndarray) -> "KeyedRows":
        """Selects rows, such as the rows of one process."""
        items = self.items[rows] if isinstance(self.items, np.ndarray) else self.items.select(rows)
        return KeyedRows(items, self.keys[rows])


@dataclasses.dataclass(frozen=True)
class KeyedPlan:
    """A plan with a key for each row, determined only by the seed, the step and the row.

    Example:
        >>> from transformer_jax.data.plan import ArrayPlan
        >>> plan = KeyedPlan(ArrayPlan(count=5, rows=2), seed=0)
        >>> (plan.batch(3).keys == plan.batch(3).keys).all().item(), plan.batch(3).items
        (True, array([4, 1]))
    """

    plan: Any
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""
        return int(self.plan.steps_per_epoch)

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

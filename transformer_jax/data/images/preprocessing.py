"""Preprocessing of pictures for a model: size, mean and standard deviation of channels."""

import dataclasses
from typing import Annotated

import numpy as np
from jaxtyping import Float32, UInt8

from transformer_jax.core.config_fields import Configuration, Positive, Range
from transformer_jax.data.images.transforms import (
    Filter,
    Fit,
    Pixels,
    Resized,
    centre_crop,
    resize_to,
)

__all__ = ["MAX_SIDE", "Preprocessing"]

MAX_SIDE = 4096
"""Most pixels per side of a resized picture: larger ones would fill the memory."""


@dataclasses.dataclass(frozen=True)
class Preprocessing(Configuration, group="preprocessing"):
    """Size and normalization of pictures before a model reads them; stored with the run."""

    # Pictures become squares of this many pixels before cropping; None is the model's size.
    resize: Annotated[int, Range(1, MAX_SIDE)] | None = None
    fit: Fit = "crop"  # crop: resize the short side and keep the middle; squash: resize both sides
    filter: Filter = "bilinear"  # resampling filter
    # Mean of each channel, for pixels from 0 to 1; one value is for all channels.
    mean: tuple[float, ...] = (0.5,)
    # Standard deviation of each channel, in the same form.
    std: tuple[Positive, ...] = (0.5,)
    scale: Annotated[float, Range(above=0)] = 1 / 255  # factor of pixels before normalization

    def scaled(self, old: int, new: int) -> "Preprocessing":
        """Returns the same relative margin around the crop, for a model of another image size.

        Example:
            >>> Preprocessing(resize=256).scaled(224, 112).resize
            128
        """
        if self.resize is None:
            return self
        return dataclasses.replace(self, resize=round(self.resize * new / old))

    def square(self, pixels: Pixels, image_size: int) -> Resized:
        """Returns a picture as a square of ``resize`` pixels per side, before cropping.

        The center crop of the square to ``image_size`` is that of the whole resized picture.

        Example:
            >>> Preprocessing(resize=8).square(np.zeros((10, 20, 3), np.uint8), 4).shape
            (8, 8, 3)
        """
        side = self.resize or image_size
        return resize_to(pixels, side, self.fit, self.filter, read=image_size)

    def pixels(self, pixels: Pixels, image_size: int) -> Resized:
        """Returns the pixels of a picture as a model of ``image_size`` reads them.

        Example:
            >>> Preprocessing(resize=8).pixels(np.zeros((10, 20, 3), np.uint8), 4).shape
            (4, 4, 3)
        """
        return centre_crop(self.square(pixels, image_size), image_size, image_size)

    def normalized(self, pixels: UInt8[np.ndarray, "*shape C"]) -> Float32[np.ndarray, "*shape C"]:
        """Returns ``(scale · pixels - mean) / std`` in float32.

        Example:
            >>> Preprocessing().normalized(np.array([[0, 255]], np.uint8))
            array([[-1.,  1.]], dtype=float32)
        """
        mean, std = (np.asarray(values, np.float32) for values in (self.mean, self.std))
        # Of every value of a pixel, rounded as in transformers: scaled in float64.
        scaled = (np.arange(256) * self.scale).astype(np.float32)[:, None]
        table = (scaled - mean) / std
        if table.shape[1] == 1:
            return np.asarray(table[:, 0][pixels])
        return np.stack([table[:, i][pixels[..., i]] for i in range(table.shape[1])], axis=-1)

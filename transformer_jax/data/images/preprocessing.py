"""Preprocessing of pictures for a model: size, mean and standard deviation of channels."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, get_args

import numpy as np
from jaxtyping import Float32, UInt8

from transformer_jax.core.config_fields import Configuration, Count, Positive, Range
from transformer_jax.core.errors import ConfigError
from transformer_jax.data.images.transforms import (
    Filter,
    Fit,
    Pixels,
    Resized,
    centre_crop,
    resize_to,
)

__all__ = ["Preprocessing"]


@dataclasses.dataclass(frozen=True)
class Preprocessing(Configuration, group="preprocessing"):
    """Size and normalization of pictures before a model reads them; stored with the run."""

    # Pictures become squares of this many pixels before cropping; None is the model's size.
    resize: Count | None = None
    fit: Fit = "crop"  # crop: resize the short side and keep the middle; squash: resize both sides
    filter: Filter = "bilinear"  # resampling filter
    # Mean of each channel, for pixels from 0 to 1; one value is for all channels.
    mean: tuple[float, ...] = (0.5,)
    # Standard deviation of each channel, in the same form.
    std: tuple[Positive, ...] = (0.5,)
    scale: Annotated[float, Range(above=0)] = 1 / 255  # factor of pixels before normalization

    @classmethod
    def of(cls, settings: Mapping[str, Any], image_size: int) -> "Preprocessing":
        """Reads a Hugging Face ``preprocessor_config.json``.

        Args:
            settings: Content of the file; an empty one has the defaults of ViT.
            image_size: The model's image size.

        Raises:
            ConfigError: It specifies something unsupported, such as padding.

        Example:
            >>> settings = {"size": {"shortest_edge": 256}, "crop_size": 224, "resample": 3}
            >>> Preprocessing.of(settings, 224).resize, Preprocessing.of(settings, 224).filter
            (256, 'bicubic')
        """
        if settings.get("do_pad"):
            raise ConfigError("preprocessor_config.json: do_pad is true: padding is not supported")
        size = settings.get("size") or image_size
        short = isinstance(size, dict) and "shortest_edge" in size
        # An older form: one number, for the short side if a crop follows, otherwise for both.
        short = short or (not isinstance(size, dict) and bool(settings.get("do_center_crop")))
        sides = set(size.values()) if isinstance(size, dict) else {size}
        if len(sides) != 1 or not all(isinstance(side, int) and side > 0 for side in sides):
            raise ConfigError(f"preprocessor_config.json: size is {size}: one side is supported")
        resize = sides.pop()
        if not settings.get("do_resize", True) or not settings.get("do_center_crop", short):
            resize = image_size
        filters, number = get_args(Filter), settings.get("resample", 2)
        if not isinstance(number, int) or not 0 <= number < len(filters):
            raise ConfigError(f"preprocessor_config.json: resample is {number}: allowed are 0 to 5")
        normalize = settings.get("do_normalize", True)
        scale = settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale", True) else 1.0
        return cls(
            resize=None if resize == image_size else resize,
            fit="crop" if short else "squash",
            filter=filters[number],
            mean=tuple(settings.get("image_mean", (0.5,))) if normalize else (0.0,),
            std=tuple(settings.get("image_std", (0.5,))) if normalize else (1.0,),
            scale=scale,
        )

    def settings(self, image_size: int, channels: int) -> dict[str, Any]:
        """Returns a Hugging Face ``preprocessor_config.json``.

        Example:
            >>> made = Preprocessing(resize=256, mean=(0.0,)).settings(224, 3)
            >>> Preprocessing.of(made, 224) == Preprocessing(resize=256, mean=(0.0, 0.0, 0.0),
            ...                                              std=(0.5, 0.5, 0.5))
            True
        """
        size = self.resize or image_size
        cropped = self.fit == "crop" or size != image_size
        both = {"height": size, "width": size}
        return {
            # Of the two processors, CLIP's resizes the short side and DeiT's crops.
            "image_processor_type": "CLIPImageProcessor" if self.fit == "crop" else
            "DeiTImageProcessor" if cropped else "ViTImageProcessor",
            "do_resize": True,
            "size": {"shortest_edge": size} if self.fit == "crop" else both,
            "resample": get_args(Filter).index(self.filter),
            "do_center_crop": cropped,
            **({"crop_size": {"height": image_size, "width": image_size}} if cropped else {}),
            "do_rescale": True,
            "rescale_factor": self.scale,
            "do_normalize": True,
            "image_mean": list(self.mean * (channels if len(self.mean) == 1 else 1)),
            "image_std": list(self.std * (channels if len(self.std) == 1 else 1)),
        }  # fmt: skip

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

        Example:
            >>> Preprocessing(resize=8).square(np.zeros((10, 20, 3), np.uint8), 4).shape
            (8, 8, 3)
        """
        return resize_to(pixels, self.resize or image_size, self.fit, self.filter)

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
        found = pixels * np.float32(self.scale)
        found -= mean
        found /= std
        return found

"""Settings and data of all recipes of pictures."""

import dataclasses
from collections.abc import Callable, Container
from typing import Any, Protocol, TypeVar, runtime_checkable

from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.data.images.augmentation import Augmentation
from transformer_jax.data.images.data import ImageSplits
from transformer_jax.data.images.picture_tables import ImageTable
from transformer_jax.data.images.preprocessing import MAX_SIDE, Preprocessing
from transformer_jax.models.config import TransformerConfig

__all__ = [
    "PictureRun",
    "attentions_to_images",
    "check_pictures",
    "computed_as",
    "refuse_mixtures",
    "scored_pictures",
]

_SOURCES = ("images", "tfds", "corpus")


@runtime_checkable
class PictureRun(Protocol):
    """The settings of a run on pictures."""

    @property
    def preprocessing(self) -> Preprocessing:
        """Preprocessing of the pictures."""

    @property
    def data(self) -> Any:
        """The source of the pictures."""


AnyPictureRun = TypeVar("AnyPictureRun", bound=PictureRun)


def attentions_to_images(
    config: TransformerConfig, name: str = "encoder"
) -> tuple[tuple[str, TransformerConfig], ...]:
    """Returns the attentions of an image encoder, by their names in plans.

    Args:
        config: The configuration of the image encoder.
        name: The name of its self-attention.
    """
    pools = config.image.pooling == "attention"
    return ((name, config), ("pool", config)) if pools else ((name, config),)


def check_pictures(run: PictureRun, part: str, given: Container[str]) -> None:
    """Refuses settings of pictures that do not match the model that reads them.

    Args:
        run: The settings.
        part: The settings of the model, ``model`` or ``encoder``.
        given: Names of the settings that the command gave.

    Raises:
        ConfigError: It names the setting and what is allowed.
    """
    config, prepare = getattr(run, part), run.preprocessing
    image = config.image
    if f"{part}.positions.max_length" in given:
        raise ConfigError(
            f"{part}.positions.max_length is determined by the image: leave it out, and give "
            f"--{part}.image.image-size or --{part}.image.patch-size"
        )
    for field in dataclasses.fields(config.compute) if part != "model" else ():
        if f"{part}.compute.{field.name}" in given:
            raise ConfigError(
                f"{part}.compute.{field.name}: both parts share compute settings: give "
                f"model.compute.{field.name}"
            )
    if not 1 <= image.image_size <= MAX_SIDE:
        raise ConfigError(
            f"{part}.image.image_size is {image.image_size}: allowed are 1 to {MAX_SIDE:,} pixels"
        )
    if image.num_channels not in (1, 3):
        raise ConfigError(
            f"{part}.image.num_channels is {image.num_channels}: pictures have 3, or 1 if grayscale"
        )
    for name, values in (("mean", prepare.mean), ("std", prepare.std)):
        if len(values) not in (1, image.num_channels):
            raise ConfigError(
                f"preprocessing.{name} has {plural(len(values), 'value')}: one is needed, or "
                f"one for each of {plural(image.num_channels, 'channel')}"
            )
    if prepare.resize is not None and prepare.resize < image.image_size:
        raise ConfigError(
            f"preprocessing.resize is {prepare.resize}: must be at least the model's image size, "
            f"{image.image_size}"
        )


def refuse_mixtures(augmentation: Augmentation) -> None:
    """Refuses to mix pictures with texts.

    Raises:
        ConfigError: MixUp or CutMix is set.
    """
    for name in ("mixup", "cutmix"):
        if value := getattr(augmentation, name):
            raise ConfigError(
                f"augmentation.{name} is {value}: texts of two pictures cannot be mixed: leave it "
                f"out"
            )


def computed_as(model: TransformerConfig, encoder: TransformerConfig) -> TransformerConfig:
    """Returns the configuration of an image encoder with the compute settings of the text model.

    Args:
        model: The configuration of the text model.
        encoder: The configuration of the image encoder.
    """
    return dataclasses.replace(encoder, compute=model.compute)


def scored_pictures(
    run: AnyPictureRun, open_data: Callable[[AnyPictureRun], ImageSplits], path: str
) -> tuple[ImageSplits, dict[str, ImageTable]]:
    """Returns the pictures of a run, and its test (or else validation) pictures by name.

    Args:
        run: The run.
        open_data: Function from a run to its pictures.
        path: The run directory, for messages.

    Raises:
        ConfigError: The run has neither test nor validation pictures.
        DataError: Pictures cannot be read.
    """
    parts: dict[str, ImageTable] = {}
    if any(getattr(run.data, name, None) is not None for name in _SOURCES):
        splits = open_data(run)
        parts = splits.tests or ({} if splits.valid is None else {"valid": splits.valid})
    if not parts:
        raise ConfigError(f"{path}: no test or validation pictures: give --data.images")
    return splits, parts

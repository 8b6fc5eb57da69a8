"""Settings and data that all recipes of pictures have."""

import dataclasses
from collections.abc import Callable
from typing import Any

from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.data.images.augmentation import Augmentation
from transformer_jax.data.images.data import ImageSplits
from transformer_jax.data.images.tables import ImageTable
from transformer_jax.models.config import TransformerConfig
from transformer_jax.recipes.given import was_given

__all__ = [
    "attentions_to_images",
    "check_pictures",
    "computed_as",
    "refuse_mixtures",
    "scored_pictures",
]

_SOURCES = ("images", "tfds", "corpus")


def attentions_to_images(
    config: TransformerConfig, name: str = "encoder"
) -> tuple[tuple[str, TransformerConfig], ...]:
    """Returns the attentions that make the vector of an image, as plans name them.

    Args:
        config: Of the encoder of images.
        name: Of its own attention.
    """
    pools = config.image.pooling == "attention"
    return ((name, config), ("pool", config)) if pools else ((name, config),)


def check_pictures(run: Any, part: str) -> None:
    """Refuses settings of pictures that do not fit the model that reads them.

    Args:
        run: A run with ``preprocessing``.
        part: The settings of that model, ``model`` or ``encoder``.

    Raises:
        ConfigError: It names the setting and what is allowed.
    """
    config, prepare = getattr(run, part), run.preprocessing
    image = config.image
    if was_given(f"{part}.positions.max_length"):
        raise ConfigError(
            f"{part}.positions.max_length follows from the image: leave it out, and give "
            f"--{part}.image.image-size or --{part}.image.patch-size"
        )
    for field in dataclasses.fields(config.compute) if part != "model" else ():
        if was_given(f"{part}.compute.{field.name}"):
            raise ConfigError(
                f"{part}.compute.{field.name}: both parts are computed alike: give "
                f"model.compute.{field.name}"
            )
    if not image.image_size:
        raise ConfigError(f"{part}.image.image_size is 0: an image model needs a size")
    if image.num_channels not in (1, 3):
        raise ConfigError(
            f"{part}.image.num_channels is {image.num_channels}: pictures have 3, or 1 if they "
            f"are grey"
        )
    for name, values in (("mean", prepare.mean), ("std", prepare.std)):
        if len(values) not in (1, image.num_channels):
            raise ConfigError(
                f"preprocessing.{name} has {plural(len(values), 'value')}: one is needed, or "
                f"one for each of {plural(image.num_channels, 'channel')}"
            )
    if prepare.resize is not None and prepare.resize < image.image_size:
        raise ConfigError(
            f"preprocessing.resize is {prepare.resize}: the model reads {image.image_size} "
            f"pixels a side, so it must be at least that"
        )


def refuse_mixtures(augmentation: Augmentation) -> None:
    """Refuses to mix pictures that have texts instead of labels.

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
    run: Any, open_data: Callable[[Any], ImageSplits], path: Any
) -> tuple[ImageSplits, dict[str, ImageTable]]:
    """Returns the pictures of a run, and those of its tests, or else of validation, by name.

    Args:
        run: The run.
        open_data: Function from a run to its pictures.
        path: Its directory, for messages.

    Raises:
        ConfigError: The run has none.
        DataError: They cannot be read.
    """
    parts: dict[str, ImageTable] = {}
    if any(getattr(run.data, name, None) is not None for name in _SOURCES):
        splits = open_data(run)
        parts = splits.tests or ({} if splits.valid is None else {"valid": splits.valid})
    if not parts:
        raise ConfigError(f"{path}: has no test or validation pictures: give --data.images")
    return splits, parts

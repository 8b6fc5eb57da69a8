"""Pictures with captions: the built-in scenes, or pictures from files."""

import dataclasses
from typing import Literal, get_args

import numpy as np

from transformer_jax.core.config_fields import Count
from transformer_jax.core.errors import ConfigError
from transformer_jax.data.corpora import scenes
from transformer_jax.data.images.data import ImageData, ImageReadOptions, ImageSplits, open_images
from transformer_jax.data.images.picture_sources import ArrayPictures
from transformer_jax.data.images.picture_tables import ImageTable

__all__ = ["CaptionData", "open_captions", "own_captions", "references", "scenes_table"]

TEST_SCENES = 1000  # pictures in each non-training split of the built-in corpus


@dataclasses.dataclass(frozen=True)
class CaptionData(ImageData):
    """The source of pictures and their captions; set one of corpus, images, tfds."""

    corpus: Literal["scenes"] | None = None  # built-in and generated: drawn shapes
    corpus_size: Count = 20_000  # number of training pictures of the built-in corpus
    read: ImageReadOptions = ImageReadOptions()


def own_captions() -> CaptionData:
    """Returns the data settings of named runs for pictures and captions of users."""
    return CaptionData(read=ImageReadOptions(text_kind="caption"))


def open_captions(data: CaptionData) -> ImageSplits:
    """Loads training, validation and test pictures with their captions.

    The built-in corpus is drawn here; its ``test_unseen`` has the combinations missing from
    training.

    Raises:
        ConfigError: The settings name no data.
        DataError: A file cannot be read.
    """
    if data.corpus is None:
        if data.images is None and data.tfds is None:
            raise ConfigError(
                "no training pictures: give data.images, a table of pictures and captions; or "
                "data.corpus scenes, which is built in"
            )
        return open_images(data)
    parts = {
        name: scenes_table(name, data.corpus_size if name == "train" else TEST_SCENES)
        for name in get_args(scenes.Split)
    }
    return ImageSplits(parts.pop("train"), parts.pop("valid"), parts)


def scenes_table(split: scenes.Split, count: int) -> ImageTable:
    """Returns pictures of a split of the built-in corpus, with one caption each.

    Example:
        >>> scenes_table("train", 2).texts[0]
        'a small orange circle left of a small pink triangle'
    """
    made = scenes.generate(split, count)
    pictures, keys = ArrayPictures(made.pixels, f"scenes {split}"), list(map(str, range(count)))
    return ImageTable(pictures.name, pictures, np.arange(count), list(made.captions), keys)


def references(table: ImageTable) -> tuple[list[int], list[list[str]]]:
    """Returns the pictures of a table that have captions, and all captions of each.

    Example:
        >>> references(scenes_table("test", 2))[0]
        [0, 1]
    """
    found: dict[int, list[str]] = {}
    for row, text in zip(table.rows.tolist(), table.texts, strict=True):
        found.setdefault(row, []).append(text)
    return list(found), list(found.values())

"""Image models as functions of pictures."""

import dataclasses
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from transformer_jax.core.config_dict import from_dict
from transformer_jax.core.errors import ArgumentError, ConfigError
from transformer_jax.core.numerics import refuse_nonfinite
from transformer_jax.data.images.picture_sources import PictureFiles
from transformer_jax.data.images.picture_store import ImageStore, Pictures
from transformer_jax.data.images.preprocessing import Preprocessing
from transformer_jax.inference.base import Predictor
from transformer_jax.inference.results import classification
from transformer_jax.interop.image_processors import published_preprocessing
from transformer_jax.models.vision import VisionEncoder
from transformer_jax.parallel.placement import MeshProgram
from transformer_jax.runs.run_directory import group_of

if TYPE_CHECKING:
    from transformer_jax.inference.pretrained import Pretrained

__all__ = ["ImagePredictor", "is_single", "picture_batches", "pictures_of", "pixels_of"]

_BATCH = 64  # pictures at a time
_FAR = 16  # times the largest normalized pixel: noise is nearer, pixels up to 255 are farther


class ImagePredictor(Predictor):
    """An image encoder or classifier as a function of pictures (files or arrays of pixels).

    Attributes:
        labels: Names of the classes; empty for an encoder without a classification head.
        form: Preprocessing of pictures.
    """

    tokenizer = None

    def __init__(self, opened: "Pretrained"):
        self.opened, self.model = opened, opened.module
        fields = opened.facts.record
        self.labels: tuple[str, ...] = tuple((fields.get("task") or {}).get("labels", ()))
        self.form = pictures_of(fields, self.model.config.image)
        graph, self._params = opened.model
        self._vectors = MeshProgram(lambda p, x: _vectors(nnx.merge(graph, p), x))
        self._probabilities = MeshProgram(lambda p, x: jax.nn.softmax(nnx.merge(graph, p)(x)))
        self._logits = MeshProgram(lambda p, x: nnx.merge(graph, p)(x))

    def __call__(self, images: Any) -> Any:
        """Returns the label of a picture with its probability, or a list of them.

        Args:
            images: The path of a file or a list of paths, which are resized as in training; or
                pixels ``[height, width, channels]`` or ``[B, height, width, channels]``, an array
                or nested lists, which are not resized. Integers are pixels from 0 to 255,
                normalized here as in training; floating-point pixels must already be normalized.

        Raises:
            ConfigError: The model has no classification head, or images have the wrong size.
            ArgumentError: The value is not a picture, see :func:`pixels_of`.
            DataError: A file cannot be read as a picture.
            NumericsError: The model computed NaN or infinity.
        """
        found = [classification(self.labels, row.tolist()) for row in self.probabilities(images)]
        return found[0] if is_single(images) else found

    def probabilities(self, images: Any) -> Float[np.ndarray, "B V"]:
        """Returns the probability of each label for each picture; see :meth:`__call__`."""
        return self._labeled(self._probabilities, images)

    def logits(self, images: object) -> Float[np.ndarray, "B V"]:
        """Returns the outputs of the classifier, before any activation; see :meth:`__call__`."""
        return self._labeled(self._logits, images)

    def _labeled(self, program: MeshProgram, images: object) -> np.ndarray:
        if not self.labels:
            where = self.opened.facts.source
            raise ConfigError(f"{where}: an image encoder without a classifier: use embed")
        return self._run(program, images)

    def scores(self, pixels: Any) -> Any:
        """Returns the score of each label for normalized pictures ``[B height width channels]``."""
        return self._probabilities(self._params, pixels)

    def embed(self, images: Any) -> Float[np.ndarray, "*B D"]:
        """Returns the vector of a picture, or an array of vectors.

        It is the vector of the class token or of sequence pooling.

        Args:
            images: See :meth:`__call__`.

        Raises:
            ConfigError: Images have the wrong size.
            ArgumentError: The value is not a picture, see :func:`pixels_of`.
            DataError: A file cannot be read as a picture.
            NumericsError: The model computed NaN or infinity.
        """
        found = self._run(self._vectors, images)
        return np.asarray(found[0] if is_single(images) else found)

    def _run(self, program: Any, images: Any) -> np.ndarray:
        parts = [
            np.asarray(program(self._params, pixels))[:count]
            for pixels, count in picture_batches(self.form, images)
        ]
        found = np.concatenate(parts)
        refuse_nonfinite(found)
        return found


def _vectors(model: Any, images: Any) -> Any:
    return model.summary(VisionEncoder.__call__(model, images))


def pictures_of(fields: Any, image: Any) -> Pictures:
    """Returns the image preprocessing of a stored model.

    Args:
        fields: Its ``config.json``, with ``preprocessing`` and the maximum number of pixels, or
            with the record of the original Hugging Face folder.
        image: Image sizes of the model.
    """
    size, stored = image.image_size, fields.get("preprocessing")
    if stored is not None:
        preprocessing = from_dict(Preprocessing, stored)
    else:
        preprocessing = published_preprocessing(fields.get("published") or {}, image)
    read = group_of(fields, "data", "read")
    usual = Pictures(size, image.num_channels, preprocessing)
    return dataclasses.replace(usual, max_pixels=read.get("max_pixels", usual.max_pixels))


def picture_batches(form: Pictures, images: Any) -> Iterator[tuple[Any, int]]:
    """Yields batches of preprocessed pictures, with the number of pictures in each.

    Args:
        form: Preprocessing of pictures.
        images: Paths of files, or pixels, see :meth:`ImagePredictor.__call__`.

    Raises:
        ArgumentError: The value is not a picture, see :func:`pixels_of`.
        DataError: A file cannot be read as a picture.
    """
    if (paths := _paths_of(images)) is not None:
        store = ImageStore(PictureFiles(paths), form)
        for start in range(0, len(paths), _BATCH):
            rows = np.arange(start, start + _BATCH)
            # One shape for all batches.
            yield store.batch(np.where(rows < len(paths), rows, -1)), len(paths) - start
        return
    given = pixels_of(images)
    pixels = given if given.ndim == 4 else given[None]
    if not np.issubdtype(given.dtype, np.integer):
        _refuse_raw(given, form.preprocessing)
    else:
        pixels = form.preprocessing.normalized(pixels.astype(np.uint8))
    yield jnp.asarray(pixels, jnp.float32), len(pixels)


def _refuse_raw(pixels: np.ndarray, preprocessing: Preprocessing) -> None:
    """Refuses floating-point pixels that are far outside the range of normalized ones.

    Raises:
        ArgumentError: They are probably pixels from 0 to 255.
    """
    ends = preprocessing.normalized(np.array([[[0] * pixels.shape[-1], [255] * pixels.shape[-1]]],
                                             np.uint8))  # fmt: skip
    largest = float(np.abs(pixels.astype(np.float32)).max())
    if largest > _FAR * float(np.abs(ends).max()):
        raise ArgumentError(
            f"images hold floating-point pixels up to {largest:g}, but normalized pixels of this "
            f"model are between {ends.min():.3g} and {ends.max():.3g}: pass integers from 0 to 255"
        )


def _paths_of(images: Any) -> list[str] | None:
    """Returns the paths of pictures; None for pixels."""
    several = images if isinstance(images, list | tuple) else [images]
    if not several or not all(isinstance(one, str | os.PathLike) for one in several):
        return None
    return [os.fspath(one) for one in several]


def is_single(images: Any) -> bool:
    """Returns whether images are a single picture."""
    if _paths_of(images) is not None:
        return not isinstance(images, list | tuple)
    return np.ndim(images) == 3


def pixels_of(images: Any) -> np.ndarray:
    """Returns images as an array of integers from 0 to 255 or finite floating-point numbers.

    Args:
        images: An array or nested lists with three or four axes.

    Raises:
        ArgumentError: The value is something else, or has invalid pixels.
        ConfigError: The number of axes is wrong.

    Example:
        >>> pixels_of(3)
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ArgumentError: images is int: paths of pictures, or an array ...
        >>> pixels_of(np.full((2, 2, 1), 256)).shape
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ArgumentError: images hold integers from 256 to 256: pixels ...
    """
    form = "[B, height, width, channels] or [height, width, channels]"
    if isinstance(images, list | tuple):
        try:
            images = np.asarray(images)
        except ValueError:
            raise ArgumentError(f"images are lists of several lengths: {form} is needed") from None
    if not hasattr(images, "dtype") or not hasattr(images, "shape"):
        raise ArgumentError(
            f"images is {type(images).__name__}: paths of pictures, or an array of pixels {form}, "
            f"are needed"
        )
    found = np.asarray(images)
    whole, real = (np.issubdtype(found.dtype, kind) for kind in (np.integer, np.floating))
    if found.dtype == jnp.bfloat16:
        found, real = found.astype(np.float32), True
    if not whole and not real:
        raise ArgumentError(
            f"images have type {found.dtype}: integers from 0 to 255 or floating-point numbers are "
            f"needed"
        )
    if found.ndim not in (3, 4) or not found.size:
        raise ConfigError(f"images have shape {list(found.shape)}: must be {form}")
    if whole and not (found.min() >= 0 and found.max() <= 255):
        raise ArgumentError(
            f"images hold integers from {found.min()} to {found.max()}: pixels are 0 to 255"
        )
    if real and not np.isfinite(found).all():
        raise ArgumentError("images hold NaN or infinity")
    return found

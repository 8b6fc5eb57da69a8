"""Image models as functions of arrays of pixels."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from transformer_jax.core.errors import ArgumentError, ConfigError
from transformer_jax.core.numerics import refuse_nonfinite
from transformer_jax.inference.base import Predictor
from transformer_jax.inference.load_run import load
from transformer_jax.inference.results import classification
from transformer_jax.inference.runs import open_directory
from transformer_jax.models.vision import VisionEncoder
from transformer_jax.parallel.inference import MeshProgram

__all__ = ["ImagePredictor", "pixels_of"]


class ImagePredictor(Predictor):
    """An image encoder or classifier as a function of arrays of pixels.

    Attributes:
        labels: Names of the classes; empty for an encoder without a classification head.
    """

    tokenizer = None

    def __init__(self, path: Path, checkpoint: str = "best"):
        run = open_directory(path)
        if not run.reads_images():
            raise ConfigError(f"{path}: a text model, which does not read images")
        loaded, _ = load(path, checkpoint, kind="image")
        self.model = nnx.merge(*loaded)
        config = run.read_config()
        self.labels: tuple[str, ...] = tuple((config.get("task") or {}).get("labels", ()))
        self._path = path
        self._preprocessor: dict[str, Any] = config.get("published", {}).get("preprocessor") or {}
        graph = loaded[0]
        self._params = loaded[1]
        self._hidden = MeshProgram(lambda p, x: VisionEncoder.__call__(nnx.merge(graph, p), x))
        self._probabilities = MeshProgram(lambda p, x: jax.nn.softmax(nnx.merge(graph, p)(x)))

    def __call__(self, images: Any) -> Any:
        """The label of an image and its probability, or a list with those of each image.

        Args:
            images: ``[height, width, channels]`` or ``[B, height, width, channels]``, an array or
                nested lists. Integers are pixels from 0 to 255, normalized here as the checkpoint's
                preprocessor does; floating-point images are normalized already. Images are not
                resized.

        Raises:
            ConfigError: The model has no classification head; or images of another size.
            ArgumentError: No array of pixels, see :func:`pixels_of`.
            NumericsError: The model computed NaN or infinity.
        """
        if not self.labels:
            raise ConfigError(f"{self._path}: an image encoder without a classifier: use embed")
        images = pixels_of(images)
        pixels = self._normalized(images)
        probabilities = np.asarray(self._probabilities(self._params, pixels))
        refuse_nonfinite(probabilities)
        found = [classification(self.labels, row.tolist()) for row in probabilities]
        return found[0] if images.ndim == 3 else found

    def embed(self, images: Any) -> Float[np.ndarray, "*B D"]:
        """The vector of the class token of an image, or an array with that of each image.

        Args:
            images: As in :meth:`__call__`.

        Raises:
            ConfigError: Images of another size.
            ArgumentError: No array of pixels, see :func:`pixels_of`.
            NumericsError: The model computed NaN or infinity.
        """
        images = pixels_of(images)
        hidden = np.asarray(self._hidden(self._params, self._normalized(images)))[:, 0]
        refuse_nonfinite(hidden)
        return np.asarray(hidden[0] if images.ndim == 3 else hidden)

    def _normalized(self, images: np.ndarray) -> jax.Array:
        pixels = jnp.asarray(images if images.ndim == 4 else images[None], jnp.float32)
        if np.issubdtype(images.dtype, np.integer):
            prepare = self._preprocessor
            if prepare.get("do_rescale", True):
                pixels = pixels * prepare.get("rescale_factor", 1 / 255)
            if prepare.get("do_normalize", True):
                mean = jnp.asarray(prepare.get("image_mean", [0.5]), jnp.float32)
                std = jnp.asarray(prepare.get("image_std", [0.5]), jnp.float32)
                pixels = (pixels - mean[None, None, None]) / std[None, None, None]
        return pixels


def pixels_of(images: Any) -> np.ndarray:
    """Returns images as an array: integers from 0 to 255, or finite floating-point numbers.

    Args:
        images: An array, or nested lists, of three or four axes.

    Raises:
        ArgumentError: Something else, such as the path of a file; or numbers that are no pixels.
        ConfigError: Another number of axes.

    Example:
        >>> pixels_of("cat.png")
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ArgumentError: images is str: an array of pixels [B, height, ...
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
            f"images is {type(images).__name__}: an array of pixels {form} is needed: read a file "
            f"first, such as numpy.asarray(PIL.Image.open(path))"
        )
    found = np.asarray(images)
    whole, real = (np.issubdtype(found.dtype, kind) for kind in (np.integer, np.floating))
    if found.dtype == jnp.bfloat16:
        found, real = found.astype(np.float32), True
    if not whole and not real:
        raise ArgumentError(
            f"images hold {found.dtype}: integers from 0 to 255 or floating-point numbers are "
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

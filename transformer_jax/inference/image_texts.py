"""Two towers as functions of pictures and of texts."""

import collections
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from transformer_jax.core.errors import ArgumentError, ConfigError
from transformer_jax.core.numerics import refuse_nonfinite
from transformer_jax.data.coverage import unknown_texts
from transformer_jax.data.examples import EncodedExamples
from transformer_jax.data.images.picture_store import build_image_store
from transformer_jax.data.images.picture_tables import ImageTable
from transformer_jax.inference.base import Predictor, warn_of_texts
from transformer_jax.inference.images import is_single, picture_batches, pictures_of
from transformer_jax.inference.results import classification
from transformer_jax.inference.retrieval import TextReader, retrieval_scores
from transformer_jax.parallel.placement import MeshProgram

if TYPE_CHECKING:
    from transformer_jax.inference.pretrained import Pretrained

__all__ = ["TEMPLATE", "ImageTextPredictor", "check_labels"]

TEMPLATE = "a picture of a {}"
_BATCH = 64  # texts at a time


def check_labels(labels: Sequence[str], template: str) -> None:
    """Refuses labels, or a template of their texts, that cannot be used.

    Raises:
        ConfigError: There are no labels, a label is empty or repeated, or the template has no
            ``{}``.

    Example:
        >>> check_labels(["cat", "dog"], "a picture of a {}")
    """
    if isinstance(labels, str) or not labels or len(set(labels)) < len(labels):
        raise ConfigError("labels: at least one is needed, each once")
    if not all(label.strip() for label in labels):
        raise ConfigError("labels: a label is empty: leave it out")
    if "{}" not in template:
        raise ConfigError(f"template is {template!r}: it needs {{}} in place of the label")


class ImageTextPredictor(Predictor):
    """Two towers: vectors of pictures and of texts, and zero-shot labels.

    Attributes:
        form: Preprocessing of pictures.
    """

    def __init__(self, opened: "Pretrained"):
        self.opened, self.model, self.tokenizer = opened, opened.module, opened.tokenizer
        fields = opened.facts.record
        self.form = pictures_of(fields, self.model.encoder.config.image)
        positions = self.model.config.max_length
        length = min(positions, fields.get("text_length", positions))
        self._reader, self._prepare = TextReader(self.tokenizer, length), opened.facts.preparation
        self._counts: collections.Counter[str] = collections.Counter()
        graph, self._params = opened.model
        self._images = MeshProgram(lambda p, x: nnx.merge(graph, p).embed_images(x))
        self._texts = MeshProgram(lambda p, *x: nnx.merge(graph, p).embed_texts(*x))

    def embed_images(self, images: Any) -> Float[np.ndarray, "*B P"]:
        """Returns the unit vector of a picture, or an array of unit vectors.

        Args:
            images: The path of a file or a list of paths, which are resized as in training; or
                pixels ``[height, width, channels]`` or ``[B, height, width, channels]``, which are
                not resized. Integers are pixels from 0 to 255; floating-point pixels must already
                be normalized.

        Raises:
            ConfigError: Images have the wrong size.
            ArgumentError: The value is not a picture.
            DataError: A file cannot be read as a picture.
            NumericsError: The model computed NaN or infinity.
        """
        parts = [
            np.asarray(self._images(self._params, pixels))[:count]
            for pixels, count in picture_batches(self.form, images)
        ]
        found = np.concatenate(parts)
        refuse_nonfinite(found)
        return np.asarray(found[0] if is_single(images) else found)

    def embed_texts(self, texts: str | Sequence[str]) -> Float[np.ndarray, "*B P"]:
        """Returns the unit vector of a text, or an array of unit vectors.

        Texts longer than the model's positions are truncated.

        Raises:
            ArgumentError: The value is neither a text nor a list of texts.
            NumericsError: The model computed NaN or infinity.
        """
        one = isinstance(texts, str)
        lines = [texts] if isinstance(texts, str) else list(texts)
        if not lines or not all(isinstance(line, str) for line in lines):
            raise ArgumentError("texts: a text, or a list of at least one text, is needed")
        with warn_of_texts(self._counts):
            examples = self._encode(list(map(self._prepare.line, lines)))
        rows = np.append(np.arange(len(lines)), np.full(-len(lines) % _BATCH, -1))
        parts = [
            np.asarray(self._texts(self._params, *self._reader.batch(examples, these).values()))
            for these in rows.reshape(-1, _BATCH)
        ]
        found = np.concatenate(parts)[: len(lines)]
        refuse_nonfinite(found)
        return np.asarray(found[0] if one else found)

    def __call__(self, images: Any, labels: Sequence[str], template: str = TEMPLATE) -> Any:
        """Returns the label of a picture with its probability, or a list of them.

        With the loss of CLIP, the probabilities of all labels sum to 1; with the loss of SigLIP,
        each is the probability of a match. Radford et al. 2021, section 3.1.

        Args:
            images: See :meth:`embed_images`.
            labels: Labels to choose from.
            template: Template of the text of a label, with ``{}`` for the label.

        Raises:
            ConfigError: There are no labels, a label is empty or repeated, or the template has no
                ``{}``.
        """
        rows = self.probabilities(images, labels, template)
        found = [classification(labels, row.tolist()) for row in rows]
        return found[0] if is_single(images) else found

    def probabilities(
        self, images: Any, labels: Sequence[str], template: str = TEMPLATE
    ) -> Float[np.ndarray, "B C"]:
        """Returns the probability of each label for each picture; see :meth:`__call__`."""
        check_labels(labels, template)
        vectors = jnp.asarray(np.atleast_2d(self.embed_images(images)))
        texts = self.embed_texts([template.replace("{}", label) for label in labels])
        each = np.asarray(self.model.similarities(vectors, jnp.asarray(texts)), np.float64)
        if self.model.contrast.loss == "sigmoid":
            return np.asarray(1 / (1 + np.exp(-each)))
        powers = np.exp(each - each.max(1, keepdims=True))
        return np.asarray(powers / powers.sum(1, keepdims=True))

    def recalls(self, part: ImageTable) -> dict[str, float]:
        """Returns recall at 1, 5 and 10 in both directions among the pictures and texts of a table.

        Raises:
            DataError: A picture cannot be read.
        """
        store = build_image_store(part.pictures, self.form, name=part.name, decode=False)
        images = lambda pixels: self._images(self._params, pixels)
        texts = lambda *tokens: self._texts(self._params, *tokens)
        with warn_of_texts(self._counts):
            self._encode(part.texts)
        return retrieval_scores(images, texts, store, part, self._reader)

    def _encode(self, texts: Sequence[str]) -> EncodedExamples:
        """Returns the tokens of texts, and counts those that are not read as they are."""
        examples, cut = self._reader.encode(texts)
        unknown = unknown_texts(texts, self.tokenizer, examples.store.ids)
        self._counts.update(cut=cut, unknown=unknown)
        return examples

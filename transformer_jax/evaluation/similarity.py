"""Similarity of the vectors of parallel sentences in two languages."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from transformer_jax.core.errors import DataError

__all__ = ["Similarity", "parallel_similarity"]


class Similarity(NamedTuple):
    """The similarity of the vectors of parallel sentences.

    Attributes:
        cosine: The mean cosine of a sentence and its translation.
        retrieval: The fraction of sentences in both languages whose nearest sentence in the other
            language, by cosine, is their translation. The chance level is one divided by the number
            of sentences.
        sentences: The number of sentences per language.
    """

    cosine: float
    retrieval: float
    sentences: int


def parallel_similarity(
    first: Float[np.ndarray, "B D"], second: Float[np.ndarray, "B D"]
) -> Similarity:
    """Computes the similarity of parallel sentences, given vectors as rows in the same order.

    Retrieval is as in Artetxe and Schwenk 2019 for bitext, by plain cosines.

    Raises:
        DataError: There are no vectors.

    Example:
        >>> x = np.array([[1.0, 0.0], [0.0, 1.0]])
        >>> parallel_similarity(x, 3 * x), parallel_similarity(x, x[::-1]).retrieval
        (Similarity(cosine=1.0, retrieval=1.0, sentences=2), 0.0)
    """
    if not len(first):
        raise DataError("there are no sentences to compare")
    one, other = (
        x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (first, second)
    )
    cosines = one @ other.T
    own = np.arange(len(first))
    nearest = [(cosines.argmax(axis) == own).mean() for axis in (0, 1)]
    return Similarity(float(cosines.diagonal().mean()), float(np.mean(nearest)), len(own))

"""Tokenization for two towers, and recall among pictures and texts."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from transformer_jax.core.errors import plural
from transformer_jax.core.task_progress import show_progress
from transformer_jax.data.examples import EncodedExamples, collate, default_template
from transformer_jax.data.examples import encode_sentences as encode
from transformer_jax.data.images.picture_store import ImageStore
from transformer_jax.data.images.picture_tables import ImageTable
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.evaluation.retrieval_recall import matches, recalls

__all__ = ["TextReader", "retrieval_scores"]

_AT_ONCE = 64  # images or texts per batch


@dataclasses.dataclass(frozen=True)
class TextReader:
    """Tokenizes texts for a tower.

    Attributes:
        tokenizer: The tokenizer; its template, or else bos and eos, is added around texts.
        length: Number of positions of the tower, to which texts are truncated and padded.
    """

    tokenizer: Tokenizer
    length: int

    def encode(self, texts: Sequence[str]) -> tuple[EncodedExamples, int]:
        """Returns the tokens of texts, and the number of truncated texts."""
        template = self.tokenizer.template or default_template(self.tokenizer)
        return encode(texts, None, self.tokenizer, self.length, template)

    def batch(self, examples: EncodedExamples, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns ``tokens`` and ``lengths`` of a batch; row -1 has length 0."""
        made = collate(examples, rows, self.length, self.tokenizer.pad)
        return {name: made[name] for name in ("tokens", "lengths")}


def retrieval_scores(
    embed_images: Callable[[Any], Any],
    embed_texts: Callable[[Any, Any], Any],
    store: ImageStore,
    part: ImageTable,
    reader: TextReader,
) -> dict[str, float]:
    """Returns recall at 1, 5 and 10, both ways, among the pictures and distinct texts of a table.

    Args:
        embed_images: Function of normalized pictures.
        embed_texts: Function of tokens and lengths.
        store: The preprocessed pictures.
        part: Pictures and texts.
        reader: The tokenization of the texts.

    Raises:
        DataError: A picture cannot be read.
    """
    rows, texts, own = matches(part.rows.tolist(), part.texts)
    examples, _ = reader.encode(texts)
    with show_progress(f"retrieval among {plural(len(rows), 'picture')}"):
        images = _vectors(lambda these: embed_images(store.batch(these)), np.array(rows))
        of_texts = lambda these: embed_texts(*reader.batch(examples, these).values())
        found = _vectors(of_texts, np.arange(len(texts)))
    return recalls(images, found, own)


def _vectors(embed: Callable[[np.ndarray], Any], rows: np.ndarray) -> np.ndarray:
    """Computes the vectors of rows in batches; the last batch is padded with -1."""
    filled = np.append(rows, np.full(-len(rows) % _AT_ONCE, -1))
    parts = [np.asarray(embed(these)) for these in filled.reshape(-1, _AT_ONCE)]
    return np.concatenate(parts)[: len(rows)]

"""Texts as two towers read them, and recall among pictures and texts."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from transformer_jax.core.errors import plural
from transformer_jax.core.task_progress import show_progress
from transformer_jax.data.examples import EncodedExamples, collate, default_template
from transformer_jax.data.examples import encode_sentences as encode
from transformer_jax.data.images.store import ImageStore
from transformer_jax.data.images.tables import ImageTable
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.evaluation.retrieval import matches, recalls

__all__ = ["TextReader", "retrieval_scores"]

_AT_ONCE = 64  # images or texts, where vectors are made


@dataclasses.dataclass(frozen=True)
class TextReader:
    """Texts as the tokens that a tower reads.

    Attributes:
        tokenizer: Its template, if it has one, stands around texts; else bos and eos do.
        length: Positions of the tower: texts are cut to as many tokens, and filled up with padding.
    """

    tokenizer: Tokenizer
    length: int

    def encode(self, texts: Sequence[str]) -> tuple[EncodedExamples, int]:
        """Returns the tokens of texts, and how many were cut."""
        template = self.tokenizer.template or default_template(self.tokenizer)
        return encode(texts, None, self.tokenizer, self.length, template)

    def batch(self, examples: EncodedExamples, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns ``tokens`` and ``lengths`` of some texts; row -1 has length 0."""
        made = collate(examples, rows, self.length, self.tokenizer.pad)
        return {name: made[name] for name in ("tokens", "lengths")}


def retrieval_scores(
    embed_images: Callable[[Any], Any],
    embed_texts: Callable[[Any, Any], Any],
    store: ImageStore,
    part: ImageTable,
    reader: TextReader,
) -> dict[str, float]:
    """Recall at 1, 5 and 10, both ways, among the pictures of a table and its different texts.

    Args:
        embed_images: Function of normalized pictures.
        embed_texts: Function of tokens and lengths.
        store: Of the pictures.
        part: Pictures and texts.
        reader: Of the texts.

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
    """The vectors of rows, so many at a time; the last ones are filled up with -1."""
    filled = np.append(rows, np.full(-len(rows) % _AT_ONCE, -1))
    parts = [np.asarray(embed(these)) for these in filled.reshape(-1, _AT_ONCE)]
    return np.concatenate(parts)[: len(rows)]

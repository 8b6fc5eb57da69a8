"""Texts of as many sentences of a document as fit."""

import bisect
import dataclasses
import functools
import itertools

import numpy as np
from jaxtyping import Int, Integer

from transformer_jax.data.sentences import SentenceStore

__all__ = ["SentenceTexts"]


@dataclasses.dataclass(frozen=True)
class SentenceTexts:
    """The texts that the sentences of a store make, one after the other.

    A text is as many units of one document as fit; a unit is a sentence, or a part of one that is
    too long. Every unit is part of one text.

    Attributes:
        store: The sentences.
        begins: The first unit of each document, and the end.
        units: The document, the tokens and the place in the store of each unit.
        texts: The first unit of each text, and the end.

    Example:
        >>> store = SentenceStore(np.arange(7), np.array([0, 2, 7]), np.array([0, 2]), {})
        >>> texts = SentenceTexts.of(store, limit=3, room=4)
        >>> [[part.tolist() for part in texts.parts(i)] for i in range(len(texts))]
        [[[0, 1]], [[2, 3, 4]], [[5, 6]]]
    """

    store: SentenceStore
    begins: Int[np.ndarray, " documents"]
    units: Int[np.ndarray, "units 3"]
    texts: Int[np.ndarray, " texts"]

    @classmethod
    def of(cls, store: SentenceStore, *, limit: int, room: int) -> "SentenceTexts":
        """Texts of at most ``room`` tokens, of sentences that are cut at ``limit`` tokens."""
        begins, units = _units(store, limit)
        return cls(store, begins, units, _texts(begins, units, room))

    def __len__(self) -> int:
        return len(self.texts) - 1

    @functools.cached_property
    def lengths(self) -> Int[np.ndarray, " texts"]:
        """Tokens of each text."""
        return np.add.reduceat(self.units[:, 1], self.texts[:-1])

    def span(self, start: int, stop: int) -> Integer[np.ndarray, " tokens"]:
        """The tokens of units ``start`` to ``stop``."""
        first, last = self.units[start], self.units[stop - 1]
        return self.store.ids[first[2] : last[2] + last[1]]

    def parts(self, text: int) -> list[Integer[np.ndarray, " tokens"]]:
        """The units of a text, in order."""
        bounds = range(int(self.texts[text]), int(self.texts[text + 1]) + 1)
        return [self.span(start, stop) for start, stop in itertools.pairwise(bounds)]


def _units(store: SentenceStore, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first unit of each document, and the document, size and place of each unit."""
    lengths = store.lengths
    counts = -(-lengths // limit)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    sizes = np.minimum(np.repeat(lengths, counts) - within * limit, limit)
    places = np.repeat(store.offsets[:-1], counts) + within * limit
    document = np.repeat(np.arange(len(store.documents) - 1), np.diff(store.documents))
    document = np.repeat(document, counts)
    begins = np.searchsorted(document, np.arange(len(store.documents)))
    return begins, np.stack([document, sizes, places], axis=1)


def _texts(begins: np.ndarray, units: np.ndarray, room: int) -> np.ndarray:
    """The unit at which each text begins, and the end: as many units of a document as fit."""
    ends = np.cumsum(units[:, 1]).tolist()
    found, start, before = [0], 0, 0
    for stop in begins[1:].tolist():
        while start < stop:
            start = min(stop, bisect.bisect_right(ends, before + room, start, stop))
            before = ends[start - 1]
            found.append(start)
    return np.array(found)

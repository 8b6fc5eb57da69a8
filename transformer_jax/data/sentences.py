"""Documents as sentences of ids in memory-mapped files, for sentence pairs."""

import array
import bisect
import dataclasses
import functools
import hashlib
import itertools
import pathlib
from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Int, Integer

from transformer_jax.data.document_stream import DocumentStream
from transformer_jax.data.store import TokenStore, id_dtype, open_arrays, write_arrays
from transformer_jax.data.token_file import groups, write_ids
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.words import end_places

__all__ = ["SentenceStore", "SentenceTexts", "build_sentences", "sentences"]

_NAMES = ("ids", "offsets", "documents")


@dataclasses.dataclass(frozen=True)
class SentenceStore(TokenStore):
    """Sentences of ids; document ``d`` is sentences ``documents[d]`` to ``documents[d + 1]``.

    Attributes:
        counts: ``documents``, ``sentences``, ``characters``, ``bytes`` and ``unknown`` tokens of
            the text, and skipped documents by reason.
    """

    documents: Int[np.ndarray, " documents"]
    counts: dict[str, int]


def sentences(text: str, *, blanks: bool = False) -> list[str]:
    r"""Splits a text at its :func:`.end_places`: line ends, full stops and similar marks.

    Blanks are dropped, and so are sentences without letters and digits, such as a ruled line. A
    full stop inside a sentence ("e.g. this") splits it too.

    Args:
        text: The text.
        blanks: Whether a sentence keeps a blank at its start if a blank or a line end preceded it,
            so that the sentences can be joined again.

    Example:
        >>> sentences("It rains. Does it?\nYes, 3.5 mm.")
        ['It rains.', 'Does it?', 'Yes, 3.5 mm.']
        >>> sentences("It rains. Does it?", blanks=True), sentences("वह गया। मैं भी।")
        (['It rains.', ' Does it?'], ['वह गया।', 'मैं भी।'])
    """
    ends = [0, *end_places(text), len(text)]
    found = []
    for start, end in itertools.pairwise(ends):
        part = text[start:end].strip()
        if any(map(str.isalnum, part)):
            blank = blanks and start > 0 and text[start - 1].isspace()
            found.append(" " + part if blank else part)
    return found


def build_sentences(
    texts: DocumentStream,
    tokenizer: Tokenizer,
    *,
    blanks: bool = False,
    cache: str | pathlib.Path | None = None,
    writes: bool = True,
) -> SentenceStore:
    """Encodes the sentences of documents, without special tokens, in order.

    Args:
        texts: The documents.
        tokenizer: The tokenizer.
        blanks: Whether sentences keep the blank before them, see :func:`sentences`.
        cache: A folder that keeps the arrays, memory-mapped, under a name made from the identity of
            the texts and the tokenizer; later calls open it without reading the texts. None keeps
            them in memory.
        writes: Whether missing arrays are added to the cache instead of being kept in memory.

    Raises:
        DataError: The texts cannot be read, or the cache cannot be written.

    Example:
        >>> from transformer_jax.data.document_stream import TextChunk
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> chunks = [TextChunk("A. B.", True), TextChunk("C", True)]
        >>> texts = DocumentStream("example", "1", lambda: chunks)
        >>> store = build_sentences(texts, train_tokenizer("characters", ["A. B. C"], 20))
        >>> len(store), store.documents
        (3, array([0, 2, 3]))
    """
    if cache is None:
        blocks: list[np.ndarray] = []
        offsets, documents, counts = _encode(texts, tokenizer, blanks, blocks.append)
        return SentenceStore(np.concatenate(blocks), offsets, documents, counts)
    # Earlier versions knew only the ends of Latin and Chinese sentences.
    said = (texts.identity, tokenizer.sha256, "every script", *("blanks",) * blanks)
    key = hashlib.sha256("\0".join(said).encode()).hexdigest()
    folder = pathlib.Path(cache) / f"sentences-{key[:24]}"

    def fill(draft: pathlib.Path) -> dict[str, int]:
        offsets, documents, counts = write_ids(
            draft / "ids.npy",
            id_dtype(tokenizer),
            lambda add: _encode(texts, tokenizer, blanks, add),
        )
        np.save(draft / "offsets.npy", offsets)
        np.save(draft / "documents.npy", documents)
        return counts

    found = open_arrays(folder, _NAMES)
    if found is None and not writes:
        return build_sentences(texts, tokenizer, blanks=blanks)
    if found is None:
        found = write_arrays(folder, _NAMES, fill)
    (ids, offsets, documents), counts = found
    return SentenceStore(ids, offsets, documents, counts)


def _encode(
    texts: DocumentStream, tokenizer: Tokenizer, blanks: bool, add: Callable[[np.ndarray], object]
) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """Passes blocks of ids to ``add``; returns offsets of sentences and documents, and counts."""
    offsets, documents = array.array("q", [0]), array.array("q", [0])
    counts = dict.fromkeys(("documents", "sentences", "characters", "bytes", "unknown"), 0)
    for chunks in groups(texts):
        parts = [sentences(chunk.text, blanks=blanks) for chunk in chunks]
        rows = tokenizer.encode_batch([sentence for part in parts for sentence in part])
        ids = np.fromiter(itertools.chain.from_iterable(rows), id_dtype(tokenizer))
        following: Iterator[list[int]] = iter(rows)
        for chunk, part in zip(chunks, parts, strict=True):
            for row in itertools.islice(following, len(part)):
                if row:  # a tokenizer may find nothing in unusual characters
                    offsets.append(offsets[-1] + len(row))
            if chunk.last and len(offsets) - 1 > documents[-1]:
                documents.append(len(offsets) - 1)
        counts["characters"] += sum(len(chunk.text) for chunk in chunks)
        counts["bytes"] += sum(len(chunk.text.encode()) for chunk in chunks)
        if tokenizer.unk is not None:
            counts["unknown"] += int(np.count_nonzero(ids == tokenizer.unk))
        add(ids)
    counts["documents"], counts["sentences"] = len(documents) - 1, len(offsets) - 1
    made = np.frombuffer(offsets, np.int64), np.frombuffer(documents, np.int64)
    return *made, {**counts, **texts.counts}


@dataclasses.dataclass(frozen=True)
class SentenceTexts:
    """Texts made of consecutive sentences of a store.

    A text is as many units of one document as fit; a unit is a sentence, or a part of one that is
    too long. Every unit is part of exactly one text.

    Attributes:
        store: The sentences.
        begins: Index of the first unit of each document, and the end.
        units: Document, number of tokens and place in the store of each unit.
        texts: Index of the first unit of each text, and the end.

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
        """Makes texts of at most ``room`` tokens, from sentences cut at ``limit`` tokens."""
        begins, units = _units(store, limit)
        return cls(store, begins, units, _texts(begins, units, room))

    def __len__(self) -> int:
        return len(self.texts) - 1

    @functools.cached_property
    def lengths(self) -> Int[np.ndarray, " texts"]:
        """Number of tokens of each text."""
        lengths: np.ndarray = np.add.reduceat(self.units[:, 1], self.texts[:-1])
        return lengths

    def span(self, start: int, stop: int) -> Integer[np.ndarray, " tokens"]:
        """The tokens of units ``start`` to ``stop``."""
        first, last = self.units[start], self.units[stop - 1]
        return self.store.ids[first[2] : last[2] + last[1]]

    def parts(self, text: int) -> list[Integer[np.ndarray, " tokens"]]:
        """Returns the units of a text, in order."""
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
    """Index of the first unit of each text, and the end: as many units of a document as fit."""
    ends = np.cumsum(units[:, 1]).tolist()
    found, start, before = [0], 0, 0
    for stop in begins[1:].tolist():
        while start < stop:
            start = min(stop, bisect.bisect_right(ends, before + room, start, stop))
            before = ends[start - 1]
            found.append(start)
    return np.array(found)

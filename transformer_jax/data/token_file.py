"""Documents encoded once as token ids in memory-mapped files, for texts larger than memory."""

import array
import dataclasses
import hashlib
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np

from transformer_jax.data.document_stream import DocumentStream, TextChunk
from transformer_jax.data.store import TokenStore, id_dtype, open_arrays, write_arrays
from transformer_jax.data.tokenizer import Tokenizer

__all__ = ["TextStore", "build_tokens", "groups", "sample_texts", "write_ids"]

_CHARACTERS = 1 << 20  # encoded at a time, which bounds the memory of Python lists
_CHUNKS = 8192  # the same limit if documents are short
_NAMES = ("ids", "offsets")

Made = TypeVar("Made")


@dataclasses.dataclass(frozen=True)
class TextStore(TokenStore):
    """Documents of ids: document ``i`` is ``ids[offsets[i]:offsets[i + 1]]``.

    Attributes:
        counts: ``documents``, ``characters``, ``bytes`` (in UTF-8) and ``unknown`` tokens of the
            text, and skipped documents by reason.
    """

    counts: dict[str, int]


def build_tokens(
    texts: DocumentStream,
    tokenizer: Tokenizer,
    *,
    cache: str | pathlib.Path | None = None,
    writes: bool = True,
    ends: bool,
) -> TextStore:
    """Encodes documents, in order.

    A document is encoded chunk by chunk (``DocumentStream``).

    Args:
        texts: The documents.
        tokenizer: The tokenizer.
        cache: A folder that keeps the arrays, memory-mapped, under a name made from the identity of
            the texts, the tokenizer and ``ends``; later calls open it without reading the texts,
            and damaged arrays are rebuilt. None keeps the ids in memory.
        writes: Whether missing arrays are added to the cache instead of being kept in memory.
        ends: Whether each document ends with EOS. If False, the documents are concatenated as one
            text.

    Raises:
        DataError: The texts cannot be read, or the cache cannot be written.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> chunks = [TextChunk("hi", True), TextChunk("you", True)]
        >>> texts = DocumentStream("example", "1", lambda: chunks)
        >>> store = build_tokens(texts, train_tokenizer("bytes", []), ends=True)
        >>> store.ids, store.offsets
        (array([108, 109,   3, 125, 115, 121,   3], dtype=uint16), array([0, 3, 7]))
    """
    if cache is None:
        blocks: list[np.ndarray] = []
        offsets, counts = _encode(texts, tokenizer, ends, blocks.append)
        return TextStore(np.concatenate(blocks), offsets, counts)
    key = "\0".join((texts.identity, tokenizer.sha256, str(ends)))
    folder = pathlib.Path(cache) / f"text-{hashlib.sha256(key.encode()).hexdigest()[:24]}"
    found = open_arrays(folder, _NAMES)
    if found is None and not writes:
        return build_tokens(texts, tokenizer, ends=ends)
    if found is None:
        found = write_arrays(folder, _NAMES, lambda draft: _write(draft, texts, tokenizer, ends))
    (ids, offsets), counts = found
    return TextStore(ids, offsets, counts)


def sample_texts(texts: DocumentStream, limit: int = 1 << 25) -> list[str]:
    """Samples at most ``limit`` characters, spread evenly over the texts, for training a tokenizer.

    Short texts are returned in full. Otherwise the result is every second, fourth, ... chunk: at
    least half of the limit if there are many chunks. Reading takes one pass and as much memory as
    the result.

    Example:
        >>> chunks = [TextChunk(f"{i}", True) for i in range(10)]
        >>> texts = DocumentStream("example", "1", lambda: chunks)
        >>> sample_texts(texts, 5)
        ['0', '2', '4', '6', '8']
    """
    kept: list[str] = []
    size, step = 0, 1
    for number, chunk in enumerate(texts):
        if number % step:
            continue
        kept.append(chunk.text[:limit])
        size += len(kept[-1])
        while size > limit:
            kept, step = kept[::2], 2 * step
            size = sum(map(len, kept))
    return kept


def write_ids(
    path: pathlib.Path, dtype: np.dtype, fill: Callable[[Callable[[np.ndarray], None]], Made]
) -> Made:
    """Writes a NumPy file of ids block by block; returns the result of ``fill``.

    Args:
        path: The file.
        dtype: Data type of the ids.
        fill: Called with a function that appends a block.
    """
    total = 0
    with open(path, "wb") as file:

        def header() -> None:
            # Written twice, with room for the length, which is unknown at first.
            form = {"descr": dtype.str, "fortran_order": False, "shape": (total,)}
            np.lib.format.write_array_header_1_0(file, form)

        def add(ids: np.ndarray) -> None:
            nonlocal total
            total += len(ids)
            file.write(ids.data)

        header()
        made = fill(add)
        file.seek(0)
        header()
    return made


def _write(
    draft: pathlib.Path, texts: DocumentStream, tokenizer: Tokenizer, ends: bool
) -> dict[str, int]:
    offsets, counts = write_ids(
        draft / "ids.npy", id_dtype(tokenizer), lambda add: _encode(texts, tokenizer, ends, add)
    )
    np.save(draft / "offsets.npy", offsets)
    return counts


def _encode(
    texts: DocumentStream, tokenizer: Tokenizer, ends: bool, add: Callable[[np.ndarray], object]
) -> tuple[np.ndarray, dict[str, int]]:
    """Passes blocks of ids to ``add``; returns the offsets of the documents, and counts."""
    offsets = array.array("q", [0])
    characters = bytes_ = unknown = total = 0
    dtype = id_dtype(tokenizer)
    for chunks in groups(texts):
        rows = tokenizer.encode_batch([chunk.text for chunk in chunks])
        for row, chunk in zip(rows, chunks, strict=True):
            if chunk.last and ends:
                row.append(tokenizer.eos)
            total += len(row)
            if chunk.last:
                offsets.append(total)
        ids = np.fromiter(itertools.chain.from_iterable(rows), dtype, sum(map(len, rows)))
        characters += sum(len(chunk.text) for chunk in chunks)
        bytes_ += sum(len(chunk.text.encode()) for chunk in chunks)
        if tokenizer.unk is not None:
            unknown += int(np.count_nonzero(ids == tokenizer.unk))
        add(ids)
    counts = {
        "documents": len(offsets) - 1,
        "characters": characters,
        "bytes": bytes_,
        "unknown": unknown,
    }
    return np.frombuffer(offsets, np.int64), {**counts, **texts.counts}


def groups(chunks: Iterable[TextChunk]) -> Iterator[list[TextChunk]]:
    """Groups chunks into lists with a bounded number of characters."""
    group: list[TextChunk] = []
    size = 0
    for chunk in chunks:
        group.append(chunk)
        size += len(chunk.text)
        if size >= _CHARACTERS or len(group) >= _CHUNKS:
            yield group
            group, size = [], 0
    if group:
        yield group

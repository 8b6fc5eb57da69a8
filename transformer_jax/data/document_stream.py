"""Documents as a stream of chunks in bounded memory, and their validation split."""

import array
import codecs
import dataclasses
import functools
import hashlib
import pathlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from transformer_jax.core.errors import DataError
from transformer_jax.data.preparation import Preparation
from transformer_jax.data.text import open_bytes, read_lines

__all__ = ["DocumentStream", "TextChunk", "ValidationSplit", "read_blocks"]

_LIMIT = 1 << 16  # characters of the longest chunk; many at a time occupy all cores
_BLOCK = 1 << 20  # bytes read at a time


class TextChunk(NamedTuple):
    """A part of a document; ``last`` marks its end."""

    text: str
    last: bool


@dataclasses.dataclass(frozen=True)
class DocumentStream:
    r"""Documents that are read again in each iteration, chunk by chunk.

    The chunks of a document depend only on its text. They are cut after a line end if there is one,
    so that a tokenizer that works word by word finds the same tokens as in the complete text. Blank
    documents are skipped.

    Attributes:
        name: Name of the source, for messages.
        identity: Checksum of the content, for names of caches.
        read: The documents, in chunks of any size.
        prepare: Preparation of every chunk.
        counts: Numbers of skipped documents by reason, once everything has been read.

    Example:
        >>> chunks = [TextChunk("One\n", False), TextChunk("two", True)]
        >>> texts = DocumentStream("example", "1", lambda: chunks)
        >>> list(texts)
        [TextChunk(text='One\ntwo', last=True)]
    """

    name: str
    identity: str
    read: Callable[[], Iterable[TextChunk]]
    prepare: Preparation = Preparation("none")
    counts: dict[str, int] = dataclasses.field(default_factory=dict)

    def __iter__(self) -> Iterator[TextChunk]:
        """Yields the chunks of all documents.

        Raises:
            DataError: The text cannot be read, or there is none.
        """
        buffer, begun, documents, empty = "", False, 0, 0
        for text, last in self.read():
            buffer += text
            start = 0
            while len(buffer) - start > _LIMIT:
                end = _cut(buffer, start)
                yield self._piece(buffer[start:end], False)
                start, begun = end, True
            buffer = buffer[start:]
            if not last:
                continue
            if begun or (buffer and not buffer.isspace()):
                documents += 1
                yield self._piece(buffer, True)
            else:
                empty += 1
            buffer, begun = "", False
        self.counts.update({"empty": empty} if empty else {})
        if not documents:
            raise DataError(f"{self.name}: no text: {_nothing(empty)}")

    def _piece(self, text: str, last: bool) -> TextChunk:
        return TextChunk(self.prepare.text(text), last)


class ValidationSplit:
    """Splits documents into two streams, with about a ``share`` for validation.

    Of several documents, those with the smallest hashes of their first chunk are held out: at least
    one, never all, and all documents that begin alike together. Of a single document, the end is
    held out: of n characters, everything from ``int(n * (1 - share))`` on, as in nanoGPT.

    Both parts first read the complete text once, for the hashes or the length.
    """

    train: DocumentStream
    valid: DocumentStream

    def __init__(self, whole: DocumentStream, share: float):
        """Splits ``whole``, which is read only when a part is read."""
        self._whole, self._share = whole, share
        identity = f"{whole.identity} holdout={share}"
        self.train = DocumentStream(
            whole.name, f"{identity} train", lambda: self._part(False), counts=whole.counts
        )
        self.valid = DocumentStream(
            f"{whole.name} (held out)", f"{identity} valid", lambda: self._part(True)
        )

    @functools.cached_property
    def _bounds(self) -> tuple[int | None, int]:
        """The largest hash that is held out (or None), and the character to cut at."""
        keys, characters, first = array.array("Q"), 0, True
        for text, last in self._whole:
            if first:
                keys.append(_key(text))
            characters += len(text)
            first = last
        if len(keys) == 1:
            return None, int(characters * (1 - self._share))
        ordered = sorted(keys)
        bound = ordered[min(max(1, round(self._share * len(keys))), len(keys) - 1) - 1]
        if bound == ordered[-1]:
            lower = [key for key in ordered if key < bound]
            if not lower:
                raise DataError(
                    f"{self._whole.name}: all {len(keys)} documents begin alike, so none can be "
                    f"held out: give data.valid, or set data.read.validation_size to 0"
                )
            bound = lower[-1]
        return bound, 0

    def _part(self, held: bool) -> Iterator[TextChunk]:
        bound, cut = self._bounds
        position, first, wanted = 0, True, True
        for text, last in self._whole:
            if bound is None:
                at = min(max(cut - position, 0), len(text))
                position += len(text)
                yield TextChunk(text[at:] if held else text[:at], last)
                continue
            if first:
                wanted = (_key(text) <= bound) == held
            if wanted:
                yield TextChunk(text, last)
            first = last


def read_blocks(path: str | pathlib.Path, flag: str = "") -> Iterator[str]:
    r"""The text of a file in blocks of about 1 MiB, without byte order mark, CRLF as ``\n``.

    Args:
        path: The file; decompressed on the fly if its name ends in ``.gz``.
        flag: The setting of the file, for messages.

    Raises:
        DataError: As for ``read_lines``.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    held = ""  # a carriage return that may be the first half of CRLF
    with open_bytes(path, flag) as file:
        try:
            while raw := file.read(_BLOCK):
                if b"\0" in raw:
                    break
                text = held + decoder.decode(raw)
                held = "\r" if text.endswith("\r") else ""
                yield text.removesuffix("\r").replace("\r\n", "\n")
            else:
                yield held + decoder.decode(b"", final=True)
                return
        except (UnicodeError, EOFError, OSError, zlib.error):
            pass
    # An error: reading line by line finds its position.
    for _ in read_lines(path, flag):
        pass
    raise DataError(f"{path}: changed while it was read")


def _cut(text: str, start: int) -> int:
    """Returns where to cut text from ``start`` on, within the longest chunk.

    Prefers a line end that ends the white space, then one between visible characters: the
    words of GPT-2 (Radford et al. 2019) are the same on both sides.
    """
    least, found = start + _LIMIT // 2, 0
    at = start + _LIMIT - 1
    for _ in range(1000):
        at = text.rfind("\n", least, at)
        if at < 0:
            break
        found = found or at + 1
        after = text[at + 1]
        if after == "\n" and at + 2 < len(text) and not text[at + 2].isspace():
            return at + 1
        if not after.isspace() and not text[at - 1].isspace():
            return at + 1
    if found:
        return found
    at = text.rfind(" ", least, start + _LIMIT)  # a blank belongs to the word after it
    return at if at > 0 else start + _LIMIT


def _key(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _nothing(empty: int) -> str:
    return f"all {empty} of its documents are empty" if empty > 1 else "it is empty"

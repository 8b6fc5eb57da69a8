r"""Files of word vectors in the two formats of word2vec, which gensim supports too.

Both begin with a line ``WORDS SIZE``. In the text format, each line has a word and its values,
separated by blanks. In the binary format, each word is followed by a blank and its values as
little-endian float32; ``word2vec.c`` then writes a line end, gensim does not.
"""

import codecs
import contextlib
import logging
import os
import stat
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.core.output_files import Destination
from transformer_jax.data.text import local_data, open_bytes
from transformer_jax.word_vectors.embeddings import WordEmbeddings
from transformer_jax.word_vectors.rows import (
    LONGEST_WORD,
    Broken,
    BufferedBytes,
    is_text,
    read_binary,
    read_text,
)

__all__ = ["VECTORS", "load_embeddings", "save_embeddings", "size_of_vectors"]

VECTORS = "vectors.bin"  # in the folder of a training
_LONGEST_HEADER = 64  # bytes
_LARGEST_SIZE = 1 << 20  # values per vector
_MOST_PACKED = 1032  # largest number of bytes that one byte of DEFLATE can represent
_FIRST_ROWS = 1 << 10  # vectors to allocate memory for if the length of a file is unknown
_SPACES = " \t\n\r\v\f"

log = logging.getLogger(__name__)


def save_embeddings(embeddings: WordEmbeddings, path: str | Path, *, binary: bool) -> None:
    """Writes word vectors in a format of word2vec, atomically.

    The text format uses the shortest numbers that read back as the same float32.

    Args:
        embeddings: The word vectors.
        path: The file; its folder is created if necessary.
        binary: Whether to use the binary format.

    Raises:
        ConfigError: The file cannot be written.
        DataError: A word is empty or contains whitespace, which the formats do not allow.
    """
    for word in embeddings.words:
        if not word or any(space in word for space in _SPACES):
            raise DataError(f"{path}: the format cannot hold the word {word!r}: it has whitespace")
    to = Destination(Path(path))
    try:
        with to.open() as file:
            file.write(f"{len(embeddings)} {embeddings.size}\n".encode())
            for word, vector in zip(embeddings.words, embeddings.vectors, strict=True):
                if binary:
                    file.write(word.encode() + b" " + vector.astype("<f4").tobytes() + b"\n")
                else:
                    numbers = " ".join(map(str, vector))
                    file.write(f"{word} {numbers}\n".encode())
        to.publish()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from None


def load_embeddings(
    path: str | Path, limit: int | None = None, only: Collection[str] | None = None
) -> WordEmbeddings:
    """Reads word vectors from a word2vec file, text or binary; ``.gz`` is unpacked.

    The format is detected from the content. A word whose bytes, fields or values are broken is left
    out, with a warning that counts such words; if more than half are broken, the file is refused.
    If a word is repeated, the first vector counts, with a warning, as in gensim.

    Args:
        path: The file, or the folder of a training of word vectors.
        limit: Number of words to read from the beginning, the most frequent ones; None is all.
        only: The words to keep, if the file has them; None is all. Other words take no memory.

    Raises:
        DataError: The file cannot be read, is in neither format, is truncated, or has more broken
            words than sound ones; the message names the word or line.
    """
    path = _file_of(path)
    with _opened(path) as data, np.errstate(over="ignore"):
        header = _header(path, data)
        rows = header.words if limit is None else min(header.words, limit)
        broken = Broken(path)
        read = read_text if is_text(data.peek(_sample(header.size)), header.size) else read_binary
        kept = _Kept(header, min(rows, rows if only is None else len(only)), data.length)
        for word, vector in read(data, header.size, rows, header.words, only, broken):
            kept.add(word, vector)
        if rows == header.words and data.peek(64).strip():
            log.warning(
                "%s: there is more than the %s of its first line: the rest is ignored",
                path,
                plural(header.words, "word"),
            )
    broken.tell(rows)
    if kept.again:
        log.warning(
            "%s: %s: the first vector of each is used",
            path,
            plural(kept.again, "word comes", "words come") + " again",
        )
    return WordEmbeddings(tuple(kept.words), kept.vectors[: len(kept.words)])


def size_of_vectors(path: str | Path) -> int:
    """Returns the size of the vectors of a file, reading only its first line.

    Args:
        path: The file, or the folder of a training of word vectors.

    Raises:
        DataError: The file cannot be read, or its first line is not that of a file of vectors.
    """
    path = _file_of(path)
    with _opened(path) as data:
        return _header(path, data).size


class _Header(NamedTuple):
    """The first line."""

    words: int
    size: int


class _Data(BufferedBytes):
    """The bytes of a file, and its size on disk; None for a pipe or similar."""

    length: int | None = None
    packed = False


class _Kept:
    """The vectors read so far, with each word once."""

    def __init__(self, header: _Header, most: int, length: int | None):
        self.words: dict[str, int] = {}
        self.again = 0
        known = most if length is not None else min(most, _FIRST_ROWS)
        self.vectors = np.empty((known, header.size), np.float32)

    def add(self, word: str, vector: np.ndarray) -> None:
        """Keeps the first vector of a word."""
        if word in self.words:
            self.again += 1
            return
        at = self.words[word] = len(self.words)
        if at == len(self.vectors):
            self.vectors = np.concatenate([self.vectors, np.empty_like(self.vectors)])
        self.vectors[at] = vector


def _file_of(path: str | Path) -> Path:
    path = Path(path)
    return path / VECTORS if os.path.isdir(path) else path


def _sample(size: int) -> int:
    """Number of bytes from which to detect the format: a few lines, and at least one."""
    return max(1 << 16, LONGEST_WORD + 64 * size)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_Data]:
    with open_bytes(path) as file:
        data = _Data(file)
        status = os.fstat(file.fileno())
        data.packed = path.suffix == ".gz"
        if stat.S_ISREG(status.st_mode) and not data.packed:
            data.length = status.st_size
        try:
            yield data
        except (EOFError, OSError, zlib.error) as error:
            damage = "the .gz is cut or damaged" if data.packed else "cannot be read"
            raise DataError(f"{path}: {damage}: {error}") from None


def _header(path: Path, data: _Data) -> _Header:
    """Reads the first line: the number of words and the size of a vector."""
    if not data.peek(1):
        raise DataError(f"{path}: not a file of word vectors: it is empty")
    if data.peek(3) == codecs.BOM_UTF8:
        data.take(3)
    fields = (data.until(b"\n", _LONGEST_HEADER) or b"").split()
    if len(fields) != 2 or not all(field.isdigit() for field in fields) or 0 in map(int, fields):
        raise DataError(
            f"{path}:1: not a file of word vectors: the first line is the number of words and the "
            f'size of a vector, such as "71291 200"'
        )
    count, size = map(int, fields)
    if size > _LARGEST_SIZE:
        raise DataError(
            f"{path}:1: vectors of size {size:,}: at most {_LARGEST_SIZE:,} is supported"
        )
    most = data.length
    if data.packed:
        most = _MOST_PACKED * os.path.getsize(local_data(path))
    if most is not None and count * (size * 2 + 1) > most:  # a number has a digit and a blank
        raise DataError(
            f"{path}:1: {count:,} vectors of size {size:,} do not fit in {most:,} bytes: "
            f"the file is cut, or is not a file of word vectors"
        )
    return _Header(count, size)

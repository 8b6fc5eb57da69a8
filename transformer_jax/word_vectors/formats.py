"""Files of word vectors in the two formats of word2vec, which gensim supports too, and of GloVe.

Those of word2vec begin with a line ``WORDS SIZE``. In the text format, which fastText calls
``.vec``, each line has a word and its values, separated by blanks. In the binary format, each word
is followed by a blank and its values as little-endian float32; ``word2vec.c`` then writes a line
end, gensim does not. GloVe's files are the text format without the first line; some of their words
have blanks inside (Pennington et al. 2014).
"""

import codecs
import contextlib
import io
import logging
import os
import stat
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from transformer_jax.core import task_progress
from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.core.output_files import Destination
from transformer_jax.data.text import local_data, open_bytes
from transformer_jax.word_vectors.embeddings import WordEmbeddings

__all__ = [
    "LONGEST_WORD",
    "VECTORS",
    "Broken",
    "BufferedBytes",
    "is_text",
    "load_embeddings",
    "read_binary",
    "read_text",
    "save_embeddings",
    "size_of_vectors",
]

_BLOCK = 1 << 20  # bytes


class BufferedBytes:
    """A file of which only slightly more than a block is in memory at any time.

    Example:
        >>> import io
        >>> data = BufferedBytes(io.BytesIO(b"one two"))
        >>> data.until(b" ", 10), data.until(b" ", 10), data.take(2), data.take(5)
        (b'one ', None, b'tw', b'o')
    """

    def __init__(self, file: io.BufferedIOBase):
        self._file = file
        self._held, self._at, self._ended = b"", 0, False

    def peek(self, count: int) -> bytes:
        """Returns the next bytes without consuming them; fewer at the end of the file."""
        while len(self._held) - self._at < count and not self._ended:
            block = self._file.read(max(_BLOCK, count))
            self._ended = not block
            self._held, self._at = self._held[self._at :] + block, 0
        return self._held[self._at : self._at + count]

    def take(self, count: int) -> bytes:
        """Returns the next bytes; fewer at the end of the file."""
        taken = self.peek(count)
        self._at += len(taken)
        return taken

    def until(self, mark: bytes, most: int) -> bytes | None:
        """Takes the bytes up to and including a mark; None, and nothing, if it is not near.

        Args:
            mark: A single byte.
            most: Number of bytes to search for the mark.
        """
        end = self._held.find(mark, self._at, self._at + most)
        if end < 0:
            self.peek(most)
            end = self._held.find(mark, self._at, self._at + most)
        return None if end < 0 else self.take(end + 1 - self._at)


LONGEST_WORD = 4096  # bytes
_SAMPLE = 16  # lines from which the format is detected
_SHIFTED = 10  # broken words in a row after which a binary file is read at wrong offsets
_WHITESPACE = b" \t\n\r\v\f"


class Broken:
    """Counts broken words and keeps the first, for a warning.

    Args:
        path: The file.
    """

    def __init__(self, path: Path):
        self.path = path
        self.count = self.rows = 0  # broken words, and all
        self._first = ""

    def add(self, where: str, reason: str) -> None:
        """Counts a broken word, given its line or number."""
        self._first = self._first or f"{self.path}{where}: {reason}"
        self.count += 1

    def tell(self) -> None:
        """Logs the warning, after the file has been read.

        Raises:
            DataError: More than half of the words are broken.
        """
        if 2 * self.count > self.rows:
            raise DataError(
                f"{self._first}: {self.count:,} of {plural(self.rows, 'word')} are broken: the "
                f"file is damaged, or in another format"
            )
        if self.count:
            log.warning(
                "%s: %s of %s left out as broken, first %s",
                self.path,
                f"{self.count:,}",
                plural(self.rows, "word"),
                self._first,
            )


def is_text(sample: bytes, size: int) -> bool:
    r"""Returns whether rows are lines of text, given the bytes after the header.

    One sound line among the first is enough. If none is sound, the bytes count as text if they are
    printable and half of the fields are numbers.

    Example:
        >>> is_text(b"new york 1 2\nthe 1 2\n", 2), is_text(b"the \0\0\x80?\0\0\0@", 2)
        (True, False)
    """
    lines = [line.split() for line in sample.split(b"\n", _SAMPLE)[:_SAMPLE]]
    if any(len(line) == size + 1 and all(map(_is_number, line[1:])) for line in lines):
        return True
    if any(byte < 32 and byte not in _WHITESPACE for byte in sample):
        return False
    fields = [field for line in lines for field in line]
    return 2 * sum(map(_is_number, fields)) >= max(1, len(fields))


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def read_text(
    data: BufferedBytes,
    size: int,
    rows: int | None,
    count: int | None,
    only: Collection[str] | None,
    broken: Broken,
) -> Iterator[tuple[str, Float32[np.ndarray, " D"]]]:
    """Yields the requested words of a text file, with their vectors.

    Args:
        data: The bytes after the header.
        size: Size of a vector.
        rows: Number of words to read; None is all.
        count: Number of words according to the header; None without one, as in GloVe's files, where
            a word may have blanks inside unless a number follows one.
        only: The requested words; None is all.
        broken: Collects the words that are left out.

    Raises:
        DataError: The file is truncated.
    """
    number, longest = int(count is not None), LONGEST_WORD + 64 * size
    while rows is None or broken.rows < rows:
        number += 1
        where = f":{number}"
        line = data.until(b"\n", longest)
        ended = line is None
        if line is None:
            line = data.take(longest)
            if len(line) == longest and data.peek(1):
                raise DataError(f"{broken.path}{where}: longer than a word and {size:,} values")
            if not line and count is None:
                return
            if not line:
                raise DataError(
                    f"{broken.path}{where}: {plural(broken.rows, 'word')}, and the first line has "
                    f"{count:,}: the file is cut"
                )
        fields = line.split()
        if not fields and not ended:
            continue  # an empty line is not a word
        broken.rows += 1
        blanks = count is None and len(fields) > size + 1
        if blanks and not any(map(_is_number, fields[1:-size])):
            fields = [b" ".join(fields[:-size]), *fields[-size:]]
        if len(fields) != size + 1:
            reason = (
                f"{plural(len(fields), 'field')}, but a word with {size:,} values has {size + 1:,}"
            )
            if ended and len(fields) <= size:
                raise DataError(f"{broken.path}{where}: {reason}: the file is cut or damaged")
            broken.add(where, reason)
            continue
        word = _word(fields[0], where, broken, blanks=count is None)
        if word is None or (only is not None and word not in only):
            continue
        try:
            if b"_" in line[len(fields[0]) :]:  # Python reads 1_0 as 10
                raise ValueError
            vector = np.array([float(field) for field in fields[1:]], np.float32)
        except ValueError:
            broken.add(where, "the vector has a value that is not a number")
            continue
        if _finite(word, vector, where, broken):
            yield word, vector


def read_binary(
    data: BufferedBytes,
    size: int,
    rows: int,
    count: int,
    only: Collection[str] | None,
    broken: Broken,
) -> Iterator[tuple[str, Float32[np.ndarray, " D"]]]:
    """Yields the requested words of a binary file; arguments as for :func:`read_text`.

    Raises:
        DataError: The file is truncated, or ten words in a row are broken, because an earlier
            vector or word has the wrong length.
    """
    shifted, broken.rows = 0, rows
    held: tuple[str, np.ndarray] | None = None  # until the next word shows where its vector ends
    for row in range(1, rows + 1):
        where = f": word {row:,} of {count:,}"
        raw = data.until(b" ", LONGEST_WORD)
        values = b"" if raw is None else data.take(4 * size)
        if raw is None or len(values) < 4 * size:
            raise DataError(
                f"{broken.path}{where}: the file is cut or damaged, or in another format"
            )
        before = broken.count
        # word2vec.c ends vectors with a line end, gensim does not.
        word = _word(raw[:-1].lstrip(b"\n"), where, broken)
        if held is not None:
            if word is None and b"\0" in raw:  # values, if the previous word contains a blank
                broken.add(where, f"the vector of {held[0]!r} ends in it")
            else:
                yield held
        held = None
        if word is not None and (only is None or word in only):
            vector = np.frombuffer(values, "<f4")
            if _finite(word, vector, where, broken):
                held = word, vector
        shifted = shifted + 1 if broken.count > before else 0
        if shifted == _SHIFTED:
            raise DataError(
                f"{broken.path}: words {row - _SHIFTED + 1:,} to {row:,} of {count:,} are broken: "
                f"from there on the file is damaged"
            )
    if held is not None:
        yield held


def _word(raw: bytes, where: str, broken: Broken, *, blanks: bool = False) -> str | None:
    """Returns a word, which may have ``blanks`` inside; None if it is broken."""
    try:
        word = raw.decode("utf-8")
    except UnicodeDecodeError:
        broken.add(where, f"the word is not UTF-8: {raw[:40]!r}")
        return None
    if not word:
        broken.add(where, "the word is empty")
    elif any(byte in raw for byte in b"\0" + _WHITESPACE[blanks:]):
        broken.add(where, f"the word {word[:40]!r} has whitespace or NUL")
    else:
        return word
    return None


def _finite(word: str, vector: np.ndarray, where: str, broken: Broken) -> bool:
    finite = bool(np.isfinite(vector).all())
    if not finite:
        broken.add(where, f"the vector of {word!r} has NaN or infinity")
    return finite


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
    """Reads word vectors from a file of word2vec, fastText or GloVe; ``.gz`` is unpacked.

    The format is detected from the content: a first line with two numbers is a header; without one,
    lines of a word and its values are GloVe's, and a line says so. A word whose bytes, fields or
    values are broken is left out, with a warning that counts such words; if more than half are
    broken, the file is refused. If a word is repeated, the first vector counts, with a warning, as
    in gensim.

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
        count, size = header.words, header.size
        rows = count if limit is None else limit if count is None else min(count, limit)
        broken = Broken(path)
        known = [rows, header.most] + ([len(only)] if only is not None else [])
        kept = _Kept(size, min(number for number in known if number is not None))
        if count is None:
            task_progress.log(
                f"{path}: has no header, as GloVe's files: words with {plural(size, 'value')}"
            )
        if count is None or is_text(data.peek(_sample(size)), size):
            words = read_text(data, size, rows, count, only, broken)
        else:
            words = read_binary(data, size, rows or count, count, only, broken)
        for word, vector in words:
            kept.add(word, vector)
        if count is not None and rows == count and data.peek(64).strip():
            log.warning(
                "%s: there is more than the %s of its first line: the rest is ignored",
                path,
                plural(count, "word"),
            )
    broken.tell()
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
    """The first line, or what stands for it in a file without one.

    Attributes:
        words: The number of words; None if the file does not say it.
        size: The size of a vector.
        most: The number of vectors to allocate memory for.
    """

    words: int | None
    size: int
    most: int


class _Data(BufferedBytes):
    """The bytes of a file, and its size on disk; None for a pipe or similar."""

    length: int | None = None
    packed = False


class _Kept:
    """The vectors read so far, with each word once."""

    def __init__(self, size: int, most: int):
        self.words: dict[str, int] = {}
        self.again = 0
        self.vectors = np.empty((max(1, most), size), np.float32)

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
    """Reads the first line: the number of words and the size of a vector.

    Raises:
        DataError: There is none, and the first lines are no words with values either.
    """
    if not data.peek(1):
        raise DataError(f"{path}: not a file of word vectors: it is empty")
    if data.peek(3) == codecs.BOM_UTF8:
        data.take(3)
    line, end, _ = data.peek(_LONGEST_HEADER).partition(b"\n")
    fields = line.split()
    if not end or len(fields) != 2 or not all(field.isdigit() for field in fields):
        return _without_header(path, data)
    count, size = map(int, fields)
    if not count or not size:
        raise _no_vectors(path)
    data.take(len(line + end))
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
    return _Header(count, size, count if data.length is not None else min(count, _FIRST_ROWS))


def _without_header(path: Path, data: _Data) -> _Header:
    """Returns the size of most vectors among the first lines."""
    sample = data.peek(_BLOCK)
    if len(sample) == _BLOCK:
        sample = sample[: sample.rfind(b"\n") + 1]
    lines = [line for line in sample.split(b"\n", _SAMPLE)[:_SAMPLE] if line.strip()]
    rows = [line.split() for line in lines]
    fields = [len(row) for row in rows]
    size = max([0, *fields], key=fields.count) - 1
    sound = sum(len(row) > size and all(map(_is_number, row[-size:])) for row in rows)
    if not 2 <= size <= _LARGEST_SIZE or 2 * sound < len(rows):
        raise _no_vectors(path)
    shortest = max(2 * size + 2, min(map(len, lines)))  # a value has a digit and a blank
    most = _FIRST_ROWS if data.length is None else data.length // shortest + 1
    return _Header(None, size, most)


def _no_vectors(path: Path) -> DataError:
    return DataError(
        f"{path}:1: not a file of word vectors: the first line is the number of words and the size "
        f'of a vector, such as "71291 200", or all lines are words with two or more values'
    )

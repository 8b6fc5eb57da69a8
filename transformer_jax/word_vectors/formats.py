r"""Files of word vectors in the two formats of word2vec, which gensim reads and writes too.

Both begin with a line ``WORDS SIZE``. In the text format, each word is a line of the word and its
numbers with blanks between. In the binary format, each word is followed by one blank and the
numbers as little-endian float32; ``word2vec.c`` writes a line end after each, gensim does not.
"""

import logging
import mmap
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
from jaxtyping import Float32

from transformer_jax.data.text import local_data, open_bytes
from transformer_jax.errors import ConfigError, DataError, plural
from transformer_jax.output_files import Destination
from transformer_jax.word_vectors.embeddings import WordEmbeddings

__all__ = ["VECTORS", "load_embeddings", "save_embeddings", "size_of_vectors"]

VECTORS = "vectors.bin"  # in the folder of a training
_LONGEST_HEADER = 64  # bytes
_LONGEST_WORD = 4096  # bytes
_SPACES = " \t\n\r\v\f"

_Bytes: TypeAlias = "bytes | mmap.mmap"
_Wanted: TypeAlias = Callable[[str], bool]

log = logging.getLogger(__name__)


def save_embeddings(embeddings: WordEmbeddings, path: str | Path, *, binary: bool) -> None:
    """Writes word vectors as word2vec does; the file is whole or not there.

    The text format has the shortest numbers that are read back as the same float32.

    Args:
        embeddings: What is written.
        path: The file; its folder is made if need be.
        binary: Which format.

    Raises:
        ConfigError: The file cannot be written.
        DataError: A word is empty or has whitespace, which the formats cannot hold.
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
    """Word vectors from a file in the text or binary format of word2vec; ``.gz`` is unpacked.

    The format is told from the content. Of a word that comes twice the first vector counts, with
    a warning, as in gensim.

    Args:
        path: The file, or the folder of a training of word vectors.
        limit: The first words alone, the most frequent ones; None is all.
        only: The words to keep, each once, where the file has them; None is all. Others take no
            memory.

    Raises:
        DataError: The file cannot be read, is in neither format, is cut, or has numbers that are
            not finite; the message names the word or line.
    """
    path = _file_of(path)
    data = _bytes_of(path)
    count, size, start = _header(path, data)
    rows = count if limit is None else min(count, limit)
    read = _read_text if _is_text(data, start, size) else _read_binary
    wanted = (lambda word: True) if only is None else (lambda word: word in only)
    first: dict[str, int] = {}
    vectors = np.empty((rows if only is None else min(rows, len(only)), size), np.float32)
    again = 0
    for word, vector in read(path, data, start, (rows, size), wanted):
        if word in first:
            again += 1
            continue
        if not np.isfinite(vector).all():
            raise DataError(f"{path}: the vector of {word!r} has NaN or infinity")
        vectors[len(first)] = vector
        first[word] = len(first)
    if again:
        log.warning(
            "%s: %s: the first vector of each is used",
            path,
            plural(again, "word comes", "words come") + " again",
        )
    return WordEmbeddings(tuple(first), vectors[: len(first)])


def size_of_vectors(path: str | Path) -> int:
    """The numbers in a vector of a file, from its first line alone.

    Args:
        path: The file, or the folder of a training of word vectors.

    Raises:
        DataError: The file cannot be read, or its first line is not that of word vectors.
    """
    path = _file_of(path)
    return _header(path, _bytes_of(path))[1]


def _file_of(path: str | Path) -> Path:
    path = Path(path)
    return path / VECTORS if os.path.isdir(path) else path


def _header(path: Path, data: _Bytes) -> tuple[int, int, int]:
    """How many words there are, the size of a vector, and where the first word begins."""
    header, _, _ = bytes(data[:_LONGEST_HEADER]).partition(b"\n")
    fields = header.split()
    if len(fields) != 2 or not all(field.isdigit() for field in fields) or 0 in map(int, fields):
        raise DataError(
            f"{path}:1: no file of word vectors: the first line is the number of words and the "
            f'size of a vector, such as "71291 200"'
        )
    count, size = map(int, fields)
    if count * (size * 2 + 1) > len(data):  # each number has at least a digit and a blank
        raise DataError(
            f"{path}:1: {count:,} vectors of {size:,} numbers do not fit in {len(data):,} bytes: "
            f"the file is cut, or is no file of word vectors"
        )
    return count, size, len(header) + 1


def _bytes_of(path: Path) -> _Bytes:
    with open_bytes(path) as file:
        if path.suffix == ".gz":
            try:
                return file.read()
            except (OSError, EOFError) as error:
                raise DataError(f"{path}: the .gz is cut or damaged: {error}") from None
        if not local_data(path).is_file():
            return file.read()
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise DataError(f"{path}: no file of word vectors: it is empty") from None


def _is_text(data: _Bytes, start: int, size: int) -> bool:
    """Whether what follows the first line is a word and so many numbers."""
    end = data.find(b"\n", start, start + _LONGEST_WORD + 64 * size)
    fields = bytes(data[start : len(data) if end < 0 else end]).split()
    try:
        return len(fields) == size + 1 and all(float(field) == float(field) for field in fields[1:])
    except ValueError:
        return False


def _read_text(
    path: Path, data: _Bytes, start: int, shape: tuple[int, int], wanted: _Wanted
) -> Iterator[tuple[str, Float32[np.ndarray, " D"]]]:
    """The wanted words of a text file and their vectors."""
    count, size = shape
    for row in range(count):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        line = bytes(data[start:end]).split()
        where = f"{path}:{row + 2}"
        if len(line) != size + 1:
            raise DataError(
                f"{where}: {plural(len(line), 'field')}, and a word with {size:,} numbers has "
                f"{size + 1:,}: the file is cut or damaged"
            )
        word = _word(line[0], where)
        if wanted(word):
            try:
                yield word, np.array([float(field) for field in line[1:]], np.float32)
            except ValueError:
                raise DataError(f"{where}: not a number among those of the vector") from None
        start = end + 1


def _read_binary(
    path: Path, data: _Bytes, start: int, shape: tuple[int, int], wanted: _Wanted
) -> Iterator[tuple[str, Float32[np.ndarray, " D"]]]:
    """The wanted words of a binary file and their vectors."""
    count, size = shape
    for row in range(count):
        where = f"{path}: word {row + 1:,} of {count:,}"
        if data[start : start + 1] == b"\n":  # word2vec.c ends vectors with it, gensim does not
            start += 1
        blank = data.find(b" ", start, start + _LONGEST_WORD)
        end = blank + 1 + 4 * size
        if blank < 0 or end > len(data):
            raise DataError(f"{where}: the file is cut or damaged, or in another format")
        word = _word(bytes(data[start:blank]), where)
        if wanted(word):
            yield word, np.frombuffer(data[blank + 1 : end], "<f4")
        start = end


def _word(raw: bytes, where: str) -> str:
    try:
        word = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{where}: the word is not UTF-8: {raw[:40]!r}") from None
    if not word:
        raise DataError(f"{where}: the word is empty: the file is damaged")
    return word

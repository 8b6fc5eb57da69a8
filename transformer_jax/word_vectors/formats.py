r"""Files of word vectors in the two formats of word2vec, which gensim reads and writes too.

Both begin with a line ``WORDS SIZE``. In the text format, each word is a line of the word and its
numbers with blanks between. In the binary format, each word is followed by one blank and the
numbers as little-endian float32; ``word2vec.c`` writes a line end after each, gensim does not.
"""

import logging
import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from transformer_jax.data.text import local_data, open_bytes
from transformer_jax.errors import ConfigError, DataError, plural
from transformer_jax.output_files import Destination
from transformer_jax.word_vectors.embeddings import WordEmbeddings

__all__ = ["VECTORS", "load_embeddings", "save_embeddings"]

VECTORS = "vectors.bin"  # in the folder of a training
_LONGEST_HEADER = 64  # bytes
_LONGEST_WORD = 4096  # bytes
_SPACES = " \t\n\r\v\f"

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


def load_embeddings(path: str | Path, limit: int | None = None) -> WordEmbeddings:
    """Word vectors from a file in the text or binary format of word2vec; ``.gz`` is unpacked.

    The format is told from the content. Of a word that comes twice the first vector counts, with
    a warning, as in gensim.

    Args:
        path: The file, or the folder of a training of word vectors.
        limit: The first words alone, the most frequent ones; None is all.

    Raises:
        DataError: The file cannot be read, is in neither format, is cut, or has numbers that are
            not finite; the message names the word or line.
    """
    path = Path(path)
    if path.is_dir():
        path = path / VECTORS
    data = _bytes_of(path)
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
    wanted = count if limit is None else min(count, limit)
    start = len(header) + 1
    read = _read_text if _is_text(data, start, size) else _read_binary
    vectors = np.empty((wanted, size), np.float32)
    words = list(read(path, data, start, vectors))
    if not np.isfinite(vectors).all():
        row = int(np.argmin(np.isfinite(vectors).all(1)))
        raise DataError(f"{path}: the vector of {words[row]!r} has NaN or infinity")
    return _distinct(path, words, vectors)


def _bytes_of(path: Path) -> "bytes | mmap.mmap":
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


def _is_text(data: "bytes | mmap.mmap", start: int, size: int) -> bool:
    """Whether what follows the first line is a word and so many numbers."""
    end = data.find(b"\n", start, start + _LONGEST_WORD + 64 * size)
    fields = bytes(data[start : len(data) if end < 0 else end]).split()
    try:
        return len(fields) == size + 1 and all(float(field) == float(field) for field in fields[1:])
    except ValueError:
        return False


def _read_text(
    path: Path, data: "bytes | mmap.mmap", start: int, vectors: Float32[np.ndarray, "V D"]
) -> Iterator[str]:
    """The words of a text file; their vectors are put into ``vectors``."""
    count, size = vectors.shape
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
        try:
            vectors[row] = [float(field) for field in line[1:]]
        except ValueError:
            raise DataError(f"{where}: not a number among those of the vector") from None
        yield _word(line[0], where)
        start = end + 1


def _read_binary(
    path: Path, data: "bytes | mmap.mmap", start: int, vectors: Float32[np.ndarray, "V D"]
) -> Iterator[str]:
    """The words of a binary file; their vectors are put into ``vectors``."""
    count, size = vectors.shape
    for row in range(count):
        where = f"{path}: word {row + 1:,} of {count:,}"
        if data[start : start + 1] == b"\n":  # word2vec.c ends vectors with it, gensim does not
            start += 1
        blank = data.find(b" ", start, start + _LONGEST_WORD)
        end = blank + 1 + 4 * size
        if blank < 0 or end > len(data):
            raise DataError(f"{where}: the file is cut or damaged, or in another format")
        vectors[row] = np.frombuffer(data[blank + 1 : end], "<f4")
        yield _word(bytes(data[start:blank]), where)
        start = end


def _word(raw: bytes, where: str) -> str:
    try:
        word = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{where}: the word is not UTF-8: {raw[:40]!r}") from None
    if not word:
        raise DataError(f"{where}: the word is empty: the file is damaged")
    return word


def _distinct(path: Path, words: list[str], vectors: Float32[np.ndarray, "V D"]) -> WordEmbeddings:
    first: dict[str, int] = {}
    for row, word in enumerate(words):
        first.setdefault(word, row)
    if len(first) < len(words):
        log.warning(
            "%s: %s: the first vector of each is used",
            path,
            plural(len(words) - len(first), "word comes", "words come") + " again",
        )
        vectors = vectors[list(first.values())]
    return WordEmbeddings(tuple(first), vectors)

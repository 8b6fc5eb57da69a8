"""Texts as numbers of words: one pass counts words, a second writes their numbers to a file."""

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int, Integer

from transformer_jax.core.errors import DataError
from transformer_jax.data.preparation import TextNormalization, compose
from transformer_jax.data.text import read_lines
from transformer_jax.word_vectors.settings import Words

__all__ = ["LINE_END", "UNKNOWN", "Corpus", "encode", "read_corpus"]

LINE_END = -1  # in the numbers of a corpus, behind each line
UNKNOWN = -2  # a word that is too rare to have a number
_LINES = 10_000  # at a time
_CHARACTERS = 1 << 20
_END = "\n"  # among words, which have no whitespace
_LETTERS = re.compile(r"\w+(?:['’]\w+)*|\n")


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """A text as numbers of its words, in a file of int32 that is read as it is needed.

    Attributes:
        words: The vocabulary, the most frequent word first; ties in alphabetical order.
        counts: How often each occurs.
        ids: The number of each word of the text, :data:`UNKNOWN` for a rare one; a line ends with
            :data:`LINE_END`.
        total: Words of the text, rare ones too.
    """

    words: tuple[str, ...]
    counts: Int[np.ndarray, " V"]
    ids: Integer[np.ndarray, " _"]
    total: int


def read_corpus(
    paths: Sequence[Path],
    file: Path,
    *,
    words: Words = "letters",
    min_count: int = 5,
    normalization: TextNormalization = "nfc",
) -> Corpus:
    """The words of text files; contexts of words do not go beyond a line.

    Args:
        paths: The texts, UTF-8, perhaps ``.gz``; each is read twice.
        file: Where the numbers are written.
        words: What a word is: ``letters`` lowercases, and takes runs of letters, digits and ``_``,
            with apostrophes inside; ``blanks`` takes what stands between blanks, as it is.
        min_count: Rarer words have no number.
        normalization: ``nfc`` composes characters, ``none`` leaves them.

    Raises:
        DataError: A file cannot be read or is not text, or fewer than two words are frequent
            enough.
    """
    counter: collections.Counter[str] = collections.Counter()
    for block in _words(paths, words, normalization):
        counter.update(block)
    counter.pop(_END, None)
    total = sum(counter.values())
    kept = sorted(
        (item for item in counter.items() if item[1] >= min_count),
        key=lambda item: (-item[1], item[0]),
    )
    if len(kept) < 2:
        raise DataError(
            f"{', '.join(map(str, paths))}: {len(kept)} of {len(counter):,} words occur "
            f"{min_count:,} times or more, and two are needed: give more text or a lower "
            f"min_count"
        )
    names = tuple(word for word, _ in kept)
    ids = encode(_words(paths, words, normalization), names, file)
    return Corpus(names, np.array([count for _, count in kept]), ids, total)


def encode(
    blocks: Iterable[list[str]], words: Sequence[str], file: Path
) -> Integer[np.ndarray, " _"]:
    r"""The number of each word of a text, in a memory-mapped file.

    Args:
        blocks: The words of the text, some at a time; ``\n`` ends a line.
        words: The vocabulary.
        file: What is written.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "ids"
        >>> encode([["a", "rare", "\n"], ["b", "\n"]], ["a", "b"], file).tolist()
        [0, -2, -1, 1, -1]
    """
    numbers = {word: number for number, word in enumerate(words)} | {_END: LINE_END}
    with file.open("wb") as out:
        for block in blocks:
            found = map(numbers.get, block, itertools.repeat(UNKNOWN))
            np.fromiter(found, np.int32, len(block)).tofile(out)
    return np.memmap(file, np.int32, "r")


def _words(
    paths: Sequence[Path], words: Words, normalization: TextNormalization
) -> Iterator[list[str]]:
    """Words and line ends, some thousand lines at a time."""
    lines: Iterator[str] = itertools.chain.from_iterable(map(read_lines, paths))
    if normalization == "nfc":
        lines = map(compose, lines)
    for block in iter(lambda: list(itertools.islice(lines, _LINES)), []):
        if words == "letters":
            for piece in _pieces("\n".join(block) + "\n"):
                yield _LETTERS.findall(piece.lower())
        else:
            # A line may hold other characters at which split() cuts, but no "\n".
            found: list[str] = []
            for line in block:
                for piece in _pieces(line):
                    found += piece.split()
                    if len(found) > _CHARACTERS:
                        yield found
                        found = []
                found.append(_END)
            yield found


def _pieces(text: str) -> Iterator[str]:
    """Pieces of about a million characters, cut at blanks: a corpus may be one line."""
    start = 0
    while len(text) - start > _CHARACTERS:
        end = text.find(" ", start + _CHARACTERS)
        if end < 0:
            break
        yield text[start:end]
        start = end
    yield text[start:]

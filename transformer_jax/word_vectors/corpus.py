"""Texts as word ids: one pass counts words, a second one writes their ids to a file.

Phrases, two words that occur together more often than by chance, become one word: ``new_york``.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int, Integer

from transformer_jax.core.errors import DataError
from transformer_jax.data.preparation import TextNormalization, compose
from transformer_jax.data.text import read_lines
from transformer_jax.data.words import blank_words, letter_words
from transformer_jax.functional.word2vec import phrase_score
from transformer_jax.models.ngram_counts import count_ngrams
from transformer_jax.word_vectors.settings import Words

__all__ = ["LINE_END", "UNKNOWN", "Corpus", "encode", "join_phrases", "no_overlap", "read_corpus"]

LINE_END = -1  # in the ids of a corpus, after each line
UNKNOWN = -2  # a word too rare to have an id
_MOST = 1 << 17  # words at a time
_CHARACTERS = 1 << 20
_END = "\n"  # among words, which contain no whitespace


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """A text as word ids, in a file of int32 that is read on demand.

    Attributes:
        words: The vocabulary, most frequent word first; ties in alphabetical order.
        counts: Number of occurrences of each word.
        ids: Id of each word of the text, :data:`UNKNOWN` for a rare one; a line ends with
            :data:`LINE_END`.
        total: Number of words in the text, including rare ones.
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
    """Reads the words of text files; contexts do not cross line ends.

    Args:
        paths: The texts, UTF-8, optionally ``.gz``; each is read twice.
        file: File for the ids.
        words: How to split text: ``letters`` lower-cases and takes :func:`.letter_words`;
            ``blanks`` takes :func:`.blank_words` and changes nothing.
        min_count: Rarer words get no id.
        normalization: ``nfc`` composes characters, ``none`` changes nothing.

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
            f"{min_count:,} times or more, and two are needed: give more text or a lower min_count"
        )
    names = tuple(word for word, _ in kept)
    ids = encode(_words(paths, words, normalization), names, file)
    return Corpus(names, np.array([count for _, count in kept]), ids, total)


def encode(
    blocks: Iterable[list[str]], words: Sequence[str], file: Path
) -> Integer[np.ndarray, " _"]:
    r"""Writes the id of each word of a text to a memory-mapped file.

    Args:
        blocks: The words of the text in blocks; ``\n`` ends a line.
        words: The vocabulary.
        file: File to write.

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
    """Yields words and line ends, some hundred thousand at a time."""
    lines: Iterator[str] = itertools.chain.from_iterable(map(read_lines, paths))
    if normalization == "nfc":
        lines = map(compose, lines)
    split = blank_words if words == "blanks" else lambda text: letter_words(text.lower())
    found: list[str] = []
    for line in lines:
        for piece in _pieces(line):
            found += split(piece)
            if len(found) > _MOST:
                yield found
                found = []
        found.append(_END)
    yield found


def _pieces(text: str) -> Iterator[str]:
    """Yields pieces of about a million characters, cut at blanks: a corpus may be one line."""
    start = 0
    while len(text) - start > _CHARACTERS:
        end = text.find(" ", start + _CHARACTERS)
        if end < 0:
            break
        yield text[start:end]
        start = end
    yield text[start:]


_BLOCK = 1 << 22  # ids at a time


def join_phrases(
    corpus: Corpus, file: Path, *, threshold: float = 100.0, min_count: int = 5
) -> Corpus:
    """Returns the corpus with each phrase as one word, joined by ``_``.

    A phrase is two consecutive words of a line that each occur at least ``min_count`` times, and
    whose :func:`~transformer_jax.functional.word2vec.phrase_score` with the discount ``min_count``
    exceeds the threshold. Words are joined from left to right, each into at most one phrase; apply
    it again for phrases of up to four words. Words that have become too rare by themselves are
    unknown.

    Args:
        corpus: The words.
        file: File for the new ids.
        threshold: Threshold of the score; a higher one makes fewer phrases.
        min_count: Discount of the score, and the smallest count of a word.

    Source: Mikolov et al. 2013b, section 4.
    """
    V = len(corpus.words)
    keys = _phrases(corpus, threshold, min_count)
    names = [*corpus.words, *("_".join(corpus.words[i] for i in divmod(k, V)) for k in keys)]
    # A phrase may be spelled like a word of the text.
    spelled = {name: number for number, name in reversed(list(enumerate(names)))}
    numbers = np.array([spelled[name] for name in names])
    counts = np.zeros(len(names), np.int64)
    merged = file.with_name(file.name + ".merged")
    with merged.open("wb") as out:
        for ids in _blocks(corpus.ids):
            ids = _merged(ids, keys, V)
            known = ids >= 0
            ids[known] = numbers[ids[known]]
            counts += np.bincount(ids[known], minlength=len(names))
            ids.tofile(out)
    kept = [i for i in np.flatnonzero(counts >= min_count) if spelled[names[i]] == i]
    kept.sort(key=lambda i: (-counts[i], names[i]))
    place = np.full(len(names) + 2, UNKNOWN, np.int32)  # the last two: unknown words and line ends
    place[LINE_END], place[kept] = LINE_END, np.arange(len(kept))
    with file.open("wb") as out:
        for ids in _blocks(np.memmap(merged, np.int32, "r")):
            place[ids].tofile(out)
    merged.unlink()
    words = tuple(names[i] for i in kept)
    return Corpus(words, counts[kept], np.memmap(file, np.int32, "r"), corpus.total)


def no_overlap(hits: Bool[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """Keeps every other hit of each run of hits, starting with the first.

    Example:
        >>> no_overlap(np.array([True, True, True, False, True])).astype(int)
        array([1, 0, 1, 0, 1])
    """
    at = np.arange(len(hits))
    last_miss = np.maximum.accumulate(np.where(hits, -1, at))
    return hits & ((at - last_miss) % 2 == 1)


def _phrases(corpus: Corpus, threshold: float, min_count: int) -> Integer[np.ndarray, " _"]:
    """Returns the keys ``first V + second`` of all phrases, ascending."""
    V = len(corpus.words)
    ids = np.asarray(corpus.ids)
    known = ids >= 0
    # Pairs do not cross line ends or unknown words.
    begins = known & ~np.concatenate([[False], known[:-1]])
    offsets = np.append(np.flatnonzero(begins[known]), known.sum())
    if not len(offsets) or offsets[0] != 0:
        return np.zeros(0, np.int64)
    pairs = count_ngrams(ids[known], offsets, order=2, vocab_size=V)
    first, second = np.divmod(pairs.keys[1], V + 1)
    often = (pairs.counts[1] >= min_count) & (first < V) & (second < V)
    first, second, counts = first[often], second[often], pairs.counts[1][often]
    if not len(counts):
        return np.zeros(0, np.int64)
    both, one, other = (
        jnp.asarray(x, jnp.float32) for x in (counts, corpus.counts[first], corpus.counts[second])
    )
    scores = phrase_score(both, one, other, float(corpus.total), float(min_count))
    chosen: np.ndarray = (first * V + second)[np.asarray(scores) > threshold]
    return chosen


def _merged(
    ids: Integer[np.ndarray, " _"], keys: Integer[np.ndarray, " _"], V: int
) -> Integer[np.ndarray, " _"]:
    """Returns the ids with each phrase as ``V`` plus its index among the keys."""
    if not len(keys) or len(ids) < 2:
        return ids.copy()
    pairs = np.where((ids[:-1] >= 0) & (ids[1:] >= 0), ids[:-1].astype(np.int64) * V + ids[1:], -1)
    place = np.minimum(np.searchsorted(keys, pairs), len(keys) - 1)
    begins = np.append(no_overlap(keys[place] == pairs), False)
    out = np.where(begins, V + np.append(place, 0), ids).astype(np.int32)
    return out[~np.append(False, begins[:-1])]


def _blocks(ids: Integer[np.ndarray, " _"]) -> Iterator[Integer[np.ndarray, " _"]]:
    """Yields the ids in blocks that end at a line end, if they contain one."""
    start = 0
    while start < len(ids):
        stop = min(start + _BLOCK, len(ids))
        ends = np.flatnonzero(ids[start:stop] == LINE_END)
        if stop < len(ids) and len(ends):
            stop = start + int(ends[-1]) + 1
        yield np.asarray(ids[start:stop])
        start = stop

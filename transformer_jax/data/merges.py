"""Byte-pair encoding in a few lines: the reference for the merges that a tokenizer learns."""

import collections
import itertools
from collections.abc import Iterator
from typing import NamedTuple

from transformer_jax.data.words import blank_words

__all__ = [
    "MergeStep",
    "bpe_merges",
    "join_pair",
    "merge_lines",
    "merge_steps",
    "pair_counts",
]

Words = dict[tuple[str, ...], int]


class MergeStep(NamedTuple):
    """A text after a merge.

    Attributes:
        pair: The merged pair; None before the first merge.
        times: Number of occurrences of the pair.
        words: The subwords of each word.
    """

    pair: tuple[str, str] | None
    times: int
    words: tuple[tuple[str, ...], ...]

    @property
    def line(self) -> str:
        """Returns the text, with one blank between subwords and two between words."""
        return "  ".join(map(" ".join, self.words))


def bpe_merges(text: str, count: int) -> list[tuple[str, str]]:
    """The first ``count`` merges of byte-pair encoding, each joining the most frequent pair.

    Words are separated by whitespace, and no pair crosses them. Ties go to the first pair by code
    points, so the result depends only on the text (Sennrich et al. 2016). Stops early when no pair
    is left.

    Example:
        >>> bpe_merges("Peter Piper picked a peck of pickled peppers", 5)
        [('p', 'e'), ('c', 'k'), ('e', 'd'), ('i', 'ck'), ('p', 'ick')]
    """
    return [step.pair for step in itertools.islice(_steps(text), count + 1) if step.pair]


def merge_steps(text: str, count: int) -> list[MergeStep]:
    """Returns the text after 0, 1, ... ``count`` merges of :func:`bpe_merges`.

    Example:
        >>> merge_steps("peck of peppers", 1)[1]
        MergeStep(pair=('p', 'e'), times=3, words=(('pe', 'c', 'k'), ('o', 'f'), ('pe', 'p', ...
    """
    return [*itertools.islice(_steps(text), count + 1)]


def merge_lines(text: str, count: int) -> list[str]:
    """The text after 0, 1, ... ``count`` BPE merges, with subwords separated by spaces.

    Example:
        >>> merge_lines("peck of peppers", 1)
        ['p e c k  o f  p e p p e r s', 'pe c k  o f  pe p pe r s']
    """
    return [step.line for step in merge_steps(text, count)]


def _steps(text: str) -> Iterator[MergeStep]:
    """The text before the first merge and after each, until no pair is left."""
    words = tuple(tuple(word) for word in blank_words(text))
    yield MergeStep(None, 0, words)
    while pairs := pair_counts(collections.Counter(words)):
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        joined = {word: join_pair(word, best) for word in set(words)}
        words = tuple(joined[word] for word in words)
        yield MergeStep(best, pairs[best], words)


def pair_counts(words: Words) -> dict[tuple[str, str], int]:
    """Counts the pairs of adjacent subwords, given how often each word occurs.

    Example:
        >>> dict(pair_counts({("a", "a", "b"): 2}))
        {('a', 'a'): 2, ('a', 'b'): 2}
    """
    counts: dict[tuple[str, str], int] = collections.Counter()
    for word, count in words.items():
        for pair in itertools.pairwise(word):
            counts[pair] += count
    return counts


def join_pair(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    """Merges a pair of subwords wherever it occurs in a word, from the left.

    Example:
        >>> join_pair(("a", "a", "a"), ("a", "a"))
        ('aa', 'a')
    """
    out: list[str] = []
    for piece in word:
        # A merged subword cannot be the left half again, since it is longer.
        if out and (out[-1], piece) == pair:
            out[-1] += piece
        else:
            out.append(piece)
    return tuple(out)

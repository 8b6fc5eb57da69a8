"""Byte-pair encoding in a few lines: the reference for the merges that a tokenizer learns."""

import collections
import itertools
from typing import NamedTuple

__all__ = ["MergeStep", "bpe_merges", "merge_lines", "merge_steps"]

Words = dict[tuple[str, ...], int]


class MergeStep(NamedTuple):
    """A text after a merge.

    Attributes:
        pair: The merged pair; None before the first merge.
        times: How often the pair occurred.
        words: The pieces of each word.
    """

    pair: tuple[str, str] | None
    times: int
    words: tuple[tuple[str, ...], ...]

    @property
    def line(self) -> str:
        """Returns the text, with a blank between pieces and two between words."""
        return "  ".join(map(" ".join, self.words))


def bpe_merges(text: str, count: int) -> list[tuple[str, str]]:
    """The first ``count`` merges of byte-pair encoding: each joins the most frequent pair.

    Words are separated by whitespace, and no pair crosses them. Of equally frequent pairs, the
    first in the order of code points is merged, so the result depends on the text alone (Sennrich
    et al. 2016). Stops early when no pair is left.

    Example:
        >>> bpe_merges("Peter Piper picked a peck of pickled peppers", 5)
        [('p', 'e'), ('c', 'k'), ('e', 'd'), ('i', 'ck'), ('p', 'ick')]
    """
    words: Words = collections.Counter(tuple(word) for word in text.split())
    merges: list[tuple[str, str]] = []
    for _ in range(count):
        pairs = _pair_counts(words)
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = _merged(words, best)
    return merges


def merge_steps(text: str, count: int) -> list[MergeStep]:
    """Returns the text after 0, 1, ... ``count`` merges of :func:`bpe_merges`.

    Example:
        >>> merge_steps("peck of peppers", 1)[1]
        MergeStep(pair=('p', 'e'), times=3, words=(('pe', 'c', 'k'), ('o', 'f'), ('pe', 'p', ...
    """
    words = tuple(tuple(word) for word in text.split())
    steps = [MergeStep(None, 0, words)]
    for pair in bpe_merges(text, count):
        times = _pair_counts(collections.Counter(words))[pair]
        words = tuple(_join(word, pair) for word in words)
        steps.append(MergeStep(pair, times, words))
    return steps


def merge_lines(text: str, count: int) -> list[str]:
    """The text after 0, 1, ... ``count`` BPE merges, the subwords of a word separated by spaces.

    Example:
        >>> merge_lines("peck of peppers", 1)
        ['p e c k  o f  p e p p e r s', 'pe c k  o f  pe p pe r s']
    """
    return [step.line for step in merge_steps(text, count)]


def _pair_counts(words: Words) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = collections.Counter()
    for word, count in words.items():
        for pair in itertools.pairwise(word):
            counts[pair] += count
    return counts


def _merged(words: Words, pair: tuple[str, str]) -> Words:
    out: Words = collections.Counter()
    for word, count in words.items():
        out[_join(word, pair)] += count
    return out


def _join(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for piece in word:
        # A merged subword cannot be the left half again: it is longer.
        if out and (out[-1], piece) == pair:
            out[-1] += piece
        else:
            out.append(piece)
    return tuple(out)

"""WordPiece merges by the gain in likelihood."""

import collections
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

__all__ = ["join_subwords", "likelihood_merges"]

# Fewest occurrences of a merged pair: any pair of subwords that occur once has the highest score.
_LEAST = 2


def likelihood_merges(words: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yields WordPiece merges, each of the pair with the highest ``f(ab) / (f(a) f(b))``.

    ``f`` counts subwords, and pairs of neighbours within words. The score compares how often a pair
    occurs with how often it would by chance, which is what each of its occurrences adds to the
    likelihood of the text. Ties go to the more frequent pair, then to the first by code points.
    Pairs that occur once are not merged. Schuster and Nakajima 2012.

    Args:
        words: Number of occurrences of each word.

    Example:
        >>> words = {"aa": 4, "ab": 2, "cd": 2}
        >>> list(itertools.islice(likelihood_merges(words), 2))
        [('c', '##d'), ('a', '##a')]
    """
    text = _Text(words)
    while (pair := text.best()) is not None:
        yield text.names[pair[0]], text.names[pair[1]]
        text.merge(pair)


def join_subwords(left: str, right: str) -> str:
    """Returns the subword that joins two neighbours.

    Example:
        >>> join_subwords("un", "##able"), join_subwords("##a", "##b")
        ('unable', '##ab')
    """
    return left + right.removeprefix("##")


class _Text:
    """The words of a text in subwords, with the counts of subwords and pairs.

    Attributes:
        names: The name of each subword.
    """

    names: list[str]

    def __init__(self, words: Mapping[str, int]):
        self.names, self._ids = [], dict[str, int]()
        self._frequency = np.zeros(1024, np.int64)  # occurrences of each word
        self._pairs: dict[tuple[int, int], int] = {}  # their columns
        self._left, self._right, self._counts = np.zeros((3, 1024), np.int64)
        self._places: dict[tuple[int, int], set[int]] = collections.defaultdict(set)
        self._words = [
            [self._id(word[0]), *(self._id(f"##{letter}") for letter in word[1:])]
            for word in words
            if word
        ]
        self._times = [times for word, times in words.items() if word]
        for number in range(len(self._words)):
            self._count(number, 1)

    def best(self) -> tuple[int, int] | None:
        """Returns the next pair to merge; None if no pair occurs twice."""
        n = len(self._pairs)
        left, right, counts = self._left[:n], self._right[:n], self._counts[:n]
        enough = counts >= _LEAST
        if not enough.any():
            return None
        # A pair that no longer occurs may contain subwords that no longer occur.
        by_chance = np.where(enough, self._frequency[left] * self._frequency[right], 1)
        scores = np.where(enough, counts / by_chance, 0.0)
        places = np.flatnonzero(scores == scores.max())
        places = places[counts[places] == np.max(counts[places])]
        pairs = ((int(left[place]), int(right[place])) for place in places)
        return min(pairs, key=lambda pair: (self.names[pair[0]], self.names[pair[1]]))

    def merge(self, pair: tuple[int, int]) -> None:
        """Merges a pair wherever it occurs."""
        subword = self._id(join_subwords(*(self.names[part] for part in pair)))
        for number in tuple(self._places[pair]):
            self._count(number, -1)
            self._words[number] = _join(self._words[number], pair, subword)
            self._count(number, 1)

    def _id(self, name: str) -> int:
        if name not in self._ids:
            self._ids[name] = len(self.names)
            self.names.append(name)
            if len(self.names) > len(self._frequency):
                self._frequency = np.concatenate([self._frequency, np.zeros_like(self._frequency)])
        return self._ids[name]

    def _count(self, number: int, sign: int) -> None:
        """Adds a word to the counts, or removes it."""
        word, times = self._words[number], sign * self._times[number]
        for subword in word:
            self._frequency[subword] += times
        for pair in itertools.pairwise(word):
            column = self._column(pair)  # first, since it may replace the arrays
            self._counts[column] += times
            if sign > 0:
                self._places[pair].add(number)
            else:
                self._places[pair].discard(number)

    def _column(self, pair: tuple[int, int]) -> int:
        column = self._pairs.setdefault(pair, len(self._pairs))
        if column == len(self._counts):
            grown = (self._left, self._right, self._counts)
            self._left, self._right, self._counts = (
                np.concatenate([array, np.zeros_like(array)]) for array in grown
            )
        self._left[column], self._right[column] = pair
        return column


def _join(word: Sequence[int], pair: tuple[int, int], subword: int) -> list[int]:
    out: list[int] = []
    for part in word:
        if out and (out[-1], part) == pair:
            out[-1] = subword
        else:
            out.append(part)
    return out

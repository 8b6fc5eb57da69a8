"""Exact counts of all n-grams up to length N, as sorted arrays for binary search."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import SupportsInt

import numpy as np
from jaxtyping import Int, Integer

from transformer_jax.core.errors import ConfigError, DataError

__all__ = ["CHUNK", "NgramCounts", "add_start_symbols", "count_ngrams"]

CHUNK = 1 << 22  # positions processed at a time, which bounds the memory of sorting
Ids = Integer[np.ndarray, "_"]
Places = Int[np.ndarray, "_"]


@dataclasses.dataclass(frozen=True, eq=False)
class NgramCounts:
    """Counts of all n-grams of lengths 1, 2, ... up to a limit.

    Every document begins with a start symbol, which is not a token and has the id ``vocab_size``;
    no n-gram crosses the start of a document. An n-gram is identified by its index among those of
    its length. Its key is ``index of all but its last symbol * (vocab_size + 1) + last``.

    Attributes:
        vocab_size: Largest token plus one.
        keys: The keys of the n-grams of each length, ascending. For length 1: all symbols.
        counts: The number of occurrences of each.
    """

    vocab_size: int
    keys: tuple[Places, ...]
    counts: tuple[Places, ...]

    @property
    def order(self) -> int:
        """Length of the longest counted n-grams."""
        return len(self.keys)

    @property
    def base(self) -> int:
        """The number of different symbols."""
        return self.vocab_size + 1

    def find(
        self, n: int, before: Integer[np.ndarray, "*at"], last: Integer[np.ndarray, "*at"]
    ) -> Int[np.ndarray, "*at"]:
        """The index of each n-gram of length ``n``, or -1 if it never occurs.

        Args:
            n: Length of the n-grams.
            before: Indices of their first ``n - 1`` symbols; -1 gives -1.
            last: Their last symbols.
        """
        keys = self.keys[n - 1]
        if n == 1:
            return last.astype(np.int64)
        if not len(keys):
            return np.full(last.shape, -1)
        wanted = before.astype(np.int64) * self.base + last
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[place] == wanted, place, -1)

    def index(self, run: Iterable[SupportsInt]) -> int:
        """Index of one n-gram, or -1 if it never occurs.

        Example:
            >>> ids, offsets = np.array([0, 1, 0, 1]), np.array([0, 4])
            >>> counts = count_ngrams(ids, offsets, order=2, vocab_size=2)
            >>> int(counts.counts[1][counts.index([0, 1])]), counts.index([1, 1])
            (2, -1)
        """
        place = 0
        for n, symbol in enumerate(run, 1):
            place = int(self.find(n, np.array(place), np.array(symbol)))
            if place < 0:
                break
        return place

    def continuations(self, n: int, place: int) -> tuple[slice, Places]:
        """Returns the n-grams that extend one of length ``n - 1``, and their last symbols."""
        keys = self.keys[n - 1]
        first = place * self.base
        low, high = np.searchsorted(keys, [first, first + self.base])
        return slice(int(low), int(high)), keys[low:high] - first

    def before(self, n: int) -> Places:
        """The index of the first ``n - 1`` symbols of each n-gram of length ``n``."""
        return self.keys[n - 1] // self.base if n > 1 else np.zeros(self.base, np.int64)

    def suffixes(self) -> list[Places]:
        """The indices of the last ``n - 1`` symbols, for the n-grams of each length."""
        ends = [np.zeros(self.base, np.int64)]
        for n in range(2, self.order + 1):
            before, last = np.divmod(self.keys[n - 1], self.base)
            ends.append(self.find(n - 1, ends[-1][before], last))
        return ends


def count_ngrams(
    ids: Integer[np.ndarray, " total"],
    offsets: Integer[np.ndarray, " ends"],
    *,
    order: int,
    vocab_size: int,
) -> NgramCounts:
    """Counts all n-grams up to length ``order``.

    Sorting proceeds in chunks, so that working memory is only a few values per token.

    Args:
        ids: Tokens of all documents.
        offsets: Start of each document, and the end of the last one.
        order: Length of the longest n-grams.
        vocab_size: Largest possible token plus one.

    Raises:
        ConfigError: An order below 1.
        DataError: A token outside the vocabulary, or invalid offsets.

    Example:
        >>> counts = count_ngrams(np.array([0, 1, 0]), np.array([0, 3]), order=2, vocab_size=2)
        >>> [c.tolist() for c in counts.counts]  # 0, 1, start; then 0 1, 1 0, start 0
        [[2, 1, 1], [1, 1, 1]]
    """
    if order < 1:
        raise ConfigError(f"an n-gram order of {order}: at least 1")
    stream, age = add_start_symbols(ids, offsets, vocab_size)
    base = vocab_size + 1
    all_keys: list[Places] = [np.arange(base)]
    all_counts: list[Places] = [np.bincount(stream, minlength=base)]
    places = stream
    for n in range(2, order + 1):
        keys, counts = _distinct(part for _, part in _runs(stream, age, places, n, base))
        all_keys.append(keys)
        all_counts.append(counts)
        if n < order:
            longer = np.full(len(stream), -1, np.int32)
            for at, part in _runs(stream, age, places, n, base):
                different, which = np.unique(part, return_inverse=True)
                longer[at] = np.searchsorted(keys, different)[which]
            places = longer
    return NgramCounts(vocab_size, tuple(all_keys), tuple(all_counts))


def add_start_symbols(
    ids: Integer[np.ndarray, " total"], offsets: Integer[np.ndarray, " ends"], vocab_size: int
) -> tuple[Ids, Ids]:
    """Documents in a row, each after a start symbol, and each symbol's distance from its start.

    Raises:
        DataError: A token outside the vocabulary, or invalid offsets.

    Example:
        >>> [x.tolist() for x in add_start_symbols(np.array([5, 6, 7]), np.array([0, 2, 3]), 8)]
        [[8, 5, 6, 8, 7], [0, 1, 2, 0, 1]]
    """
    lengths = np.diff(offsets.astype(np.int64))
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(ids) or (lengths < 0).any():
        raise DataError(
            f"offsets must ascend from 0 to the number of tokens, {len(ids)}: one for the "
            f"beginning of each document and one for the end of the last"
        )
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise DataError(
            f"tokens from {int(ids.min())} to {int(ids.max())} in a vocabulary of {vocab_size}: "
            f"was the text encoded by another tokenizer?"
        )
    stream = np.insert(ids.astype(np.int32), offsets[:-1].astype(np.int64), vocab_size)
    age = np.ones(len(stream), np.int32)
    starts = offsets[:-1].astype(np.int64) + np.arange(len(lengths))
    age[starts[:1]] = 0
    age[starts[1:]] = -lengths[:-1]
    return stream, np.cumsum(age, dtype=np.int32)


def _runs(stream: Ids, age: Ids, places: Ids, n: int, base: int) -> Iterator[tuple[Places, Places]]:
    """Yields the ends of n-grams of length ``n`` and their keys, chunk by chunk."""
    for start in range(1, len(stream), CHUNK):
        at = start + np.flatnonzero(age[start : start + CHUNK] >= n - 1)
        yield at, places[at - 1].astype(np.int64) * base + stream[at]


def _distinct(parts: Iterable[Places]) -> tuple[Places, Places]:
    """The distinct keys, ascending, and the number of occurrences of each."""
    stack = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    for part in parts:
        stack.append(np.unique(part, return_counts=True))
        # Only neighbours of similar size are merged, so that each key is copied only a few times.
        while len(stack) > 1 and len(stack[-2][0]) < 2 * len(stack[-1][0]):
            stack.append(_merge(stack.pop(), stack.pop()))
    while len(stack) > 1:
        stack.append(_merge(stack.pop(), stack.pop()))
    return stack[0]


def _merge(one: tuple[Places, Places], two: tuple[Places, Places]) -> tuple[Places, Places]:
    if not len(one[0]) or not len(two[0]):
        return one if len(one[0]) else two
    keys, counts = np.concatenate([one[0], two[0]]), np.concatenate([one[1], two[1]])
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[order]
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[first], np.add.reduceat(counts, first)

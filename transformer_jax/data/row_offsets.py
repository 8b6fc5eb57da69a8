"""Rows of different lengths, concatenated into a flat array."""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Integer

__all__ = ["Slices", "flatten", "ragged_indices", "row_offsets"]


class Slices(NamedTuple):
    """Rows anywhere in a flat array: row ``i`` is ``ids[begins[i]:begins[i] + lengths[i]]``."""

    ids: Integer[np.ndarray, " total"]
    begins: Int[np.ndarray, " count"]
    lengths: Int[np.ndarray, " count"]


def flatten(chunks: Iterable[Sequence[Sequence[int]]], dtype: np.dtype) -> Slices:
    """Concatenates all rows of all chunks.

    Example:
        >>> flatten([[[5, 6], []], [[7]]], np.dtype(int))
        Slices(ids=array([5, 6, 7]), begins=array([0, 2, 2]), lengths=array([2, 0, 1]))
    """
    ids, lengths = [np.zeros(0, dtype)], [np.zeros(0, np.int64)]
    for rows in chunks:
        lengths.append(np.array([len(row) for row in rows], np.int64))
        count = int(lengths[-1].sum())
        ids.append(np.fromiter(itertools.chain.from_iterable(rows), dtype, count))
    every = np.concatenate(lengths)
    return Slices(np.concatenate(ids), row_offsets(every)[:-1], every)


def row_offsets(lengths: Int[np.ndarray, " rows"]) -> Int[np.ndarray, " ends"]:
    """The start of each row, given their lengths, and the end of the last.

    Example:
        >>> row_offsets(np.array([2, 0, 1]))
        array([0, 2, 2, 3])
    """
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def ragged_indices(
    lengths: Int[np.ndarray, " rows"],
) -> tuple[Int[np.ndarray, " total"], Int[np.ndarray, " total"]]:
    """Row and column of every element of rows with these lengths.

    Example:
        >>> ragged_indices(np.array([2, 0, 1]))
        (array([0, 0, 2]), array([0, 1, 0]))
    """
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return rows, np.arange(len(rows)) - (np.cumsum(lengths) - lengths)[rows]

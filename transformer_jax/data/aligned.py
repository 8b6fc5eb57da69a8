"""Aligned text files, in which each line translates the same line of the other file."""

import math
import pathlib

import numpy as np

from transformer_jax.core.errors import DataError, plural
from transformer_jax.data.text import read_lines

__all__ = ["find_misalignment", "read_aligned"]


def read_aligned(
    source: str | pathlib.Path,
    target: str | pathlib.Path,
    where: tuple[str, str] = ("data.source", "data.target"),
) -> list[tuple[str, str]]:
    """The lines of two files, side by side.

    Args:
        source: The first file.
        target: The second file.
        where: The settings or flags that name the files, for messages.

    Raises:
        DataError: A file cannot be read or is empty, or the numbers of lines differ; the message
            gives both numbers and the line from which the lengths no longer match.
    """
    sources = list(read_lines(source, where[0]))
    targets = list(read_lines(target, where[1]))
    for path, lines in ((source, sources), (target, targets)):
        if not lines:
            raise DataError(f"{path}: the file is empty")
    if len(sources) != len(targets):
        line = find_misalignment([len(text) for text in sources], [len(text) for text in targets])
        raise DataError(
            f"{source} has {plural(len(sources), 'line')} and {target} has {len(targets):,}: "
            f"aligned files must have equally many; judging by line lengths, they diverge near "
            f"line {line}"
        )
    return list(zip(sources, targets, strict=True))


def find_misalignment(source_lengths: list[int], target_lengths: list[int]) -> int:
    """The most likely line, from 1, at which lines are missing from the shorter file.

    A sentence and its translation have similar lengths. If ``d`` lines are missing at line ``k``,
    line ``i`` of the shorter file belongs to line ``i`` of the other file before ``k``, and to line
    ``i + d`` from there on. The result is the ``k`` with the smallest sum of
    ``|log((a + 1) / (b + 1))|`` over these pairs of lengths.

    Example:
        >>> source = [5, 40, 9, 70, 3, 50, 12]
        >>> find_misalignment(source, source[:3] + source[4:])
        4
    """
    short, long = sorted((source_lengths, target_lengths), key=len)
    shift = len(long) - len(short)
    a = np.log1p(np.asarray(short, np.float64))
    b = np.log1p(np.asarray(long, np.float64))
    ratio = b.mean() - a.mean() if len(short) else 0.0
    before = np.abs(b[: len(short)] - a - ratio)
    after = np.abs(b[shift:] - a - ratio)
    total = np.concatenate([[0.0], np.cumsum(before - after)])
    assert math.isfinite(total[-1])
    return int(np.argmin(total)) + 1

"""Divides a text longer than a model's context into pieces that overlap."""

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Window", "round_up", "windows"]


class Window(NamedTuple):
    """The model reads tokens ``start .. stop`` and is asked what follows those from ``at``."""

    start: int
    stop: int
    at: int


def windows(known: int, total: int, context: int) -> Iterator[Window]:
    """Windows in which each of ``total`` tokens but the first ``known`` is predicted once.

    Each prediction sees all that stands before it, or at least half a ``context`` of it.

    Example:
        >>> list(windows(1, 5, 8))
        [Window(start=0, stop=4, at=0)]
        >>> list(windows(1, 12, 8))
        [Window(start=0, stop=8, at=0), Window(start=3, stop=11, at=8)]
    """
    at, last = known - 1, total - 1
    while at < last:
        start = max(0, min(at - context // 2, last - context))
        stop = min(start + context, last)
        yield Window(start, stop, at)
        at = stop


def round_up(size: int, sizes: tuple[int, ...]) -> int:
    """The least of ``sizes``, which grow, that is no less than ``size``; beyond them, itself.

    Example:
        >>> round_up(5, (4, 8)), round_up(9, (4, 8))
        (8, 9)
    """
    return next((s for s in sizes if s >= size), size)

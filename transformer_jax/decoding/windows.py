"""Divides a text longer than a model's context into overlapping windows."""

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Window", "round_up", "windows"]


class Window(NamedTuple):
    """The model reads tokens ``start .. stop`` and predicts from token ``at`` on."""

    start: int
    stop: int
    at: int


def windows(known: int, total: int, context: int) -> Iterator[Window]:
    """Returns windows that predict each of ``total`` tokens after the first ``known`` once.

    Each prediction sees all earlier tokens, or at least half a ``context`` of them.

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
    """Returns the smallest of the ascending ``sizes`` that is at least ``size``; else ``size``.

    Example:
        >>> round_up(5, (4, 8)), round_up(9, (4, 8))
        (8, 9)
    """
    return next((s for s in sizes if s >= size), size)

"""Compares the texts of two models by a reward."""

import dataclasses
import math
from collections.abc import Sequence

from transformer_jax.core.errors import DataError

__all__ = ["WinRate", "wilson_interval", "win_rate"]

_Z = 1.959964  # of 95 %


@dataclasses.dataclass(frozen=True)
class WinRate:
    """The fraction of lines for which the first of two models has the higher reward.

    Attributes:
        rate: Share of prompts that the first one wins, 0 to 1; a tie is half a win.
        low: Lower end of the 95 % interval of ``rate``.
        high: Upper end.
        wins: Pairs that the first one wins.
        ties: Pairs of equal reward.
        losses: Pairs that it loses.
        rewards: Mean reward of each.
    """

    rate: float
    low: float
    high: float
    wins: int
    ties: int
    losses: int
    rewards: tuple[float, float]


def win_rate(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> WinRate:
    """Compares rewards of two models' samples of the same prompts, in pairs.

    The samples of one prompt are not independent, so the interval counts prompts.

    Args:
        first: By prompt, the rewards of the first model's samples.
        second: As many of the second model's.

    Raises:
        DataError: There are none, or not equally many.

    Example:
        >>> found = win_rate([[1.0], [2.0], [0.0], [3.0]], [[0.0], [2.0], [1.0], [1.0]])
        >>> found.wins, found.ties, found.losses, found.rate
        (2, 1, 1, 0.625)
    """
    if [len(row) for row in first] != [len(row) for row in second] or not all(first) or not first:
        raise DataError("win rates compare equally many samples, at least one, of the same prompts")
    pairs = [list(zip(*rows, strict=True)) for rows in zip(first, second, strict=True)]
    # 1, half or nothing.
    won = [[((a > b) + (a >= b)) / 2 for a, b in row] for row in pairs]
    every = [value for row in won for value in row]
    rate = math.fsum(math.fsum(row) / len(row) for row in won) / len(won)
    mean = lambda rows: math.fsum(value for row in rows for value in row) / len(every)
    return WinRate(
        rate,
        *wilson_interval(rate, len(won)),
        every.count(1.0),
        every.count(0.5),
        every.count(0.0),
        (mean(first), mean(second)),
    )


def wilson_interval(rate: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share of independent trials, both ends within 0 and 1.

    ``(p + z²/2n ± z sqrt(p(1 - p)/n + z²/4n²)) / (1 + z²/n)``, Wilson 1927. Where some trials
    count half, it is wider than needed.

    Args:
        rate: The share, ``p``.
        count: Trials, ``n``.

    Example:
        >>> [round(end, 4) for end in wilson_interval(0.9, 100)]
        [0.8256, 0.9448]
    """
    share = _Z * _Z / count
    middle, half = rate + share / 2, math.sqrt(share * (rate * (1 - rate) + share / 4))
    return max(0.0, (middle - half) / (1 + share)), min(1.0, (middle + half) / (1 + share))

"""Compares the texts of two models by a reward."""

import dataclasses
import math
from collections.abc import Sequence

from transformer_jax.core.errors import DataError

__all__ = ["WinRate", "wilson_interval", "win_rate"]

_Z = 1.959964  # for 95 %


@dataclasses.dataclass(frozen=True)
class WinRate:
    """The fraction of prompts for which the first of two models has the higher reward.

    Attributes:
        rate: Fraction of prompts that the first model wins, 0 to 1; a tie is half a win.
        low: Lower end of the 95 % interval of ``rate``.
        high: Upper end.
        wins: Number of pairs that the first model wins.
        ties: Number of pairs of equal reward.
        losses: Number of pairs that it loses.
        rewards: Mean reward of each model.
    """

    rate: float
    low: float
    high: float
    wins: int
    ties: int
    losses: int
    rewards: tuple[float, float]


def win_rate(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> WinRate:
    """Compares rewards of two models' samples for the same prompts, in pairs.

    The samples of one prompt are not independent, so the interval counts prompts.

    Args:
        first: Rewards of the first model's samples, by prompt.
        second: As many rewards of the second model's samples.

    Raises:
        DataError: There are no rewards, or not equally many.

    Example:
        >>> found = win_rate([[1.0], [2.0], [0.0], [3.0]], [[0.0], [2.0], [1.0], [1.0]])
        >>> found.wins, found.ties, found.losses, found.rate
        (2, 1, 1, 0.625)
    """
    if [len(row) for row in first] != [len(row) for row in second] or not all(first) or not first:
        raise DataError("win rates compare equally many samples, at least one, of the same prompts")
    pairs = [list(zip(*rows, strict=True)) for rows in zip(first, second, strict=True)]
    # 1, 0.5 or 0.
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
    """Returns the 95 % interval of a fraction of independent trials, within 0 and 1.

    ``(p + z²/2n ± z sqrt(p(1 - p)/n + z²/4n²)) / (1 + z²/n)``, Wilson 1927. If some trials count
    half, it is wider than needed.

    Args:
        rate: The fraction, ``p``.
        count: Number of trials, ``n``.

    Example:
        >>> [round(end, 4) for end in wilson_interval(0.9, 100)]
        [0.8256, 0.9448]
    """
    share = _Z * _Z / count
    middle, half = rate + share / 2, math.sqrt(share * (rate * (1 - rate) + share / 4))
    return max(0.0, (middle - half) / (1 + share)), min(1.0, (middle + half) / (1 + share))

"""How far numbers rise together: Pearson's and Spearman's correlation."""

import math

import numpy as np
from jaxtyping import Float, Real

from transformer_jax.errors import DataError

__all__ = ["pearson", "spearman"]

_Numbers = Real[np.ndarray, "_"]  # their count is checked by hand: a user's mistake, one line


def pearson(given: _Numbers, wanted: _Numbers) -> float:
    """The linear correlation of two rows of numbers, -1 to 1.

    It is nan, without a warning, where a side is constant (one pair always is) or holds a number
    that is not finite: nothing can be said then, and 0 would say something.

    Raises:
        DataError: No numbers, or not as many given as wanted.

    Example:
        >>> pearson(np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 3.0]))
        0.981...
        >>> pearson(np.array([2.0, 2.0]), np.array([1.0, 2.0]))
        nan
    """
    _check(given, wanted)
    x, y = np.asarray(given, np.float64), np.asarray(wanted, np.float64)
    if not all(np.isfinite(side).all() and np.any(side != side[0]) for side in (x, y)):
        return math.nan
    x, y = _centred(x), _centred(y)
    r = np.dot(x, y) / math.sqrt(np.dot(x, x) * np.dot(y, y))
    return float(np.clip(r, -1.0, 1.0))


def spearman(given: _Numbers, wanted: _Numbers) -> float:
    """The correlation of ranks, -1 to 1: 1 if and only if both sides have one order.

    Equal numbers share the mean of their ranks. It is nan, without a warning, where a side is
    constant (one pair always is) or holds a nan.

    Raises:
        DataError: No numbers, or not as many given as wanted.

    Example:
        >>> spearman(np.array([1.0, 10.0, 100.0]), np.array([1.0, 2.0, 3.0]))
        1.0
        >>> spearman(np.array([1.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0]))
        0.866...
    """
    _check(given, wanted)
    if np.isnan(given).any() or np.isnan(wanted).any():
        return math.nan
    return pearson(_ranks(given), _ranks(wanted))


def _centred(x: Float[np.ndarray, "_"]) -> Float[np.ndarray, "_"]:
    x = x / np.abs(x).max()  # squares of very large or small numbers are no floats
    return x - x.mean()


def _ranks(x: _Numbers) -> Float[np.ndarray, "_"]:
    _, codes, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[codes]


def _check(given: _Numbers, wanted: _Numbers) -> None:
    if len(given) != len(wanted):
        raise DataError(
            f"{len(given)} numbers given but {len(wanted)} wanted: "
            f"they must be one an example, in the same order"
        )
    if not len(given):
        raise DataError("there is no number to correlate: the data is empty")

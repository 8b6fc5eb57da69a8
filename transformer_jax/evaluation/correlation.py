"""Pearson's and Spearman's correlation."""

import math

import numpy as np
from jaxtyping import Float, Real

from transformer_jax.evaluation.lengths import check_lengths

__all__ = ["pearson", "spearman"]

_Numbers = Real[np.ndarray, " _"]  # their count is checked by hand: a user's mistake, one line


def pearson(predictions: _Numbers, references: _Numbers) -> float:
    """Pearson's correlation of two rows of numbers, -1 to 1.

    It is NaN, without a warning, if a side is constant (a single pair always is) or has a
    non-finite number: the correlation is undefined then, not 0.

    Raises:
        DataError: No numbers, or the numbers of predictions and references differ.

    Example:
        >>> pearson(np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 3.0]))
        0.981...
        >>> pearson(np.array([2.0, 2.0]), np.array([1.0, 2.0]))
        nan
    """
    check_lengths(predictions, references)
    x, y = np.asarray(predictions, np.float64), np.asarray(references, np.float64)
    if not all(np.isfinite(side).all() and np.any(side != side[0]) for side in (x, y)):
        return math.nan
    x, y = _centred(x), _centred(y)
    r = np.dot(x, y) / math.sqrt(np.dot(x, x) * np.dot(y, y))
    return float(np.clip(r, -1.0, 1.0))


def spearman(predictions: _Numbers, references: _Numbers) -> float:
    """Spearman's correlation, of ranks, -1 to 1: 1 if and only if both sides have the same order.

    Equal numbers share the mean of their ranks. It is NaN, without a warning, if a side is
    constant (a single pair always is) or has a NaN. Spearman 1904.

    Raises:
        DataError: No numbers, or the numbers of predictions and references differ.

    Example:
        >>> spearman(np.array([1.0, 10.0, 100.0]), np.array([1.0, 2.0, 3.0]))
        1.0
        >>> spearman(np.array([1.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0]))
        0.866...
    """
    check_lengths(predictions, references)
    if np.isnan(predictions).any() or np.isnan(references).any():
        return math.nan
    return pearson(_ranks(predictions), _ranks(references))


def _centred(x: Float[np.ndarray, " _"]) -> Float[np.ndarray, " _"]:
    x = x / 2 - x[0] / 2  # exact for numbers that are close to each other
    x = x / np.abs(x).max()  # squares of very large or small numbers overflow
    return x - x.mean()


def _ranks(x: _Numbers) -> Float[np.ndarray, " _"]:
    _, codes, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[codes]

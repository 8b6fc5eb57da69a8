"""Pearson's and Spearman's correlation."""

import math

import numpy as np
from jaxtyping import Float, Real

from transformer_jax.evaluation.matching_counts import check_lengths

__all__ = ["pearson", "spearman"]

_Numbers = Real[np.ndarray, " _"]  # lengths are checked by hand, for a one-line error


def pearson(predictions: _Numbers, references: _Numbers) -> float:
    """Returns Pearson's correlation of two arrays, -1 to 1.

    It is NaN, without a warning, if a side is constant (as for a single pair) or has a non-finite
    value: then the correlation is undefined, not 0.

    Raises:
        DataError: There are no values, or the numbers of predictions and references differ.

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
    """Returns Spearman's rank correlation, -1 to 1: 1 if and only if the orders are equal.

    Equal values have the mean of their ranks. The result is NaN, without a warning, if a side is
    constant (as for a single pair) or has a NaN. Spearman 1904.

    Raises:
        DataError: There are no values, or the numbers of predictions and references differ.

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
    x = x / 2 - x[0] / 2  # exact for values close to each other
    x = x / np.abs(x).max()  # avoids overflow of squares of very large or small values
    return np.asarray(x - x.mean())


def _ranks(x: _Numbers) -> Float[np.ndarray, " _"]:
    _, codes, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[codes]

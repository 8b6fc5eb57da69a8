"""Laws of losses, which are sums over real tokens, however a batch is split or padded."""

from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import Array, Bool, PyTree

from transformer_jax.core.errors import ArgumentError, plural
from transformer_jax.laws.changes import replace_where, with_padding, with_padding_behind
from transformer_jax.laws.finding import Finding, difference, finding, law

__all__ = ["loss_length", "loss_padding", "loss_split"]

# Sums over a batch, as any tree: (loss, weight), gradients of the loss, counts of correct tokens.
Totals = Callable[[PyTree, Bool[np.ndarray, "B T"]], PyTree]


@law("Values at padding change neither the loss nor its gradient.")
def loss_padding(
    totals: Totals, batch: PyTree, real: Bool[Array | np.ndarray, "B T"], *, tolerance: float = 0.0
) -> Finding:
    """Checks that other values at padding do not change any sum at all.

    Args:
        totals: Maps a batch ``[B T ...]`` and ``real`` to sums: a loss and its weight, gradients.
        batch: An array, or a tree of arrays, such as inputs and targets.
        real: True at real positions, False at padding.
        tolerance: Largest change of a sum.

    Example:
        >>> losses, real = np.array([[1.0, 2.0, 9.0]]), np.array([[True, True, False]])
        >>> loss_padding(lambda losses, real: (losses * real).sum(), losses, real).holds
        True
        >>> loss_padding(lambda losses, real: {"loss": losses.sum()}, losses, real).where
        'loss: []'
    """
    batch, real = jax.tree.map(np.asarray, batch), with_padding(real)
    changed = totals(replace_where(batch, ~real), real)
    return finding("loss_padding", difference(changed, totals(batch, real)), tolerance)


@law("The loss of a batch is the sum of the losses of its rows without their padding.")
def loss_length(
    totals: Totals, batch: PyTree, real: Bool[Array | np.ndarray, "B T"], *, tolerance: float = 1e-5
) -> Finding:
    """Checks that each row contributes as much as alone, cut to its real tokens.

    A mean over rows, or a division by the length of the longest row, breaks it.

    Args:
        totals: Maps a batch ``[B T ...]`` and ``real`` to sums: a loss and its weight, gradients.
        batch: An array, or a tree of arrays, such as inputs and targets.
        real: True at real positions, which come first in each row.
        tolerance: Largest difference of a sum.

    Example:
        >>> losses, real = np.array([[1.0, 2.0], [3.0, 9.0]]), np.array([[1, 1], [1, 0]], bool)
        >>> loss_length(lambda losses, real: (losses * real).sum(), losses, real).holds
        True
        >>> loss_length(lambda losses, real: (losses * real).mean(), losses, real).holds
        False
    """
    batch, real = jax.tree.map(np.asarray, batch), with_padding_behind(real)
    parts = []
    for row, length in enumerate(real.sum(1).tolist()):
        cut = lambda x, row=row, length=length: x[row : row + 1, :length]
        parts.append(totals(jax.tree.map(cut, batch), cut(real)))
    return finding("loss_length", difference(_sum(parts), totals(batch, real)), tolerance)


@law("The loss of a batch is the sum of the losses of its parts.")
def loss_split(
    totals: Callable[[PyTree], PyTree], batch: PyTree, *, parts: int = 2, tolerance: float = 1e-5
) -> Finding:
    """Checks that losses and gradients of micro-batches add up to the batch's.

    Args:
        totals: Maps a batch ``[B ...]`` to sums: a loss and its weight, gradients.
        batch: An array, or a tree of arrays.
        parts: Number of parts, which divides the rows.
        tolerance: Largest difference of a sum.

    Example:
        >>> losses = np.array([1.0, 2.0, 3.0, 4.0])
        >>> loss_split(np.sum, losses).holds
        True
        >>> loss_split(np.mean, losses).error
        2.5
    """
    batch = jax.tree.map(np.asarray, batch)
    count = len(jax.tree.leaves(batch)[0])
    rows = count // parts
    if parts < 2 or not rows or count % parts:
        raise ArgumentError(
            f"laws: a batch of {plural(count, 'row')} has no {parts} equal parts: give parts that "
            "divide its rows, 2 or more"
        )
    pieces = [jax.tree.map(lambda x, n=n: x[n * rows :][:rows], batch) for n in range(parts)]
    found = _sum([totals(piece) for piece in pieces])
    return finding("loss_split", difference(found, totals(batch)), tolerance)


def _sum(parts: list[PyTree]) -> PyTree:
    """Sums of trees, in float64."""
    add = lambda *leaves: sum(np.asarray(leaf, np.float64) for leaf in leaves)
    return jax.tree.map(add, *parts)

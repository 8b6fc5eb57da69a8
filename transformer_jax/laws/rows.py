"""Laws of rows: padding, other rows of the batch and the number of rows change nothing."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool, PyTree

from transformer_jax.laws.changes import replace_where
from transformer_jax.laws.finding import Finding, Place, difference, finding, law, worst

__all__ = ["batch_mates", "batch_of_one", "padding", "padding_length"]

AXES = ("row", "position")
# Outputs [B T ...] of inputs, a tree of arrays [B T ...], and of places that are no padding [B T].
Padded = Callable[[PyTree, Bool[np.ndarray, "B T"]], Any]
# Outputs [B ...] of inputs, a tree of arrays [B ...].
OfRows = Callable[[PyTree], Any]


@law("What stands at padding changes no output at a real position.")
def padding(
    outputs: Padded,
    inputs: PyTree,
    real: Bool[Array | np.ndarray, "B T"],
    *,
    tolerance: float = 0.0,
) -> Finding:
    """Checks that other values at padding leave all real outputs as they are.

    Exactly, because a masked weight is zero. The mask may have any form: lengths, for example, are
    ``real.sum(1)``.

    Args:
        outputs: Maps inputs ``[B T ...]`` and ``real`` to outputs ``[B T ...]``.
        inputs: An array, or a tree of arrays, such as tokens and types.
        real: True at real positions, False at padding.
        tolerance: Largest change of a real output.

    Example:
        >>> tokens, real = np.array([[4, 5, 9, 9]]), np.array([[True, True, False, False]])
        >>> mean = lambda x, real: x - (x * real).sum(1, keepdims=True) / real.sum(1)[:, None]
        >>> padding(mean, tokens, real).holds
        True
        >>> padding(lambda x, real: x - x.mean(1, keepdims=True), tokens, real).where
        'row 0, position 0'
    """
    real = np.asarray(real)
    inputs = _arrays(inputs)
    changed = outputs(replace_where(inputs, ~real), real)
    place = difference(changed, outputs(inputs, real), AXES, real)
    return finding("padding", place, tolerance)


@law("The amount of padding changes no output at a real position.")
def padding_length(
    outputs: Padded,
    inputs: PyTree,
    real: Bool[Array | np.ndarray, "B T"],
    *,
    tolerance: float = 1e-5,
) -> Finding:
    """Checks that each row gives the same outputs without its padding at the end.

    Args:
        outputs: Maps inputs ``[B T ...]`` and ``real`` to outputs ``[B T ...]``.
        inputs: An array, or a tree of arrays, such as tokens and types.
        real: True at real positions, which come first in each row.
        tolerance: Largest change of a real output.

    Example:
        >>> tokens, real = np.array([[4, 5, 9, 9]]), np.array([[True, True, False, False]])
        >>> padding_length(lambda x, real: x * x, tokens, real).holds
        True
        >>> padding_length(lambda x, real: x * x.shape[1], tokens, real).where
        'row 0, position 1'
    """
    real = np.asarray(real)
    run = lambda given: outputs(*given)
    given = jax.tree.map(np.asarray, (inputs, real))
    wanted, lengths = _arrays(run(given)), real.sum(1).tolist()
    padded = [(row, n) for row, n in enumerate(lengths) if n < real.shape[1]]
    places = [_alone(run, given, wanted, np.index_exp[row : row + 1, :n]) for row, n in padded]
    return finding("padding_length", worst(*places), tolerance)


@law("Other rows of a batch change no output of a row.")
def batch_mates(outputs: OfRows, inputs: PyTree, *, tolerance: float = 0.0) -> Finding:
    """Checks that each row gives the same outputs with other rows around it.

    Exactly, because the shapes, and so the order of sums, are the same.

    Args:
        outputs: Maps inputs ``[B ...]`` to outputs ``[B ...]``.
        inputs: An array, or a tree of arrays, with at least two rows that differ.
        tolerance: Largest change of an output.

    Example:
        >>> rows = np.array([[1.0, 2.0], [4.0, 3.0]])
        >>> batch_mates(lambda x: x - x.mean(1, keepdims=True), rows).holds
        True
        >>> batch_mates(lambda x: x - x.mean(0, keepdims=True), rows).where
        'row 0, position 0'
    """
    inputs = _arrays(inputs)
    wanted, rows, places = _arrays(outputs(inputs)), _rows(inputs), []
    for row in rows:
        # Copies of the row itself, so that lengths and other inputs stay valid.
        alike = jax.tree.map(lambda x, row=row: np.broadcast_to(x[row], x.shape), inputs)
        places.append(difference(outputs(alike), wanted, AXES, np.array(rows) == row))
    return finding("batch_mates", worst(*places), tolerance)


@law("A row gives the same outputs alone as in a batch.")
def batch_of_one(outputs: OfRows, inputs: PyTree, *, tolerance: float = 1e-5) -> Finding:
    """Checks that each row gives the same outputs as the only row of a batch.

    Args:
        outputs: Maps inputs ``[B ...]`` to outputs ``[B ...]``.
        inputs: An array, or a tree of arrays.
        tolerance: Largest change of an output.

    Example:
        >>> rows = np.array([[1.0, 2.0], [4.0, 3.0]])
        >>> batch_of_one(lambda x: x - x.mean(1, keepdims=True), rows).holds
        True
        >>> batch_of_one(lambda x: x / len(x), rows).where
        'row 1, position 0'
    """
    inputs = _arrays(inputs)
    wanted, rows = _arrays(outputs(inputs)), _rows(inputs)
    places = [_alone(outputs, inputs, wanted, np.index_exp[row : row + 1]) for row in rows]
    return finding("batch_of_one", worst(*places), tolerance)


def _arrays(tree: PyTree) -> PyTree:
    return jax.tree.map(np.asarray, tree)


def _rows(inputs: PyTree) -> range:
    return range(len(jax.tree.leaves(inputs)[0]))


def _alone(outputs: OfRows, inputs: PyTree, wanted: PyTree, part: tuple[slice, ...]) -> Place:
    """The difference between the outputs of a part of the inputs and this part of the outputs."""
    cut = lambda x: x[part]
    error, where = difference(outputs(jax.tree.map(cut, inputs)), jax.tree.map(cut, wanted), AXES)
    return error, where.replace("row 0", f"row {part[0].start}")

"""Laws of rows: padding, other rows of the batch and the number of rows have no effect."""

from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import Array, Bool, PyTree

from transformer_jax.core.errors import ArgumentError
from transformer_jax.laws.changes import replace_where, with_padding, with_padding_behind
from transformer_jax.laws.finding import Finding, Place, difference, finding, law, worst

__all__ = [
    "batch_mates",
    "batch_of_one",
    "padding",
    "padding_length",
    "source_length",
    "source_padding",
]

AXES = ("row", "position")
# Outputs [B T ...] from inputs, a tree of arrays [B T ...], and their padding mask [B T].
Padded = Callable[[PyTree, Bool[np.ndarray, "B T"]], PyTree]
# Outputs [B ...] from a source [B S ...], its padding mask [B S], and a target, a tree of arrays
# [B ...].
OfSource = Callable[[PyTree, Bool[np.ndarray, "B S"], PyTree], PyTree]
# Outputs [B ...] from inputs, a tree of arrays [B ...].
OfRows = Callable[[PyTree], PyTree]


@law("Values at padding change no output at a real position.")
def padding(
    outputs: Padded,
    inputs: PyTree,
    real: Bool[Array | np.ndarray, "B T"],
    *,
    tolerance: float = 0.0,
) -> Finding:
    """Checks that other values at padding do not change any real output.

    They must not change at all, because a masked weight is zero. The mask may have any form:
    lengths, for example, are ``real.sum(1)``.

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
    inputs, real = _arrays(inputs), with_padding(real)
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
    """Checks that each row gives the same outputs without the padding at its end.

    Rows with padding are computed alone.

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
    inputs, real = _arrays(inputs), with_padding_behind(real)
    wanted, places = _arrays(outputs(inputs, real)), []
    for row, n in _padded(real):
        part = lambda tree, row=row, n=n: jax.tree.map(lambda x: x[row : row + 1, :n], tree)
        places.append(_of_row(row, outputs(part(inputs), part(real)), part(wanted)))
    return finding("padding_length", worst(*places), tolerance)


@law("Values at the padding of a source change no output.")
def source_padding(
    outputs: OfSource,
    source: PyTree,
    real: Bool[Array | np.ndarray, "B S"],
    target: PyTree,
    *,
    tolerance: float = 0.0,
) -> Finding:
    """Checks a model of two sequences, such as a translator, in the same way as :func:`padding`.

    Args:
        outputs: Maps a source ``[B S ...]``, ``real`` and a target ``[B ...]`` to outputs.
        source: An array, or a tree of arrays.
        real: True at real positions of the source, False at padding.
        target: The other inputs of each row, such as tokens of the target.
        tolerance: Largest change of an output.

    Example:
        >>> source, real = np.array([[4, 5, 9, 9]]), np.array([[True, True, False, False]])
        >>> masked = lambda source, real, target: target + (source * real).sum(1)
        >>> source_padding(masked, source, real, np.array([1])).holds
        True
        >>> source_padding(lambda source, real, target: target + source.sum(1), source, real,
        ...                np.array([1])).where
        'row 0'
    """
    source, real = _arrays(source), with_padding(real)
    changed = outputs(replace_where(source, ~real), real, target)
    place = difference(changed, outputs(source, real, target), AXES)
    return finding("source_padding", place, tolerance)


@law("The amount of padding of a source changes no output.")
def source_length(
    outputs: OfSource,
    source: PyTree,
    real: Bool[Array | np.ndarray, "B S"],
    target: PyTree,
    *,
    tolerance: float = 1e-5,
) -> Finding:
    """Checks that each row gives the same outputs without the padding at the end of its source.

    Rows with padding are computed alone.

    Args:
        outputs: Maps a source ``[B S ...]``, ``real`` and a target ``[B ...]`` to outputs.
        source: An array, or a tree of arrays.
        real: True at real positions of the source, which come first in each row.
        target: The other inputs of each row, such as tokens of the target.
        tolerance: Largest change of an output.

    Example:
        >>> source, real = np.array([[4, 5, 9, 9]]), np.array([[True, True, False, False]])
        >>> given = source, real, np.array([1])
        >>> source_length(lambda source, real, target: target + real.sum(1), *given).holds
        True
        >>> source_length(lambda source, real, target: target + real.mean(1), *given).where
        'row 0'
    """
    source, target, real = _arrays(source), _arrays(target), with_padding_behind(real)
    wanted, places = _arrays(outputs(source, real, target)), []
    for row, n in _padded(real):
        one = lambda tree, row=row: jax.tree.map(lambda x: x[row : row + 1], tree)
        part = lambda tree, one=one, n=n: jax.tree.map(lambda x: x[:, :n], one(tree))
        found = outputs(part(source), part(real), one(target))
        places.append(_of_row(row, found, one(wanted)))
    return finding("source_length", worst(*places), tolerance)


@law("Other rows of a batch change no output of a row.")
def batch_mates(outputs: OfRows, inputs: PyTree, *, tolerance: float = 0.0) -> Finding:
    """Checks that each row gives the same outputs with other rows around it.

    They must be identical, because shapes, and so the order of sums, are the same.

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
    rows = _rows(inputs)
    wanted, places = _arrays(outputs(inputs)), []
    if all((leaf == leaf[:1]).all() for leaf in jax.tree.leaves(inputs)):
        raise ArgumentError("laws: all rows of the batch are equal: give two that differ")
    for row in rows:
        # Copies of the row itself, so that lengths and other inputs remain valid.
        alike = jax.tree.map(lambda x, row=row: x[[row] * len(x)], inputs)
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
    if len(_rows(inputs)) < 2:
        raise ArgumentError("laws: the batch has one row: give two rows or more")
    wanted, places = _arrays(outputs(inputs)), []
    for row in _rows(inputs):
        one = lambda tree, row=row: jax.tree.map(lambda x: x[row : row + 1], tree)
        places.append(_of_row(row, outputs(one(inputs)), one(wanted)))
    return finding("batch_of_one", worst(*places), tolerance)


def _arrays(tree: PyTree) -> PyTree:
    return jax.tree.map(np.asarray, tree)


def _rows(inputs: PyTree) -> range:
    leaves = jax.tree.leaves(inputs)
    if not leaves or not all(leaf.ndim for leaf in leaves):
        raise ArgumentError("laws: the inputs have no rows: give arrays [B ...]")
    return range(len(leaves[0]))


def _padded(real: Bool[np.ndarray, "B T"]) -> list[tuple[int, int]]:
    """Rows with padding, and their lengths."""
    return [(row, n) for row, n in enumerate(real.sum(1).tolist()) if n < real.shape[1]]


def _of_row(row: int, found: PyTree, wanted: PyTree) -> Place:
    """The largest difference between the outputs of one row."""
    error, where = difference(found, wanted, AXES)
    return error, where.replace("row 0", f"row {row}")

"""Metrics of classification: accuracy, F1, Matthews correlation, and scores per class."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from transformer_jax.core.errors import DataError
from transformer_jax.evaluation.lengths import check_lengths

__all__ = [
    "ClassScore",
    "accuracy",
    "confusion_matrix",
    "f1",
    "macro_f1",
    "matthews_corrcoef",
    "per_class",
]

_Labels = Int[np.ndarray, "_"]  # lengths are checked by hand, for a one-line error


@dataclasses.dataclass(frozen=True)
class ClassScore:
    """Precision, recall and F1 of one class, 0 to 1; 0 if the divisor is 0."""

    name: str
    precision: float  # correct / predicted as this class
    recall: float  # correct / examples of this class
    f1: float  # harmonic mean of the two
    support: int  # examples of this class


def accuracy(predictions: _Labels, references: _Labels) -> float:
    """Returns the fraction of correct labels, which is also the micro-averaged F1.

    Raises:
        DataError: There are no labels, or the numbers of predictions and references differ.

    Example:
        >>> accuracy(np.array([0, 1, 2, 2]), np.array([0, 1, 2, 0]))
        0.75
    """
    check_lengths(predictions, references)
    return float(np.mean(predictions == references))


def f1(predictions: _Labels, references: _Labels, positive: int = 1) -> float:
    """Returns the F1 of one label: ``2 correct / (predicted + true)``.

    This is the harmonic mean of precision and recall, and 0 if the label occurs on neither side.

    Args:
        predictions: Labels of the model.
        references: Labels of the data, in the same order.
        positive: The positive label; all other labels are negative.

    Raises:
        DataError: There are no labels, or the numbers of predictions and references differ.

    Example:
        >>> f1(np.array([1, 1, 0, 0]), np.array([1, 0, 0, 1]))
        0.5
    """
    check_lengths(predictions, references)
    right = np.sum((predictions == positive) & (references == positive))
    return _share(2 * right, np.sum(predictions == positive) + np.sum(references == positive))


def macro_f1(predictions: _Labels, references: _Labels, classes: int | None = None) -> float:
    """Returns the unweighted mean of :func:`f1` over the classes.

    Args:
        predictions: Labels of the model.
        references: Labels of the data, in the same order.
        classes: Number of classes to average, from 0; classes that do not occur count as 0. None
            averages over labels that occur on either side.

    Raises:
        DataError: No labels, the numbers of predictions and references differ, or a label beyond
            ``classes``.

    Example:
        >>> macro_f1(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1]))
        0.733...
        >>> macro_f1(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1]), classes=3)
        0.488...
    """
    if classes is not None:
        _check_range(predictions, references, classes)
    right, ours, theirs = _counts(predictions, references)
    scores = 2 * right / (ours + theirs)  # every label occurs: never 0 / 0
    return float(np.sum(scores) / (len(scores) if classes is None else classes))


def matthews_corrcoef(predictions: _Labels, references: _Labels) -> float:
    """Returns the Matthews correlation of predicted and true labels, -1 to 1, for any classes.

    With ``s`` examples, ``c`` correct ones, and class ``k`` predicted ``p_k`` and true ``t_k``
    times: ``(c s - Σ t_k p_k) / √((s² - Σ p_k²) (s² - Σ t_k²))``. It is 0 if either side has only
    one label.

    Source: Gorodkin 2004; CoLA's score in GLUE.

    Raises:
        DataError: There are no labels, or the numbers of predictions and references differ.

    Example:
        >>> matthews_corrcoef(np.array([1, 1, 0, 0]), np.array([1, 1, 0, 1]))
        0.577...
        >>> matthews_corrcoef(np.array([1, 1, 1, 1]), np.array([1, 1, 0, 1]))
        0.0
    """
    right, ours, theirs = _counts(predictions, references)
    # Use Python's integers: the product of two squares of a million exceeds 64 bits.
    dot = lambda x, y: int(np.dot(x, y))
    total = len(predictions)
    spread = (total**2 - dot(ours, ours)) * (total**2 - dot(theirs, theirs))
    if not spread:
        return 0.0
    return (int(right.sum()) * total - dot(ours, theirs)) / math.sqrt(spread)


def confusion_matrix(
    predictions: _Labels, references: _Labels, classes: int
) -> Int[np.ndarray, "C C"]:
    """Returns the number of examples of each true label (row) and predicted label (column).

    Raises:
        DataError: No labels, the numbers of predictions and references differ, or a label beyond
            ``classes``.

    Example:
        >>> confusion_matrix(np.array([0, 1, 1]), np.array([0, 0, 1]), classes=2)
        array([[1, 1],
               [0, 1]])
    """
    _check_range(predictions, references, classes)
    cells = references.astype(np.int64) * classes + predictions
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def per_class(predictions: _Labels, references: _Labels, names: Sequence[str]) -> list[ClassScore]:
    """Returns precision, recall, F1 and support of each class, in the order of ``names``.

    Raises:
        DataError: There are no labels, the numbers of predictions and references differ, or a label
            has no name.

    Example:
        >>> per_class(np.array([0, 1, 1, 1]), np.array([0, 0, 1, 1]), ["bad", "good"])[0]
        ClassScore(name='bad', precision=1.0, recall=0.5, f1=0.66..., support=2)
    """
    table = confusion_matrix(predictions, references, len(names))
    right, ours, theirs = table.diagonal(), table.sum(axis=0), table.sum(axis=1)
    return [
        ClassScore(
            name=name,
            precision=_share(right[k], ours[k]),
            recall=_share(right[k], theirs[k]),
            f1=_share(2 * right[k], ours[k] + theirs[k]),
            support=int(theirs[k]),
        )
        for k, name in enumerate(names)
    ]


def _counts(
    predictions: _Labels, references: _Labels
) -> tuple[Int[np.ndarray, " C"], Int[np.ndarray, " C"], Int[np.ndarray, " C"]]:
    """Returns the numbers of correct, predicted and true examples of each label that occurs."""
    check_lengths(predictions, references)
    labels, codes = np.unique(np.concatenate([predictions, references]), return_inverse=True)
    ours, theirs = codes[: len(predictions)], codes[len(predictions) :]
    count = lambda of: np.bincount(of, minlength=len(labels))
    return count(ours[ours == theirs]), count(ours), count(theirs)


def _share(part: int | np.integer, whole: int | np.integer) -> float:
    return float(part) / float(whole) if whole else 0.0


def _check_range(predictions: _Labels, references: _Labels, classes: int) -> None:
    check_lengths(predictions, references)
    for side, labels in (("prediction", predictions), ("reference", references)):
        outside = labels[(labels < 0) | (labels >= classes)]
        if outside.size:
            raise DataError(
                f"a {side} is {outside[0]}: {classes} classes have labels 0 to {classes - 1}"
                f"; leave out labels not to be scored, such as padding"
            )

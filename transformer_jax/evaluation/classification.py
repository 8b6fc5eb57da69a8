"""How good the labels given are beside those wanted: accuracy, F1, Matthews, and by class."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from transformer_jax.errors import DataError

__all__ = [
    "ClassScore",
    "accuracy",
    "confusion_matrix",
    "f1",
    "macro_f1",
    "matthews_corrcoef",
    "per_class",
]

_Labels = Int[np.ndarray, "_"]  # their count is checked by hand: a user's mistake, one line


@dataclasses.dataclass(frozen=True)
class ClassScore:
    """How well one class was found; shares are 0 to 1, and 0 where nothing is to be divided by."""

    name: str
    precision: float  # right / given this label
    recall: float  # right / wanting this label
    f1: float  # harmonic mean of the two
    support: int  # examples that want this label


def accuracy(given: _Labels, wanted: _Labels) -> float:
    """The share of labels that are right; with one label an example, the micro-averaged F1 too.

    Raises:
        DataError: No labels, or not as many given as wanted.

    Example:
        >>> accuracy(np.array([0, 1, 2, 2]), np.array([0, 1, 2, 0]))
        0.75
    """
    _check(given, wanted)
    return float(np.mean(given == wanted))


def f1(given: _Labels, wanted: _Labels, positive: int = 1) -> float:
    """The harmonic mean of precision and recall of one label: ``2 right / (given + wanted)``.

    It is 0 where the label occurs on neither side.

    Args:
        given: Labels of the model.
        wanted: Labels of the data, in the same order.
        positive: The label whose F1 it is; all others are alike.

    Raises:
        DataError: No labels, or not as many given as wanted.

    Example:
        >>> f1(np.array([1, 1, 0, 0]), np.array([1, 0, 0, 1]))
        0.5
    """
    _check(given, wanted)
    right = np.sum((given == positive) & (wanted == positive))
    return _share(2 * right, np.sum(given == positive) + np.sum(wanted == positive))


def macro_f1(given: _Labels, wanted: _Labels, classes: int | None = None) -> float:
    """The mean of every class's :func:`f1`, rare classes weighing as much as frequent ones.

    Args:
        given: Labels of the model.
        wanted: Labels of the data, in the same order.
        classes: The mean is over labels 0 to ``classes - 1``, of which those that do not occur
            count 0; None is over the labels that occur on either side.

    Raises:
        DataError: No labels, not as many given as wanted, or a label beyond ``classes``.

    Example:
        >>> macro_f1(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1]))
        0.733...
        >>> macro_f1(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1]), classes=3)
        0.488...
    """
    if classes is not None:
        _check_range(given, wanted, classes)
    right, ours, theirs = _counts(given, wanted)
    scores = 2 * right / (ours + theirs)  # every label counted occurs: never 0 / 0
    return float(np.sum(scores) / (len(scores) if classes is None else classes))


def matthews_corrcoef(given: _Labels, wanted: _Labels) -> float:
    """The correlation of labels given and wanted, -1 to 1, for any number of classes.

    With ``s`` examples, ``c`` right ones, and class ``k`` given ``p_k`` and wanted ``t_k`` times:
    ``(c s - Σ t_k p_k) / √((s² - Σ p_k²) (s² - Σ t_k²))``. It is 0 where either side has one label
    only, which leaves nothing to correlate.

    Source: Gorodkin 2004; CoLA's score in GLUE.

    Raises:
        DataError: No labels, or not as many given as wanted.

    Example:
        >>> matthews_corrcoef(np.array([1, 1, 0, 0]), np.array([1, 1, 0, 1]))
        0.577...
        >>> matthews_corrcoef(np.array([1, 1, 1, 1]), np.array([1, 1, 0, 1]))
        0.0
    """
    right, ours, theirs = _counts(given, wanted)
    # Python's integers: the product of two squares of a million is beyond 64 bits.
    dot = lambda x, y: int(np.dot(x, y))
    total = len(given)
    spread = (total**2 - dot(ours, ours)) * (total**2 - dot(theirs, theirs))
    if not spread:
        return 0.0
    return (int(right.sum()) * total - dot(ours, theirs)) / math.sqrt(spread)


def confusion_matrix(given: _Labels, wanted: _Labels, classes: int) -> Int[np.ndarray, "C C"]:
    """How often each label was wanted (row) and given (column).

    Raises:
        DataError: No labels, not as many given as wanted, or a label beyond ``classes``.

    Example:
        >>> confusion_matrix(np.array([0, 1, 1]), np.array([0, 0, 1]), classes=2)
        array([[1, 1],
               [0, 1]])
    """
    _check_range(given, wanted, classes)
    cells = wanted.astype(np.int64) * classes + given
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def per_class(given: _Labels, wanted: _Labels, names: Sequence[str]) -> list[ClassScore]:
    """Precision, recall, F1 and support of each class, in the order of ``names``.

    Raises:
        DataError: No labels, not as many given as wanted, or a label without a name.

    Example:
        >>> per_class(np.array([0, 1, 1, 1]), np.array([0, 0, 1, 1]), ["bad", "good"])[0]
        ClassScore(name='bad', precision=1.0, recall=0.5, f1=0.66..., support=2)
    """
    table = confusion_matrix(given, wanted, len(names))
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
    given: _Labels, wanted: _Labels
) -> tuple[Int[np.ndarray, " C"], Int[np.ndarray, " C"], Int[np.ndarray, " C"]]:
    """How often each label that occurs is right, given and wanted."""
    _check(given, wanted)
    labels, codes = np.unique(np.concatenate([given, wanted]), return_inverse=True)
    ours, theirs = codes[: len(given)], codes[len(given) :]
    count = lambda of: np.bincount(of, minlength=len(labels))
    return count(ours[ours == theirs]), count(ours), count(theirs)


def _share(part: int | np.integer, whole: int | np.integer) -> float:
    return float(part) / float(whole) if whole else 0.0


def _check(given: _Labels, wanted: _Labels) -> None:
    if len(given) != len(wanted):
        raise DataError(
            f"{len(given)} labels given but {len(wanted)} wanted: "
            f"they must be one an example, in the same order"
        )
    if not len(given):
        raise DataError("there is no label to score: the data is empty")


def _check_range(given: _Labels, wanted: _Labels, classes: int) -> None:
    _check(given, wanted)
    for side, labels in (("given", given), ("wanted", wanted)):
        outside = labels[(labels < 0) | (labels >= classes)]
        if outside.size:
            raise DataError(
                f"a label {side} is {outside[0]}: {classes} classes have labels 0 to {classes - 1}"
                f"; leave out what is not to be scored, such as padding"
            )

"""Metrics of classification: accuracy, F1, correlation, entities, and reports of classes."""

import collections
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.core.errors import DataError
from transformer_jax.core.text_tables import aligned
from transformer_jax.data.tag_schemes import entities, marks_entities
from transformer_jax.evaluation.matching_counts import check_lengths

__all__ = [
    "ClassReport",
    "accuracy",
    "class_report",
    "confusion_matrix",
    "entities",
    "entity_f1",
    "entity_report",
    "f1",
    "macro_f1",
    "marks_entities",
    "matthews_corrcoef",
    "report_with_intervals",
    "score_intervals",
]

_Labels = Int[np.ndarray, "_"]  # lengths are checked by hand, for a one-line error


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


def entity_f1(predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> float:
    """Returns the F1 of entities, ``2 correct / (predicted + true)``; 0 if there are none.

    An entity is correct if its first word, its last word and its type are.

    Raises:
        DataError: The numbers of predictions and references differ, or there are none.

    Example:
        >>> entity_f1([["B-PER", "I-PER", "O"]], [["B-PER", "O", "B-LOC"]])
        0.0
        >>> round(entity_f1([["B-PER", "O", "O"]], [["B-PER", "O", "B-LOC"]]), 3)
        0.667
    """
    check_lengths(predictions, references)
    correct = total = 0
    for predicted, wanted in zip(predictions, references, strict=True):
        ours, theirs = set(entities(predicted)), set(entities(wanted))
        correct += len(ours & theirs)
        total += len(ours) + len(theirs)
    return 2 * correct / total if total else 0.0


_CELLS = 12  # classes of a confusion matrix that fits a terminal
_WIDTH = 12  # characters of a class in the matrix
_CONFUSIONS = 10  # pairs of classes that are listed if the matrix does not fit
_SAMPLES = 1000  # of the bootstrap


class ClassReport(NamedTuple):
    """Scores of each class.

    Attributes:
        labels: Names of the classes.
        matrix: Number of examples of each true class (row) and predicted class (column).
        precision: Share of the predictions of a class that are right; 0 without predictions.
        recall: Share of the examples of a class that are found; 0 without examples.
        f1: ``2 precision recall / (precision + recall)``; 0 if both are.
        support: Number of examples of each class.
    """

    labels: tuple[str, ...]
    matrix: Int[np.ndarray, "C C"]
    precision: Float[np.ndarray, " C"]
    recall: Float[np.ndarray, " C"]
    f1: Float[np.ndarray, " C"]
    support: Int[np.ndarray, " C"]

    @property
    def majority(self) -> float:
        """The accuracy of always predicting the commonest class."""
        return float(self.support.max() / self.support.sum())

    def __str__(self) -> str:
        """The scores of each class, the baseline, and the confusion matrix as lines of text."""
        columns = self.precision, self.recall, self.f1
        rows = [["class", "precision", "recall", "f1", "support"]]
        for i, label in enumerate(self.labels):
            rows.append([label, *(f"{one[i]:.4f}" for one in columns), f"{self.support[i]:,}"])
        total = self.support.sum()
        for name, weights in (
            ("macro mean", np.ones(len(self.labels))),
            ("weighted mean", self.support),
        ):
            means = [float(np.average(one, weights=weights)) for one in columns]
            rows.append([name, *(f"{mean:.4f}" for mean in means), f"{total:,}"])
        most = self.labels[int(np.argmax(self.support))]
        baseline = f"always {most!r} would have accuracy {self.majority:.4f}"
        return "\n".join([aligned(rows), "", baseline, "", self._confusions()])

    def _confusions(self) -> str:
        """The confusion matrix, or the commonest confusions of many classes."""
        if len(self.labels) <= _CELLS:
            names = [
                label if len(label) <= _WIDTH else label[: _WIDTH - 1] + "…"
                for label in self.labels
            ]
            rows = [["true \\ predicted", *names]]
            rows += [
                [label, *(f"{n:,}" for n in row)]
                for label, row in zip(self.labels, self.matrix, strict=True)
            ]
            return aligned(rows)
        wrong = self.matrix * (1 - np.eye(len(self.labels), dtype=int))
        order = np.argsort(-wrong, axis=None, kind="stable")[:_CONFUSIONS]
        places = [divmod(int(flat), len(self.labels)) for flat in order]
        rows = [["true", "predicted", "examples"]]
        rows += [
            [self.labels[i], self.labels[j], f"{wrong[i, j]:,}"] for i, j in places if wrong[i, j]
        ]
        return aligned(rows, left=2) if len(rows) > 1 else "no class is taken for another"


def class_report(matrix: Int[np.ndarray, "C C"], labels: Sequence[str]) -> ClassReport:
    r"""Returns precision, recall and F1 of each class from a confusion matrix.

    ``precision = n_ii / Σ_j n_ji``, ``recall = n_ii / Σ_j n_ij``, ``f1 = 2 n_ii / (Σ_j n_ji + Σ_j
    n_ij)``, and 0 where the denominator is 0.

    Args:
        matrix: Number of examples of each true class (row) and predicted class (column).
        labels: Names of the classes.

    Example:
        >>> report = class_report(np.array([[2, 1], [0, 3]]), ("no", "yes"))
        >>> print(report)
        class          precision  recall      f1  support
        no                1.0000  0.6667  0.8000        3
        yes               0.7500  1.0000  0.8571        3
        macro mean        0.8750  0.8333  0.8286        6
        weighted mean     0.8750  0.8333  0.8286        6
        <BLANKLINE>
        always 'no' would have accuracy 0.5000
        <BLANKLINE>
        true \ predicted  no  yes
        no                 2    1
        yes                0    3
    """
    right, predicted, true = np.diag(matrix), matrix.sum(0), matrix.sum(1)
    share = lambda part, whole: np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)
    return ClassReport(
        tuple(labels), matrix, share(right, predicted), share(right, true),
        share(2 * right, predicted + true), true,
    )  # fmt: skip


def score_intervals(
    matrix: Int[np.ndarray, "C C"], share: float = 0.95, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Returns intervals of accuracy and macro F1 by the bootstrap, for examples drawn anew.

    Drawing ``n`` examples with replacement draws the cells of the confusion matrix from a
    multinomial distribution; the interval has ``share`` of 1,000 such draws inside (Efron 1979).

    Args:
        matrix: The confusion matrix of ``n`` examples.
        share: Share of draws in the interval.
        seed: Seed of the draws.

    Example:
        >>> low, high = score_intervals(np.array([[40, 10], [10, 40]]))["accuracy"]
        >>> 0.70 < low < 0.75 and 0.85 < high < 0.90
        True
    """
    count, classes = int(matrix.sum()), len(matrix)
    true, predicted = np.nonzero(matrix)
    right, rng = true == predicted, np.random.default_rng(seed)
    scores = np.empty((_SAMPLES, 2))
    for i, drawn in enumerate(rng.multinomial(count, matrix[true, predicted] / count, _SAMPLES)):
        found = np.bincount(true[right], drawn[right], classes)
        both = np.bincount(true, drawn, classes) + np.bincount(predicted, drawn, classes)
        there = both > 0
        scores[i] = drawn[right].sum() / count, np.mean(2 * found[there] / both[there])
    low, high = np.quantile(scores, [(1 - share) / 2, (1 + share) / 2], axis=0).tolist()
    return dict(zip(("accuracy", "macro_f1"), zip(low, high, strict=True), strict=True))


def report_with_intervals(report: ClassReport) -> str:
    """Returns the lines of a report, and those of :func:`score_intervals`."""
    ranges = score_intervals(report.matrix)
    said = (
        f"{name.replace('_', ' ')} {low:.4f} to {high:.4f}" for name, (low, high) in ranges.items()
    )
    return f"{report}\n\n95% intervals by the bootstrap: {', '.join(said)}"


def entity_report(predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> str:
    """Returns precision, recall, F1 and number of entities of each type as lines of text.

    Args:
        predictions: Tags of each sentence.
        references: The right ones.

    Example:
        >>> print(entity_report([["B-PER", "I-PER", "O"]], [["B-PER", "I-PER", "B-LOC"]]))
        entity  precision  recall      f1  support
        LOC        0.0000  0.0000  0.0000        1
        PER        1.0000  1.0000  1.0000        1
    """
    counts: dict[str, np.ndarray] = collections.defaultdict(lambda: np.zeros(3, int))
    for told, true in zip(predictions, references, strict=True):
        ours, theirs = set(entities(told)), set(entities(true))
        for place, found in enumerate((ours & theirs, ours, theirs)):
            for _, _, kind in found:
                counts[kind][place] += 1
    rows = [["entity", "precision", "recall", "f1", "support"]]
    for kind in sorted(counts):
        right, told_of, support = counts[kind].tolist()
        scores = (
            _share(right, told_of),
            _share(right, support),
            _share(2 * right, told_of + support),
        )
        rows.append([kind, *(f"{score:.4f}" for score in scores), f"{support:,}"])
    return aligned(rows)

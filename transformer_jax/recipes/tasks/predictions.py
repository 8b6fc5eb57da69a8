"""Predictions for labeled examples: scores, a report, and a row of a table for each."""

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.core.errors import visible
from transformer_jax.core.text_tables import aligned
from transformer_jax.data.labeled import Questions, Sentences, Tagged, place_of
from transformer_jax.evaluation.answers import exact_match, squad_scores, token_f1
from transformer_jax.evaluation.classification import (
    ClassReport,
    accuracy,
    class_report,
    confusion_matrix,
    entity_f1,
    entity_report,
    f1,
    macro_f1,
    marks_entities,
    matthews_corrcoef,
    report_with_intervals,
)
from transformer_jax.evaluation.correlation import pearson, spearman
from transformer_jax.inference.encoding.task_runner import AnswerSpan
from transformer_jax.recipes.scored_texts import reference_columns, write_table

__all__ = [
    "MEASURES",
    "AnswerPredictions",
    "ClassPredictions",
    "NumberPredictions",
    "Predictions",
    "TagPredictions",
    "measures_of",
    "reports",
    "text_columns",
    "texts_of",
    "worst",
    "write_predictions",
]

# The first is the main metric of a task.
MEASURES: Mapping[str, tuple[str, ...]] = {
    "classify": ("accuracy", "f1", "macro_f1", "matthews"),
    "pair": ("accuracy", "f1", "macro_f1", "matthews"),
    "regress": ("pearson", "spearman"),
    "tag": ("accuracy", "macro_f1"),
    "qa": ("exact_match", "f1"),
}


def measures_of(kind: str, labels: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the measures of a task; tags of entities have one more.

    Example:
        >>> measures_of("tag", ("B-PER", "I-PER", "O"))
        ('accuracy', 'macro_f1', 'entity_f1')
    """
    return MEASURES[kind] + ("entity_f1",) * (kind == "tag" and marks_entities(labels))


class Predictions(abc.ABC):
    """Predictions for labeled examples, in their order.

    Attributes:
        losses: How wrong each is, for a list of the worst: 0 is right.
    """

    losses: Float[np.ndarray, " count"]

    @property
    @abc.abstractmethod
    def scores(self) -> dict[str, float]:
        """The metrics of the task, from 0 to 1 or, of correlations, -1 to 1."""

    @property
    def classes(self) -> ClassReport | None:
        """Scores of each class; None for tasks without classes."""
        return None

    @property
    def report(self) -> str:
        """Scores of each class with intervals as lines of text; empty for tasks without classes."""
        return "" if self.classes is None else report_with_intervals(self.classes)

    @property
    @abc.abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of :meth:`rows`."""

    @abc.abstractmethod
    def rows(self, index: int) -> Iterator[tuple[object, ...]]:
        """Yields the rows of an example: one, or one for each word."""


class ClassPredictions(Predictions):
    """Classes of texts, pairs of texts, or pictures.

    Args:
        examples: Place and texts of each example, in the columns ``names``.
        names: Names of those columns.
        probabilities: Probability of each class.
        references: Index of the true class of each.
        labels: Names of the classes.
        measures: Names of the metrics.
    """

    def __init__(
        self,
        examples: Sequence[tuple[str, ...]],
        names: tuple[str, ...],
        probabilities: Float[np.ndarray, "count C"],
        references: Int[np.ndarray, " count"],
        labels: Sequence[str],
        measures: Sequence[str] = MEASURES["classify"],
    ):
        self._examples, self._names, self._labels = examples, names, tuple(labels)
        self._probabilities, self._references = probabilities, references
        self._best, self._measures = probabilities.argmax(-1), measures
        right = probabilities[np.arange(len(references)), references]
        self.losses = -np.log(np.maximum(right.astype(np.float64), 1e-30))

    @property
    def scores(self) -> dict[str, float]:
        """The metrics; F1 is for the second of two classes (GLUE's "1"), or else macro F1."""
        ways: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
            "accuracy": accuracy,
            "f1": f1 if len(self._labels) == 2 else macro_f1,
            "macro_f1": macro_f1,
            "matthews": matthews_corrcoef,
            "top5_accuracy": lambda best, references: self._top(5),
        }
        return {name: ways[name](self._best, self._references) for name in self._measures}

    def _top(self, count: int) -> float:
        ranked = np.argsort(-self._probabilities, axis=-1, kind="stable")[:, :count]
        return float((ranked == self._references[:, None]).any(-1).mean())

    @property
    def classes(self) -> ClassReport:
        """Precision, recall and F1 of each class, and the confusion matrix."""
        matrix = confusion_matrix(self._best, self._references, len(self._labels))
        return class_report(matrix, self._labels)

    @property
    def columns(self) -> tuple[str, ...]:
        """Place and texts, true and predicted class, and the probability of each class."""
        shares = (f"probability of {label}" for label in self._labels)
        return ("place", *self._names, "label", "predicted", *shares)

    def rows(self, index: int) -> Iterator[tuple[object, ...]]:
        """Yields the row of an example."""
        label, best = self._labels[self._references[index]], self._labels[self._best[index]]
        yield (*self._examples[index], label, best, *map(float, self._probabilities[index]))


class NumberPredictions(Predictions):
    """Numbers for texts or pairs of texts."""

    def __init__(self, part: Sentences, numbers: Float[np.ndarray, " count"]):
        self._part, self._numbers = part, numbers.astype(np.float64)
        self._references = np.array([float(label) for label in part.labels])
        self.losses = (self._numbers - self._references) ** 2

    @property
    def scores(self) -> dict[str, float]:
        """The correlations."""
        both = self._numbers, self._references
        return {"pearson": pearson(*both), "spearman": spearman(*both)}

    @property
    def columns(self) -> tuple[str, ...]:
        """Place and texts, and the true and the predicted number."""
        return ("place", *text_columns(self._part), "label", "predicted")

    def rows(self, index: int) -> Iterator[tuple[object, ...]]:
        """Yields the row of an example."""
        yield (*texts_of(self._part, index), self._part.labels[index], float(self._numbers[index]))


class TagPredictions(Predictions):
    """Tags of words, each with its probability."""

    def __init__(
        self,
        part: Tagged,
        tags: list[list[tuple[int, float]]],
        references: Int[np.ndarray, " words"],
        labels: Sequence[str],
    ):
        self._part, self._tags, self._labels = part, tags, tuple(labels)
        self._references = references
        self._best = np.array([tag for sentence in tags for tag, _ in sentence])
        wrong = (self._best != references).astype(np.float64)
        ends = np.cumsum([len(sentence) for sentence in tags])
        self.losses = np.array([words.sum() for words in np.split(wrong, ends[:-1])])

    @property
    def scores(self) -> dict[str, float]:
        """Accuracy and macro F1 of words, and F1 of entities if tags mark them."""
        both = self._best, self._references
        scores = {"accuracy": accuracy(*both), "macro_f1": macro_f1(*both)}
        if marks_entities(self._labels):
            scores["entity_f1"] = entity_f1(self._named(), self._part.tags)
        return scores

    def _named(self) -> list[list[str]]:
        return [[self._labels[tag] for tag, _ in sentence] for sentence in self._tags]

    @property
    def classes(self) -> ClassReport:
        """Precision, recall and F1 of each tag, and the confusion matrix."""
        matrix = confusion_matrix(self._best, self._references, len(self._labels))
        return class_report(matrix, self._labels)

    @property
    def report(self) -> str:
        """Scores of each type of entity, or of each tag if tags mark none."""
        if not marks_entities(self._labels):
            return super().report
        return entity_report(self._named(), self._part.tags)

    @property
    def columns(self) -> tuple[str, ...]:
        """Place, number of the sentence, word, true and predicted tag, and its probability."""
        return ("place", "sentence", "word", "label", "predicted", "probability")

    def rows(self, index: int) -> Iterator[tuple[object, ...]]:
        """Yields a row for each word."""
        told = zip(self._part.words[index], self._part.tags[index], self._tags[index], strict=True)
        for word, (text, true, (tag, worth)) in enumerate(told):
            place = place_of(self._part, (index, word))
            yield place, index + 1, text, true, self._labels[tag], float(worth)


class AnswerPredictions(Predictions):
    """Answers to questions."""

    def __init__(self, part: Questions, answers: Sequence[AnswerSpan]):
        self._part, self._answers = part, answers
        self._references = [[answer.text for answer in answers] for answers in part.answers]
        both = zip(answers, self._references, strict=True)
        self.losses = np.array([1 - token_f1(answer.text, wanted or "") for answer, wanted in both])

    @property
    def scores(self) -> dict[str, float]:
        """Exact match and F1 of SQuAD."""
        given = {
            one: answer.text for one, answer in zip(self._part.ids, self._answers, strict=True)
        }
        score = squad_scores(given, dict(zip(self._part.ids, self._references, strict=True)))
        return {"exact_match": score.exact_match, "f1": score.f1}

    @property
    def columns(self) -> tuple[str, ...]:
        """Id, question, references, answer, its score, and whether it matches."""
        names = reference_columns(self._references)
        return ("id", "question", *names, "predicted", "score", "exact_match")

    def rows(self, index: int) -> Iterator[tuple[object, ...]]:
        """Yields the row of a question; the empty text is "no answer"."""
        answer, wanted = self._answers[index], self._references[index]
        texts = *wanted, *[""] * (len(self.columns) - 5 - len(wanted))
        matches = exact_match(answer.text, wanted or "")
        about = self._part.ids[index], self._part.questions[index]
        yield (*about, *texts, answer.text, float(answer.score), matches)


def text_columns(part: Sentences) -> tuple[str, ...]:
    """Returns the names of the columns of the texts of an example."""
    return ("text",) if part.text_pairs is None else ("text", "second")


def texts_of(part: Sentences, index: int) -> tuple[str, ...]:
    """Returns the place and the texts of an example."""
    seconds = () if part.text_pairs is None else (part.text_pairs[index],)
    return (place_of(part, (index, 0)), part.texts[index], *seconds)


def reports(parts: Mapping[str, Predictions]) -> str:
    """Returns the reports of all parts that have one, each after a blank line and its name."""
    said = {name: predictions.report for name, predictions in parts.items()}
    return "".join(f"\n\n{name}:\n\n{report}" for name, report in said.items() if report)


def worst(predictions: Predictions, count: int) -> str:
    """Returns the examples with the highest loss as a table, the worst first; none whose loss is 0.

    Args:
        predictions: The predictions.
        count: Largest number of examples.
    """
    order = np.argsort(-predictions.losses, kind="stable")[:count]
    rows = [["loss", *predictions.columns]]
    for index in order.tolist():
        if predictions.losses[index] > 0:
            for row in predictions.rows(index):
                cells = (f"{x:.4f}" if isinstance(x, float) else str(x) for x in row)
                shown = (visible(" ".join(one.split()))[:60] for one in cells)
                rows.append([f"{predictions.losses[index]:.4f}", *shown])
    return aligned(rows, left=len(rows[0]))


def write_predictions(path: Path, parts: Mapping[str, Predictions]) -> None:
    """Writes a table with a row for each prediction, as CSV.

    Args:
        path: The file.
        parts: Predictions of each part of the data; a column has its name if there are several.

    Raises:
        ConfigError: The file cannot be written.
    """
    several = len(parts) > 1
    columns = [*["data"] * several, *next(iter(parts.values())).columns]
    rows = (
        [*[name] * several, *row]
        for name, predictions in parts.items()
        for index in range(len(predictions.losses))
        for row in predictions.rows(index)
    )
    write_table(path, columns, rows)

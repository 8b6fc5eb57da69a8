"""Metrics of labeled examples for each task."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.core.text_tables import aligned
from transformer_jax.data.classes import class_numbers
from transformer_jax.data.labeled import (
    Labeled,
    Questions,
    Sentences,
    Tagged,
    numbered_labels,
    place_of,
)
from transformer_jax.evaluation.answers import squad_scores
from transformer_jax.evaluation.classification import (
    accuracy,
    entity_f1,
    f1,
    macro_f1,
    marks_entities,
    matthews_corrcoef,
)
from transformer_jax.evaluation.correlation import pearson, spearman
from transformer_jax.inference.encoding.task_runner import TaskRunner

__all__ = ["MEASURES", "measure", "measures_of", "table", "write_scores"]

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


def measure(
    predictor: TaskRunner, kind: str, labels: Sequence[str], part: Labeled
) -> dict[str, float]:
    """Returns the metrics of a task on labeled examples, from 0 to 1.

    F1 is for the second of two classes (GLUE's "1"), or else the mean over classes.

    Args:
        predictor: Predictor of the trained model.
        kind: The task.
        labels: Names of classes, in order.
        part: Examples.

    Raises:
        DataError: The run was not trained on a label.
    """
    if isinstance(part, Questions):
        found = predictor.answers(part.questions, part.contexts)
        given = {name: best[0].text for name, best in zip(part.ids, found, strict=True)}
        texts = [[answer.text for answer in answers] for answers in part.answers]
        score = squad_scores(given, dict(zip(part.ids, texts, strict=True)))
        return {"exact_match": score.exact_match, "f1": score.f1}
    if isinstance(part, Tagged):
        references = _numbers(part, labels)
        told = [[tag for tag, _ in sentence] for sentence in predictor.tags(part.words)]
        tags = np.array([tag for sentence in told for tag in sentence])
        scores = _classes(tags, references, kind, labels)
        if "entity_f1" in measures_of(kind, labels):
            named = [[labels[tag] for tag in tags] for tags in told]
            scores["entity_f1"] = entity_f1(named, part.tags)
        return scores
    assert isinstance(part, Sentences)
    if kind == "regress":
        numbers = np.asarray(predictor.numbers(part.texts, part.text_pairs), np.float64)
        wanted = np.array([float(label) for label in part.labels])
        return {"pearson": pearson(numbers, wanted), "spearman": spearman(numbers, wanted)}
    references = _numbers(part, labels)
    best = predictor.classes(part.texts, part.text_pairs).argmax(-1)
    return _classes(best, references, kind, labels)


def _numbers(part: Labeled, labels: Sequence[str]) -> np.ndarray:
    numbers = class_numbers(labels)
    given = numbered_labels(part)
    for i, label in given:
        if label not in numbers:
            raise DataError(
                f"{place_of(part, i)}: the label {label!r} is not among the training labels: "
                f"{', '.join(labels)}"
            )
    return np.array([numbers[label] for _, label in given])


def _classes(
    predictions: np.ndarray, references: np.ndarray, kind: str, labels: Sequence[str]
) -> dict[str, float]:
    ways: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
        "accuracy": accuracy,
        "f1": f1 if len(labels) == 2 else macro_f1,
        "macro_f1": macro_f1,
        "matthews": matthews_corrcoef,
    }
    return {name: ways[name](predictions, references) for name in MEASURES[kind]}


def table(scores: Mapping[str, Mapping[str, Any]]) -> str:
    """Formats a table with a row per part and a column per metric.

    Example:
        >>> print(table({"valid": {"accuracy": 0.5, "f1": 0.25}}))
        data   accuracy      f1
        valid    0.5000  0.2500
    """
    names = list(next(iter(scores.values()), {}))
    rows = [["data", *names]]
    rows += [[part, *(f"{said[name]:.4f}" for name in names)] for part, said in scores.items()]
    return aligned(rows)


def write_scores(path: Path | None, scores: Mapping[str, Any]) -> None:
    """Writes results as JSON, if a file is given.

    Args:
        path: The file of ``--output``; None writes nothing.
        scores: The results.

    Raises:
        ConfigError: The file cannot be written.
    """
    if path is None:
        return
    try:
        path.write_text(json.dumps(scores, indent=1) + "\n", "utf-8")
    except OSError as error:
        raise ConfigError(f"--output {path}: cannot be written: {error.strerror}") from None

"""Metrics of labeled examples for each task."""

import json
from collections.abc import Mapping, Sequence
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
from transformer_jax.inference.encoding.task_runner import TaskRunner
from transformer_jax.recipes.tasks.predictions import (
    AnswerPredictions,
    ClassPredictions,
    NumberPredictions,
    Predictions,
    TagPredictions,
    reports,
    text_columns,
    texts_of,
    worst,
    write_predictions,
)
from transformer_jax.visual.charts import plot_confusions
from transformer_jax.visual.figures import SUFFIXES

__all__ = ["predict", "print_predictions", "table", "write_scores"]


def predict(predictor: TaskRunner, kind: str, labels: Sequence[str], part: Labeled) -> Predictions:
    """Returns what a model predicts for labeled examples.

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
        return AnswerPredictions(part, [best[0] for best in found])
    if isinstance(part, Tagged):
        references = _numbers(part, labels)
        return TagPredictions(part, predictor.tags(part.words), references, labels)
    assert isinstance(part, Sentences)
    if kind == "regress":
        return NumberPredictions(part, np.asarray(predictor.numbers(part.texts, part.text_pairs)))
    references = _numbers(part, labels)
    examples = [texts_of(part, index) for index in range(len(part))]
    shares = np.asarray(predictor.classes(part.texts, part.text_pairs))
    return ClassPredictions(examples, text_columns(part), shares, references, labels)


def _numbers(part: Labeled, labels: Sequence[str]) -> np.ndarray:
    numbers = class_numbers(labels)
    given = numbered_labels(part)
    if {label for _, label in given} == {"-1"} - numbers.keys():
        raise DataError(
            f"{part.name}: all labels are -1, which stands for those that are withheld: give other "
            f"data, such as the validation split"
        )
    for i, label in given:
        if label not in numbers:
            raise DataError(
                f"{place_of(part, i)}: the label {label!r} is not among the training labels: "
                f"{', '.join(labels)}"
            )
    return np.array([numbers[label] for _, label in given])


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


def print_predictions(
    parts: Mapping[str, Predictions], output: Path | None, count: int | None
) -> None:
    """Prints scores, reports and the worst examples of the parts of the data.

    Args:
        parts: Predictions of each part.
        output: A file for the scores as JSON or, by the end of its name, for a row for each
            prediction (``.csv``), or the confusion matrices (``.png``, ``.svg``, ``.html``); None
            writes nothing.
        count: Number of the worst examples; None prints none.

    Raises:
        ConfigError: The file cannot be written, or there are no classes to draw.
    """
    scores = {name: predictions.scores for name, predictions in parts.items()}
    print(table(scores) + reports(parts), flush=True)
    for name, predictions in parts.items() if count else ():
        print(f"\n{name}, worst first:\n\n{worst(predictions, count or 0)}", flush=True)
    if output is not None and output.suffix.lower() == ".csv":
        write_predictions(output, parts)
    elif output is not None and output.suffix in SUFFIXES:
        classes = {name: one.classes for name, one in parts.items() if one.classes is not None}
        if not classes:
            raise ConfigError(f"--output {output}: this task has no classes to draw: name a .json")
        try:
            plot_confusions(output, classes)
        except OSError as error:
            raise ConfigError(f"--output {output}: cannot be written: {error.strerror}") from None
    else:
        write_scores(output, scores)


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
    if path.suffix.lower() == ".csv":
        raise ConfigError(
            f"--output {path}: rows are written for predicted classes, numbers, tags, answers and "
            f"texts, not for these scores: name a .json file"
        )
    try:
        path.write_text(json.dumps(scores, indent=1) + "\n", "utf-8")
    except OSError as error:
        raise ConfigError(f"--output {path}: cannot be written: {error.strerror}") from None

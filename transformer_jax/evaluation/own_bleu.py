"""BLEU and training cost of this library's translators, from run directories and result files."""

import dataclasses
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transformer_jax.data.files import read_file
from transformer_jax.errors import CheckpointError, DataError, plural
from transformer_jax.training.metrics import read_metrics
from transformer_jax.training.run_directory import RunDirectory

__all__ = ["OwnScore", "results_in", "scores_of_run", "training_cost"]

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class OwnScore:
    """SacreBLEU of a model on a test set.

    Attributes:
        source: The run directory or the file of results.
        test: Name of the test set, or the task.
        bleu: As stored.
        signature: Of sacreBLEU.
        search: Greedy, or the width of the beam.
        parameters: Of the model; None where it is not stored.
        steps: Of training; None where it is not stored.
        flops: Of training; None where it is not stored.
    """

    source: str
    test: str
    bleu: float
    signature: str
    search: str
    parameters: int | None
    steps: int | None
    flops: float | None


def training_cost(run: RunDirectory) -> float | None:
    """FLOPs of all training steps of a run, the sum over ``metrics.jsonl``.

    None if the file lacks ``flops`` of a step, as those of earlier versions do; a warning counts
    steps whose lines are missing or damaged.

    Raises:
        CheckpointError: The metrics or the results cannot be read.
    """
    lines = {line["step"]: line for line in read_metrics(run.metrics) if "loss" in line}
    costs = [line.get("flops") for line in lines.values()]
    numbers = [float(cost) for cost in costs if isinstance(cost, int | float)]
    if not numbers or len(numbers) < len(costs):
        return None
    last = run.read_results().get("steps") if run.results.is_file() else None
    missing = last - len(lines) if isinstance(last, int) else 0
    if missing:
        log.warning(
            "%s: without %s of %d: the FLOPs of this run are unknown",
            *(run.metrics, plural(missing, "step"), last),
        )
    return None if missing else sum(numbers)


def scores_of_run(run: RunDirectory, name: str) -> list[OwnScore]:
    """The BLEU of each test set of a run, which ``results.json`` holds when it has ended.

    Args:
        run: Of a translator.
        name: What it is called in the report.

    Raises:
        CheckpointError: It has not ended, is no translator's, or has no test set.
    """
    if not run.results.is_file():
        raise CheckpointError(f"{name}: no results.json: a run writes it at its end: resume it")
    found = list(_of_run(run.read_results(), name, training_cost(run)))
    if not found:
        raise CheckpointError(
            f"{name}: its results.json has no BLEU: only translators with test sets "
            f"(--data.test.source, --data.test.target) have one"
        )
    return found


def results_in(folder: Path) -> list[OwnScore]:
    """The BLEU of the JSON files of a folder, such as ``benchmarks/results``; others are passed.

    A file has ``results``, those of a run; or ``scores``, a list of objects with ``sacrebleu``,
    ``signature`` and ``search``; or ``runs``, a list of objects with ``run``, their name, and
    ``scores``. ``flops``, if it is there, is the cost of training.

    Raises:
        DataError: There is no such folder, a file cannot be read, or none has BLEU.
    """
    if not os.path.isdir(folder):
        raise DataError(f"{folder}: no such folder of results")
    found: list[OwnScore] = []
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(read_file(path).decode("utf-8"))
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError):
            raise DataError(f"{path}: not JSON: mend it or take it away") from None
        if isinstance(content, dict):
            found += _of_file(content, path.stem)
    if not found:
        raise DataError(f"{folder}: no JSON file in it has BLEU")
    return found


def _of_file(content: Mapping[str, Any], name: str) -> Iterator[OwnScore]:
    flops = _number(content.get("flops"))
    results, scores = content.get("results"), content.get("scores")
    if isinstance(results, dict):
        yield from _of_run(results, name, flops)
    runs = content.get("runs")
    for run in runs if isinstance(runs, list) else ():
        if isinstance(run, dict):
            about = {"task": content.get("task", ""), **run}
            yield from _of_file(about, f"{name}, {run.get('run', '')}".rstrip(", "))
    for score in scores if isinstance(scores, list) else ():
        if isinstance(score, dict) and (bleu := _number(score.get("sacrebleu"))) is not None:
            yield OwnScore(
                name,
                str(content.get("task", "")),
                bleu,
                str(score.get("signature", content.get("signature", ""))),
                str(score.get("search", "")),
                _whole(content.get("parameters")),
                _whole(content.get("steps")),
                flops,
            )


def _of_run(results: Mapping[str, Any], name: str, flops: float | None) -> Iterator[OwnScore]:
    """The scores of the test sets in ``results.json``."""
    tests = results.get("tests")
    for test, scores in tests.items() if isinstance(tests, dict) else ():
        if not isinstance(scores, dict):
            continue
        bleu, beams = _number(scores.get("sacrebleu")), _whole(scores.get("beams"))
        if bleu is not None:
            yield OwnScore(
                name,
                str(test),
                bleu,
                str(scores.get("sacrebleu_signature", "")),
                "" if beams is None else "greedy" if beams == 1 else f"beam {beams}",
                _whole(results.get("parameters")),
                _whole(results.get("steps")),
                flops,
            )


def _number(value: Any) -> float | None:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if real else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None

"""BLEU and training cost of translators: of Vaswani et al. 2017, table 2, and of runs."""

import dataclasses
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from transformer_jax.core.errors import CheckpointError, DataError, plural
from transformer_jax.core.json_types import Json
from transformer_jax.data.files import read_file
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.runs.run_directory import RunDirectory

__all__ = [
    "CAVEATS",
    "DEVICE_FLOPS",
    "TABLE",
    "OwnScore",
    "PublishedTranslator",
    "TrainingTime",
    "results_in",
    "scores_of_run",
    "training_cost",
]

# Sustained single-precision FLOP/s per device, footnote 5 of the paper.
DEVICE_FLOPS = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}
_HOUR, _DAY = 3600, 86400

CAVEATS = (
    "BLEU of the table is that of tokenised text, with compounds split for German: not comparable "
    "with sacreBLEU",
    "FLOPs of the table are estimates: training time × number of GPUs × sustained single-precision "
    "FLOP/s of one; those of runs are counted by formulas, padding included",
)


@dataclasses.dataclass(frozen=True)
class TrainingTime:
    """The training time and devices of a model.

    Attributes:
        seconds: Time from the first step to the last.
        devices: Number of devices.
        device: A name of :data:`DEVICE_FLOPS`.
        steps: Number of steps.
    """

    seconds: int
    devices: int
    device: str
    steps: int

    @property
    def flops(self) -> float:
        """The paper's estimate: time × devices × sustained FLOP/s of one.

        Example:
            >>> TrainingTime(12 * 3600, 8, "P100", 100_000).flops
            3.2832e+18
        """
        return self.seconds * self.devices * DEVICE_FLOPS[self.device]


@dataclasses.dataclass(frozen=True)
class PublishedTranslator:
    """A row of table 2: newstest2014, English to German and English to French.

    Attributes:
        name: Name in the table.
        source: The publication.
        bleu_de: BLEU of English to German, or None.
        bleu_fr: BLEU of English to French.
        flops_de: Training cost as printed.
        flops_fr: Training cost as printed; for Transformers, a single value is printed for both.
        ensemble: Whether it is an ensemble of models.
        time: Training time, if given in the paper.
    """

    name: str
    source: str
    bleu_de: float | None
    bleu_fr: float | None
    flops_de: float | None
    flops_fr: float | None
    ensemble: bool = False
    time: TrainingTime | None = None


TABLE = (
    PublishedTranslator("ByteNet", "Kalchbrenner et al. 2016", 23.75, None, None, None),
    PublishedTranslator("Deep-Att + PosUnk", "Zhou et al. 2016", None, 39.2, None, 1.0e20),
    PublishedTranslator("GNMT + RL", "Wu et al. 2016", 24.6, 39.92, 2.3e19, 1.4e20),
    PublishedTranslator("ConvS2S", "Gehring et al. 2017", 25.16, 40.46, 9.6e18, 1.5e20),
    PublishedTranslator("MoE", "Shazeer et al. 2017", 26.03, 40.56, 2.0e19, 1.2e20),
    PublishedTranslator(
        "Deep-Att + PosUnk ensemble", "Zhou et al. 2016", None, 40.4, None, 8.0e20, True
    ),
    PublishedTranslator("GNMT + RL ensemble", "Wu et al. 2016", 26.30, 41.16, 1.8e20, 1.1e21, True),
    PublishedTranslator(
        "ConvS2S ensemble", "Gehring et al. 2017", 26.36, 41.29, 7.7e19, 1.2e21, True
    ),
    PublishedTranslator(
        "Transformer, base", "Vaswani et al. 2017", 27.3, 38.1, 3.3e18, 3.3e18,
        time=TrainingTime(12 * _HOUR, 8, "P100", 100_000),
    ),
    PublishedTranslator(
        "Transformer, big", "Vaswani et al. 2017", 28.4, 41.8, 2.3e19, 2.3e19,
        time=TrainingTime(7 * _DAY // 2, 8, "P100", 300_000),
    ),
)  # fmt: skip


log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class OwnScore:
    """SacreBLEU of a model on a test set.

    Attributes:
        source: Run directory or file of results.
        test: Name of the test set, or the task.
        bleu: The stored score.
        signature: Signature of sacreBLEU.
        search: Greedy, or the beam width.
        parameters: Number of parameters; None if not stored.
        steps: Training steps; None if not stored.
        flops: Training FLOPs; None if not stored.
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
    """Returns the FLOPs of all training steps of a run, summed over ``metrics.jsonl``.

    None if the file lacks ``flops`` of a step, as in earlier versions; a warning counts steps whose
    lines are missing or damaged.

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
    """Returns the BLEU of each test set of a finished run, from ``results.json``.

    Args:
        run: The run of a translator.
        name: Name of the run in the report.

    Raises:
        CheckpointError: The run has not finished, is not a translator, or has no test set.
    """
    if not run.results.is_file():
        raise CheckpointError(f"{name}: no results.json: the run has not ended: resume it")
    found = list(_of_run(run.read_results(), name, training_cost(run)))
    if not found:
        raise CheckpointError(
            f"{name}: its results.json has no BLEU: only translators with test sets "
            f"(--data.test.source, --data.test.target) have one"
        )
    return found


def results_in(folder: Path) -> list[OwnScore]:
    """Returns the BLEU in the JSON files of a folder, such as ``benchmarks/results``.

    A file has ``results`` of a run; or ``scores``, a list of objects with ``sacrebleu``,
    ``signature`` and ``search``; or ``runs``, a list of objects with the name ``run`` and
    ``scores``. Optional ``flops`` are the cost of training. Other files are skipped.

    Raises:
        DataError: The folder does not exist, a file cannot be read, or none has BLEU.
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
            raise DataError(f"{path}: not JSON: fix it or remove it") from None
        if isinstance(content, dict):
            found += _of_file(content, path.stem)
    if not found:
        raise DataError(f"{folder}: no JSON file in it has BLEU")
    return found


def _of_file(content: Mapping[str, Json], name: str) -> Iterator[OwnScore]:
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


def _of_run(results: Mapping[str, Json], name: str, flops: float | None) -> Iterator[OwnScore]:
    """Returns the scores of the test sets in ``results.json``."""
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


def _number(value: Json) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def _whole(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None

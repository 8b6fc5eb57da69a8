"""Scores of checkpoints, and the progress of a run: best score, patience, skipped steps.

Every manifest stores the progress, so that a resumed run ends like an uninterrupted one, even if
``metrics.jsonl`` is damaged.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from transformer_jax.core.config_fields import Configuration
from transformer_jax.runs.manifest import Manifest, ProgressRecord

__all__ = [
    "PROGRESS",
    "CheckpointScore",
    "Metric",
    "MetricsLine",
    "Standing",
    "score_of",
    "step_of",
]

# A line of ``metrics.jsonl``: numbers by name; None is not finite.
MetricsLine: TypeAlias = Mapping[str, int | float | None]


def step_of(line: MetricsLine) -> int:
    """Returns the step of a line of ``metrics.jsonl``.

    Example:
        >>> step_of({"step": 3, "loss": 0.5})
        3
    """
    step = line["step"]
    assert isinstance(step, int)
    return step


@dataclasses.dataclass(frozen=True)
class Metric(Configuration, group="metric"):
    """A metric that ranks checkpoints.

    Attributes:
        name: Its name: ``valid_loss``, or a result of ``Task.evaluate``.
        better: Which values are better, ``lower`` or ``higher``.
    """

    name: str  # valid_loss, or a result of Task.evaluate
    better: Literal["lower", "higher"]  # which values are better


class CheckpointScore(NamedTuple):
    """The quality of a checkpoint's parameters by one metric."""

    name: str
    value: float
    better: Literal["lower", "higher"] = "lower"

    def beats(self, other: "CheckpointScore | None") -> bool:
        """Returns whether this is better than ``other``; any score beats None and NaN.

        Example:
            >>> CheckpointScore("loss", 1.0).beats(CheckpointScore("loss", 2.0))
            True
            >>> bleu = CheckpointScore("sacrebleu", 1.0, "higher")
            >>> bleu.beats(bleu._replace(value=2.0))
            False
        """
        if not np.isfinite(self.value):
            return False
        if other is None or not np.isfinite(other.value):
            return True
        return self.value < other.value if self.better == "lower" else self.value > other.value


def score_of(fields: Manifest) -> CheckpointScore | None:
    """Returns the score in a manifest."""
    score = fields.get("score")
    return CheckpointScore(**score) if score else None


PROGRESS: Final = "progress"  # the field in manifests


class Standing(NamedTuple):
    """The best score of a run, and the state of early stopping."""

    best: CheckpointScore | None = None
    best_step: int = 0
    since: int = 0  # evaluations since the best
    evaluated: int = 0  # step of the last evaluation
    skipped: int = 0  # consecutive non-finite steps up to the last

    def after(self, step: int, score: CheckpointScore | None) -> "Standing":
        """Returns the standing after an evaluation; None is an evaluation without the metric.

        Example:
            >>> first = Standing().after(2, CheckpointScore("loss", 2.0))
            >>> first.after(4, CheckpointScore("loss", 3.0))[1:4]
            (2, 1, 4)
        """
        if score is None:
            return self._replace(evaluated=step)
        if score.beats(self.best):
            return self._replace(best=score, best_step=step, since=0, evaluated=step)
        return self._replace(since=self.since + 1, evaluated=step)

    def fields(self, metric: Metric) -> ProgressRecord:
        """Returns the standing as fields of a manifest."""
        best = None if self.best is None else self.best.value
        return {
            "metric": metric.name, "best": best, "best_step": self.best_step, "since": self.since,
            "evaluated": self.evaluated, "skipped": self.skipped,
        }  # fmt: skip

    @classmethod
    def read(cls, manifest: Manifest, metric: Metric) -> "Standing | None":
        """Returns the standing in a manifest; None if it has none for this metric.

        Example:
            >>> metric = Metric("loss", better="lower")
            >>> standing = Standing().after(2, CheckpointScore("loss", 2.0))
            >>> Standing.read({PROGRESS: standing.fields(metric)}, metric) == standing
            True
        """
        fields = manifest.get(PROGRESS)
        if fields is None or fields["metric"] != metric.name:
            return None
        best = fields["best"]
        score = None if best is None else CheckpointScore(metric.name, best, metric.better)
        return cls(
            score,
            fields["best_step"],
            fields["since"],
            fields["evaluated"],
            fields.get("skipped", 0),
        )

    @classmethod
    def of_earlier(
        cls, history: Iterable[MetricsLine], scores: Mapping[int, CheckpointScore], metric: Metric
    ) -> "Standing":
        """Returns the standing of a run of an earlier version, without it in manifests.

        Args:
            history: The lines of ``metrics.jsonl``.
            scores: The scores in manifests by step, which override the lines.
            metric: The metric of the best checkpoint.

        Example:
            >>> lines = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 3.0}]
            >>> Standing.of_earlier(lines, {}, Metric("loss", better="lower"))[1:]
            (1, 1, 2, 0)
        """
        lines, skipped = list(history), 0
        values = {step_of(line): line[metric.name] for line in lines if metric.name in line}
        values |= {step: one.value for step, one in scores.items() if one.name == metric.name}
        for line in reversed([line for line in lines if "loss" in line]):
            if not line.get("skipped"):
                break
            skipped += 1
        standing = cls(skipped=skipped)
        for step in sorted({*values, *(step_of(line) for line in lines if "loss" not in line)}):
            value = values.get(step)
            if step not in values:
                standing = standing.after(step, None)
                continue
            number = value if isinstance(value, int | float) else float("nan")
            standing = standing.after(step, CheckpointScore(metric.name, number, metric.better))
        return standing

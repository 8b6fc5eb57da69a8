"""Scores of checkpoints, and the progress of a run: best score, patience, skipped steps.

Every manifest stores the progress, so that a resumed run ends like an uninterrupted one, even if
``metrics.jsonl`` is damaged.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from transformer_jax.core.config_fields import Configuration

__all__ = ["PROGRESS", "CheckpointScore", "Metric", "Standing", "score_of"]


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


def score_of(fields: Mapping[str, Any]) -> CheckpointScore | None:
    """Returns the score in a manifest."""
    return CheckpointScore(**fields["score"]) if fields.get("score") else None


PROGRESS = "progress"  # the field in manifests


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

    def fields(self, metric: Metric) -> dict[str, Any]:
        """Returns the standing as fields of a manifest."""
        best = None if self.best is None else self.best.value
        return {"metric": metric.name, **self._asdict(), "best": best}

    @classmethod
    def read(cls, manifest: Mapping[str, Any], metric: Metric) -> "Standing | None":
        """Returns the standing in a manifest; None if it has none for this metric.

        Example:
            >>> metric = Metric("loss", better="lower")
            >>> standing = Standing().after(2, CheckpointScore("loss", 2.0))
            >>> Standing.read({PROGRESS: standing.fields(metric)}, metric) == standing
            True
        """
        fields = dict(manifest.get(PROGRESS, {}))
        if fields.pop("metric", None) != metric.name:
            return None
        best = fields.pop("best")
        score = None if best is None else CheckpointScore(metric.name, best, metric.better)
        return cls(best=score, **fields)

    @classmethod
    def of_earlier(
        cls,
        history: Iterable[Mapping[str, Any]],
        scores: Mapping[int, CheckpointScore],
        metric: Metric,
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
        values = {line["step"]: line[metric.name] for line in lines if metric.name in line}
        values |= {step: one.value for step, one in scores.items() if one.name == metric.name}
        for line in reversed([line for line in lines if "loss" in line]):
            if not line.get("skipped"):
                break
            skipped += 1
        standing = cls(skipped=skipped)
        for step in sorted({*values, *(line["step"] for line in lines if "loss" not in line)}):
            value = values.get(step, metric)
            if value is metric:
                standing = standing.after(step, None)
                continue
            number = value if isinstance(value, int | float) else float("nan")
            standing = standing.after(step, CheckpointScore(metric.name, number, metric.better))
        return standing

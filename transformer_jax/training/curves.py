"""``curves.png`` of a run, drawn at its end and from time to time before.

It has losses, scores, learning rate and gradient norm.
"""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from transformer_jax.runs.checkpoint_score import MetricsLine, step_of

__all__ = ["Curves", "smoothed", "training_curves"]

_PERIOD = 60.0  # seconds between two drawings, at least
_SHARE = 0.01  # share of the time that drawing may take


class Curves:
    """The picture of a run's metrics.

    Args:
        path: The picture.
        labels: Labels of the training and the validation loss.
        scores: Names of the other validation scores.
        counts: What the loss is a mean over, such as ``tokens``.
    """

    def __init__(
        self, path: Path, labels: tuple[str, str], scores: Sequence[str], counts: str = "tokens"
    ):
        self.path, self.labels, self.scores, self.counts = path, labels, scores, counts
        self._due = time.monotonic() + _PERIOD

    def draw(self, history: Sequence[MetricsLine]) -> None:
        """Draws the lines of ``metrics.jsonl``."""
        training_curves(
            history, self.path, labels=self.labels, scores=self.scores, counts=self.counts
        )

    def draw_if_due(self, history: Sequence[MetricsLine]) -> None:
        """Draws if the last drawing was a minute ago, or 100 times as long as drawing takes."""
        began = time.monotonic()
        if began < self._due:
            return
        self.draw(history)
        ended = time.monotonic()
        self._due = ended + max(_PERIOD, (ended - began) / _SHARE)


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value and up to ``window - 1`` values before it.

    Example:
        >>> smoothed([4.0, 2.0, 3.0], 2)
        [4.0, 3.0, 2.5]
    """
    total = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - window, 0)
    return ((total[ends] - total[begins]) / (ends - begins)).tolist()


def _series(history: Iterable[MetricsLine], name: str) -> tuple[list[int], list[float]]:
    pairs = [(step_of(r), value) for r in history if (value := r.get(name)) is not None]
    return [step for step, _ in pairs], [value for _, value in pairs]


def training_curves(
    history: Sequence[MetricsLine],
    path: Path,
    *,
    labels: tuple[str, str] = ("training", "validation"),
    scores: Sequence[str] = ("sacrebleu", "chrf"),
    counts: str = "tokens",
) -> None:
    """Draws loss, validation scores, learning rate and gradient norm over the steps.

    Args:
        history: The lines of ``metrics.jsonl``.
        path: The picture, ``.png`` or any other format that Matplotlib supports.
        labels: Names of the curves of training and validation loss.
        scores: Names of the other validation scores.
        counts: What the loss is a mean over; for tokens it is in nats.
    """
    from matplotlib.figure import Figure  # without pyplot no window system is needed

    from transformer_jax.core.figure_fonts import drawn

    figure = Figure(figsize=(10, 7))
    # Laid out by hand: Matplotlib's layouts take as long as drawing.
    figure.subplots_adjust(0.09, 0.07, 0.98, 0.95, wspace=0.25, hspace=0.3)
    (loss, score), (rate, norm) = figure.subplots(2, 2)
    steps, values = _series(history, "loss")
    if steps:
        loss.plot(steps, values, color="0.8", linewidth=0.7)
        loss.plot(steps, smoothed(values, max(1, len(values) // 50)), label=labels[0])
    steps, values = _series(history, "valid_loss")
    if steps:
        loss.plot(steps, values, "o-", markersize=3, label=labels[1])
    if loss.lines:
        loss.legend()
    unit = "nats per token" if counts == "tokens" else f"mean of {counts.replace('_', ' ')}"
    loss.set_title(f"loss, {unit}")
    for name in scores:
        steps, values = _series(history, name)
        if steps:
            score.plot(steps, values, "o-", markersize=3, label=name)
    if score.lines:
        score.legend()
    score.set_title("validation scores")
    rate.plot(*_series(history, "learning_rate"))
    rate.set_title("learning rate")
    norm.plot(*_series(history, "grad_norm"), linewidth=0.7)
    norm.set_title("gradient norm, before clipping")
    if any(value > 0 for value in _series(history, "grad_norm")[1]):
        norm.set_yscale("log")
    for axes in (loss, score, rate, norm):
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    with drawn(figure, path):
        figure.savefig(path, dpi=120)

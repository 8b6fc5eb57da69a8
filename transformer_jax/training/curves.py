"""``curves.png`` of a run, drawn at its end and from time to time before."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["Curves"]

_PERIOD = 60.0  # seconds between two drawings, at least
_SHARE = 0.01  # share of the time that drawing may take


class Curves:
    """The picture of a run's metrics.

    Args:
        path: The picture.
        labels: Labels of the training and the validation loss.
        scores: Names of the other validation scores.
    """

    def __init__(self, path: Path, labels: tuple[str, str], scores: Sequence[str]):
        self.path, self.labels, self.scores = path, labels, scores
        self._due = time.monotonic() + _PERIOD

    def draw(self, history: Sequence[dict[str, Any]]) -> None:
        """Draws the lines of ``metrics.jsonl``."""
        from transformer_jax.visual.curves import training_curves

        training_curves(history, self.path, labels=self.labels, scores=self.scores)

    def draw_if_due(self, history: Sequence[dict[str, Any]]) -> None:
        """Draws if the last drawing was a minute ago, or 100 times as long as drawing takes."""
        began = time.monotonic()
        if began < self._due:
            return
        self.draw(history)
        ended = time.monotonic()
        self._due = ended + max(_PERIOD, (ended - began) / _SHARE)

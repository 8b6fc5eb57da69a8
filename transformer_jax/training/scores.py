"""How good checkpoints are."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

__all__ = ["Score", "score_of"]


class Score(NamedTuple):
    """How good the parameters of a checkpoint are."""

    name: str
    value: float
    better: Literal["lower", "higher"] = "lower"

    def beats(self, other: "Score | None") -> bool:
        """Whether this is better than ``other``; anything is better than nothing or not a number.

        Example:
            >>> Score("loss", 1.0).beats(Score("loss", 2.0))
            True
            >>> Score("sacrebleu", 1.0, "higher").beats(Score("sacrebleu", 2.0, "higher"))
            False
        """
        if not np.isfinite(self.value):
            return False
        if other is None or not np.isfinite(other.value):
            return True
        return self.value < other.value if self.better == "lower" else self.value > other.value


def score_of(fields: Mapping[str, Any]) -> Score | None:
    """The score that a manifest holds."""
    return Score(**fields["score"]) if fields.get("score") else None

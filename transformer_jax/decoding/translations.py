"""Translations and their alternatives."""

import dataclasses

__all__ = ["Hypothesis", "Translation"]


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One way to translate a line."""

    text: str
    tokens: tuple[int, ...]  # EOS included, unless greedy search reached its limit
    score: float  # log_prob, normalized for length
    log_prob: float  # of all tokens, under the model


@dataclasses.dataclass(frozen=True)
class Translation:
    """What became of a line: at least one hypothesis, best first."""

    source: str
    hypotheses: tuple[Hypothesis, ...]
    cut: bool = False  # whether only the beginning of the line was read

    @property
    def text(self) -> str:
        """The best translation."""
        return self.hypotheses[0].text

    @property
    def score(self) -> float:
        """Its log-probability, normalized for length."""
        return self.hypotheses[0].score

    @property
    def tokens(self) -> tuple[int, ...]:
        """Its tokens."""
        return self.hypotheses[0].tokens

    @property
    def alternatives(self) -> tuple[Hypothesis, ...]:
        """The next best, if more than one was asked for."""
        return self.hypotheses[1:]

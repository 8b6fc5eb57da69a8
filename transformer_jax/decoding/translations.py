"""Translations and their alternatives."""

import dataclasses

from transformer_jax.decoding.requests import Continuation

__all__ = ["Translation"]


@dataclasses.dataclass(frozen=True)
class Translation:
    """A line and its translations: at least one, best first."""

    source: str
    # Their tokens hold EOS, unless greedy search or a sample reached its limit. Beam search writes
    # EOS at its limit too, but the finish reason is "length".
    hypotheses: tuple[Continuation, ...]
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
    def alternatives(self) -> tuple[Continuation, ...]:
        """The next best, if more than one was asked for."""
        return self.hypotheses[1:]

"""What predictors return: plain values, most of them as handy as the text or number in them."""

from typing import NamedTuple

from transformer_jax.encoding.masked import TokenPrediction
from transformer_jax.encoding.predictor import AnswerSpan

__all__ = [
    "AnswerSpan",
    "Classification",
    "GeneratedText",
    "MultiLabelClassification",
    "TaggedWord",
    "TokenPrediction",
]


class GeneratedText(str):
    """A text written by a model: a string with its score.

    Attributes:
        score: Its log-probability in nats; that of translations is normalized for length.
        tokens: Its token ids, the end token included if it was written.
        finish_reason: Why it ended, where that is known: ``end``, ``stop`` or ``length``.
        alternatives: The next best texts, or further samples, if more than one was asked for.

    Example:
        >>> text = GeneratedText("The book.", score=-0.5, tokens=(7, 2))
        >>> text, text.score
        ('The book.', -0.5)
    """

    score: float
    tokens: tuple[int, ...]
    finish_reason: str | None
    alternatives: "tuple[GeneratedText, ...]"

    def __new__(
        cls,
        text: str,
        *,
        score: float = 0.0,
        tokens: tuple[int, ...] = (),
        finish_reason: str | None = None,
        alternatives: "tuple[GeneratedText, ...]" = (),
    ) -> "GeneratedText":
        """A string that has these as attributes."""
        made = super().__new__(cls, text)
        made.score, made.tokens = score, tokens
        made.finish_reason, made.alternatives = finish_reason, alternatives
        return made


class Classification(NamedTuple):
    """The most probable label of a text, and the probability of each."""

    label: str
    probability: float
    probabilities: dict[str, float]


class MultiLabelClassification(NamedTuple):
    """A text's labels above the threshold, most probable first, and the probability of each."""

    labels: tuple[str, ...]
    probabilities: dict[str, float]


class TaggedWord(NamedTuple):
    """A word, its tag, and the probability of the tag."""

    word: str
    tag: str
    probability: float

"""Results of predictors, as plain values."""

from collections.abc import Sequence
from typing import NamedTuple

__all__ = [
    "Classification",
    "GeneratedText",
    "MultiLabelClassification",
    "RankedText",
    "TaggedWord",
    "classification",
    "with_alternatives",
]


class GeneratedText(str):
    """A generated text: a string with its score.

    Attributes:
        score: Log-probability in nats; for translations, normalized for length.
        tokens: Token ids, including the end token if it was generated.
        finish_reason: Reason why the text ended, if known: ``end``, ``stop`` or ``length``.
        alternatives: The next best texts or further samples, if several are returned.

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
    ) -> "GeneratedText":
        """Creates a string with attributes, without alternatives."""
        made = super().__new__(cls, text)
        made.score, made.tokens = score, tokens
        made.finish_reason, made.alternatives = finish_reason, ()
        return made


def with_alternatives(texts: Sequence[GeneratedText]) -> GeneratedText:
    """Returns the first text, with the remaining ones as its alternatives.

    Example:
        >>> with_alternatives([GeneratedText("a"), GeneratedText("b")]).alternatives
        ('b',)
    """
    best = texts[0]
    best.alternatives = tuple(texts[1:])
    return best


class Classification(NamedTuple):
    """The most probable label of an input, and the probability of each."""

    label: str
    probability: float
    probabilities: dict[str, float]


def classification(labels: Sequence[str], probabilities: Sequence[float]) -> Classification:
    """Returns the result of a classifier.

    Example:
        >>> classification(["bad", "good"], [0.25, 0.75])
        Classification(label='good', probability=0.75, probabilities={'bad': 0.25, 'good': 0.75})
    """
    named = dict(zip(labels, probabilities, strict=True))
    best = max(named, key=lambda label: named[label])
    return Classification(best, named[best], named)


class MultiLabelClassification(NamedTuple):
    """A text's labels above the threshold, most probable first, and the probability of each."""

    labels: tuple[str, ...]
    probabilities: dict[str, float]


class RankedText(NamedTuple):
    """A text with its position in the input, from 0, and its score with a query."""

    position: int
    score: float
    text: str


class TaggedWord(NamedTuple):
    """A word, its tag, and the probability of the tag."""

    word: str
    tag: str
    probability: float

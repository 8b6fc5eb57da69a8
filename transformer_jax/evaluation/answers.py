"""Answers to questions: exact match and F1 as in SQuAD's scripts."""

import collections
import dataclasses
import re
import string
from collections.abc import Mapping, Sequence

from transformer_jax.core.errors import DataError
from transformer_jax.evaluation.word_splitting import split_characters

__all__ = [
    "FewShotResult",
    "SpanScore",
    "exact_match",
    "normalize_answer",
    "score_answers",
    "squad_scores",
    "token_f1",
]


@dataclasses.dataclass(frozen=True)
class FewShotResult:
    """Scores of queries with ``k`` demonstrations each, 0 to 1."""

    k: int
    accuracy: float  # fraction of answers equal to the reference, after stripping
    count: int  # number of queries
    exact_match: float  # fraction equal to it after `normalize_answer`
    f1: float  # mean of `token_f1`


def score_answers(k: int, predictions: Sequence[str], references: Sequence[str]) -> FewShotResult:
    """Returns the scores of answers with ``k`` demonstrations.

    Example:
        >>> score_answers(4, ["Rome", "the red dog"], ["Rome", "dog"])
        FewShotResult(k=4, accuracy=0.5, count=2, exact_match=0.5, f1=0.8333333333333333)
    """
    pairs = [
        (one.strip(), other.strip()) for one, other in zip(predictions, references, strict=True)
    ]
    share = lambda values: sum(values) / len(pairs)
    return FewShotResult(
        k=k,
        accuracy=share(a == b for a, b in pairs),
        count=len(pairs),
        exact_match=share(exact_match(a, b) for a, b in pairs),
        f1=share(token_f1(a, b) for a, b in pairs),
    )


def normalize_answer(text: str) -> str:
    """Normalizes a text as in SQuAD: lower case, no punctuation, no articles, single blanks.

    Source: Rajpurkar et al. 2016, the official evaluation script.

    Example:
        >>> normalize_answer("  The Eiffel-Tower, a tower. ")
        'eiffeltower tower'
    """
    text = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(prediction: str, references: str | Sequence[str]) -> float:
    """Returns 1 if an answer equals a reference after `normalize_answer`, else 0.

    Example:
        >>> exact_match("The cat!", ["dog", "cat"])
        1.0
    """
    return float(
        any(normalize_answer(prediction) == normalize_answer(one) for one in _texts(references))
    )


def token_f1(prediction: str, references: str | Sequence[str]) -> float:
    """Returns the harmonic mean of precision and recall over words, for the best reference.

    Two empty answers have F1 1, as in SQuAD 2.0. In scripts without blanks, each character is a
    word, as in MLQA's script (Lewis et al. 2020).

    Example:
        >>> token_f1("the black cat", "A cat sat")
        0.5
    """
    return max(
        (
            _f1(*(split_characters(normalize_answer(text)) for text in (prediction, one)))
            for one in _texts(references)
        ),
        default=0.0,
    )


def _f1(prediction: list[str], references: list[str]) -> float:
    if not prediction or not references:
        return float(prediction == references)
    both = (collections.Counter(prediction) & collections.Counter(references)).total()
    return 2 * both / (len(prediction) + len(references))


def _texts(references: str | Sequence[str]) -> list[str]:
    return [references] if isinstance(references, str) else list(references)


@dataclasses.dataclass(frozen=True)
class SpanScore:
    """Scores of answers, 0 to 1; SQuAD's scripts print them times 100."""

    exact_match: float  # fraction of answers equal to a reference after normalization
    f1: float  # mean of `token_f1` with the best reference
    count: int  # number of questions


def squad_scores(predictions: Mapping[str, str], answers: Mapping[str, Sequence[str]]) -> SpanScore:
    """Returns exact match and F1 over all questions in ``answers``.

    An unanswerable question has no references, or an empty one: then only the empty text is
    correct. The scripts of SQuAD 1.1 and 2.0 differ in two ways:

    - A reference of only articles and punctuation is ignored, as in 2.0. In 1.1, an answer without
      words matches it, which affects three questions of the development set.
    - A question without a prediction counts as wrong, as in 1.1; 2.0 ignores it.

    Args:
        predictions: Answers by question; answers to other questions are ignored.
        answers: References by question.

    Raises:
        DataError: There are no questions.

    Example:
        >>> squad_scores({"q1": "the cat", "q2": "big dog"}, {"q1": ["Cat!"], "q2": ["dog", "a"]})
        SpanScore(exact_match=0.5, f1=0.83..., count=2)
        >>> squad_scores({"q1": "", "q2": ""}, {"q1": [], "q2": ["dog"]})
        SpanScore(exact_match=0.5, f1=0.5, count=2)
    """
    if not answers:
        raise DataError("there are no questions to score: the references are empty")
    exact = f1 = 0.0
    for question, texts in answers.items():
        if question in predictions:
            references = [text for text in texts if normalize_answer(text)] or [""]
            exact += exact_match(predictions[question], references)
            f1 += token_f1(predictions[question], references)
    return SpanScore(exact_match=exact / len(answers), f1=f1 / len(answers), count=len(answers))

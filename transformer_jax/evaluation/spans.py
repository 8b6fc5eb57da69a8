"""Exact match and F1 of answers, as SQuAD's scripts compute them."""

import dataclasses
from collections.abc import Mapping, Sequence

from transformer_jax.errors import DataError
from transformer_jax.evaluation.answers import exact_match, normalize_answer, token_f1

__all__ = ["SpanScore", "squad_scores"]


@dataclasses.dataclass(frozen=True)
class SpanScore:
    """Scores of answers, 0 to 1; the scripts print them times 100."""

    exact_match: float  # fraction of answers that equal a reference after normalization
    f1: float  # mean of `token_f1` with the best reference
    count: int  # number of questions


def squad_scores(predictions: Mapping[str, str], answers: Mapping[str, Sequence[str]]) -> SpanScore:
    """The exact match and F1 of answers, over all questions in ``answers``.

    An unanswerable question has no references, or an empty one: then only the empty text is
    correct. The scripts of SQuAD 1.1 and 2.0 differ in two ways:

    - A reference of articles and punctuation only is left out, as in 2.0. In 1.1 an answer without
      words matches it; three questions of its development set have one.
    - A question without a prediction counts as wrong, as in 1.1; 2.0 leaves it out.

    Args:
        predictions: Answers by question; those to other questions are ignored.
        answers: References by question.

    Raises:
        DataError: There is no question.

    Example:
        >>> squad_scores({"q1": "the cat", "q2": "big dog"}, {"q1": ["Cat!"], "q2": ["dog", "a"]})
        SpanScore(exact_match=0.5, f1=0.83..., count=2)
        >>> squad_scores({"q1": "", "q2": ""}, {"q1": [], "q2": ["dog"]})
        SpanScore(exact_match=0.5, f1=0.5, count=2)
    """
    if not answers:
        raise DataError("there is no question to score: the references are empty")
    exact = f1 = 0.0
    for question, texts in answers.items():
        if question in predictions:
            references = [text for text in texts if normalize_answer(text)] or [""]
            exact += exact_match(predictions[question], references)
            f1 += token_f1(predictions[question], references)
    return SpanScore(exact_match=exact / len(answers), f1=f1 / len(answers), count=len(answers))

"""Answers found in a text, scored over all questions as SQuAD's own scripts score them."""

import dataclasses
from collections.abc import Mapping, Sequence

from transformer_jax.errors import DataError
from transformer_jax.evaluation.answers import exact_match, normalize_answer, token_f1

__all__ = ["SpanScore", "squad_scores"]


@dataclasses.dataclass(frozen=True)
class SpanScore:
    """How well questions were answered; shares are 0 to 1, the scripts print them times 100."""

    exact_match: float  # answers that are a wanted one once both are `plain`
    f1: float  # mean of `token_f1` with the best of the wanted answers
    count: int  # of questions


def squad_scores(predictions: Mapping[str, str], answers: Mapping[str, Sequence[str]]) -> SpanScore:
    """The exact match and F1 of answers, over all questions that ``answers`` has.

    A question that cannot be answered has no wanted answers, or an empty one: the empty text is
    right then and any word is wrong. The scripts of SQuAD 1.1 and 2.0 differ in two ways:

    - A wanted answer of articles and punctuation alone is left out, as by that of 2.0. To that of
      1.1 an answer without words matches it; three questions of its development set have one.
    - A question without a prediction is wrong, as for that of 1.1; 2.0's does not count it.

    Args:
        predictions: Answers by question; those to other questions are passed over.
        answers: All answers that would be right, by question.

    Raises:
        DataError: There is no question.

    Example:
        >>> squad_scores({"q1": "the cat", "q2": "big dog"}, {"q1": ["Cat!"], "q2": ["dog", "a"]})
        SpanScore(exact_match=0.5, f1=0.83..., count=2)
        >>> squad_scores({"q1": "", "q2": ""}, {"q1": [], "q2": ["dog"]})
        SpanScore(exact_match=0.5, f1=0.5, count=2)
    """
    if not answers:
        raise DataError("there is no question to score: the set of wanted answers is empty")
    exact = f1 = 0.0
    for question, texts in answers.items():
        if question in predictions:
            wanted = [text for text in texts if normalize_answer(text)] or [""]
            exact += exact_match(predictions[question], wanted)
            f1 += token_f1(predictions[question], wanted)
    return SpanScore(exact_match=exact / len(answers), f1=f1 / len(answers), count=len(answers))

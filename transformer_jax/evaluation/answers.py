"""How good written answers are: alone, as SQuAD scores them, and counted over many."""

import collections
import dataclasses
import re
import string
from collections.abc import Sequence

__all__ = ["FewShotResult", "exact_match", "normalize_answer", "score_answers", "token_f1"]


@dataclasses.dataclass(frozen=True)
class FewShotResult:
    """How well queries were answered after ``k`` examples each; shares are 0 to 1."""

    k: int
    accuracy: float  # answers that are the wanted text, outer blanks aside
    count: int  # of queries
    exact_match: float  # answers that are it once both are `normalize_answer`
    f1: float  # mean of `token_f1`


def score_answers(k: int, given: Sequence[str], wanted: Sequence[str]) -> FewShotResult:
    """The scores of the answers after ``k`` examples, of which there is at least one.

    Example:
        >>> score_answers(4, ["Rome", "the red dog"], ["Rome", "dog"])
        FewShotResult(k=4, accuracy=0.5, count=2, exact_match=0.5, f1=0.8333333333333333)
    """
    pairs = [(one.strip(), other.strip()) for one, other in zip(given, wanted, strict=True)]
    share = lambda values: sum(values) / len(pairs)
    return FewShotResult(
        k=k,
        accuracy=share(a == b for a, b in pairs),
        count=len(pairs),
        exact_match=share(exact_match(a, b) for a, b in pairs),
        f1=share(token_f1(a, b) for a, b in pairs),
    )


def normalize_answer(text: str) -> str:
    """A text as SQuAD compares answers: lower case, no punctuation, no articles, single blanks.

    Source: Rajpurkar et al. 2016, the official evaluation script.

    Example:
        >>> normalize_answer("  The Eiffel-Tower, a tower. ")
        'eiffeltower tower'
    """
    text = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(given: str, wanted: str | Sequence[str]) -> float:
    """1 if an answer is one of those wanted once both are `normalize_answer`, else 0.

    Example:
        >>> exact_match("The cat!", ["dog", "cat"])
        1.0
    """
    return float(any(normalize_answer(given) == normalize_answer(one) for one in _texts(wanted)))


def token_f1(given: str, wanted: str | Sequence[str]) -> float:
    """The harmonic mean of precision and recall over words, with the best of the wanted answers.

    Two empty answers agree fully, as in SQuAD 2.0.

    Example:
        >>> token_f1("the black cat", "A cat sat")
        0.5
    """
    return max(
        (
            _f1(normalize_answer(given).split(), normalize_answer(one).split())
            for one in _texts(wanted)
        ),
        default=0.0,
    )


def _f1(given: list[str], wanted: list[str]) -> float:
    if not given or not wanted:
        return float(given == wanted)
    both = (collections.Counter(given) & collections.Counter(wanted)).total()
    return 2 * both / (len(given) + len(wanted))


def _texts(wanted: str | Sequence[str]) -> list[str]:
    return [wanted] if isinstance(wanted, str) else list(wanted)

"""ROUGE of summaries, by Google's ``rouge-score``, and the summaries that are parts of the source.

The library is an extra: ``pip install 'transformer-jax[rouge]'``.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from transformer_jax.data.sentences import sentences
from transformer_jax.errors import ConfigError, DataError, install, plural

__all__ = ["RougeScores", "check_installed", "lead", "oracle", "rouge_scores"]

_TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


@dataclasses.dataclass(frozen=True)
class RougeScores:
    """The mean F1 of ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum of a corpus, 0 to 100."""

    rouge1: float
    rouge2: float
    rougeL: float  # noqa: N815  (as the library calls it)
    rougeLsum: float  # noqa: N815
    signature: str  # references, words, version
    summaries: int

    def __str__(self) -> str:
        return (
            f"ROUGE-1 {self.rouge1:.2f}  ROUGE-2 {self.rouge2:.2f}  ROUGE-L {self.rougeL:.2f}  "
            f"ROUGE-Lsum {self.rougeLsum:.2f} ({self.signature})"
        )


def check_installed() -> None:
    """Refuses to begin without the library of ROUGE.

    Raises:
        ConfigError: It is not installed; the message says how to.
    """
    try:
        import rouge_score.rouge_scorer  # noqa: F401
    except ImportError:
        raise ConfigError(f"ROUGE needs the package rouge-score: {install('rouge')}") from None


def rouge_scores(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> RougeScores:
    """ROUGE of summaries, the mean over all of them (Lin 2004).

    F1 of words after Porter's stemmer, in lower case, of Latin letters and digits. With several
    references the best one counts, for each kind of ROUGE by itself. Lines are the sentences of
    ROUGE-Lsum; a text of one line is split by :func:`transformer_jax.data.sentences.sentences`.

    Args:
        hypotheses: The summaries.
        references: Of each of them one or more.

    Raises:
        ConfigError: ``rouge-score`` is not installed.
        DataError: Nothing to score, another number of references, or a summary without any.

    Example:
        >>> import pytest; _ = pytest.importorskip("rouge_score")  # the extra
        >>> scores = rouge_scores(["the cat sat"], [["the cats sat down", "a dog"]])
        >>> round(scores.rouge1, 1), round(scores.rouge2, 1), scores.signature.split("|")[0]
        (85.7, 80.0, 'nrefs:2')
    """
    if not hypotheses:
        raise DataError("there is no summary to score: the test set is empty")
    if len(references) != len(hypotheses) or not all(references):
        raise DataError(
            f"{plural(len(hypotheses), 'summary')} and references of "
            f"{plural(sum(map(bool, references)), 'text')}: each needs one or more"
        )
    score = _scorer(_TYPES)
    totals = dict.fromkeys(_TYPES, 0.0)
    for hypothesis, wanted in zip(hypotheses, references, strict=True):
        for name, value in score(list(map(_lines, wanted)), _lines(hypothesis)).items():
            totals[name] += 100 * value / len(hypotheses)
    counts = {len(wanted) for wanted in references}
    number = str(counts.pop()) if len(counts) == 1 else "var"
    return RougeScores(**totals, signature=_signature(number), summaries=len(hypotheses))


def lead(parts: Sequence[str], count: int = 1) -> str:
    r"""The first sentences of a text, a line each: a baseline that is hard to beat for news.

    Example:
        >>> lead(["It rains.", "Take a coat.", "Go."], 2)
        'It rains.\nTake a coat.'
    """
    return "\n".join(parts[:count])


def oracle(parts: Sequence[str], references: Sequence[str], *, most: int = 3) -> str:
    """The sentences of a text that together have the highest ROUGE, chosen greedily.

    One after the other, that sentence is added with which the sum of ROUGE-1 and ROUGE-2 grows
    most, until none makes it grow (Nallapati et al. 2017, section 3). They keep their order. It is
    what an extractive summarizer could reach that knew the references.

    Args:
        parts: The sentences of the source.
        references: One or more.
        most: Most sentences.

    Raises:
        ConfigError: ``rouge-score`` is not installed.

    Example:
        >>> import pytest; _ = pytest.importorskip("rouge_score")  # the extra
        >>> oracle(["It rains.", "The cat sat on the mat.", "Go."], ["a cat on a mat"])
        'The cat sat on the mat.'
    """
    score = _scorer(_TYPES[:2])
    chosen: list[int] = []
    best = 0.0
    while len(chosen) < most:
        values = {
            i: sum(score(references, _together(parts, [*chosen, i])).values())
            for i in range(len(parts))
            if i not in chosen
        }
        top = max(values, key=lambda i: values[i], default=None)
        if top is None or values[top] <= best:
            break
        best = values[top]
        chosen.append(top)
    return _together(parts, chosen)


def _together(found: Sequence[str], chosen: Sequence[int]) -> str:
    return "\n".join(found[i] for i in sorted(chosen))


def _lines(text: str) -> str:
    """A text with a line for each sentence."""
    return text if "\n" in text.strip() else "\n".join(sentences(text)) or text


@functools.cache
def _scorer(types: tuple[str, ...]) -> Callable[[Sequence[str], str], dict[str, float]]:
    """A function to F1 of one summary, from 0 to 1; of several references the best one."""
    check_installed()
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenize import tokenize

    class Words:
        """The library's words; stems of words are kept, which are most of its time."""

        def __init__(self) -> None:
            from nltk.stem.porter import PorterStemmer

            self.stem = functools.lru_cache(1 << 16)(PorterStemmer().stem)

        def tokenize(self, text: str) -> list[str]:
            found: list[str] = tokenize(text, self)
            return found

    scorer = RougeScorer(list(types), use_stemmer=True, tokenizer=Words())

    def score(references: Sequence[str], hypothesis: str) -> dict[str, float]:
        found: dict[str, Any] = scorer.score_multi(references, hypothesis)
        return {name: float(value.fmeasure) for name, value in found.items()}

    return score


def _signature(number: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("rouge-score")
    except PackageNotFoundError:
        installed = "unknown"
    return f"nrefs:{number}|F1|words:latin, lower case|stem:porter|version:rouge_score {installed}"

"""ROUGE of summaries, by Google's ``rouge-score``, and the summaries that are parts of the source.

The library is an extra: ``pip install 'transformer-jax[rouge]'``.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from transformer_jax.core.errors import ConfigError, DataError, install, plural
from transformer_jax.data.sentences import sentences
from transformer_jax.evaluation.words import choose_tokenize, main_script, make_bleu

__all__ = ["RougeScores", "check_installed", "choose_words", "lead", "oracle", "rouge_scores"]

LATIN = "latin"  # the words of the library
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


def choose_words(texts: Sequence[str]) -> str:
    """Returns how ROUGE should split the words of some references, from their script.

    ``latin`` for Latin letters, as ``rouge-score`` does, which sees no others; otherwise
    :func:`.choose_tokenize`'s.

    Example:
        >>> choose_words(["the cat"]), choose_words(["猫"]), choose_words(["Кошка"])
        ('latin', 'zh', '13a')
    """
    return LATIN if main_script(texts) == "latin" else choose_tokenize(texts)


def rouge_scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    tokenize: str | None = None,
) -> RougeScores:
    """ROUGE of summaries, the mean over all of them (Lin 2004).

    F1 of words in lower case. Those of ``latin`` are Latin letters and digits after Porter's
    stemmer, as of the library; others are what sacreBLEU's tokenizers find. With several
    references the best one counts, for each kind of ROUGE by itself. Lines are the sentences of
    ROUGE-Lsum; a text of one line is split by :func:`transformer_jax.data.sentences.sentences`.

    Args:
        hypotheses: The summaries.
        references: Of each of them one or more.
        tokenize: How words are split: ``latin`` or a name of :data:`.Tokenize`; None follows from
            the script of the references, see :func:`choose_words`.

    Raises:
        ConfigError: ``rouge-score`` is not installed, or there is no such tokenizer.
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
    if tokenize is None:
        tokenize = choose_words([text for texts in references for text in texts])
    score = _scorer(_TYPES, tokenize)
    totals = dict.fromkeys(_TYPES, 0.0)
    for hypothesis, wanted in zip(hypotheses, references, strict=True):
        for name, value in score(list(map(_lines, wanted)), _lines(hypothesis)).items():
            totals[name] += 100 * value / len(hypotheses)
    counts = {len(wanted) for wanted in references}
    number = str(counts.pop()) if len(counts) == 1 else "var"
    return RougeScores(**totals, signature=_signature(number, tokenize), summaries=len(hypotheses))


def lead(parts: Sequence[str], count: int = 1) -> str:
    r"""The first sentences of a text, a line each: a baseline that is hard to beat for news.

    Example:
        >>> lead(["It rains.", "Take a coat.", "Go."], 2)
        'It rains.\nTake a coat.'
    """
    return "\n".join(parts[:count])


def oracle(
    parts: Sequence[str], references: Sequence[str], *, most: int = 3, tokenize: str = LATIN
) -> str:
    """The sentences of a text that together have the highest ROUGE, chosen greedily.

    One after the other, that sentence is added with which the sum of ROUGE-1 and ROUGE-2 grows
    most, until none makes it grow (Nallapati et al. 2017). They keep their order. It is
    what an extractive summarizer could reach that knew the references.

    Args:
        parts: The sentences of the source.
        references: One or more.
        most: Most sentences.
        tokenize: How words are split, as of :func:`rouge_scores`.

    Raises:
        ConfigError: ``rouge-score`` is not installed.

    Example:
        >>> import pytest; _ = pytest.importorskip("rouge_score")  # the extra
        >>> oracle(["It rains.", "The cat sat on the mat.", "Go."], ["a cat on a mat"])
        'The cat sat on the mat.'
    """
    score = _scorer(_TYPES[:2], tokenize)
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
def _scorer(types: tuple[str, ...], words: str) -> Callable[[Sequence[str], str], dict[str, float]]:
    """A function to F1 of one summary, from 0 to 1; of several references the best one."""
    check_installed()
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenize import tokenize

    class Split:
        """The words of another tokenizer."""

        def tokenize(self, text: str) -> list[str]:
            return list(make_bleu(words).tokenizer(text.lower()).split())

    class Words:
        """The library's words; stems of words are kept, which are most of its time."""

        def __init__(self) -> None:
            from nltk.stem.porter import PorterStemmer

            self.stem = functools.lru_cache(1 << 16)(PorterStemmer().stem)

        def tokenize(self, text: str) -> list[str]:
            found: list[str] = tokenize(text, self)
            return found

    splitter = Words() if words == LATIN else Split()
    scorer = RougeScorer(list(types), use_stemmer=True, tokenizer=splitter)

    def score(references: Sequence[str], hypothesis: str) -> dict[str, float]:
        found: dict[str, Any] = scorer.score_multi(references, hypothesis)
        return {name: float(value.fmeasure) for name, value in found.items()}

    return score


def _signature(number: str, words: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("rouge-score")
    except PackageNotFoundError:
        installed = "unknown"
    stem = "porter" if words == LATIN else "none"
    return (
        f"nrefs:{number}|F1|words:{words}, lower case|stem:{stem}|version:rouge_score {installed}"
    )

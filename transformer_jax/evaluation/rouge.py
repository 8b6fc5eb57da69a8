"""ROUGE of summaries, by Google's ``rouge-score``, and extractive baselines.

The package is an extra: ``pip install 'transformer-jax[rouge]'``.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

from transformer_jax.core.errors import ConfigError, DataError, install, plural
from transformer_jax.data.sentences import sentences
from transformer_jax.evaluation.word_splitting import bleu_words, choose_tokenize, main_script

__all__ = [
    "RougeScores",
    "check_installed",
    "choose_words",
    "lead",
    "oracle",
    "rouge_of_each",
    "rouge_scores",
]

LATIN = "latin"  # the package's own word splitting
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
    """Refuses to start without the package for ROUGE.

    Raises:
        ConfigError: The package is not installed; the message tells how to install it.
    """
    try:
        import rouge_score.rouge_scorer  # noqa: F401
    except ImportError:
        raise ConfigError(f"ROUGE needs the package rouge-score: {install('rouge')}") from None


def choose_words(texts: Sequence[str]) -> str:
    """Chooses ROUGE's word splitting by the script of references.

    ``latin`` for Latin letters, the only ones that ``rouge-score`` supports; otherwise the result
    of :func:`.choose_tokenize`.

    Example:
        >>> choose_words(["the cat"]), choose_words(["猫"]), choose_words(["Кошка"])
        ('latin', 'zh', '13a')
    """
    return LATIN if main_script(texts) == "latin" else choose_tokenize(texts)


def rouge_scores(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], tokenize: str | None = None
) -> RougeScores:
    """Computes mean ROUGE of summaries (Lin 2004).

    F1 on lower-cased words. With ``latin``, words are Latin letters and digits after Porter's
    stemmer, as in the package; otherwise tokens of sacreBLEU's tokenizers. With several references,
    the best one counts, separately for each kind of ROUGE. ROUGE-Lsum treats lines as sentences; a
    text of one line is split by :func:`transformer_jax.data.sentences.sentences`.

    Args:
        hypotheses: The summaries.
        references: One or more references per summary.
        tokenize: Word splitting: ``latin`` or a name of :data:`.Tokenize`; None is chosen by the
            script of the references, see :func:`choose_words`.

    Raises:
        ConfigError: ``rouge-score`` is not installed, or the tokenizer is unknown.
        DataError: There is nothing to score, the numbers of summaries and references differ, or a
            summary has no reference.

    Example:
        >>> import pytest; _ = pytest.importorskip("rouge_score")  # the extra
        >>> scores = rouge_scores(["the cat sat"], [["the cats sat down", "a dog"]])
        >>> round(scores.rouge1, 1), round(scores.rouge2, 1), scores.signature.split("|")[0]
        (85.7, 80.0, 'nrefs:2')
    """
    if not hypotheses:
        raise DataError("there are no summaries to score: the test set is empty")
    if len(references) != len(hypotheses) or not all(references):
        raise DataError(
            f"{plural(len(hypotheses), 'summary')} but references of "
            f"{plural(sum(map(bool, references)), 'text')}: each needs one or more"
        )
    if tokenize is None:
        tokenize = choose_words([text for texts in references for text in texts])
    totals = dict.fromkeys(_TYPES, 0.0)
    for scores in rouge_of_each(hypotheses, references, tokenize):
        for name, value in scores.items():
            totals[name] += 100 * value / len(hypotheses)
    counts = {len(wanted) for wanted in references}
    number = str(counts.pop()) if len(counts) == 1 else "var"
    return RougeScores(**totals, signature=_signature(number, tokenize), summaries=len(hypotheses))


def rouge_of_each(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], tokenize: str
) -> Iterator[dict[str, float]]:
    """Yields the F1 of each summary by the name of the kind of ROUGE, 0 to 1.

    Args:
        hypotheses: The summaries.
        references: One or more references per summary.
        tokenize: Word splitting: ``latin`` or a name of :data:`.Tokenize`.

    Raises:
        ConfigError: ``rouge-score`` is not installed, or the tokenizer is unknown.
    """
    score = _scorer(_TYPES, tokenize)
    for hypothesis, wanted in zip(hypotheses, references, strict=True):
        yield score(list(map(_lines, wanted)), _lines(hypothesis))


def lead(parts: Sequence[str], count: int = 1) -> str:
    r"""Returns the leading sentences of a text, one per line: a strong baseline for news.

    Example:
        >>> lead(["It rains.", "Take a coat.", "Go."], 2)
        'It rains.\nTake a coat.'
    """
    return "\n".join(parts[:count])


def oracle(
    parts: Sequence[str], references: Sequence[str], *, most: int = 3, tokenize: str = LATIN
) -> str:
    """Returns the sentences of a text with the highest ROUGE together, chosen greedily.

    Repeatedly adds the sentence that increases the sum of ROUGE-1 and ROUGE-2 most, until none does
    (Nallapati et al. 2017). Sentences keep their order. This approximates the best that an
    extractive summarizer can reach.

    Args:
        parts: The sentences of the source.
        references: One or more references.
        most: Maximum number of sentences.
        tokenize: Word splitting, see :func:`rouge_scores`.

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
    """Returns a text with one sentence per line."""
    return text if "\n" in text.strip() else "\n".join(sentences(text)) or text


@functools.cache
def _scorer(types: tuple[str, ...], words: str) -> Callable[[Sequence[str], str], dict[str, float]]:
    """Returns a function to the F1 of one summary, 0 to 1, with the best of several references."""
    check_installed()
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenize import tokenize

    class Split:
        """Words of another tokenizer, for ``rouge-score``."""

        def tokenize(self, text: str) -> list[str]:
            return bleu_words(words)(text.lower())

    class Words:
        """The package's words, with cached stems, which take most of its time."""

        def __init__(self) -> None:
            from nltk.stem.porter import PorterStemmer

            self.stem = functools.lru_cache(1 << 16)(PorterStemmer().stem)

        def tokenize(self, text: str) -> list[str]:
            found: list[str] = tokenize(text, self)
            return found

    splitter = Words() if words == LATIN else Split()
    scorer = RougeScorer(list(types), use_stemmer=True, tokenizer=splitter)

    def score(references: Sequence[str], hypothesis: str) -> dict[str, float]:
        found = scorer.score_multi(references, hypothesis)
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

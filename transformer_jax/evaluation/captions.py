"""Metrics of captions with one or more references: exact matches, sacreBLEU, CIDEr-D, ROUGE-L.

CIDEr compares n-grams with those of the references, weighted by rarity.
"""

import collections
import dataclasses
import importlib.util
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from transformer_jax.core.errors import DataError, plural
from transformer_jax.data.words import blank_words, letter_words
from transformer_jax.evaluation.bleu import reference_streams
from transformer_jax.evaluation.rouge import rouge_scores
from transformer_jax.evaluation.word_splitting import choose_tokenize, make_bleu, split_words

__all__ = [
    "CaptionScores",
    "caption_scores",
    "caption_words",
    "cider",
    "cider_d",
    "cider_d_of_each",
    "points_inside",
]

Ngram: TypeAlias = tuple[str, ...]
Counts: TypeAlias = collections.Counter[Ngram]
Weight: TypeAlias = Callable[[Ngram], float]

_ORDER = 4  # the longest n-grams
_SIGMA = 6.0  # in words, of the penalty for different lengths


def caption_words(text: str) -> list[str]:
    """Returns the words of a caption in lower case, without punctuation.

    Example:
        >>> caption_words("A dog's ball, red.")
        ['a', "dog's", 'ball', 'red']
    """
    return letter_words(text.lower())


def cider_d(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    words: Callable[[str], list[str]] = caption_words,
) -> float:
    """Returns CIDEr-D of captions, the mean over all pictures (Vedantam et al. 2015, section 6).

    For n-grams of each length n from 1 to 4, ``g(s)`` has the count of each n-gram of ``s`` times
    its inverse document frequency over the references of all pictures, ``log(pictures / pictures
    whose references have it)``. With references ``s_j``, ``j = 1 … m``, and lengths ``l``::

        CIDEr-D = 10/4 Σₙ 1/m Σⱼ exp(-(l(c) - l(s_j))² / 72)
                  · min(g(c), g(s_j)) · g(s_j) / (‖g(c)‖ ‖g(s_j)‖)

    The result is 100 times that, as in papers: 0 to 1000. A corpus of one picture has 0, since none
    of its n-grams is rare.

    Args:
        hypotheses: One caption per picture.
        references: One or more references per picture.
        words: Function that splits a text into words.

    Raises:
        DataError: There is nothing to score, the numbers of captions and references differ, or a
            caption has no reference.

    Example:
        >>> wanted = [["a red square"], ["a blue circle"]]
        >>> round(cider_d(["a red square", "a blue circle"], wanted), 6)
        750.0
        >>> round(cider_d(["a blue circle", "a red square"], wanted), 6)
        0.0
    """
    return 1000.0 * _mean(cider_d_of_each(hypotheses, references, words))


def cider_d_of_each(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    words: Callable[[str], list[str]] = caption_words,
) -> list[float]:
    """Returns CIDEr-D of each caption, 0 to 1; arguments and errors are those of :func:`cider_d`.

    Example:
        >>> wanted = [["a red square"], ["a blue circle"]]
        >>> [round(one, 6) for one in cider_d_of_each(["a red square", "a circle"], wanted)]
        [0.75, 0.174338]
    """

    def similarity(one: Counts, other: Counts, weight: Weight) -> float:
        away = _length(one) - _length(other)
        clipped = {ngram: min(count, other[ngram]) for ngram, count in one.items()}
        return _cosines(clipped, one, other, weight) * math.exp(-(away**2) / (2 * _SIGMA**2))

    return _of_each(hypotheses, references, words, similarity)


def cider(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    words: Callable[[str], list[str]] = caption_words,
) -> float:
    """Returns CIDEr of captions, the mean over all pictures (Vedantam et al. 2015, section 3).

    The result is 100 times ``1/4 Σₙ 1/m Σⱼ g(c) · g(s_j) / (‖g(c)‖ ‖g(s_j)‖)``, 0 to 100, in the
    notation of :func:`cider_d`. A caption can increase it by repeating words, which CIDEr-D
    prevents.

    Args:
        hypotheses: One caption per picture.
        references: One or more references per picture.
        words: Function that splits a text into words.

    Raises:
        DataError: There is nothing to score, the numbers of captions and references differ, or a
            caption has no reference.

    Example:
        >>> round(cider(["a red square", "a blue circle"], [["a red square"], ["a circle"]]), 2)
        46.34
    """
    similarity = lambda one, other, weight: _cosines(one, one, other, weight)
    return 100.0 * _mean(_of_each(hypotheses, references, words, similarity))


def _mean(values: Sequence[float]) -> float:
    total = 0.0
    for value in values:  # sum() rounds otherwise from Python 3.12 on
        total += value
    return total / len(values)


def _of_each(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    words: Callable[[str], list[str]],
    similarity: Callable[[Counts, Counts, Weight], float],
) -> list[float]:
    """Returns the similarity of each caption and its references."""
    if not hypotheses:
        raise DataError("there are no captions to score: the test set is empty")
    if len(references) != len(hypotheses) or not all(references):
        raise DataError(
            f"{plural(len(hypotheses), 'caption')} but references of "
            f"{plural(sum(map(bool, references)), 'picture')}: each needs one or more"
        )
    wanted = [[_counts(words(text)) for text in texts] for texts in references]
    documents: collections.Counter[Ngram] = collections.Counter()
    for texts in wanted:
        documents.update(set(itertools.chain.from_iterable(texts)))
    weight = lambda ngram: math.log(len(wanted)) - math.log(max(1, documents[ngram]))
    found = []
    for hypothesis, texts in zip(hypotheses, wanted, strict=True):
        own = _counts(words(hypothesis))
        found.append(sum(similarity(own, text, weight) for text in texts) / len(texts))
    return found


def _counts(words: list[str]) -> Counts:
    """Returns the counts of n-grams of all lengths."""
    return collections.Counter(
        tuple(words[i : i + n]) for n in range(1, _ORDER + 1) for i in range(len(words) - n + 1)
    )


def _length(counts: Counts) -> int:
    return sum(count for ngram, count in counts.items() if len(ngram) == 1)


def _cosines(product: Mapping[Ngram, int], one: Counts, other: Counts, weight: Weight) -> float:
    """Returns ``product · other / (‖one‖ ‖other‖)``, averaged over the lengths of n-grams."""
    squares = [[0.0] * _ORDER, [0.0] * _ORDER]
    for side, text in zip(squares, (one, other), strict=True):
        for ngram, count in text.items():
            side[len(ngram) - 1] += (count * weight(ngram)) ** 2
    products = [0.0] * _ORDER
    for ngram, count in product.items():
        products[len(ngram) - 1] += count * other[ngram] * weight(ngram) ** 2
    norms = [math.sqrt(a * b) for a, b in zip(*squares, strict=True)]
    return sum(p / norm for p, norm in zip(products, norms, strict=True) if norm) / _ORDER


@dataclasses.dataclass(frozen=True)
class CaptionScores:
    """Scores of captions, 0 to 100 except CIDEr-D, 0 to 1000."""

    exact: float  # captions equal to a reference, in percent
    sacrebleu: float
    cider: float  # CIDEr-D
    rougeL: float | None  # noqa: N815  (as the library calls it); None where it is not installed
    signature: str  # signature of sacreBLEU
    captions: int

    def __str__(self) -> str:
        rouge = "" if self.rougeL is None else f" ROUGE-L {self.rougeL:.1f}"
        return (
            f"exact {self.exact:.1f} % sacreBLEU {self.sacrebleu:.1f} ({self.signature}) "
            f"CIDEr-D {self.cider:.1f}{rouge} of {plural(self.captions, 'caption')}"
        )


def caption_scores(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], tokenize: str | None = None
) -> CaptionScores:
    """Returns the scores of one caption per picture.

    Args:
        hypotheses: The captions.
        references: One or more references per picture.
        tokenize: Tokenizer of sacreBLEU: a name of :data:`.Tokenize`; None is chosen by the script
            of the references. For words between blanks, CIDEr-D uses lower-cased words without
            punctuation; otherwise the same words.

    Raises:
        ConfigError: The tokenizer is unknown.
        DataError: There is nothing to score, the numbers of captions and references differ, or a
            caption has no reference.

    Example:
        >>> scores = caption_scores(["a red square", "a dog"], [["a red square"], ["a cat", "cat"]])
        >>> scores.exact, round(scores.cider)
        (50.0, 375)
    """
    if not hypotheses or len(references) != len(hypotheses) or not all(references):
        raise DataError(
            f"{plural(len(hypotheses), 'caption')} but references of "
            f"{plural(sum(map(bool, references)), 'picture')}: each needs one or more"
        )
    texts = [text for row in references for text in row]
    tokenize = choose_tokenize(texts) if tokenize is None else tokenize
    bleu = make_bleu(tokenize)
    streams = reference_streams(references)
    score = bleu.corpus_score(list(hypotheses), streams).score  # type: ignore[arg-type]
    words = caption_words if split_words(tokenize) is blank_words else split_words(tokenize)
    exact = [text in row for text, row in zip(hypotheses, references, strict=True)]
    rouge: float | None = None
    if importlib.util.find_spec("rouge_score") is not None:
        rouge = rouge_scores(hypotheses, references).rougeL
    return CaptionScores(
        exact=100 * sum(exact) / len(exact),
        sacrebleu=float(score),
        cider=cider_d(hypotheses, references, words),
        rougeL=rouge,
        signature=str(bleu.get_signature()),
        captions=len(exact),
    )


def points_inside(
    maps: Sequence[Float[np.ndarray, "rows columns"]],
    boxes: Sequence[Sequence[tuple[int, int, int, int]]],
    size: int,
) -> float:
    """Returns the percentage of heat maps with their maximum inside a box, 0 to 100.

    This is the pointing game (Zhang et al. 2016, "Top-down neural attention by excitation
    backprop") on patches: a cell counts as inside a box that it overlaps.

    Args:
        maps: Heat maps over square pictures.
        boxes: Boxes of the object per map, as first row and column, and row and column after the
            last, in pixels.
        size: Pixels along each side of a picture.

    Example:
        >>> points_inside([np.array([[0.1, 0.7], [0.1, 0.1]])], [[(0, 4, 4, 8)]], 8)
        100.0
    """
    hits = []
    for one, targets in zip(maps, boxes, strict=True):
        row, column = np.unravel_index(int(np.argmax(one)), one.shape)
        high, wide = size / one.shape[0], size / one.shape[1]
        y, x = int(row) * high, int(column) * wide
        hits.append(
            any(
                top < y + high and y < bottom and left < x + wide and x < right
                for top, left, bottom, right in targets
            )
        )
    return 100 * sum(hits) / len(hits)

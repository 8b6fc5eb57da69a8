"""Metrics of captions with one or more references: exact matches, sacreBLEU, CIDEr-D, ROUGE-L."""

import dataclasses
import importlib.util
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from transformer_jax.core.errors import DataError, plural
from transformer_jax.data.words import blank_words
from transformer_jax.evaluation.cider import caption_words, cider_d
from transformer_jax.evaluation.rouge import rouge_scores
from transformer_jax.evaluation.words import choose_tokenize, make_bleu, split_words

__all__ = ["CaptionScores", "caption_scores", "points_inside"]


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
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    tokenize: str | None = None,
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
    most = max(map(len, references))
    streams: list[list[str | None]] = [
        [row[i] if i < len(row) else None for row in references] for i in range(most)
    ]
    bleu = make_bleu(tokenize)
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

"""CIDEr and CIDEr-D against their formulas, written without a loop that they share."""

import math

import numpy as np
import pytest

from transformer_jax.core.errors import DataError
from transformer_jax.evaluation.captions import (
    caption_scores,
    caption_words,
    cider,
    cider_d,
    points_inside,
)

WORDS = ["a", "red", "blue", "square", "circle", "on", "the", "left", "of", "two", "big", "dog"]
HINDI = ["एक", "लाल", "नीला", "चौकोर", "गेंद", "पर", "के", "बाईं", "ओर", "दो", "बड़ी", "कुत्ता"]


def corpus(seed, words=WORDS):
    """Captions, some of which are a reference, and one to five references each."""
    rng = np.random.default_rng(seed)
    text = lambda: " ".join(rng.choice(words, rng.integers(1, 12)))
    references = [[text() for _ in range(rng.integers(1, 6))] for _ in range(rng.integers(2, 9))]
    return [str(rng.choice(row)) if rng.integers(2) else text() for row in references], references


def grams(text, n):
    """The n-grams of a text, one after the other."""
    words = text.split()
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def plain(hypotheses, references, clipped):
    """Vedantam et al. 2015, equations 1 to 5 and section 6, with dense vectors."""
    scores = []
    for hypothesis, row in zip(hypotheses, references, strict=True):
        for n in range(1, 5):
            there = [{g for text in texts for g in grams(text, n)} for texts in references]
            known = sorted(set().union(*there, *(grams(text, n) for text in hypotheses)))
            counts = [max(1, sum(g in one for one in there)) for g in known]
            idf = np.log(len(references) / np.array(counts, float))
            for reference in row:
                c, s = (
                    np.array([grams(text, n).count(g) for g in known], float) * idf
                    for text in (hypothesis, reference)
                )
                norm = np.linalg.norm(c) * np.linalg.norm(s)
                away = len(hypothesis.split()) - len(reference.split())
                top = np.minimum(c, s) @ s * 10 * math.exp(-(away**2) / 72) if clipped else c @ s
                scores.append((top / norm if norm else 0.0) / 4 / len(row) / len(references))
    return 100 * sum(scores)


@pytest.mark.parametrize("words", [WORDS, HINDI], ids=["English", "Hindi"])
@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_the_formulas(seed, words):
    hypotheses, references = corpus(seed, words)
    assert cider_d(hypotheses, references) == pytest.approx(plain(hypotheses, references, True))
    assert cider(hypotheses, references) == pytest.approx(plain(hypotheses, references, False))


def test_repeated_words_raise_cider_alone():
    references = [["a red dog"], ["a blue cat"], ["two birds"]]
    repeated = ["red red red red", "a blue cat", "two birds"]
    once = ["red", "a blue cat", "two birds"]
    assert cider(repeated, references) >= cider(once, references)
    assert cider_d(repeated, references) < cider_d(once, references)


def test_a_corpus_of_one_picture_has_nothing_rare():
    assert cider_d(["a dog"], [["a dog"]]) == 0.0


def test_words_have_neither_case_nor_punctuation():
    assert caption_words("A dog, the BOY's.") == ["a", "dog", "the", "boy's"]


@pytest.mark.parametrize("score", [cider, cider_d, caption_scores])
@pytest.mark.parametrize(
    ("hypotheses", "references"), [([], []), (["a"], []), (["a"], [[]]), (["a", "b"], [["a"]])]
)
def test_a_caption_without_a_reference_is_refused(score, hypotheses, references):
    with pytest.raises(DataError):
        score(hypotheses, references)


def test_each_reference_counts():
    scores = caption_scores(["a dog", "a cat"], [["the dog", "a dog"], ["a bird"]])
    assert (scores.exact, scores.captions) == (50.0, 2)
    assert "nrefs:" in scores.signature


def test_a_map_points_at_what_its_largest_cell_overlaps():
    maps = [np.eye(3) * [0, 1, 0], np.eye(3) * [0, 0, 1]]
    assert points_inside(maps, [[(4, 4, 8, 8)], [(0, 0, 8, 8)]], 12) == 50.0
    assert points_inside(maps[:1], [[(0, 0, 4, 4), (7, 7, 9, 9)]], 12) == 100.0
    assert points_inside(maps[:1], [[(0, 0, 4, 12), (8, 0, 12, 12)]], 12) == 0.0

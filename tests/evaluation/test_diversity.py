"""Distinct n-grams and self-BLEU."""

import itertools
import random

import pytest
import sacrebleu

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.evaluation.diversity import distinct_n, diversity, self_bleu

TEXTS = ["the cat sat on the mat", "the cat sat on a mat", "a dog ran off with my shoe"]


def test_distinct_n_counts_different_n_grams_of_all_texts():
    for n in range(1, 8):
        grams = [
            tuple(gram)
            for text in TEXTS
            for gram in zip(*(text.split()[i:] for i in range(n)), strict=False)
        ]
        wanted = len(set(grams)) / len(grams) if grams else 0.0
        assert distinct_n(TEXTS, n) == pytest.approx(wanted)


def test_repeating_texts_lowers_it_by_their_number():
    assert distinct_n(TEXTS[2:], 2) == 1.0
    assert distinct_n(TEXTS[2:] * 4, 2) == 0.25
    assert distinct_n([], 1) == distinct_n(["a b"], 3) == 0.0


def test_self_bleu_is_the_mean_against_the_others():
    wanted = [
        sacrebleu.sentence_bleu(TEXTS[i], [t for j, t in enumerate(TEXTS) if j != i]).score
        for i in range(3)
    ]
    assert self_bleu(TEXTS) == pytest.approx(sum(wanted) / 3)


def test_it_depends_neither_on_the_order_nor_exceeds_its_bounds():
    rng = random.Random(0)
    texts = [" ".join(rng.choice("abcde") for _ in range(1 + i)) for i in range(5)]
    values = [self_bleu(list(order)) for order in itertools.permutations(texts)]
    assert max(values) - min(values) < 1e-9
    assert 0 <= min(values) <= max(values) <= 100 + 1e-9
    assert self_bleu(["x", "x"]) == pytest.approx(100.0)
    assert self_bleu(["", ""]) == 0.0


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(DataError, match="two or more"):
        self_bleu(["a"])
    with pytest.raises(ConfigError, match="n is 0: at least 1"):
        distinct_n(["a"], 0)


def test_diversity_compares_the_texts_of_a_line_with_each_other_alone():
    found = diversity([[TEXTS[0]] * 3, [TEXTS[2]] * 3])
    assert found.self_bleu == pytest.approx(100.0)
    assert found.distinct_2 == pytest.approx(distinct_n([TEXTS[0], TEXTS[2]], 2) / 3)
    assert found.words == pytest.approx((6 + 7) / 2)
    assert diversity([["a b"], ["a c"]]).self_bleu is None
    with pytest.raises(DataError, match="no texts"):
        diversity([[]])

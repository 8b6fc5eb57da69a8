"""Scores by direction: ways to translate, pivots, and the similarity of parallel sentences."""

import numpy as np
import pytest

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.corpora import babel
from transformer_jax.data.languages import Direction, LanguageTags
from transformer_jax.evaluation.directions import Way, choose_pivot, score_direction
from transformer_jax.evaluation.language_identification import train_identifier
from transformer_jax.evaluation.similarity import parallel_similarity

A_C = Direction("a", "c")
TRAINED = frozenset(map(Direction.parse, ("a-b", "b-a", "b-c", "c-b", "a-d", "d-a", "d-c")))
TAGS = LanguageTags(dict(zip("abcd", range(4, 8), strict=True)), ("to",), (2,), directions=TRAINED)


def sentences(code, split="test", count=40):
    return [babel.express(one, code) for one in babel.meanings(split, count)]


def truth(texts, direction):
    """The translator that makes no error."""
    return [babel.translate(text, *direction) for text in texts]


@pytest.fixture(scope="module")
def identify():
    return train_identifier({code: sentences(code, "train", 60) for code in "abc"})


@pytest.mark.parametrize("way", [Way(), Way("pivot", "b", True)])
def test_the_true_translation_is_perfect_by_every_way(identify, way):
    score = score_direction(truth, (sentences("a"), sentences("c")), A_C, way, identify=identify)
    assert score.scores.bleu == pytest.approx(100)
    assert (score.exact_match, score.off_target, score.identified) == (1, 0, 1)
    assert score.cells()[:3] == ("a-c", str(way), "trained" if way.trained else "")


def test_a_translation_into_the_language_of_the_pivot_is_off_target(identify):
    def into_b(texts, direction):
        return truth(texts[:10], Direction("a", "c")) + truth(texts[10:], Direction("a", "b"))

    score = score_direction(into_b, (sentences("a"), sentences("c")), A_C, identify=identify)
    assert (score.exact_match, score.off_target) == (0.25, 0.75)


def test_a_pivot_translates_both_legs_in_turn():
    legs = []

    def record(texts, direction):
        legs.append(str(direction))
        return truth(texts, direction)

    score_direction(record, (sentences("a"), sentences("c")), A_C, Way("pivot", "d"))
    assert legs == ["a-d", "d-c"]


def test_without_an_identifier_of_the_language_there_is_no_rate(identify):
    d = Direction("a", "d")
    for identifier in (None, identify):
        score = score_direction(truth, (sentences("a"), sentences("d")), d, identify=identifier)
        assert (score.off_target, score.identified) == (None, None)
        assert score.cells()[-2:] == ("–", "–")


@pytest.mark.parametrize(
    ("direction", "given", "pivot"),
    [
        ("a-c", None, "b"),
        ("a-c", "d", "d"),
        ("c-a", None, "b"),
        ("b-d", None, "a"),
        ("a-b", None, None),
    ],
)
def test_the_pivot_is_the_first_language_with_both_legs(direction, given, pivot):
    way = choose_pivot(TAGS, Direction.parse(direction), given)
    assert (way and way.by) == pivot


def test_without_known_directions_only_a_given_pivot_is_used():
    tags = LanguageTags(TAGS.tags, ("to",), (2,))
    assert choose_pivot(tags, A_C) is None
    assert choose_pivot(tags, A_C, "d") == Way("pivot", "d", None)


@pytest.mark.parametrize(
    ("direction", "given", "message"),
    [
        ("a-c", "x", "--pivot x: not for a-c: the model does not know it: allowed are b, d"),
        ("a-c", "a", "--pivot a: not for a-c: it is one of the two languages: allowed are b, d"),
        ("c-a", "d", "the model was not trained on both steps: allowed are b$"),
        ("a-b", "c", "the model was not trained on both steps: allowed are none"),
    ],
)
def test_an_impossible_pivot_is_refused(direction, given, message):
    with pytest.raises(ConfigError, match=message):
        choose_pivot(TAGS, Direction.parse(direction), given)


def test_similarity_of_parallel_sentences():
    x, noise = np.random.default_rng(0).normal(size=(2, 30, 8))
    same = parallel_similarity(x, 2 * x)
    assert same.retrieval == 1
    assert same.cosine == pytest.approx(1)
    near, far = parallel_similarity(x, x + 0.3 * noise), parallel_similarity(x, noise)
    assert same.cosine > near.cosine > far.cosine
    assert near.retrieval > 0.9 > 0.3 > far.retrieval
    assert near == pytest.approx(parallel_similarity(x + 0.3 * noise, x))
    with pytest.raises(DataError, match="no sentences"):
        parallel_similarity(x[:0], x[:0])

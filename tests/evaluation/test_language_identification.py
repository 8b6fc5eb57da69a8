"""Identification of languages: equal to naive Bayes of scikit-learn, honest held-out accuracy."""

import random

import numpy as np
import pytest

from transformer_jax.core.errors import DataError
from transformer_jax.data.corpora import babel
from transformer_jax.evaluation.language_identification import (
    LanguageIdentifier,
    off_target_rate,
    train_identifier,
)

LANGUAGES = ("a", "b", "c", "d")


@pytest.fixture(scope="module")
def texts():
    meanings = babel.meanings("train", 120)
    return {code: [babel.express(one, code) for one in meanings] for code in LANGUAGES}


@pytest.fixture(scope="module")
def identify(texts):
    return train_identifier(texts)


def test_the_texts_of_a_language_are_identified(identify):
    for code in LANGUAGES:
        found = identify([babel.express(one, code) for one in babel.meanings("test", 60)])
        assert found.count(code) >= 59
    assert identify.held_out == 48
    assert {*identify.accuracies.values()} == {1.0}


def test_accuracy_is_that_of_texts_that_were_not_learned():
    """Texts of one distribution are told apart by heart alone."""
    draw, letters = random.Random(0), [chr(0x4E00 + i) for i in range(300)]
    texts = {code: ["".join(draw.choices(letters, k=8)) for _ in range(300)] for code in "xy"}
    identify = train_identifier(texts)
    assert all(0.2 < share < 0.8 for share in identify.accuracies.values())
    assert identify.held_out == 60
    assert identify(texts["x"]).count("x") > 0.9 * 300


def test_neither_order_nor_repetition_matters(texts, identify):
    again = train_identifier({code: some[::-1] + some[:9] for code, some in texts.items()})
    mixed = [one[:9] for some in texts.values() for one in some]
    assert again(mixed) == identify(mixed)
    assert again.accuracies == identify.accuracies


def test_a_text_without_known_characters_has_no_language(identify):
    assert identify(["", "  ", "☃ ☃"]) == [None, None, None]


def test_the_rate_counts_texts_of_other_languages(texts, identify):
    outputs = [*texts["a"][:6], *texts["b"][:3], ""]
    assert off_target_rate(identify, outputs, "a") == 0.3
    assert off_target_rate(identify, outputs, "c") == 0.9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda identify: train_identifier({"a": ["x"] * 20}), "two or more languages"),
        (
            lambda identify: train_identifier({"a": [*"abcdefghijk"], "b": ["x"] * 20}),
            "b: 1 different text to identify the language: 10 are needed",
        ),
        (lambda identify: off_target_rate(identify, ["x"], "z"), "z: the language identifier"),
        (lambda identify: off_target_rate(identify, [], "a"), "no texts"),
    ],
)
def test_too_little_text_is_refused(identify, call, message):
    with pytest.raises(DataError, match=message):
        call(identify)


@pytest.mark.slow
def test_equal_to_scikit_learn(texts):
    feature_extraction = pytest.importorskip("sklearn.feature_extraction.text")
    naive_bayes = pytest.importorskip("sklearn.naive_bayes")

    def grams(text):
        words = text.split()
        padded = f" {' '.join(words)} "
        longer = [padded[i : i + n] for n in (2, 3) for i in range(len(padded) - n + 1)]
        return [*"".join(words), *longer]

    draw = random.Random(3)
    some = {code: draw.sample(part, draw.randrange(5, 60)) for code, part in texts.items()}
    rows = [(one, code) for code, part in some.items() for one in part]
    counter = feature_extraction.CountVectorizer(analyzer=grams)
    bayes = naive_bayes.MultinomialNB(alpha=0.1, fit_prior=False)
    bayes.fit(counter.fit_transform([one for one, _ in rows]), [code for _, code in rows])
    words = [word for part in texts.values() for one in part for word in one.split()]
    # Half a word of one language and half of another: many are hard to tell.
    mixed = [draw.choice(words)[:3] + draw.choice(words)[-3:] for _ in range(300)]
    found = LanguageIdentifier.learn(some)(mixed)
    np.testing.assert_array_equal(found, bayes.predict(counter.transform(mixed)))

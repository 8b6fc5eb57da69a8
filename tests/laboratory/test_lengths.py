"""Rows U2, T1: translators without attention get worse with the length of the sentence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.core.errors import ConfigError
from transformer_jax.laboratory.lengths import EOS, FIRST, lengths, make_translator, sentences
from transformer_jax.laboratory.readers import nearest_sizes
from transformer_jax.laboratory.settings import LengthSettings

SMALL = LengthSettings(
    words=8,
    train_length=10,
    test_lengths=(2, 10),
    parameters=12_000,
    steps=500,
    learning_rate=1e-2,
    batch_size=32,
    eval_sentences=40,
)


@pytest.fixture(scope="module")
def figures():
    return lengths(SMALL)


@pytest.mark.slow
def test_attention_mends_long_sentences(figures):
    none, attention = figures.tokens["none"], figures.tokens["concat"]
    assert none[0][0] > 0.9, "short sentences fit into a vector"
    assert none[1][0] < 0.7
    assert attention[1][0] > none[1][0] + 0.2
    assert figures.bleu["concat"][1][0] > figures.bleu["none"][1][0] + 20


@pytest.mark.slow
def test_figures_have_a_row_for_each_length(figures, tmp_path):
    for found in (figures.tokens, figures.sentences, figures.bleu):
        assert {name: np.shape(rows) for name, rows in found.items()} == {
            "none": (2, 1),
            "concat": (2, 1),
        }
    head, *rows = figures.table()
    assert head == ["attention", "parameters", "score", "T=2", "T=10"]
    assert [row[:3:2] for row in rows] == [
        ["none", "BLEU"], ["none", "tokens"], ["concat", "BLEU"], ["concat", "tokens"],
    ]  # fmt: skip
    figures.draw(tmp_path / "lengths.png")
    assert (tmp_path / "lengths.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("order", ["same", "reversed"])
def test_each_word_has_one_translation(order):
    asked, length = LengthSettings(words=9, order=order), jnp.arange(60) % 6 + 1
    batch = jax.tree.map(np.asarray, sentences(asked, jax.random.key(0), length, 6))
    lexicon = {}
    for source, T, target in zip(
        batch["inputs"]["source"], batch["inputs"]["source_lengths"], batch["target"], strict=True
    ):
        assert (source[T:] == 0).all()
        assert target[T] == EOS
        assert (target[T + 1 :] == 0).all()
        words = target[:T] if order == "same" else target[:T][::-1]
        for word, other in zip(source[:T], words, strict=True):
            assert lexicon.setdefault(word, other) == other
    assert len(set(lexicon.values())) == len(lexicon) == 9
    assert min(lexicon.values()) == FIRST
    assert set(batch["lengths"]) == {2, 3, 4, 5, 6, 7}


@pytest.mark.slow
def test_a_seed_says_all():
    asked = LengthSettings(
        scores=("dot",), words=3, train_length=3, test_lengths=(3, 1), parameters=600, steps=20,
        batch_size=4, eval_sentences=3, seeds=2,
    )  # fmt: skip
    once = lengths(asked)
    assert once == lengths(asked)
    assert np.shape(once.tokens["dot"]) == (2, 2)


@pytest.mark.slow
def test_translators_of_the_defaults_have_about_as_many_parameters():
    asked = LengthSettings()
    make = lambda name, size: make_translator(name, size, words=30, cell="gru", seed=0)
    _, count = nearest_sizes(asked.scores, make, asked.parameters, 2)
    assert all(abs(number / asked.parameters - 1) < 0.05 for number in count.values()), count


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"words": 1}, "--words is 1: at least 2"),
        ({"test_lengths": ()}, "--test-lengths needs at least one value"),
        ({"scores": ("dot", "dot")}, "--scores dot dot: each value only once"),
        ({"train_length": 9_000}, "--train-length is 9000: at most 8192"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        LengthSettings(**wrong)

"""Attention weights in Python, of every kind of model that ``load`` returns."""

import re

import numpy as np
import pytest

import transformer_jax as tj
from transformer_jax.core.errors import ArgumentError, ConfigError, DataError
from transformer_jax.inference.attention import one_text


@pytest.fixture(scope="module")
def translate(trained_run):
    return tj.load(trained_run)


@pytest.mark.slow
def test_a_translator_shows_what_its_command_shows(
    translate, trained_run, lesson, run_command, tmp_path
):
    sentence, translation = lesson[1]
    attention = translate.attention(sentence)
    assert attention.text == translation == translate(sentence)
    assert list(attention.weights) == ["encoder", "decoder", "cross"]
    L, _, T, S = attention.weights["cross"].shape
    assert (len(attention.target_tokens), len(attention.tokens)) == (T, S)
    assert attention.tokens == attention["encoder"].rows == attention["cross"].columns
    np.testing.assert_allclose(attention.weights["cross"].sum(-1), 1, atol=1e-5)
    page = tmp_path / "page.html"
    assert run_command("attention", trained_run, sentence, "--output", page)[0] == 0
    assert attention.html() == page.read_text()
    assert attention.png() == page.with_suffix(".png").read_bytes()
    assert attention.png(tmp_path / "deep" / "a.png") == (tmp_path / "deep" / "a.png").read_bytes()
    assert attention.png(kind="encoder", layer=None).startswith(b"\x89PNG")
    with pytest.raises(ArgumentError, match=rf"layer is {L}: the layers are 0 to {L - 1}"):
        attention.png(layer=L)
    with pytest.raises(ArgumentError, match="attention of 'crss': this model has encoder, dec"):
        attention["crss"]
    with pytest.raises(ConfigError, match=r"page\.html/a\.png: cannot be written"):
        attention.png(page / "a.png")


def test_a_target_that_is_given_is_the_one_that_is_shown(translate, lesson):
    attention = translate.attention(lesson[0][0], "The cat.")
    assert attention.text == "The cat."
    ids = [*translate.tokenizer.encode("The cat."), translate.tokenizer.eos]
    pieces = translate.tokenizer.convert_ids_to_tokens(ids)
    assert attention.target_tokens == tuple(piece.replace(" ", "▁") for piece in pieces)


def test_a_language_model_has_a_row_for_each_token(decoder_run):
    attention = tj.load(decoder_run).attention("a cab")
    assert attention.text == ""
    assert attention.tokens == attention["decoder"].rows == tuple("a▁cab")
    assert attention.target_tokens == ()
    weights = attention.weights["decoder"]
    assert not np.triu(weights, 1).any()
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    assert "<h1>a cab</h1>" in attention.html()
    assert attention.png().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("  ", ArgumentError, "attention: the text is empty"),
        ("abcd " * 9, DataError, "the text has 45 tokens: at most 24 are shown"),
    ],
)
def test_one_text_is_shown(decoder_run, text, error, message):
    with pytest.raises(error, match=re.escape(message)):
        tj.load(decoder_run).attention(text)


@pytest.mark.parametrize("text", [["a", "b"], 5, None])
def test_what_is_no_text_is_refused(text):
    with pytest.raises(ArgumentError, match=rf"text is {type(text).__name__}: give one string"):
        one_text(text)


def test_models_without_weights_say_so(ngram_run):
    with pytest.raises(ConfigError, match="attention needs a decoder that runs on JAX"):
        tj.load(ngram_run).attention("a")

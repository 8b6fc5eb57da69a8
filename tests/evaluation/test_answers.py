"""Answers beside those wanted (row T16)."""

import pytest

from transformer_jax.evaluation.answers import exact_match, normalize_answer, token_f1


def test_t16_squad_scores():
    assert normalize_answer("The  U.S. Senate, an assembly") == "us senate assembly"
    assert normalize_answer("Theatre panda") == "theatre panda"  # no articles inside of words
    assert exact_match("the Paris.", "paris") == 1
    assert exact_match("Paris, France", "paris") == 0
    assert exact_match("b", ["a", "b"]) == 1
    # Two of three given words are right, and two of four wanted are given.
    f1 = token_f1("big red dog", "a dog that is red")
    assert f1 == pytest.approx(2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))
    assert token_f1("red red", "red") == pytest.approx(2 / 3)
    assert (token_f1("cat", "dog"), token_f1("", "dog"), token_f1("the", "")) == (0, 0, 1)
    assert token_f1("cat", ["dog", "cat nap", "cat"]) == 1

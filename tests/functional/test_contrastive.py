"""Contrastive losses are their formulas; what does not count is nowhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.functional.contrastive import (
    matching_pairs,
    sigmoid_contrast,
    softmax_contrast,
)


def softmax_by_hand(s, matches=None):
    """Each pair among itself and what does not match it."""
    matches = np.eye(len(s), dtype=bool) if matches is None else matches
    total = 0
    for i in range(len(s)):
        row = [s[i, j] for j in range(len(s)) if j == i or not matches[i, j]]
        column = [s[j, i] for j in range(len(s)) if j == i or not matches[j, i]]
        total -= sum(np.log(np.exp(s[i, i]) / np.exp(others).sum()) for others in (row, column))
    return total / 2


def sigmoid_by_hand(s, matches=None):
    sign = lambda i, j: 1 if i == j or (matches is not None and matches[i, j]) else -1
    each = [1 / (1 + np.exp(-sign(i, j) * s[i, j])) for i in range(len(s)) for j in range(len(s))]
    return -np.log(each).sum()


CASES = [(softmax_contrast, softmax_by_hand), (sigmoid_contrast, sigmoid_by_hand)]


@pytest.mark.parametrize(("loss", "formula"), CASES)
def test_the_loss_is_its_formula(loss, formula):
    s = np.random.default_rng(0).normal(size=(5, 5)).astype(np.float32)
    np.testing.assert_allclose(
        loss(jnp.asarray(s), jnp.ones(5, bool)), formula(s.astype(float)), rtol=1e-6
    )


@pytest.mark.parametrize(("loss", "formula"), CASES)
def test_pairs_that_do_not_count_are_nowhere(loss, formula):
    """Neither in the sum nor in a gradient, whatever they hold."""
    s = np.random.default_rng(1).normal(size=(5, 5)).astype(np.float32)
    counts = np.array([True, False, True, True, False])
    wild = np.where(counts[:, None] & counts, s, 1e4).astype(np.float32)
    small = s[np.ix_(counts, counts)].astype(float)
    value, slope = jax.value_and_grad(loss)(jnp.asarray(wild), jnp.asarray(counts))
    np.testing.assert_allclose(value, formula(small), rtol=1e-6)
    assert not np.asarray(slope)[~(counts[:, None] & counts)].any()
    assert not loss(jnp.asarray(wild), jnp.zeros(5, bool))


def captions():
    """Seven pairs of three images: texts 0 and 1 describe the first, 1 and 2 the second."""
    return np.array([[0, 1], [1, 0], [0, 1], [1, 2], [2, 1], [3, -1], [3, -1]])


def test_all_texts_of_an_image_match_it_in_whichever_pair_they_stand():
    images, texts = [0, 0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 2, 3, 3]
    known = set(zip(images, texts, strict=True))
    expected = [[(image, text) in known for text in texts] for image in images]
    assert np.asarray(matching_pairs(jnp.asarray(captions()))).tolist() == expected


@pytest.mark.parametrize(("loss", "formula"), CASES)
def test_other_matches_are_no_negatives(loss, formula):
    s = np.random.default_rng(2).normal(size=(7, 7)).astype(np.float32)
    matches = matching_pairs(jnp.asarray(captions()))
    found = loss(jnp.asarray(s), jnp.ones(7, bool), matches)
    np.testing.assert_allclose(found, formula(s.astype(float), np.asarray(matches)), rtol=1e-6)


@pytest.mark.parametrize(("loss", "formula"), CASES)
def test_a_model_that_knows_its_pairs_has_no_loss(loss, formula):
    """With equal texts and images as negatives it could not fall below their logarithm."""
    matches = matching_pairs(jnp.asarray(captions()))
    assert loss(jnp.where(matches, 50.0, -50.0), jnp.ones(7, bool), matches) < 1e-5
    assert formula(np.where(matches, 50.0, -50.0)) > 1

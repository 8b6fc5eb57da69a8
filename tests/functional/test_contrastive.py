"""Contrastive losses are their formulas; what does not count is nowhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.functional.contrastive import sigmoid_contrast, softmax_contrast


def softmax_by_hand(s):
    own = np.diag(s)
    rows = [-np.log(np.exp(own[i]) / np.exp(s[i]).sum()) for i in range(len(s))]
    columns = [-np.log(np.exp(own[i]) / np.exp(s[:, i]).sum()) for i in range(len(s))]
    return (sum(rows) + sum(columns)) / 2


def sigmoid_by_hand(s):
    sign = lambda i, j: 1 if i == j else -1
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

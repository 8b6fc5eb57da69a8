"""Objectives: shifted once, padding without weight, the same in pieces as whole."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawing import compiled
from transformer_jax import laws
from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.losses import OutputTable
from transformer_jax.training.objectives import (
    length_weights,
    sequence_to_sequence,
    shift_tokens_right,
)

BOS = 1


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.sampled_from([1, 4]), st.sampled_from([1, 2, 6]), st.integers(0, 99))
def test_decoder_inputs_are_bos_then_the_targets_one_late_u10(rows, length, seed):
    target = np.random.default_rng(seed).integers(2, 50, (rows, length)).astype(np.int32)
    inputs = np.asarray(jax.jit(shift_tokens_right, static_argnums=1)(target, BOS))
    assert inputs.shape == target.shape
    assert inputs.dtype == target.dtype
    assert (inputs[:, 0] == BOS).all()
    np.testing.assert_array_equal(inputs[:, 1:], target[:, :-1])


class Copies:
    """A model that is sure that each token follows itself."""

    def hidden(self, inputs, tokens, *, key=None):
        return jax.nn.one_hot(tokens, 10)

    def output_table(self):
        return OutputTable(50.0 * jnp.eye(10), None, 1.0, None)


def test_a_model_that_copies_its_inputs_predicts_the_token_before_u10():
    batch = {
        "inputs": {"source": np.array([[3]]), "source_lengths": np.array([1])},
        "target": np.array([[BOS, 5, 5, 5, 2, 7]]),
        "lengths": np.array([6]),
    }
    objective = sequence_to_sequence(BOS, chunk=0)
    total, weight = jax.jit(lambda batch: objective(Copies(), batch, None))(batch)["loss"]
    wrong = 3  # the first 5, the 2 and the 7 differ from the token before
    assert weight == 6
    chex.assert_trees_all_close(total, 50.0 * wrong, rtol=1e-5)


def reference(model, batch, smoothing):
    """Row by row and token by token, in float64."""
    inputs = np.concatenate([np.full_like(batch["target"][:, :1], BOS), batch["target"]], 1)[:, :-1]
    read = batch["inputs"]
    logits = compiled(model)(read["source"], inputs, read["source_lengths"])
    logits = np.asarray(logits, np.float64)
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    total = 0.0
    for b, length in enumerate(batch["lengths"]):
        for t in range(length):
            p = logp[b, t]
            total -= (1 - smoothing) * p[batch["target"][b, t]] + smoothing * p.mean()
    return total


@pytest.mark.parametrize("chunk", [0, None, 24])
@pytest.mark.quick("0", "24")
def test_loss_is_the_smoothed_cross_entropy_of_the_real_tokens(make_toy, sentences, chunk):
    model, batch = make_toy(), sentences()
    objective = sequence_to_sequence(BOS, 0.1, chunk)
    total, weight = jax.jit(lambda batch: objective(model, batch, None))(batch)["loss"]
    assert weight == batch["lengths"].sum()
    np.testing.assert_allclose(total, reference(model, batch, 0.1), rtol=1e-5)


def test_padding_rows_and_columns_weigh_nothing(make_toy, sentences):
    model, batch = make_toy(), sentences()
    objective = sequence_to_sequence(BOS, 0.1)
    longer = batch | {"target": np.pad(batch["target"], ((0, 0), (0, 3)), constant_values=9)}
    more = jax.tree.map(lambda v: np.concatenate([v, v[:2]]), longer)
    more["lengths"][-2:] = 0
    loss = jax.jit(lambda batch: objective(model, batch, None))
    for other in longer, more:
        chex.assert_trees_all_close(loss(other), loss(batch), rtol=1e-6)
    real = np.arange(longer["target"].shape[1]) < batch["lengths"][:, None]
    run = lambda target, _: loss(longer | {"target": target})
    laws.loss_padding(run, longer["target"], real).require()


def test_target_weights_are_as_many_as_the_lengths():
    weights = length_weights(jnp.array([0, 2, 5]), 4)
    np.testing.assert_array_equal(weights.sum(1), [0, 2, 4])
    assert weights.dtype == jnp.float32


def test_unsmoothed_loss_is_optax(make_toy, sentences):
    model, batch = make_toy(), sentences()

    def losses(model, batch):
        inputs = shift_tokens_right(batch["target"], BOS)
        read = batch["inputs"]
        logits = model(read["source"], inputs, read["source_lengths"])
        each = optax.softmax_cross_entropy_with_integer_labels(logits, batch["target"])
        weights = length_weights(batch["lengths"], batch["target"].shape[1])
        return sequence_to_sequence(BOS)(model, batch, None)["loss"][0], (each * weights).sum()

    total, expected = compiled(model, losses)(batch)
    chex.assert_trees_all_close(total, expected, rtol=1e-5)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, float("nan")])
def test_impossible_smoothing_is_refused(smoothing):
    with pytest.raises(ArgumentError, match="label_smoothing is"):
        sequence_to_sequence(BOS, smoothing)


def test_negative_chunk_is_refused():
    with pytest.raises(ArgumentError, match="chunk is -1: at least 0"):
        sequence_to_sequence(BOS, chunk=-1)

"""The loss of a task beside that of the texts themselves (row H24)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from transformer_jax import laws
from transformer_jax.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.heads import DecoderSequenceClassifier
from transformer_jax.training import objectives

CONFIG = TransformerConfig(
    vocab_size=13,
    d_model=8,
    encoder_layers=0,
    decoder_layers=1,
    embedding=EmbeddingConfig(dropout=0.0),
    positions=PositionConfig(kind="learned", max_length=16),
    attention=AttentionConfig(num_heads=2),
    feed_forward=FeedForwardConfig(d_ff=16),
    norm=NormConfig(placement="pre", residual_dropout=0.0),
)


@pytest.fixture(scope="module")
def model():
    return DecoderSequenceClassifier(CONFIG, labels=2, rngs=nnx.Rngs(0))


def batch_of(rng, lengths, labels, T=7):
    tokens = rng.integers(1, 13, (len(lengths), T)).astype(np.int32)
    tokens[np.arange(T)[None] >= np.array(lengths)[:, None]] = 0
    return {
        "tokens": jnp.asarray(tokens),
        "types": jnp.zeros(tokens.shape, jnp.int32),
        "lengths": jnp.asarray(lengths, jnp.int32),
        "labels": jnp.asarray(labels),
    }


def sums_of(objective, model, batch, key=None):
    """The sums of an objective, compiled whole: one program rather than one for each operation."""
    graph, params = nnx.split(model)
    return jax.jit(lambda params, batch: objective(nnx.merge(graph, params), batch, key))(
        params, batch
    )


def language_loss(model, tokens):
    """The mean over the tokens of one text of what the model gives for the next token."""
    graph, params = nnx.split(model)

    @jax.jit
    def logs_of(params, tokens):
        model = nnx.merge(graph, params)
        return jax.nn.log_softmax(model.logits(model.hidden(None, tokens[None]))[0, :-1])

    logs = np.asarray(logs_of(params, tokens))
    return -float(logs[np.arange(len(tokens) - 1), np.asarray(tokens[1:])].mean())


@pytest.mark.slow
@pytest.mark.parametrize("regress", [False, True])
def test_the_loss_is_that_of_the_task_and_of_each_text(model, regress):
    rng = np.random.default_rng(0)
    lengths = [7, 4, 2, 0]
    labels = np.array([1.0, 0.5, 0.0, np.nan], "f") if regress else np.array([1, 0, 1, -1], "i")
    batch = batch_of(rng, lengths, labels)
    plain = objectives.regression() if regress else objectives.sequence_classification()
    alone = sums_of(plain, model, batch)
    both = sums_of(objectives.with_language_model(0.3, regress=regress), model, batch)
    texts = [batch["tokens"][i, :length] for i, length in enumerate(lengths[:3])]
    spoken = sum(language_loss(model, text) for text in texts)
    np.testing.assert_allclose(both["lm_loss"][0], spoken, rtol=1e-5)
    np.testing.assert_allclose(both["loss"][0], alone["loss"][0] + 0.3 * spoken, rtol=1e-5)
    assert [float(both[name][1]) for name in ("loss", "lm_loss")] == [3.0, 3.0]
    assert regress or float(both["accuracy"][0]) == float(alone["accuracy"][0])


@pytest.mark.slow
def test_batches_may_be_split_and_padded(model):
    rng = np.random.default_rng(1)
    batch = batch_of(rng, [6, 3, 5, 2], np.array([0, 1, 1, 0], "i"))
    run = lambda batch: sums_of(objectives.with_language_model(), model, batch)["loss"]
    laws.loss_split(run, batch).require()
    real = np.arange(7)[None] < np.asarray(batch["lengths"])[:, None]
    padded = lambda tokens, _: run(batch | {"tokens": jnp.asarray(tokens)})
    laws.loss_padding(padded, batch["tokens"], real).require()
    wide = {
        name: jnp.pad(leaf, ((0, 0), (0, 4))) if leaf.ndim == 2 else leaf
        for name, leaf in batch.items()
    }
    np.testing.assert_allclose(run(wide)[0], run(batch)[0], rtol=1e-5)


@pytest.mark.slow
def test_the_table_learns_from_the_language_model_too(model):
    batch = batch_of(np.random.default_rng(2), [4, 4], np.array([0, 1], "i"))
    graph, params = nnx.split(model)

    def loss(params, weight):
        sums = objectives.with_language_model(weight)(nnx.merge(graph, params), batch)
        return sums["loss"][0]

    gradients = jax.jit(jax.grad(loss), static_argnums=1)
    tables = [gradients(params, w)["embedding"]["table"][...] for w in (0.0, 0.5)]
    unseen = np.setdiff1d(np.arange(13), np.asarray(batch["tokens"]))
    assert not np.abs(np.asarray(tables[0])[unseen]).any()
    assert np.abs(np.asarray(tables[1])[unseen]).all()  # as outputs of the language model


@pytest.mark.slow
def test_dropout_is_that_of_the_key():
    config = dataclasses.replace(CONFIG, norm=NormConfig(placement="pre", residual_dropout=0.5))
    dropping = DecoderSequenceClassifier(config, labels=2, rngs=nnx.Rngs(0))
    batch = batch_of(np.random.default_rng(3), [6, 3], np.array([0, 1], "i"))
    objective = objectives.with_language_model()
    first, again, other = (
        float(sums_of(objective, dropping, batch, jax.random.key(seed))["loss"][0])
        for seed in (1, 1, 2)
    )
    assert first == again != other

"""A captioner: stepwise equals teacher forcing, padding and later tokens are invisible."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.drawing import compiled, drawn
from transformer_jax.core.errors import ConfigError
from transformer_jax.models.captioner import Captioner
from transformer_jax.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.presets import vit
from transformer_jax.training.objectives import sequence_to_sequence

V, T = 11, 6
ENCODER = dataclasses.replace(
    vit(16, 1, image_size=8, patch_size=4),
    attention=AttentionConfig(num_heads=2),
    feed_forward=FeedForwardConfig(d_ff=16),
)
CONFIG = TransformerConfig(
    vocab_size=V,
    d_model=12,
    encoder_layers=0,
    decoder_layers=2,
    embedding=EmbeddingConfig(dropout=0.0),
    positions=PositionConfig("learned", max_length=8),
    attention=AttentionConfig(num_heads=2),
    feed_forward=FeedForwardConfig(d_ff=16),
    norm=NormConfig(placement="pre", residual_dropout=0.0),
)


@pytest.fixture(scope="module")
def model():
    return nnx.merge(*drawn(lambda: Captioner(ENCODER, CONFIG, rngs=nnx.Rngs(0))))


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    images = rng.standard_normal((3, 8, 8, 3)).astype(np.float32)
    return jnp.asarray(images), jnp.asarray(rng.integers(3, V, (3, T)), jnp.int32)


def test_steps_with_a_cache_give_the_logits_of_teacher_forcing(model, batch):
    images, tokens = batch

    def both(model, images, tokens):
        cache = model.init_cache({"images": images}, 3, T)
        found = []
        for t in range(T):
            logits, cache = model.step(tokens[:, t], cache)
            found.append(logits)
        return jnp.stack(found, 1), model(images, tokens)

    stepwise, whole = compiled(model, both)(images, tokens)
    np.testing.assert_allclose(stepwise, whole, atol=1e-5)


def test_padding_of_captions_changes_no_loss(model, batch):
    images, tokens = batch
    lengths = jnp.array([T, 3, 0])
    objective = sequence_to_sequence(1)

    def loss(model, images, tokens):
        given = {"inputs": {"images": images}, "target": tokens, "lengths": lengths}
        return objective(model, given)["loss"]

    run = compiled(model, loss)
    total, weight = run(images, tokens)
    other = tokens.at[1, 3:].set(7).at[2].set(5)
    assert jax.tree.map(float, run(images, other)) == (float(total), float(weight))
    assert weight == T + 3


def test_maps_of_attention_have_a_column_for_each_patch(model, batch):
    maps = compiled(model, Captioner.attention_maps)(*batch)
    assert maps["cross"].shape == (2, 3, 2, T, 5)
    assert maps["encoder"].shape == (1, 3, 2, 5, 5)
    np.testing.assert_allclose(maps["cross"].sum(-1), 1.0, atol=1e-5)


def test_an_encoder_within_the_decoder_is_refused():
    with pytest.raises(ConfigError, match="the encoder has settings of its own"):
        Captioner(ENCODER, dataclasses.replace(CONFIG, encoder_layers=1), rngs=nnx.Rngs(0))

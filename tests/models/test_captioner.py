"""A captioner: stepwise equals teacher forcing, padding and later tokens are invisible."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.drawing import compiled, drawn
from transformer_jax import laws
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


@pytest.mark.slow
def test_padding_of_captions_changes_no_loss(model, batch):
    images, tokens = batch
    lengths = jnp.array([T, 3, 0])
    objective = sequence_to_sequence(1)

    def totals(model, tokens, lengths):
        given = {"inputs": {"images": images[: len(tokens)]}, "target": tokens, "lengths": lengths}
        return objective(model, given)["loss"]

    run, real = compiled(model, totals), jnp.arange(T)[None] < lengths[:, None]
    laws.loss_padding(lambda tokens, real: run(tokens, real.sum(1)), tokens, real).require()
    assert run(tokens, lengths)[1] == T + 3


@pytest.mark.slow
def test_maps_of_attention_have_a_column_for_each_patch(model, batch):
    maps = compiled(model, Captioner.attention_maps)(*batch)
    assert maps["cross"].shape == (2, 3, 2, T, 5)
    assert maps["encoder"].shape == (1, 3, 2, 5, 5)
    laws.weights_sum_to_one(maps["cross"], tolerance=1e-5).require()


def test_an_encoder_within_the_decoder_is_refused():
    with pytest.raises(ConfigError, match="the encoder has its own settings"):
        Captioner(ENCODER, dataclasses.replace(CONFIG, encoder_layers=1), rngs=nnx.Rngs(0))

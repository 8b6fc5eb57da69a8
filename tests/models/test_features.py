"""Encoder-decoders of float features in place of source tokens, of every kind; row T1."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.drawing import drawn, normals
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.functional.spectrogram import stack_frames
from transformer_jax.models.build import make_model
from transformer_jax.models.config import (
    AttentionConfig,
    ComputeConfig,
    EmbeddingConfig,
    FeatureConfig,
    FeedForwardConfig,
    MixerConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.costs.accounting import count_parameters
from transformer_jax.models.layers.parameters import layer_depths, parameters
from transformer_jax.models.recurrent_config import (
    AlignmentConfig,
    RecurrentConfig,
    RecurrentEmbeddingConfig,
)
from transformer_jax.parallel.sharding import shardings
from transformer_jax.visual.architecture import diagram

B, S, T, V, F, K = 3, 7, 5, 11, 6, 2
LENGTHS = jnp.array([7, 4, 5])
FEATURES = FeatureConfig(F, K)


def transformer(**rest):
    config = TransformerConfig(
        vocab_size=V,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        positions=PositionConfig(max_length=32),
        attention=AttentionConfig(num_heads=2),
        feed_forward=FeedForwardConfig(d_ff=32),
        embedding=EmbeddingConfig(share_encoder_decoder_embeddings=False),
        features=FEATURES,
    )
    return dataclasses.replace(config, **rest)


def recurrent(**rest):
    apart = RecurrentEmbeddingConfig(8, share_encoder_decoder_embeddings=False)
    both = {"vocab_size": V, "d_model": 8, "embedding": apart, "features": FEATURES}
    return RecurrentConfig(**both | rest)


CONFIGS = {
    "vaswani": transformer(),
    "convs2s": transformer(mixer=MixerConfig("convolution"), positions=PositionConfig("learned")),
    "recurrent mixer": transformer(mixer=MixerConfig("recurrent", cell="gru")),
    "cho": recurrent(
        cell="gru", bidirectional=False, attention=AlignmentConfig("none", "previous")
    ),
    "sutskever": recurrent(
        num_layers=2, bidirectional=False, reverse_source=True, attention=AlignmentConfig("none")
    ),
    "bahdanau": recurrent(cell="gru", attention=AlignmentConfig("concat", "previous")),
    "luong": recurrent(attention=AlignmentConfig("general", input_feeding=True)),
}
kinds = pytest.mark.parametrize("name", CONFIGS)


@functools.cache
def made(name):
    return drawn(lambda: make_model("encoder-decoder", CONFIGS[name], rngs=nnx.Rngs(0)))


@functools.cache
def program(name):
    """Logits of teacher forcing, from parameters, features, lengths and tokens."""
    graph, _ = made(name)

    def logits(params, source, lengths, tokens):
        model = nnx.merge(graph, params)
        inputs = {"source": source, "source_lengths": lengths}
        return model.logits(model.hidden(inputs, tokens))

    return jax.jit(logits)


def speech(seed=0):
    [source] = normals((B, S, F * K), seed=seed)
    tokens = np.random.default_rng(seed).integers(3, V, (B, T))
    return source, LENGTHS, jnp.asarray(tokens, jnp.int32)


@pytest.mark.slow
@kinds
def test_every_frame_counts_and_no_padding(name):
    source, lengths, tokens = speech()
    run, params = program(name), made(name)[1]
    total = lambda source: jnp.square(run(params, source, lengths, tokens)).sum()
    slope = np.abs(np.asarray(jax.grad(total)(source))).reshape(B, S, K, F).max(-1)
    real = np.asarray(jnp.arange(S)[None] < lengths[:, None])
    assert (slope[real] > 0).all()
    assert not slope[~real].any()


@kinds
def test_costs_on_paper_are_those_of_the_model(name):
    counted = sum(leaf.size for leaf in jax.tree.leaves(made(name)[1]))
    assert count_parameters(CONFIGS[name]) == counted


@pytest.mark.parametrize("name", ["vaswani", "luong"])
def test_the_projection_declares_its_axes_and_depth(name):
    model = nnx.eval_shape(lambda: make_model("encoder-decoder", CONFIGS[name], rngs=nnx.Rngs(0)))
    mesh = jax.sharding.AbstractMesh((1, 2, 2), ("data", "fsdp", "tensor"))
    path = ["embedding"] if name == "vaswani" else ["encoder", "embedding"]
    found, depths = shardings(parameters(model), mesh), layer_depths(parameters(model))
    for part in (*path, "projection", "kernel"):
        found, depths = found[part], depths[part]
    assert found.spec == jax.sharding.PartitionSpec(None, "fsdp")
    assert depths == 0


@pytest.mark.quick("vaswani")
@pytest.mark.parametrize("name", ["vaswani", "luong"])
def test_in_bfloat16_it_is_the_same_but_for_rounding(name):
    source, lengths, _ = speech()
    params = made(name)[1]
    config = dataclasses.replace(CONFIGS[name], compute=ComputeConfig(dtype="bfloat16"))
    make = lambda: make_model("encoder-decoder", config, rngs=nnx.Rngs(0))
    graph = nnx.split(nnx.eval_shape(make))[0]
    inputs = {"source": source, "source_lengths": lengths}
    encoded = jax.jit(lambda params: nnx.merge(graph, params).encoded(inputs).states)
    plain = jax.jit(lambda params: nnx.merge(made(name)[0], params).encoded(inputs).states)
    rounded, exact = encoded(params), plain(params)
    real = (jnp.arange(S)[None] < lengths[:, None])[..., None]
    difference = jnp.where(real, rounded.astype(jnp.float32) - exact, 0.0)
    assert 0 < float(jnp.abs(difference).max()) < 0.1 * float(jnp.abs(exact).max())


@pytest.mark.parametrize(("name", "line"), [("vaswani", "linear  12 → 16"), ("luong", "12 → 8")])
def test_the_architecture_shows_the_projection(name, line):
    drawn_model = diagram(CONFIGS[name])
    assert line in drawn_model
    assert "stacked frames [B, S, 12]" in drawn_model


def test_positions_of_another_width_are_refused():
    model = nnx.merge(*made("luong"))
    source, lengths, _ = speech()
    message = "positions of width 11: this model reads 12, 2 frames of 6 each"
    with pytest.raises(DataError, match=message):
        model.encoded({"source": source[..., 1:], "source_lengths": lengths})


def test_stacked_frames_are_what_it_reads():
    [features] = normals((5, F))
    assert stack_frames(features, K).shape == (3, FEATURES.width)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((-1,), "features.num_features is -1: at least 0"),
        ((1 << 17,), "features.num_features is 131072: at most 65536"),
        ((3, 0), "features.stacked_frames is 0: at least 1"),
        ((0, 2), "features.stacked_frames is 2: it is for feature models"),
    ],
)
@pytest.mark.parametrize("make", [transformer, recurrent])
def test_features_that_cannot_be_are_refused(make, change, message):
    with pytest.raises(ConfigError, match=message):
        make(features=FeatureConfig(*change))


@pytest.mark.parametrize(
    ("make", "tables"),
    [
        (transformer, {"embedding": EmbeddingConfig()}),
        (recurrent, {"embedding": RecurrentEmbeddingConfig()}),
    ],
)
def test_an_encoder_of_features_shares_no_table(make, tables):
    with pytest.raises(ConfigError, match="an encoder of features has no table to share"):
        make(**tables)


@pytest.mark.parametrize("side", ["encoder_layers", "decoder_layers"])
def test_one_side_alone_reads_no_features(side):
    with pytest.raises(ConfigError, match="num_features is 6: it is for encoder-decoders"):
        transformer(**{side: 0})

"""Laws of the decoder: rows B26-B29, U9, U13."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.drawing import drawn
from transformer_jax import laws
from transformer_jax.core.errors import ConfigError
from transformer_jax.functional.losses import cross_entropy
from transformer_jax.models.config import (
    AttentionConfig,
    ComputeConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    MixerConfig,
    NormConfig,
    PositionConfig,
    ScoreConfig,
    TransformerConfig,
)
from transformer_jax.models.presets import PRESETS
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.parallel.placement import prepare_for_decoding

V, T = 23, 12

TINY = TransformerConfig(
    vocab_size=V,
    d_model=16,
    encoder_layers=0,
    decoder_layers=2,
    embedding=EmbeddingConfig(scale=1.0),
    positions=PositionConfig(kind="learned", max_length=32),
    attention=AttentionConfig(num_heads=4),
    feed_forward=FeedForwardConfig(d_ff=32, activation="gelu_tanh"),
    norm=NormConfig(placement="pre"),
)
change = functools.partial(dataclasses.replace, TINY)
VARIANTS = {
    "gpt2": TINY,
    "modern": change(
        positions=PositionConfig(kind="rope", max_length=32),
        attention=AttentionConfig(
            num_heads=4, num_kv_heads=2, bias=False, out_bias=False, qk_norm=True
        ),
        feed_forward=FeedForwardConfig(d_ff=32, activation="silu", gated=True, bias=False),
        norm=NormConfig(placement="pre", kind="rms"),
    ),
    "window": change(
        positions=PositionConfig(kind="rope", max_length=32, rope_interpolation=2.0),
        scores=ScoreConfig(sliding_window=3, sliding_window_every=2),
        norm=NormConfig(placement="sandwich", kind="rms", gain_offset=1.0),
    ),
    "alibi": change(positions=PositionConfig(kind="alibi", max_length=32)),
    "relative": change(
        positions=PositionConfig(kind="relative", max_length=32, num_buckets=4, max_distance=8)
    ),
    "recurrent": change(
        positions=PositionConfig(kind="none", max_length=32),
        mixer=MixerConfig("recurrent", cell="lstm"),
        feed_forward=FeedForwardConfig(d_ff=0),
    ),
    "convolution": change(mixer=MixerConfig("convolution", kernel_size=3, dilations=(1, 2))),
    "sinusoidal": change(
        positions=PositionConfig(max_length=32),
        embedding=EmbeddingConfig(layernorm_embedding=True),
        norm=NormConfig(placement="post"),
        head=HeadConfig(
            tie_word_embeddings=False, bias=True, scale=0.5, final_logit_softcapping=3.0
        ),
    ),
}


@functools.lru_cache
def parts(config):
    return drawn(lambda: Decoder(config, rngs=nnx.Rngs(0)))


def compiled(config, function):
    """``function(model, ...)`` of arrays: op by op, these tests would take minutes."""
    graph, params = parts(config)
    run = jax.jit(lambda params, *args: function(nnx.merge(graph, params), *args))
    return functools.partial(run, params)


@functools.lru_cache
def full(config):
    """All at once, compiled."""
    return compiled(config, lambda model, tokens: model(tokens))


def text(rows=2, length=T, seed=0):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.integers(1, V, (rows, length)), jnp.int32)


@pytest.mark.slow
def test_scanned_layers_are_looped_ones():
    config = VARIANTS["window"]
    scanned = dataclasses.replace(config, compute=ComputeConfig(scan_layers=True))
    from transformer_jax.models.prepare import stack_blocks

    params = dict(parts(config)[1])
    params["decoder"] = params["decoder"] | {"blocks": stack_blocks(params["decoder"]["blocks"])}
    graph = nnx.split(nnx.eval_shape(lambda: Decoder(scanned, rngs=nnx.Rngs(0))))[0]
    run = jax.jit(lambda params, tokens: nnx.merge(graph, params)(tokens))
    whole = full(config)(text())
    chex.assert_trees_all_close(run(params, text()), whole, atol=1e-5)

    def stepwise(params, tokens):
        model = nnx.merge(graph, params)
        _, cache = model.prefill(tokens[:, :4], model.init_cache(None, 2, T))
        return model.extend(tokens[:, 4:], cache)[0]

    chex.assert_trees_all_close(jax.jit(stepwise)(params, text()), whole[:, 4:], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "scan"),
    [
        ("window", True),
        pytest.param("gpt2", False, marks=pytest.mark.slow),
        pytest.param("modern", False, marks=pytest.mark.slow),
        pytest.param("relative", False, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("wide", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_model_prepared_for_decoding_computes_the_same(name, scan, wide):
    """Both ways: all at once, and prompt, several tokens and single ones out of a cache."""
    config = dataclasses.replace(VARIANTS[name], compute=ComputeConfig(scan_layers=scan))
    model = nnx.merge(*parts(config))
    whole = full(config)(text())
    given = jax.tree.map(jnp.copy, nnx.to_pure_dict(nnx.state(model)))
    original, model = model, prepare_for_decoding(model, 16 if wide else 17)
    chex.assert_trees_all_equal(nnx.to_pure_dict(nnx.state(original)), given)
    assert not model.decoder.config.compute.scan_layers
    blocks = nnx.to_pure_dict(nnx.split(model)[1])["decoder"]["blocks"]
    assert set(blocks) == {0, 1}
    up = parts(config)[1]["decoder"]["blocks"]
    up = np.asarray((up if scan else up[0])["feed_forward"]["up"]["kernel"])
    up = up[0] if scan else up
    np.testing.assert_array_equal(blocks[0]["feed_forward"]["up"]["kernel"], up.T if wide else up)

    def stepwise(model, tokens):
        cache = model.init_cache(None, 2, 14)
        first, cache = model.prefill(tokens[:, :6], cache)
        some, cache = model.extend(tokens[:, 6:9], cache)
        last, _ = model.step(tokens[:, 9], cache)
        return jnp.concatenate([first[:, None], some, last[:, None]], axis=1)

    run = jax.jit(lambda model, tokens: (model(tokens), stepwise(model, tokens)))
    again, steps = run(model, text())
    chex.assert_trees_all_close(again, whole, atol=1e-5)
    chex.assert_trees_all_close(steps, whole[:, 5:10], atol=1e-5)


@pytest.mark.slow
def test_loss_at_the_start_is_that_of_guessing():
    """Row B27: the loss before training is about ln K."""
    config = dataclasses.replace(PRESETS["nanogpt_char"], vocab_size=65, decoder_layers=2)
    run = jax.jit(lambda tokens: Decoder(config, rngs=nnx.Rngs(0))(tokens))
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 65, (4, 64)), jnp.int32)
    total, weight = cross_entropy(run(tokens)[:, :-1], tokens[:, 1:], jnp.ones((4, 63)))
    assert abs(float(total / weight) - np.log(65)) < 0.15


@pytest.mark.slow
def test_dropout_needs_a_key_and_changes_with_it():
    config = change(norm=NormConfig(placement="pre", residual_dropout=0.5))
    run = compiled(config, lambda model, tokens, key: model(tokens, key=key))
    tokens, keys = text(), jax.random.split(jax.random.key(0))
    assert not np.allclose(run(tokens, keys[0]), run(tokens, keys[1]))
    chex.assert_trees_all_equal(run(tokens, keys[0]), run(tokens, keys[0]))


def test_attention_maps_are_causal_and_sum_to_one():
    maps = compiled(VARIANTS["window"], lambda model, tokens: model.attention_maps(tokens))(text())
    chex.assert_shape(maps, (2, 2, 4, T, T))
    earlier = np.tri(T, dtype=bool)
    laws.weights_sum_to_one(maps, earlier, tolerance=1e-5).require()
    laws.weights_sum_to_one(
        maps[0], earlier & ~np.tri(T, k=-3, dtype=bool), tolerance=1e-5
    ).require()
    assert np.asarray(maps)[1][..., 3, 0].all()  # layer 1 has not


def test_interpolated_rotations_are_those_of_nearer_positions():
    """Chen et al. 2023: position t at factor 2 turns as t / 2 does."""
    from transformer_jax.functional.positions import apply_rotary_embedding, rotary_frequencies

    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 6, 1, 8)), jnp.float32)
    even = jnp.arange(6)[None] * 2
    chex.assert_trees_all_close(
        apply_rotary_embedding(x, even, rotary_frequencies(8, interpolation=2.0)),
        apply_rotary_embedding(x, jnp.arange(6)[None]),
        atol=1e-6,
    )


@pytest.mark.parametrize(
    ("name", "millions"),
    [("gpt2_small", 124.44), ("gpt2_medium", 354.82), ("gpt2_large", 774.03), ("gpt2_xl", 1557.61)],
)
@pytest.mark.quick("gpt2_small-124.44")
def test_gpt2_has_its_published_sizes(name, millions):
    shapes = nnx.eval_shape(lambda: Decoder(PRESETS[name], rngs=nnx.Rngs(0)))
    sizes = [np.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(shapes, nnx.Param))]
    assert sum(sizes) / 1e6 == pytest.approx(millions, abs=0.01)


def test_an_encoder_is_no_decoder():
    with pytest.raises(ConfigError, match="encoder_layers is 2"):
        Decoder(dataclasses.replace(TINY, encoder_layers=2), rngs=nnx.Rngs(0))
    with pytest.raises(ConfigError, match="rope_interpolation"):
        change(positions=PositionConfig(kind="rope", rope_interpolation=0.5))


@pytest.mark.parametrize("name", ["recurrent", "convolution"])
def test_models_without_attention_say_so(name):
    with pytest.raises(ConfigError, match="this model has no attention: mixer"):
        nnx.eval_shape(lambda: nnx.merge(*parts(VARIANTS[name])).attention_maps(text()))

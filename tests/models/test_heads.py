"""Laws of encoders with heads: rows B35, B36, H17-H19."""

import dataclasses
import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.drawing import drawn
from transformer_jax.core.errors import ConfigError
from transformer_jax.functional.layers import gather_positions
from transformer_jax.models.config import AttentionConfig, HeadConfig, NormConfig, PositionConfig
from transformer_jax.models.heads import (
    DecoderSequenceClassifier,
    EncoderForMaskedLM,
    SequenceClassifier,
    TokenClassifier,
)
from transformer_jax.models.presets import PRESETS, bert
from transformer_jax.models.transformer.models import Encoder

V, D, T = 20, 16, 6

BERT = dataclasses.replace(
    bert(D, 1, vocab_size=V, max_length=8, dropout=0.0), attention=AttentionConfig(num_heads=4)
)
TOKENS = jnp.arange(1, 1 + 2 * T).reshape(2, T)
LENGTHS = jnp.array([T, 4])
TYPES = jnp.array([[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 0, 0]])
PLACES = jnp.array([[4, 1, 1], [0, 3, 2]])
HIDDEN = np.random.default_rng(0).standard_normal((2, T, D)).astype(np.float32)


@functools.lru_cache
def masked(config=BERT, **options):
    return drawn(lambda: EncoderForMaskedLM(config, **options, rngs=nnx.Rngs(0)))


def head(**fields):
    return dataclasses.replace(BERT, head=dataclasses.replace(BERT.head, **fields))


def of(graph, params):
    """Functions of a model with these parameters, compiled whole."""
    return lambda function, *args: jax.jit(lambda p: function(nnx.merge(graph, p), *args))(params)


def test_vectors_are_chosen_by_row():
    found = gather_positions(jnp.asarray(HIDDEN), PLACES)
    np.testing.assert_array_equal(found, HIDDEN[np.arange(2)[:, None], np.asarray(PLACES)])


def test_h18_mlm_head_is_dense_activation_norm_tied_embedding():
    graph, params = masked()
    found = of(graph, params)(lambda model: model.mlm_logits(jnp.asarray(HIDDEN)))
    p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
    x = HIDDEN @ p["transform"]["kernel"] + p["transform"]["bias"]
    x = x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
    x = x * p["transform_norm"]["gain"] + p["transform_norm"]["bias"]
    wanted = x @ p["embedding"]["table"].T + p["head"]["bias"]
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    assert found.dtype == jnp.float32
    assert set(p["head"]) == {"bias"}


@pytest.mark.parametrize(
    "fields",
    [{"mlm_transform": False}, {"tie_word_embeddings": False}, {"bias": False}, {"scale": 0.5}],
)
def test_no_field_of_the_head_is_ignored(fields):
    words = lambda config: of(*masked(config))(lambda model: model.mlm_logits(jnp.asarray(HIDDEN)))
    assert not np.allclose(words(head(**fields)), words(BERT), atol=1e-2)


def test_without_a_transform_words_are_products_with_the_table():
    graph, params = masked(head(mlm_transform=False, tie_word_embeddings=False))
    found = of(graph, params)(lambda model: model.mlm_logits(jnp.asarray(HIDDEN)))
    table, bias = (np.asarray(params["head"][name]) for name in ("table", "bias"))
    np.testing.assert_allclose(found, HIDDEN @ table.T + bias, atol=1e-5)
    assert "transform" not in params
    assert "transform_norm" not in params


def test_the_transform_has_the_norm_of_the_model():
    config = dataclasses.replace(BERT, norm=NormConfig(kind="rms", eps=1e-12))
    assert set(masked(config)[1]["transform_norm"]) == {"gain"}


def test_h18_the_head_at_chosen_places_is_the_full_head_there():
    """Values and gradients, where a place comes twice too."""
    graph, params = masked()
    weights = jnp.asarray(np.random.default_rng(1).standard_normal((2, 3, V)), jnp.float32)

    def outcome(both, early):
        model, hidden = nnx.merge(graph, both[0]), both[1]
        if early:
            words = model.mlm_logits(gather_positions(hidden, PLACES))
        else:
            words = jnp.take_along_axis(model.mlm_logits(hidden), PLACES[..., None], axis=1)
        return jnp.sum(words * weights), words

    run = jax.jit(jax.grad(outcome, has_aux=True), static_argnums=1)
    both = params, jnp.asarray(HIDDEN)
    (early, words), (late, wanted) = run(both, True), run(both, False)
    chex.assert_trees_all_close(words, wanted, atol=1e-5)
    chex.assert_trees_all_close(early, late, atol=1e-4, rtol=1e-4)
    assert np.abs(early[0]["embedding"]["table"]).max() > 0.1


def test_h19_follows_is_a_map_of_what_is_pooled():
    graph, params = masked()
    found = of(graph, params)(lambda model: model.nsp_logits(jnp.asarray(HIDDEN)))
    apply = lambda x, part: x @ np.asarray(part["kernel"]) + np.asarray(part["bias"])
    pooled = np.tanh(apply(HIDDEN[:, 0], params["pooler"]))
    np.testing.assert_allclose(found, apply(pooled, params["next_sentence"]), atol=1e-5)
    chex.assert_shape(found, (2, 2))


def test_pairs_are_told_only_where_asked_and_need_a_pooler():
    assert "next_sentence" not in masked(next_sentence=False)[1]
    with pytest.raises(ConfigError, match=r"set head\.pooler"):
        EncoderForMaskedLM(head(pooler=False), rngs=nnx.Rngs(0))
    config = dataclasses.replace(BERT, head=HeadConfig())
    assert masked(config, next_sentence=False)[1].keys() == {"embedding", "encoder"}


def labeled(model, config=BERT):
    return drawn(lambda: model(config, labels=3, rngs=nnx.Rngs(0)))


def test_what_encoders_have_in_common_has_the_same_names():
    common = drawn(lambda: Encoder(BERT, rngs=nnx.Rngs(0)))[1]
    for params in (masked()[1], labeled(SequenceClassifier)[1], labeled(TokenClassifier)[1]):
        chex.assert_trees_all_equal({name: params[name] for name in common}, common)


def test_b36_texts_are_told_from_what_is_pooled_and_tokens_each():
    models = [drawn(lambda: Encoder(BERT, rngs=nnx.Rngs(0)))]
    models += [labeled(SequenceClassifier), labeled(TokenClassifier)]
    graphs, params = zip(*models, strict=True)
    merged = lambda params: map(nnx.merge, graphs, params)
    run = lambda params: [model(TOKENS, LENGTHS, TYPES) for model in merged(params)]
    hidden, texts, tokens = jax.device_get(jax.jit(run)(params))

    def apply(x, part):
        return x @ np.asarray(part["kernel"]) + np.asarray(part["bias"])

    pooled = np.tanh(apply(hidden[:, 0], params[1]["pooler"]))
    np.testing.assert_allclose(texts, apply(pooled, params[1]["labels"]), atol=1e-5)
    np.testing.assert_allclose(tokens, apply(hidden, params[2]["labels"]), atol=1e-5)
    assert texts.dtype == tokens.dtype == np.float32


def test_the_vectors_that_labels_are_told_from_are_dropped_out_iff_there_is_a_key():
    """Without blocks' dropout, only that before the last map is left."""
    config = dataclasses.replace(BERT, norm=dataclasses.replace(BERT.norm, residual_dropout=0.5))
    graph, params = labeled(TokenClassifier, config)
    vectors, keys = jnp.ones((400, D)), jax.random.split(jax.random.key(0))

    @jax.jit
    def run(params, key):
        return nnx.merge(graph, params).scores(vectors, key)

    kernel, bias = (np.asarray(params["labels"][name]) for name in ("kernel", "bias"))
    whole = np.asarray(run(params, None))
    np.testing.assert_allclose(whole, np.ones((400, D)) @ kernel + bias, atol=1e-5)
    dropped = np.asarray(run(params, keys[0]))
    assert not np.allclose(dropped, whole)
    assert not np.allclose(dropped, run(params, keys[1]))
    np.testing.assert_array_equal(dropped, run(params, keys[0]))
    # The mean stays: each sum of 16 terms of 0 or 2 times the kernel.
    spread = np.sqrt((kernel**2).sum(0) / 400)
    assert (np.abs(dropped.mean(0) - whole[0]) < 4 * spread).all()


@pytest.mark.parametrize("kind", ["learned", "rope"])
@pytest.mark.slow
def test_decoders_tell_texts_from_their_last_tokens(kind):
    """Wherever padding stands and whatever it is; nothing else is read of a longer text."""
    config = dataclasses.replace(
        PRESETS["gpt2_small"], vocab_size=V, d_model=D, decoder_layers=1,
        attention=AttentionConfig(num_heads=4), positions=PositionConfig(kind=kind, max_length=9),
    )  # fmt: skip
    graph, params = drawn(lambda: DecoderSequenceClassifier(config, labels=3, rngs=nnx.Rngs(0)))
    tell = jax.jit(lambda p, *given: nnx.merge(graph, p)(*given))
    tokens = jnp.array([[3, 4, 5, 6, 7, 8], [9, 10, 11, 0, 0, 0]])
    wanted = tell(params, tokens, jnp.array([6, 3]))
    assert wanted.shape == (2, 3)
    real = jnp.array([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 0]], bool)
    moved = tokens.at[1].set(jnp.array([1, 2, 9, 10, 11, 12]))
    np.testing.assert_allclose(tell(params, moved, real), wanted, atol=1e-5)
    hidden = jax.jit(lambda p: nnx.merge(graph, p).hidden(None, tokens))(params)
    ends = np.asarray(hidden)[np.arange(2), [5, 2]]
    np.testing.assert_allclose(wanted, ends @ np.asarray(params["labels"]["kernel"]), atol=1e-5)
    assert set(params) == {"embedding", "decoder", "labels"}


def test_decoders_of_texts_have_no_head_over_words():
    config = dataclasses.replace(PRESETS["gpt2_small"], head=HeadConfig(tie_word_embeddings=False))
    with pytest.raises(ConfigError, match=r"head\.tie_word_embeddings"):
        nnx.eval_shape(lambda: DecoderSequenceClassifier(config, labels=3, rngs=nnx.Rngs(0)))

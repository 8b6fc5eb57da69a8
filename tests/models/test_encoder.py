"""Laws of the encoder: rows B3, B26, H17, H21, U13."""

import dataclasses
import functools
import zlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from transformer_jax.config import (
    PRESETS,
    AttentionConfig,
    ComputeConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
    bert,
)
from transformer_jax.errors import ConfigError
from transformer_jax.functional.masks import Mask
from transformer_jax.models.encoder import Encoder
from transformer_jax.models.heads import MaskedEncoder
from transformer_jax.modules.stack import stack_blocks

V, D, T = 20, 16, 8

BERT = dataclasses.replace(
    bert(D, 2, vocab=V, length=16, dropout=0.0), attention=AttentionConfig(heads=4)
)
change = functools.partial(dataclasses.replace, BERT)
VARIANTS = {
    "bert": BERT,
    "roberta": change(
        positions=PositionConfig(kind="learned", max_length=16, offset=2, skip_padding=True),
        embedding=EmbeddingConfig(scale=1.0, norm=True, segments=1),
    ),
    "modern": change(
        positions=PositionConfig(kind="rotary", max_length=16),
        embedding=EmbeddingConfig(segments=2),
        attention=AttentionConfig(heads=4, kv_heads=2, bias=False, out_bias=False, qk_norm=True),
        feed_forward=FeedForwardConfig(width=24, activation="silu", gated=True, bias=False),
        norm=NormConfig(place="pre", kind="rms"),
    ),
    "relative": change(
        positions=PositionConfig(kind="relative", max_length=16, buckets=4, max_distance=8),
        norm=NormConfig(place="sandwich"),
    ),
}
variants = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)

# Every place has a token of its own, so that the rows of the table tell them apart.
TOKENS = jnp.arange(1, 1 + 2 * T).reshape(2, T)
LENGTHS = jnp.array([T, 5])
TYPES = jnp.array([[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 0, 0, 0]])


@functools.lru_cache
def parts(config):
    """Graph and parameters that depend on their names alone: zeros and ones hide mistakes."""
    graph, state = nnx.split(nnx.eval_shape(lambda: Encoder(config, rngs=nnx.Rngs(0))))

    def fill(path, leaf):
        name = jax.tree_util.keystr(path)
        noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(leaf.shape)
        return jnp.asarray(1 + 0.2 * noise if "gain" in name else 0.3 * noise, leaf.dtype)

    return graph, jax.tree_util.tree_map_with_path(fill, nnx.to_pure_dict(state))


def compiled(config, function):
    """``function(model, ...)`` of arrays: op by op, these tests would take minutes."""
    graph, params = parts(config)
    run = jax.jit(lambda params, *args: function(nnx.merge(graph, params), *args))
    return functools.partial(run, params)


@functools.lru_cache
def forward(config):
    return compiled(config, lambda model, *args: model(*args))


def sizes(config, model=Encoder):
    shapes = nnx.to_pure_dict(nnx.split(nnx.eval_shape(lambda: model(config, rngs=nnx.Rngs(0))))[1])
    return {name: sum(leaf.size for leaf in jax.tree.leaves(part)) for name, part in shapes.items()}


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("bert_tiny", 4_385_920),
        ("bert_mini", 11_170_560),
        ("bert_small", 28_763_648),
        ("bert_medium", 41_373_184),
    ],
)
def test_h17_small_berts_have_their_published_sizes(name, count):
    found = sizes(PRESETS[name])
    assert found.keys() == {"embedding", "encoder", "pooler"}
    assert sum(found.values()) == count


@pytest.mark.parametrize(
    ("name", "count", "with_heads"),
    [("bert_base", 109_482_240, 110_106_428), ("bert_large", 335_141_888, 336_226_108)],
)
def test_h17_berts_have_their_published_sizes_without_and_with_heads(name, count, with_heads):
    found = sizes(PRESETS[name], MaskedEncoder)
    assert sum(found.values()) == with_heads
    assert sum(found[part] for part in ("embedding", "encoder", "pooler")) == count


@variants
def test_every_token_sees_all_real_ones_of_its_row_and_nothing_else(config):
    """By gradient, exactly zero (rows B26, H17): both directions, no padding, no other row."""
    graph, params = parts(config)

    @jax.jit
    def slopes(table):
        # Not the plain sum: a norm at the end makes that the same for all vectors.
        weights = jnp.arange(1.0, 1.0 + D)[None, None]
        swapped = lambda table: nnx.merge(graph, params | {"embedding": {"table": table}})
        outcome = lambda table: (swapped(table)(TOKENS, LENGTHS, TYPES) * weights).sum(-1)
        return jax.jacrev(outcome)(table)

    jacobian = np.asarray(slopes(params["embedding"]["table"]))
    seen = (jacobian != 0).any(-1)[:, :, 1 : 1 + 2 * T].reshape(2, T, 2, T)
    for row, length in enumerate(LENGTHS.tolist()):
        wanted = np.zeros((2, T), bool)
        wanted[row, :length] = True
        for query in range(length):
            np.testing.assert_array_equal(seen[row, query], wanted)


@variants
def test_padding_changes_nothing(config):
    """Its tokens, types and number: neither outputs nor gradients (row B29 for encoders)."""

    def outcomes(model, tokens, lengths, types):
        graph, params = nnx.split(model)
        weights = jnp.arange(1.0, 1.0 + D) * (jnp.arange(tokens.shape[1]) < 5)[:, None]

        def total(params):
            hidden = nnx.merge(graph, params)(tokens, lengths, types)
            return jnp.sum(hidden[-1] * weights), hidden[-1, :5]

        slopes, hidden = jax.grad(total, has_aux=True)(params)
        return hidden, nnx.to_pure_dict(slopes)

    run = compiled(config, outcomes)
    found = run(TOKENS, LENGTHS, TYPES)
    other = run(TOKENS.at[1, 5:].set(3), LENGTHS, TYPES.at[1, 5:].set(1))
    chex.assert_trees_all_close(other, found, atol=0, rtol=0)
    alone = run(TOKENS[1:, :5], LENGTHS[1:], TYPES[1:, :5])
    chex.assert_trees_all_close(alone, found, atol=2e-4, rtol=1e-4)
    assert np.abs(found[1]["embedding"]["table"]).max() > 0.1


def test_rows_are_independent_of_their_order():
    run = forward(BERT)
    turned = run(TOKENS[::-1], LENGTHS[::-1], TYPES[::-1])
    chex.assert_trees_all_close(turned[::-1], run(TOKENS, LENGTHS, TYPES), atol=1e-6)


def test_types_matter_through_their_table_alone():
    run, (graph, params) = forward(BERT), parts(BERT)
    told = run(TOKENS, LENGTHS, TYPES)
    chex.assert_trees_all_equal(run(TOKENS, LENGTHS), run(TOKENS, LENGTHS, 0 * TYPES))
    assert not np.allclose(told, run(TOKENS, LENGTHS), atol=1e-2)
    table = params["encoder"]["segments"]["table"]
    assert table.shape == (2, D)

    def with_table(table, types):
        stack = params["encoder"] | {"segments": {"table": table}}
        return run.func(params | {"encoder": stack}, TOKENS, LENGTHS, types)

    chex.assert_trees_all_equal(with_table(table[::-1], 1 - TYPES), told)
    same = table.at[1].set(table[0])
    chex.assert_trees_all_equal(with_table(same, TYPES), run(TOKENS, LENGTHS))


@variants
def test_h21_layers_are_the_embeddings_and_what_each_block_makes(config):
    def outcomes(model, *args):
        stack, tokens, lengths = model.encoder, args[0], args[1]
        layers = model.layers(*args)
        places = stack.places(T, lengths)
        places = jnp.arange(T)[None] if places is None else places
        x = model.embedding(tokens) * config.embedding_scale
        made = [stack.enter(x, places, args[2])]
        for block, below in zip(stack.each_block(), layers[:-1], strict=True):
            context = {"bias": stack.bias(T, T), "positions": places}
            made.append(block(below, Mask(kv_lengths=lengths), key=None, **context))
        if config.final_norm:
            made[-1] = stack.final_norm(made[-1])
        return layers, jnp.stack(made), model(*args)

    args = TOKENS, LENGTHS, TYPES
    layers, made, hidden = compiled(config, outcomes)(*args)
    chex.assert_shape(layers, (3, 2, T, D))
    chex.assert_trees_all_close(layers, made, atol=1e-5)
    chex.assert_trees_all_close(layers[-1], hidden, atol=1e-6)
    assert config.final_norm == (config.norm.place != "post")


def test_h21_layer_0_is_the_normed_sum_of_token_place_and_type():
    params = jax.device_get(parts(BERT)[1])
    table = lambda part: part["table"].astype(np.float64)
    stack = params["encoder"]
    x = table(params["embedding"])[TOKENS] + table(stack["segments"])[TYPES]
    x = x + table(stack["positions"])[:T]
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + BERT.norm.eps)
    x = x * stack["embedding_norm"]["gain"] + stack["embedding_norm"]["bias"]
    found = compiled(BERT, lambda model, *args: model.layers(*args))(TOKENS, LENGTHS, TYPES)[0]
    np.testing.assert_allclose(found, x, atol=2e-5)


@pytest.mark.parametrize("name", ["bert", "modern"])
def test_h21_scanned_and_recomputed_layers_are_looped_ones(name):
    config, args = VARIANTS[name], (TOKENS, LENGTHS, TYPES)
    both = lambda model, *args: (model.layers(*args), model(*args))
    wanted = compiled(config, both)(*args)
    _, params = parts(config)
    stacked = params["encoder"] | {"blocks": stack_blocks(params["encoder"]["blocks"])}
    for compute in (ComputeConfig(scan=True), ComputeConfig(remat=True)):
        other = dataclasses.replace(config, compute=compute)
        here = params | {"encoder": stacked} if compute.scan else params
        found = compiled(other, both).func(here, *args)
        chex.assert_trees_all_close(found, wanted, atol=1e-5)


def test_pooled_is_tanh_of_a_map_of_the_first_vector():
    hidden = np.random.default_rng(0).standard_normal((2, T, D)).astype(np.float32)
    pool = lambda config: compiled(config, lambda model, h: model.pooled(h))(hidden)
    pooler = parts(BERT)[1]["pooler"]
    wanted = np.tanh(hidden[:, 0] @ pooler["kernel"] + np.asarray(pooler["bias"]))
    np.testing.assert_allclose(pool(BERT), wanted, atol=1e-5)
    without = change(head=dataclasses.replace(BERT.head, pooler=False))
    assert "pooler" not in parts(without)[1]
    np.testing.assert_array_equal(pool(without), hidden[:, 0])


@pytest.mark.parametrize("scan", [False, True])
def test_u13_attention_maps_sum_to_one_over_what_is_real(scan):
    config = change(compute=ComputeConfig(scan=scan))
    maps = compiled(config, lambda model, *args: model.attention_maps(*args))
    maps = np.asarray(maps(TOKENS, LENGTHS, TYPES))
    chex.assert_shape(maps, (2, 2, 4, T, T))
    np.testing.assert_allclose(maps.sum(-1), 1.0, atol=1e-5)
    assert (maps[:, 0] > 0).all()
    assert (maps[:, 1, :, :, :5] > 0).all()
    assert not maps[:, 1, :, :, 5:].any()


def test_skipped_padding_stands_in_the_row_before_the_first():
    """RoBERTa's positions: padding is row ``offset - 1``, which no real token reads."""
    config = VARIANTS["roberta"]
    at = lambda config: compiled(config, lambda model, n: model.encoder.places(T, n))
    assert at(BERT)(LENGTHS) is None
    wanted = [list(range(T)), [0, 1, 2, 3, 4, -1, -1, -1]]
    assert at(config)(LENGTHS).tolist() == wanted

    graph, params = parts(config)

    @jax.jit
    def read(positions):
        stack = params["encoder"] | {"positions": {"table": positions}}
        layers = nnx.merge(graph, params | {"encoder": stack}).layers(TOKENS, LENGTHS)
        return jnp.sum(layers[0, 1] * jnp.arange(1.0, 1.0 + D)[None], -1)

    rows = params["encoder"]["positions"]["table"]
    assert rows.shape == (18, D)
    used = np.abs(jax.jit(jax.jacrev(read))(rows)).sum(-1) > 0
    assert [np.flatnonzero(row).tolist() for row in used] == [[2], [3], [4], [5], [6], *[[1]] * 3]


def test_dropout_needs_a_key_and_changes_with_it():
    config = bert(64, 1, vocab=V, length=16, dropout=0.5)
    run = compiled(config, lambda model, key: model(TOKENS, LENGTHS, TYPES, key=key))
    keys = jax.random.split(jax.random.key(0))
    chex.assert_trees_all_equal(run(keys[0]), run(keys[0]))
    chex.assert_trees_all_equal(run(None), run(None))
    assert not np.allclose(run(keys[0]), run(keys[1]))
    assert not np.allclose(run(keys[0]), run(None))
    for group in ("embedding", "attention", "norm"):
        off = lambda name: dataclasses.replace(getattr(config, name), dropout=0.0)
        others = {name: off(name) for name in ("embedding", "attention", "norm") if name != group}
        one = dataclasses.replace(config, **others)
        run = compiled(one, lambda model, key: model(TOKENS, LENGTHS, TYPES, key=key))
        assert not np.allclose(run(keys[0]), run(None)), group


def test_b3_a_word_has_one_vector_in_the_table_and_another_in_each_sentence():
    """"Bank" of a river and of cash: the embeddings are equal, what is made of them is not."""
    bank, river, cash = 7, jnp.array([[2, 11, 7, 3]]), jnp.array([[2, 12, 7, 3]])
    layers = compiled(BERT, lambda model, tokens: model.layers(tokens, jnp.array([4])))
    one, other = (np.asarray(layers(tokens))[:, 0, 2] for tokens in (river, cash))
    assert river[0, 2] == cash[0, 2] == bank
    cosine = (one * other).sum(-1) / np.linalg.norm(one, axis=-1) / np.linalg.norm(other, axis=-1)
    assert cosine[0] == pytest.approx(1, abs=1e-6)
    assert (cosine[1:] < 0.999).all()


@pytest.mark.parametrize(
    "other",
    [
        {"embedding": dataclasses.replace(BERT.embedding, segments=0)},
        {"embedding": dataclasses.replace(BERT.embedding, norm=False)},
        {"embedding": dataclasses.replace(BERT.embedding, scale=2.0)},
        {"positions": dataclasses.replace(BERT.positions, offset=1)},
        {"norm": dataclasses.replace(BERT.norm, eps=1e-1)},
        {"norm": dataclasses.replace(BERT.norm, place="pre")},
        {"norm": dataclasses.replace(BERT.norm, final=True)},
        {"feed_forward": dataclasses.replace(BERT.feed_forward, activation="gelu_tanh")},
        {"attention": AttentionConfig(heads=2)},
        {"encoder_layers": 1},
    ],
    ids=lambda other: str(*other),
)
def test_no_field_is_ignored(other):
    """Parameters of the same name are the same ones in both."""
    found, wanted = (forward(c)(TOKENS, LENGTHS, TYPES) for c in (change(**other), BERT))
    assert not np.allclose(found[1, :5], wanted[1, :5], atol=1e-5)


def test_no_segments_is_no_types():
    run = forward(change(embedding=dataclasses.replace(BERT.embedding, segments=0)))
    chex.assert_trees_all_equal(run(TOKENS, LENGTHS, TYPES), run(TOKENS, LENGTHS))


def test_what_is_no_encoder_is_refused():
    for layers in ((0, 0), (2, 2)):
        config = TransformerConfig(encoder_layers=layers[0], decoder_layers=layers[1])
        with pytest.raises(ConfigError, match=f"encoder_layers is {layers[0]} and decoder_layers"):
            Encoder(config, rngs=nnx.Rngs(0))
    for field in ("transform", "pooler"):
        with pytest.raises(ConfigError, match=rf"head\.{field} is for encoders"):
            TransformerConfig(head=HeadConfig(**{field: True}))

"""Laws of the encoder: rows B3, B26, H17, H21, U13."""

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
from transformer_jax.functional.masks import Mask
from transformer_jax.models.config import (
    AttentionConfig,
    ComputeConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    MixerConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.heads import EncoderForMaskedLM
from transformer_jax.models.prepare import stack_blocks
from transformer_jax.models.presets import PRESETS, bert, modernbert
from transformer_jax.models.transformer.layers import Positions
from transformer_jax.models.transformer.models import Encoder, RowsOfTexts

V, D, T = 20, 16, 8

BERT = dataclasses.replace(
    bert(D, 2, vocab_size=V, max_length=16, dropout=0.0), attention=AttentionConfig(num_heads=4)
)
change = functools.partial(dataclasses.replace, BERT)
VARIANTS = {
    "bert": BERT,
    "roberta": change(
        encoder_layers=1,
        positions=PositionConfig(kind="learned", max_length=16, offset=2, skip_padding=True),
        embedding=EmbeddingConfig(scale=1.0, layernorm_embedding=True, type_vocab_size=1),
    ),
    "modern": change(
        encoder_layers=1,
        positions=PositionConfig(kind="rope", max_length=16),
        embedding=EmbeddingConfig(type_vocab_size=2),
        attention=AttentionConfig(
            num_heads=4, num_kv_heads=2, bias=False, out_bias=False, qk_norm=True
        ),
        feed_forward=FeedForwardConfig(d_ff=24, activation="silu", gated=True, bias=False),
        norm=NormConfig(placement="pre", kind="rms"),
    ),
}
VARIANTS["recurrent"] = change(
    encoder_layers=1,
    mixer=MixerConfig("recurrent", cell="gru"),
    feed_forward=FeedForwardConfig(d_ff=0),
)
VARIANTS["convolution"] = change(
    encoder_layers=1, mixer=MixerConfig("convolution", kernel_size=2 * T - 1)
)
# A global layer and a local one.
VARIANTS["modernbert"] = modernbert(D, 2, 24, vocab_size=V, max_length=16, window=4)
variants = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)

# Every place has a token of its own, so that the rows of the table tell them apart.
TOKENS = jnp.arange(1, 1 + 2 * T).reshape(2, T)
LENGTHS = jnp.array([T, 5])
REAL = np.arange(T) < np.array([[T], [5]])
TYPES = jnp.array([[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 0, 0, 0]])


@functools.lru_cache
def parts(config):
    return drawn(lambda: Encoder(config, rngs=nnx.Rngs(0)))


def compiled(config, function):
    """``function(model, ...)`` of arrays: op by op, these tests would take minutes."""
    graph, params = parts(config)
    run = jax.jit(lambda params, *args: function(nnx.merge(graph, params), *args))
    return functools.partial(run, params)


@functools.lru_cache
def forward(config):
    return compiled(config, lambda model, *args: model(*args))


@functools.lru_cache
def layered(config):
    return compiled(config, lambda model, *args: model.hidden_states(*args))


def of_lengths(config):
    """Vectors of tokens and types, whose padding is at the end."""
    lengths = lambda real: jnp.asarray(real.sum(1), jnp.int32)
    return lambda given, real: forward(config)(given[0], lengths(real), given[1])


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
@pytest.mark.quick("bert_tiny-4385920")
def test_h17_small_berts_have_their_published_sizes(name, count):
    found = sizes(PRESETS[name])
    assert found.keys() == {"embedding", "encoder", "pooler"}
    assert sum(found.values()) == count


@pytest.mark.parametrize(
    ("name", "count", "with_heads"),
    [("bert_base", 109_482_240, 110_106_428), ("bert_large", 335_141_888, 336_226_108)],
)
def test_h17_berts_have_their_published_sizes_without_and_with_heads(name, count, with_heads):
    stacked = dataclasses.replace(PRESETS[name], compute=ComputeConfig(scan_layers=True))
    found = sizes(stacked, EncoderForMaskedLM)
    assert sum(found.values()) == with_heads
    assert sum(found[part] for part in ("embedding", "encoder", "pooler")) == count


@variants
@pytest.mark.quick("modern")
def test_every_token_sees_all_real_ones_of_its_row_and_nothing_else(config):
    """By gradient, exactly zero (rows B26, H17): both directions, no padding."""
    (graph, params), tokens = parts(config), TOKENS.reshape(-1)
    types = jnp.minimum(TYPES, config.embedding.type_vocab_size - 1)

    def outputs(vectors):
        table = params["embedding"]["table"].at[tokens].set(vectors.reshape(2 * T, D))
        model = nnx.merge(graph, params | {"embedding": {"table": table}})
        return model(TOKENS, LENGTHS, types)

    visible = REAL[:, :, None] & REAL[:, None]
    laws.visibility(outputs, params["embedding"]["table"][TOKENS], visible).require()


@variants
@pytest.mark.quick("modern")
def test_padding_changes_nothing(config):
    """Its tokens, types and number: neither outputs nor gradients (row B29 for encoders)."""
    given = (TOKENS, TYPES), REAL
    laws.padding(of_lengths(config), *given).require()
    laws.padding_length(of_lengths(config), *given).require()
    graph, params = parts(config)

    @jax.jit
    @jax.grad
    def gradients(params, given, lengths):
        hidden = nnx.merge(graph, params)(given[0], lengths, given[1])
        # Not the plain sum: a norm at the end makes that the same for all vectors.
        return (hidden * jnp.arange(1.0, 1.0 + D)[None, None] * REAL[..., None]).sum()

    found = lambda given, real: gradients(params, given, LENGTHS)
    laws.loss_padding(found, *given).require()
    assert np.abs(found(*given)["embedding"]["table"]).max() > 0.1


@variants
@pytest.mark.slow
def test_padding_may_stand_anywhere(config):
    """A mask replaces lengths: padding at the end is that of lengths, elsewhere it is invisible
    too.
    """
    given = TOKENS, TYPES
    run = lambda given, real: forward(config)(given[0], jnp.asarray(real), given[1])
    by_lengths = forward(config)(TOKENS, LENGTHS, TYPES)
    chex.assert_trees_all_close(run(given, REAL)[1, :5], by_lengths[1, :5], atol=0, rtol=0)
    real = np.array([[0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 1, 1, 0, 1]], bool)
    laws.padding(run, given, real).require()
    if config.positions.skip_padding or config.positions.kind == "rope":
        # On the left, padding moves nothing: it does not count, or distances stay.
        alone = forward(config)(TOKENS[:1, 2:], jnp.array([6]), TYPES[:1, 2:])
        chex.assert_trees_all_close(run(given, real)[:1, 2:], alone, atol=1e-5)


@variants
@pytest.mark.quick("modernbert")
def test_packed_texts_are_as_each_alone(config):
    graph, params = parts(config)

    @jax.jit
    def run(tokens, segments, positions):
        return nnx.merge(graph, params)(tokens, RowsOfTexts(segments, positions))

    def alone(tokens):
        n = tokens.shape[1]
        row = jnp.pad(tokens, ((0, 0), (0, 14 - n)))
        return forward(config)(row, jnp.full(1, n, jnp.int32), jnp.zeros((1, 14), jnp.int32))[:, :n]

    texts = [np.array([7, 3, 9, 4, 5, 8]), np.array([4, 6]), np.array([3, 5, 4, 9, 8])]
    laws.packing(run, alone, texts, length=14).require()
    laws.packed_mates(run, texts, length=14).require()


@variants
@pytest.mark.quick("modern")
def test_rows_do_not_read_each_other(config):
    run = lambda given: of_lengths(config)(*given)
    laws.batch_mates(run, ((TOKENS, TYPES), REAL)).require()
    laws.batch_of_one(run, ((TOKENS, TYPES), REAL)).require()


def test_types_matter_through_their_table_alone():
    run, params = forward(BERT), parts(BERT)[1]
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


@pytest.mark.parametrize("config", [BERT, VARIANTS["modern"]], ids=["bert", "modern"])
@pytest.mark.quick("modern")
def test_h21_layers_are_the_embeddings_and_what_each_block_makes(config):
    def by_hand(model, layers, tokens, lengths, types):
        stack = model.encoder
        places = stack.position_ids(T, lengths)
        places = jnp.arange(T)[None] if places is None else places
        made = [stack.embed_inputs(model.embedding(tokens) * config.embedding_scale, places, types)]
        for block, below in zip(stack.iter_blocks(), layers, strict=False):
            mask = Mask(kv_lengths=lengths)
            made.append(block(below, mask, positions=Positions(places), key=None)[0])
        if config.final_norm:
            made[-1] = stack.final_norm(made[-1])
        return jnp.stack(made)

    args = TOKENS, LENGTHS, TYPES
    layers = layered(config)(*args)
    chex.assert_shape(layers, (config.encoder_layers + 1, 2, T, D))
    chex.assert_trees_all_close(layers, compiled(config, by_hand)(layers, *args), atol=1e-5)
    chex.assert_trees_all_close(layers[-1], forward(config)(*args), atol=1e-5)
    assert config.final_norm == (config.norm.placement != "post")


def test_h21_layer_0_is_the_normed_sum_of_token_place_and_type():
    params = jax.device_get(parts(BERT)[1])
    table = lambda part: part["table"].astype(np.float64)
    stack = params["encoder"]
    x = table(params["embedding"])[TOKENS] + table(stack["segments"])[TYPES]
    x = x + table(stack["positions"])[:T]
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + BERT.norm.eps)
    x = x * stack["embedding_norm"]["gain"] + stack["embedding_norm"]["bias"]
    found = layered(BERT)(TOKENS, LENGTHS, TYPES)[0]
    np.testing.assert_allclose(found, x, atol=2e-5)


@pytest.mark.slow
def test_h21_scanned_and_recomputed_layers_are_looped_ones():
    args, (_, params) = (TOKENS, LENGTHS, TYPES), parts(BERT)
    layers = layered(BERT)(*args)
    stacked = params["encoder"] | {"blocks": stack_blocks(params["encoder"]["blocks"])}
    scanned = change(compute=ComputeConfig(scan_layers=True, remat=True))
    for run in layered(scanned), forward(scanned):
        found = run.func(params | {"encoder": stacked}, *args)
        wanted = layers if found.ndim == 4 else layers[-1]
        chex.assert_trees_all_close(found, wanted, atol=1e-5)
    recomputed = forward(change(compute=ComputeConfig(remat=True)))
    chex.assert_trees_all_close(recomputed(*args), layers[-1], atol=1e-5)


def test_pooled_is_tanh_of_a_map_of_the_first_vector():
    hidden = np.random.default_rng(0).standard_normal((2, T, D)).astype(np.float32)
    pool = lambda config: compiled(config, lambda model, h: model.pooled(h))(hidden)
    pooler = parts(BERT)[1]["pooler"]
    wanted = np.tanh(hidden[:, 0] @ np.asarray(pooler["kernel"]) + np.asarray(pooler["bias"]))
    np.testing.assert_allclose(pool(BERT), wanted, atol=1e-5)
    without = change(head=dataclasses.replace(BERT.head, pooler=False))
    assert "pooler" not in parts(without)[1]
    np.testing.assert_array_equal(pool(without), hidden[:, 0])


def test_u13_attention_maps_sum_to_one_over_what_is_real():
    maps = compiled(BERT, lambda model, *args: model.attention_maps(*args))
    maps = np.asarray(maps(TOKENS, LENGTHS, TYPES))
    chex.assert_shape(maps, (2, 2, 4, T, T))
    laws.weights_sum_to_one(maps, REAL[:, None, None], tolerance=1e-5).require()
    assert (maps[:, 0] > 0).all()
    assert (maps[:, 1, :, :, :5] > 0).all()


def test_skipped_padding_stands_in_the_row_before_the_first():
    """RoBERTa's positions: padding is row ``offset - 1``, which no real token reads."""
    config = VARIANTS["roberta"]
    at = lambda config: compiled(config, lambda model, n: model.encoder.position_ids(T, n))
    assert at(BERT)(LENGTHS) is None
    wanted = [list(range(T)), [0, 1, 2, 3, 4, -1, -1, -1]]
    assert at(config)(LENGTHS).tolist() == wanted

    params, run = parts(config)[1], layered(config)
    rows = params["encoder"]["positions"]["table"]
    assert rows.shape == (18, D)

    def changed(row):
        stack = params["encoder"] | {"positions": {"table": rows.at[row].add(1 + rows[row])}}
        found = run.func(params | {"encoder": stack}, TOKENS, LENGTHS, TYPES)[0, 1]
        return np.flatnonzero((found != run(TOKENS, LENGTHS, TYPES)[0, 1]).any(-1)).tolist()

    assert [changed(row) for row in range(8)] == [[], [5, 6, 7], [0], [1], [2], [3], [4], []]


def test_skipped_padding_without_a_row_before_the_first_has_the_first():
    """Outside jit too, where indices below 0 are refused; nobody reads what is there."""
    places = PositionConfig(kind="learned", max_length=16, skip_padding=True)
    stack = nnx.merge(*parts(change(encoder_layers=1, positions=places))).encoder
    positions = stack.position_ids(T, LENGTHS)
    assert positions.min() == -1
    x = jnp.zeros((2, T, D))
    enter = lambda at: stack.embed_inputs(x, at, jnp.zeros_like(TYPES))
    chex.assert_trees_all_equal(enter(positions), enter(jnp.maximum(positions, 0)))


def test_dropout_needs_a_key_and_changes_with_it():
    off = (
        dataclasses.replace(BERT.embedding, dropout=0.5),
        dataclasses.replace(BERT.norm, residual_dropout=0.5),
    )
    config = change(encoder_layers=1, embedding=off[0], norm=off[1])
    run = compiled(config, lambda model, key: model(TOKENS, LENGTHS, TYPES, key=key))
    keys = jax.random.split(jax.random.key(0))
    chex.assert_trees_all_equal(run(keys[0]), run(keys[0]))
    assert not np.allclose(run(keys[0]), run(keys[1]))
    without = forward(change(encoder_layers=1))(TOKENS, LENGTHS, TYPES)
    chex.assert_trees_all_close(run(None), without, atol=1e-6)
    assert not np.allclose(run(keys[0]), without)


def test_b3_a_word_has_one_vector_in_the_table_and_another_in_each_sentence():
    """ "Bank" of a river and of cash: the embeddings are equal, what is made of them is not."""
    tokens = jnp.array([[2, 11, 7, 3, 0, 0, 0, 0], [2, 12, 7, 3, 0, 0, 0, 0]])
    layers = np.asarray(layered(BERT)(tokens, jnp.array([4, 4]), 0 * TYPES))
    one, other = layers[:, 0, 2], layers[:, 1, 2]
    cosine = (one * other).sum(-1) / np.linalg.norm(one, axis=-1) / np.linalg.norm(other, axis=-1)
    assert cosine[0] == pytest.approx(1, abs=1e-6)
    assert (cosine[1:] < 0.999).all()


@pytest.mark.parametrize(
    "other",
    [
        {"embedding": dataclasses.replace(BERT.embedding, type_vocab_size=0)},
        {"embedding": dataclasses.replace(BERT.embedding, layernorm_embedding=False)},
        {"positions": dataclasses.replace(BERT.positions, offset=1)},
        {"norm": dataclasses.replace(BERT.norm, eps=1e-1)},
        {"norm": dataclasses.replace(BERT.norm, placement="pre")},
        {"feed_forward": dataclasses.replace(BERT.feed_forward, activation="gelu_tanh")},
    ],
    ids=lambda other: str(*other),
)
@pytest.mark.quick("positions", "norm0", "feed_forward")
def test_no_field_is_ignored(other):
    """Parameters of the same name are the same ones in both."""
    one = change(encoder_layers=1)
    both = one, dataclasses.replace(one, **other)
    found, wanted = (forward(config)(TOKENS, LENGTHS, TYPES) for config in both)
    assert not np.allclose(found[1, :5], wanted[1, :5], atol=1e-5)


def test_no_segments_is_no_types():
    config = change(
        encoder_layers=1, embedding=dataclasses.replace(BERT.embedding, type_vocab_size=0)
    )
    run = forward(config)
    chex.assert_trees_all_equal(run(TOKENS, LENGTHS, TYPES), run(TOKENS, LENGTHS, 0 * TYPES))


def test_what_is_no_encoder_is_refused():
    for layers in ((0, 0), (2, 2)):
        config = TransformerConfig(encoder_layers=layers[0], decoder_layers=layers[1])
        with pytest.raises(ConfigError, match=f"encoder_layers is {layers[0]} and decoder_layers"):
            Encoder(config, rngs=nnx.Rngs(0))
    for field in ("mlm_transform", "pooler"):
        with pytest.raises(ConfigError, match=rf"head\.{field} is for encoders"):
            TransformerConfig(head=HeadConfig(**{field: True}))


@pytest.mark.parametrize("scan", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_narrow_tables_are_projected_before_the_first_block(scan):
    """ELECTRA: tokens, positions and segments of 6 numbers are added, normalized and mapped."""
    config = change(
        embedding=dataclasses.replace(BERT.embedding, embedding_size=6),
        compute=ComputeConfig(scan_layers=scan),
    )
    _, params = parts(config)
    found = compiled(config, lambda m, *given: m.hidden_states(*given))(TOKENS, LENGTHS, TYPES)
    assert found.shape == (3, 2, T, D)
    p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
    enter = p["encoder"]
    x = p["embedding"]["table"][np.asarray(TOKENS)] + enter["positions"]["table"][:T]
    x = x + enter["segments"]["table"][np.asarray(TYPES)]
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
    x = x * enter["embedding_norm"]["gain"] + enter["embedding_norm"]["bias"]
    wanted = x @ enter["projection"]["kernel"] + enter["projection"]["bias"]
    np.testing.assert_allclose(found[0], wanted, atol=2e-5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"size": 0}, "at least 1"), ({"size": 8, "decoder_layers": 1}, "only a text encoder")],
)
def test_widths_of_tables_that_no_model_can_have_are_refused(changes, said):
    def build():
        embedding = dataclasses.replace(BERT.embedding, embedding_size=changes["size"])
        layers = changes.get("decoder_layers", 0)
        return change(embedding=embedding, head=HeadConfig(), decoder_layers=layers)

    with pytest.raises(ConfigError, match=said):
        build()


def test_words_are_not_told_by_a_narrow_table_without_a_map():
    head = dataclasses.replace(BERT.head, mlm_transform=False)
    config = change(embedding=dataclasses.replace(BERT.embedding, embedding_size=6), head=head)
    with pytest.raises(ConfigError, match=r"set head\.mlm_transform"):
        nnx.eval_shape(lambda: EncoderForMaskedLM(config, rngs=nnx.Rngs(0)))

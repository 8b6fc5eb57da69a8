"""Laws of the encoder-decoder: rows L11, L12, L16, U10, U11, B29, H9."""

import dataclasses
import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.drawing import compiled, drawn, normals
from transformer_jax import laws
from transformer_jax.core.errors import ConfigError
from transformer_jax.data.corpora.phrasebook import L1_PAIRS
from transformer_jax.functional.positions import sinusoidal
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
from transformer_jax.models.layers.basic import Embed
from transformer_jax.models.prepare import stack_blocks, unstack_blocks
from transformer_jax.models.presets import PRESETS
from transformer_jax.models.transformer.layers import Stack
from transformer_jax.models.transformer.models import TransformerEncoderDecoder
from transformer_jax.parallel.placement import prepare_for_decoding, split_model

B, S, T, V = 3, 7, 6, 23

TINY = TransformerConfig(
    vocab_size=V,
    d_model=16,
    encoder_layers=2,
    decoder_layers=2,
    positions=PositionConfig(max_length=32),
    attention=AttentionConfig(num_heads=4),
    feed_forward=FeedForwardConfig(d_ff=32),
)


def change(config=TINY, **groups):
    """``config`` with fields of groups replaced: ``change(norm={"placement": "pre"})``."""
    new = {
        name: dataclasses.replace(getattr(config, name), **value)
        if isinstance(value, dict)
        else value
        for name, value in groups.items()
    }
    return dataclasses.replace(config, **new)


# One layer of each stack.
SMALL = change(encoder_layers=1, decoder_layers=1)
# One of each kind that Hugging Face models are made of.
VARIANTS = {
    "vaswani": TINY,
    "pre": change(norm={"placement": "pre"}),
    "sandwich": change(norm={"placement": "sandwich", "kind": "rms", "gain_offset": 1.0}),
    "learned": change(
        positions={"kind": "learned", "offset": 2}, embedding={"layernorm_embedding": True}
    ),
    "fairseq": change(
        positions={"kind": "sinusoidal_fairseq", "offset": 2, "skip_padding": True},
        norm={"placement": "pre"},
    ),
    "concatenated": change(positions={"kind": "concatenated"}),
    "rotary": change(positions={"kind": "rope"}, attention={"num_kv_heads": 2, "qk_norm": True}),
    "alibi": change(positions={"kind": "alibi"}, attention={"num_kv_heads": 1, "value_dim": 3}),
    "relative": change(
        positions={"kind": "relative", "num_buckets": 4, "max_distance": 6},
        scores={"scale": 1.0, "attn_logit_softcapping": 5.0},
        norm={"kind": "rms", "placement": "pre"},
    ),
    "window": change(
        scores={"sliding_window": 2, "sliding_window_every": 2}, feed_forward={"gated": True}
    ),
    "apart": change(
        decoder_vocab_size=19, decoder_attention_heads=2,
        embedding={"share_encoder_decoder_embeddings": False},
        head={
            "tie_word_embeddings": False, "bias": True, "scale": 0.5,
            "final_logit_softcapping": 3.0,
        },
    ),
}  # fmt: skip
VARIANTS["recurrent"] = change(SMALL, mixer=MixerConfig("recurrent"))
VARIANTS["convolution"] = change(
    mixer=MixerConfig("convolution", kernel_size=2, dilations=(1, 3)), feed_forward={"d_ff": 0}
)
# The parts of the others, met in two.
VARIANTS["modern"] = change(
    encoder_layers=1, positions={"kind": "rope"}, attention={"num_kv_heads": 2, "qk_norm": True},
    scores={"sliding_window": 2, "sliding_window_every": 2}, feed_forward={"gated": True},
    norm={"placement": "sandwich", "kind": "rms", "gain_offset": 1.0},
)  # fmt: skip
VARIANTS["mixed"] = dataclasses.replace(
    VARIANTS["apart"],
    encoder_layers=1,
    decoder_layers=1,
    positions=VARIANTS["relative"].positions,
    scores=VARIANTS["relative"].scores,
)


@functools.lru_cache(maxsize=64)
def made(config, seed=0):
    return drawn(lambda: TransformerEncoderDecoder(config, rngs=nnx.Rngs(0)), seed=seed)


class Compiled:
    """A model whose methods run compiled: op by op, these tests would take minutes."""

    def __init__(self, graph, params):
        self.graph, self.params = graph, params

    def __call__(self, *args, **kwargs):
        return self.call("__call__", *args, **kwargs)

    def call(self, name, *args, static=(), **kwargs):
        return _method(self.graph, name, static)(self.params, *args, **kwargs)


@functools.lru_cache(maxsize=256)
def _method(graph, name, static):
    run = lambda params, *args, **kwargs: getattr(nnx.merge(graph, params), name)(
        *args, **kwargs, **dict(static)
    )
    return jax.jit(run)


def noisy(config):
    return Compiled(*made(config))


@pytest.fixture
def batch():
    rng = np.random.default_rng(1)
    return {
        "source": jnp.asarray(rng.integers(4, 19, (B, S)), jnp.int32),
        "target": jnp.asarray(rng.integers(4, 19, (B, T)), jnp.int32),
        "source_lengths": jnp.array([S, 3, 5], jnp.int32),
    }


def start(model, batch, length, beams=1):
    inputs = {name: batch[name] for name in ("source", "source_lengths")}
    static = (("rows", len(batch["source"])), ("size", length), ("beams", beams))
    return model.call("init_cache", inputs, static=static)


@pytest.mark.parametrize(
    ("name", "remat"),
    [
        ("window", True),
        *(
            pytest.param(name, remat, marks=pytest.mark.slow)
            for name in ("vaswani", "window", "relative", "rotary")
            for remat in (False, True)
            if (name, remat) != ("window", True)
        ),
    ],
)
@pytest.mark.slow
def test_scan_equals_loop(name, remat, batch):
    """Row L11, values and gradients."""
    config = VARIANTS[name]
    graph, params = made(config)
    scanned = change(config, compute=ComputeConfig(scan_layers=True, remat=remat))
    stacked = params | {
        side: params[side] | {"blocks": stack_blocks(params[side]["blocks"])}
        for side in ("encoder", "decoder")
    }
    other = made(scanned)[0]
    key = jax.random.key(3)
    loss = lambda graph: lambda p: jnp.square(nnx.merge(graph, p)(**batch, key=key)).mean()
    a, da = jax.jit(jax.value_and_grad(loss(graph)))(params)
    b, db = jax.jit(jax.value_and_grad(loss(other)))(stacked)
    chex.assert_trees_all_close(a, b, rtol=1e-6)
    for side in ("encoder", "decoder"):
        db[side]["blocks"] = unstack_blocks(db[side]["blocks"])
    chex.assert_trees_all_close(da, db, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_scanned_model_decodes_alike(batch):
    config = change(compute=ComputeConfig(scan_layers=True))
    model = noisy(config)
    logits, _ = model.call("step", batch["target"][:, 0], start(model, batch, T))
    chex.assert_trees_all_close(logits, model(**batch)[:, 0], atol=1e-5)


@pytest.mark.slow
def test_a_key_means_dropout_and_nothing_else_does(batch, key):
    model = noisy(TINY)
    chex.assert_trees_all_equal(model(**batch), model(**batch))
    assert jnp.abs(model(**batch, key=key) - model(**batch)).max() > 0
    chex.assert_trees_all_equal(model(**batch, key=key), model(**batch, key=key))


DROPOUTS = {
    "embedding": "dropout",
    "attention": "dropout",
    "feed_forward": "activation_dropout",
    "norm": "residual_dropout",
}


@pytest.mark.slow
@pytest.mark.parametrize("group", DROPOUTS)
def test_every_dropout_rate_counts(group, batch, key):
    rates: dict = {name: {field: 0.0} for name, field in DROPOUTS.items()}
    rates |= {"encoder_layers": 1, "decoder_layers": 1}
    still = noisy(change(**rates))
    chex.assert_trees_all_close(still(**batch, key=key), still(**batch), atol=1e-6)
    moved = noisy(change(**(rates | {group: {DROPOUTS[group]: 0.5}})))
    assert jnp.abs(moved(**batch, key=key) - moved(**batch)).max() > 1e-3


CHANGES = {
    "embedding": {"scale": 0.3, "layernorm_embedding": True, "type_vocab_size": 2},
    "positions": {"kind": "sinusoidal_halves"},
    "attention": {"num_kv_heads": 2, "head_dim": 6, "value_dim": 3, "bias": False, "qk_norm": True},
    "scores": {"scale": 3.0, "attn_logit_softcapping": 0.1, "sliding_window": 2},
    "feed_forward": {"d_ff": 24, "activation": "gelu", "gated": True, "bias": False},
    "norm": {"kind": "rms", "placement": "pre", "eps": 1.0, "bias": False, "final": True},
    "head": {
        "tie_word_embeddings": False,
        "bias": True,
        "scale": 0.5,
        "final_logit_softcapping": 0.1,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize(("group", "field"), [(g, f) for g, fs in CHANGES.items() for f in fs])
def test_every_field_counts(group, field, batch):
    """A field that is read by nothing would leave the output as it was."""
    changed = change(SMALL, **{group: {field: CHANGES[group][field]}})
    # Op by op: most operations are those of the models before.
    before, after = (nnx.merge(*made(config))(**batch) for config in (SMALL, changed))
    assert jnp.abs(before - after).max() > 1e-4


@pytest.mark.parametrize(
    ("base", "group", "field", "value"),
    [
        ("learned", "positions", "offset", 0),
        ("rotary", "positions", "rope_theta", 100.0),
        ("rotary", "positions", "rope_scaling", (8.0, 1.0, 4.0, 8)),
        ("relative", "positions", "num_buckets", 5),
        ("relative", "positions", "max_distance", 60),
        ("window", "scores", "sliding_window_every", 1),
        ("sandwich", "norm", "gain_offset", 0.5),
        ("vaswani", "attention", "out_bias", False),
    ],
)
@pytest.mark.slow
def test_every_field_counts_where_it_applies(base, group, field, value, batch):
    config = VARIANTS[base]
    changed = change(config, **{group: {field: value}})
    params = made(config)[1]
    if jax.tree.map(jnp.shape, params) != jax.tree.map(jnp.shape, made(changed)[1]):
        assert field in ("offset", "num_buckets", "out_bias")  # these change shapes
        return
    before, after = (nnx.merge(made(c)[0], params)(**batch) for c in (config, changed))
    assert jnp.abs(before - after).max() > 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "modern",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("rotary", "vaswani", "apart")),
    ],
)
def test_a_model_prepared_for_decoding_computes_the_same(name, batch):
    """Both stacks, cross-attention among them, with transposed kernels."""
    graph, params = made(VARIANTS[name])
    laid = Compiled(*split_model(prepare_for_decoding(nnx.merge(graph, params), 16)))
    across = laid.params["decoder"]["blocks"][0]["cross_attention"]["query"]["kernel"]
    before = params["decoder"]["blocks"][0]["cross_attention"]["query"]["kernel"]
    chex.assert_trees_all_equal(across, before.T)
    wanted = noisy(VARIANTS[name])(**batch)
    chex.assert_trees_all_close(laid(**batch), wanted, atol=1e-5)
    cache, steps = start(laid, batch, T), []
    for t in range(T):
        logits, cache = laid.call("step", batch["target"][:, t], cache)
        steps.append(logits)
    chex.assert_trees_all_close(jnp.stack(steps, axis=1), wanted, atol=1e-5)


def test_padding_need_not_count():
    """RoBERTa's positions: those of padding are one before the first."""
    model = nnx.merge(*made(change(positions={"skip_padding": True})))
    places = model.encoder.position_ids(5, jnp.array([3], jnp.int32))
    assert places[0].tolist() == [0, 1, 2, -1, -1]


@pytest.mark.slow
def test_maps_are_the_weights_used(batch):
    """Row U13: weights times values gives what each attention put out, for every kernel."""
    model = noisy(TINY)
    lengths = jnp.array([T, 4, 5], jnp.int32)
    maps = model.call("attention_maps", **batch, target_lengths=lengths)
    chex.assert_shape(maps["encoder"], (2, B, 4, S, S))
    chex.assert_shape(maps["decoder"], (2, B, 4, T, T))
    chex.assert_shape(maps["cross"], (2, B, 4, T, S))
    real = np.arange(S) < np.asarray(batch["source_lengths"])[:, None, None, None]
    laws.weights_sum_to_one(maps["encoder"], real).require()
    laws.weights_sum_to_one(maps["cross"], real).require()
    laws.weights_sum_to_one(maps["decoder"], np.tri(T, dtype=bool)).require()
    chunked = noisy(change(attention={"implementation": "chunked"}))
    chex.assert_trees_all_close(
        chunked.call("attention_maps", **batch, target_lengths=lengths), maps, atol=1e-6
    )
    chex.assert_trees_all_close(chunked(**batch), model(**batch), atol=1e-5)


def test_cross_attention_asks_with_what_self_attention_read(batch):
    """Row H9: its query comes from the preceding sub-layer of the same block."""
    graph, params = made(SMALL)
    before = Compiled(graph, params).call("attention_maps", **batch)["cross"][0]
    params = jax.tree.map(lambda a: a, params)
    out = params["decoder"]["blocks"][0]["self_attention"]["out"]
    out["kernel"] = np.zeros_like(out["kernel"])
    after = Compiled(graph, params).call("attention_maps", **batch)["cross"][0]
    assert jnp.abs(before - after).max() > 1e-3


@pytest.mark.slow
def test_tied_embedding_is_one_array_with_summed_gradient(batch):
    """Row B17."""
    graph, params = made(SMALL)
    assert set(params) == {"embedding", "encoder", "decoder"}
    loss = lambda p: nnx.merge(graph, p)(**batch).sum()
    whole = jax.jit(jax.grad(loss))(params)["embedding"]["table"]
    seen = set(np.asarray(batch["source"]).ravel()) | set(np.asarray(batch["target"]).ravel())
    unseen = [v for v in range(V) if v not in seen]
    assert jnp.abs(whole[jnp.asarray(unseen)]).max() > 0


@pytest.mark.quick("vaswani_base-63.05")
@pytest.mark.parametrize(("preset", "millions"), [("vaswani_base", 63.05), ("vaswani_big", 214.2)])
def test_published_sizes(preset, millions):
    """Row U15: 37,000 tokens, tied, no attention biases."""
    make = lambda: nnx.split(TransformerEncoderDecoder(PRESETS[preset], rngs=nnx.Rngs(0)))[1]
    count = sum(a.size for a in jax.tree.leaves(jax.eval_shape(make)))
    assert round(count / 1e6, 2 if millions < 100 else 1) == millions


def test_final_norm_only_where_it_is_needed():
    """Row B11."""
    for place, final in [("post", False), ("pre", True), ("sandwich", True)]:
        params = made(change(norm={"placement": place}))[1]
        assert ("final_norm" in params["encoder"]) == final, place


def test_heads_that_do_not_divide_are_refused():
    """Row L10."""
    with pytest.raises(ConfigError, match="heads 5 does not divide d_model 16"):
        change(attention={"num_heads": 5})
    change(attention={"num_heads": 5, "head_dim": 3})
    with pytest.raises(ConfigError, match="at least 1 layer"):
        TransformerEncoderDecoder(change(decoder_layers=0), rngs=nnx.Rngs(0))


def test_nine_by_nine():
    """Row L10: h=3, d=9: the fused kernel is three 9x3 slices, and 4·81 parameters."""
    from transformer_jax.models.transformer.layers import Attention

    config = change(d_model=9, attention={"num_heads": 3, "bias": False, "out_bias": False})
    attention = Attention(config, rngs=nnx.Rngs(0))
    params = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.split(attention)[1]))
    assert sum(a.size for a in jax.tree.leaves(params)) == 4 * 81
    [x] = normals((1, 3, 9))
    heads = []
    for h in range(3):
        q, k, v = (
            np.asarray(x[0]) @ params[n]["kernel"][:, 3 * h : 3 * h + 3]
            for n in ("query", "key", "value")
        )
        weights = np.exp(q @ k.T / np.sqrt(3.0))
        heads.append(weights / weights.sum(-1, keepdims=True) @ v)
    expected = np.concatenate(heads, 1) @ params["out"]["kernel"]
    found, _ = compiled(attention)(x)
    chex.assert_trees_all_close(found[0], expected, atol=1e-6)


@pytest.mark.slow
def test_bfloat16_computes_narrow_and_scores_wide(batch):
    wide, narrow = noisy(TINY), noisy(change(compute=ComputeConfig(dtype="bfloat16")))
    inputs = {name: batch[name] for name in ("source", "source_lengths")}
    hidden = narrow.call("hidden", inputs, batch["target"])
    assert hidden.dtype == jnp.bfloat16
    logits = narrow(**batch)
    assert logits.dtype == jnp.float32
    assert jnp.abs(logits - wide(**batch)).max() < 0.5
    cache = start(narrow, batch, T)
    stepped, cache = narrow.call("step", batch["target"][:, 0], cache)
    assert cache.layers[0].keys.dtype == jnp.bfloat16
    assert jnp.abs(stepped - logits[:, 0]).max() < 0.5


def test_order_is_told_by_positions_alone():
    """Rows L1, L15: without positions, encoder states of a permuted source are a permutation.

    The sources are the two of the lecture that differ in the order of words alone.
    """
    (first, english), (second, same) = L1_PAIRS[2:]
    words, moved = (re.findall(r"\w+", sentence.lower()) for sentence in (first, second))
    assert words != moved
    assert english == same
    order = np.array([words.index(word) for word in moved])
    source = jnp.asarray([[4 + sorted(words).index(word) for word in words]], jnp.int32)
    lengths = jnp.array([len(words)], jnp.int32)
    for kind, equal in [("none", True), ("sinusoidal", False)]:
        model = noisy(change(SMALL, positions={"kind": kind}))
        encode = lambda source, model=model: model.call("encode", source, lengths)
        assert laws.permutation(encode, source, tolerance=1e-5).holds == equal, kind
        moved_states = encode(source)[:, order] - encode(source[:, order])
        assert bool(jnp.abs(moved_states).max() < 1e-5) == equal, kind


def test_embedding_gather_is_a_one_hot_product():
    """Row L5: X E, not E X; bitwise, and the gradient too."""
    embedding = Embed(V, 16, scale=1.0, rngs=nnx.Rngs(0))
    ids = jnp.array([[3, 1, 3]], jnp.int32)
    table = embedding.table[...]
    one_hot = np.eye(V, dtype=np.float32)[np.asarray(ids)]
    chex.assert_trees_all_equal(embedding(ids), one_hot @ np.asarray(table))
    gather = jax.jit(jax.grad(lambda t: jnp.square(t[ids]).sum()))(table)
    product = jax.jit(jax.grad(lambda t: jnp.square(one_hot @ t).sum()))(table)
    chex.assert_trees_all_close(gather, product, atol=1e-6)


@pytest.mark.slow
def test_same_parameters_for_every_length():
    """Row B6."""
    model = noisy(change(positions={"max_length": 300}))
    for n in (3, 300):
        ids = jnp.full((1, n), 5, jnp.int32)
        chex.assert_shape(model.call("encode", ids, jnp.array([n], jnp.int32)), (1, n, 16))


def test_groups_stay_small():
    groups = (AttentionConfig, ComputeConfig, EmbeddingConfig, FeedForwardConfig, HeadConfig)
    for group in (*groups, NormConfig, ScoreConfig):
        assert len(dataclasses.fields(group)) <= 9
    # An exception: the ten settings of rope positions lie flat among those of positions, as
    # files of runs and flags have them; a group of their own would have to read the older ones.
    names = [field.name for field in dataclasses.fields(PositionConfig)]
    rope = [name for name in names if name.startswith("rope_")]
    assert len(rope) <= 11
    assert len(names) - len(rope) <= 9


@pytest.mark.slow
def test_l11_gradients_of_a_whole_model_are_finite_differences():
    """Row L11: embeddings, both stacks and the head, along a random direction of all parameters."""
    graph, params = drawn(lambda: TransformerEncoderDecoder(SMALL, rngs=nnx.Rngs(0)))
    source, target = jnp.arange(2 * S).reshape(2, S) % V, 5 * jnp.arange(2 * T).reshape(2, T) % V
    draw = np.random.default_rng(0)
    with jax.enable_x64():
        params = jax.tree.map(lambda p: jnp.asarray(p, jnp.float64), params)
        direction = jax.tree.map(lambda p: jnp.asarray(draw.standard_normal(p.shape)), params)

        @jax.jit
        @jax.value_and_grad
        def along(distance):
            moved = jax.tree.map(lambda p, d: p + distance * d, params, direction)
            logits = nnx.merge(graph, moved)(source, target, jnp.array([S, 4]))
            return jnp.square(logits.astype(jnp.float64)).mean()

        far, step = 1e-4, lambda distance: along(jnp.float64(distance))
        difference = (step(far)[0] - step(-far)[0]) / (2 * far)
        assert difference == pytest.approx(float(step(0.0)[1]), rel=1e-3)


def test_b15_positions_beside_embeddings_are_the_sum_of_two_maps():
    """Row B15: a map of (x, r) is x W_x + r W_r."""
    config = change(VARIANTS["concatenated"], decoder_layers=0, encoder_layers=1)
    graph, params = drawn(lambda: Stack(config, 1, decoder=False, cross=False, rngs=nnx.Rngs(0)))
    stack, D = nnx.merge(graph, params), config.d_model
    [x] = normals((2, S, D))
    kernel, bias = stack.projection.kernel[...], stack.projection.bias[...]
    assert kernel.shape == (2 * D, D)
    beside = np.asarray(sinusoidal(S, D)) @ np.asarray(kernel[D:]) + np.asarray(bias)
    wanted = np.asarray(x @ kernel[:D]) + beside
    found = stack.embed_inputs(x, jnp.arange(S)[None])
    np.testing.assert_allclose(found, wanted, atol=1e-5)

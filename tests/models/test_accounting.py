"""Costs counted on paper against parameters that exist and FLOPs that XLA counts (row B13)."""

import dataclasses

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

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
from transformer_jax.models.costs import accounting
from transformer_jax.models.presets import PRESETS
from transformer_jax.models.transformer.models import Decoder, TransformerEncoderDecoder

B, S, T = 4, 32, 24


def small(heads=4, *, attention=None, hidden=512, feed_forward=None, **rest):
    sizes = {"vocab_size": 1000, "d_model": 128, "encoder_layers": 2, "decoder_layers": 1}
    return TransformerConfig(
        **sizes | rest,
        # Other kernels loop, and XLA counts the body of a loop once.
        attention=AttentionConfig(num_heads=heads, implementation="xla", **(attention or {})),
        feed_forward=FeedForwardConfig(**{"d_ff": hidden, **(feed_forward or {})}),
    )


CONFIGS = {
    "vaswani": small(attention={"bias": False, "out_bias": False}),
    "biases": small(head=HeadConfig(bias=True)),
    "grouped heads, gated": small(
        attention={"num_kv_heads": 2, "head_dim": 16, "value_dim": 24},
        feed_forward={"gated": True, "activation": "silu"},
    ),
    "t5": small(
        attention={"bias": False, "out_bias": False},
        feed_forward={"bias": False},
        positions=PositionConfig(kind="relative"),
        norm=NormConfig(kind="rms", placement="pre"),
        head=HeadConfig(scale=0.1),
    ),
    "rotary sandwich": small(
        attention={"qk_norm": True},
        positions=PositionConfig(kind="rope"),
        norm=NormConfig(kind="rms", placement="sandwich"),
        scores=ScoreConfig(attn_logit_softcapping=30.0),
    ),
    "bart, untied": small(
        feed_forward={"activation": "gelu"},
        positions=PositionConfig(kind="learned"),
        embedding=EmbeddingConfig(
            layernorm_embedding=True,
            scale=1.0,
            share_encoder_decoder_embeddings=False,
            type_vocab_size=2,
        ),
        head=HeadConfig(tie_word_embeddings=False, bias=True, final_logit_softcapping=20.0),
        decoder_attention_heads=2,
        decoder_ffn_dim=256,
        decoder_vocab_size=700,
    ),
    "concatenated": small(positions=PositionConfig(kind="concatenated")),
    "convolution": small(mixer=MixerConfig("convolution", kernel_size=4)),
    "recurrent": small(
        mixer=MixerConfig("recurrent", cell="gru_reset_after"), feed_forward={"d_ff": 0}
    ),
    "alibi": small(
        feed_forward={"activation": "gelu_tanh"}, positions=PositionConfig(kind="alibi")
    ),
}

# XLA counts the body of a recurrence once.
UNROLLED = [name for name in CONFIGS if name != "recurrent"]


def abstract(config):
    model = nnx.eval_shape(lambda: TransformerEncoderDecoder(config, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(model)
    return graph, nnx.to_pure_dict(state)


def ids(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def lowered(config, training):
    graph, params = abstract(config)

    def forward(params, source, target, source_lengths):
        return nnx.merge(graph, params)(source, target, source_lengths)

    def loss(params, source, target, source_lengths):
        return cross_entropy(forward(params, source, target, source_lengths), target, None)[0]

    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))

    def step(params, opt_state, source, target, source_lengths):
        value, grads = jax.value_and_grad(loss)(params, source, target, source_lengths)
        updates, opt_state = tx.update(grads, opt_state, params)
        return value, optax.apply_updates(params, updates), opt_state

    batch = ids(B, S), ids(B, T), ids(B)
    if training:
        return jax.jit(step).lower(params, jax.eval_shape(tx.init, params), *batch)
    return jax.jit(forward).lower(params, *batch)


def flops(computation):
    analysis = computation.cost_analysis()
    return (analysis[0] if isinstance(analysis, list) else analysis)["flops"]


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_those_of_the_model(name):
    _, params = abstract(CONFIGS[name])
    listed = accounting.components(CONFIGS[name])
    assert accounting.count_parameters(CONFIGS[name]) == sum(
        x.size for x in jax.tree.leaves(params)
    )
    for stack in ("encoder", "decoder"):
        count = sum(x.size for x in jax.tree.leaves(params[stack]))
        assert sum(p.parameters for p in listed if p.stack == stack) == count


@pytest.mark.parametrize("name", CONFIGS)
def test_each_part_has_the_shapes_of_its_parameters(name):
    _, params = abstract(CONFIGS[name])
    for part in accounting.components(CONFIGS[name]):
        node = params
        words = part.path.split("/")
        if part.in_block:
            words.insert(1, "blocks")
            words.insert(2, 0)
        for word in words:
            node = node.get(word, {})
        leaves = jax.tree.leaves(node)
        assert sorted(x.shape for x in leaves) == sorted(part.shapes), part.path


@pytest.mark.parametrize(
    ("preset", "count"),
    [
        ("vaswani_base", 63_045_632),
        ("vaswani_big", 214_171_648),
        ("bert_base", 109_482_240 - 590_592),  # less the pooler
        ("gpt2_small", 124_439_808),
        ("t5_small", 60_506_624),
        ("bart_base", 139_420_416 + 50_265),  # with the bias of the logits
    ],
)
def test_published_parameter_counts(preset, count):
    # Rows U15 and H17; 63.05 M and 214.2 M.
    assert accounting.count_parameters(PRESETS[preset]) == count


@pytest.mark.parametrize("name", UNROLLED)
@pytest.mark.quick("grouped heads, gated")
def test_forward_flops_are_those_of_xla(name):
    ours = accounting.model_cost(CONFIGS[name], batch=B, source_length=S, target_length=T)
    assert ours.forward == pytest.approx(flops(lowered(CONFIGS[name], False)), rel=0.01)


@pytest.mark.parametrize("name", UNROLLED)
@pytest.mark.slow
def test_training_flops_are_those_of_xla(name):
    ours = accounting.model_cost(CONFIGS[name], batch=B, source_length=S, target_length=T)
    assert ours.training == pytest.approx(flops(lowered(CONFIGS[name], True)), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
def test_flops_are_those_of_the_optimised_program(training):
    # Fusion repeats some work element by element, which weighs less in a wider model.
    config = dataclasses.replace(small(8, hidden=2048), vocab_size=8000, d_model=512)
    ours = accounting.model_cost(config, batch=B, source_length=S, target_length=T)
    counted = flops(lowered(config, training).compile())
    assert (ours.training if training else ours.forward) == pytest.approx(counted, rel=0.01)


@pytest.mark.slow
def test_b13_a_training_step_of_six_layers_of_512():
    """Row B13: 905.2 GFLOP by formula and 907.0 by XLA, for 6 × 512, V = 32000, B = 16, T = 256."""
    L, D, F, V, rows, length = 6, 512, 2048, 32_000, 16, 256
    tokens = rows * length
    products = L * (4 * tokens * D * D + 2 * tokens * length * D + 2 * tokens * D * F)
    products += tokens * D * V
    assert round(3 * 2 * products / 1e9, 1) == 905.2
    config = dataclasses.replace(
        small(8, hidden=F), vocab_size=V, d_model=D, encoder_layers=0, decoder_layers=L
    )
    ours = accounting.model_cost(config, batch=rows, target_length=length).training
    graph, state = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))

    def loss(params, tokens):
        logits = nnx.merge(graph, params)(tokens)
        return cross_entropy(logits, tokens, None)[0]

    step = jax.jit(jax.value_and_grad(loss)).lower(nnx.to_pure_dict(state), ids(rows, length))
    # Norms, activations and the loss are the rest, and the optimizer in ours.
    assert flops(step) == pytest.approx(907.0e9, rel=2e-3)
    assert ours == pytest.approx(905.2e9, rel=5e-3)
    assert ours == pytest.approx(flops(step), rel=2e-3)


def test_projections_grow_linearly_and_scores_quadratically():
    # Row B13: O(N D²) and O(N² D).
    config = PRESETS["vaswani_base"]
    short, long = (
        {p.path: p for p in accounting.components(config, source_length=n)} for n in (100, 200)
    )
    ratio = lambda path: long[path].forward / short[path].forward
    assert ratio("encoder/self_attention/query") == 2.0
    assert ratio("encoder/feed_forward/up") == 2.0
    assert ratio("encoder/self_attention/softmax(q kᵀ) v") == 4.0
    assert ratio("decoder/cross_attention/softmax(q kᵀ) v") == 2.0
    assert ratio("decoder/self_attention/softmax(q kᵀ) v") == 1.0


def started(config, length, step):
    """Decoding begun, and one token decoded if ``step``; with the bytes that the cache holds."""
    graph, params = abstract(config)
    held = []

    def start(params, source, source_lengths):
        model = nnx.merge(graph, params)
        inputs = {"source": source, "source_lengths": source_lengths}
        cache = model.init_cache(inputs, B, length)
        for layer in cache.layers:
            kept = layer.keys, layer.values, layer.memory_keys, layer.memory_values
            held.extend(array.size * array.dtype.itemsize for array in kept)
        return model.step(jnp.zeros(B, jnp.int32), cache) if step else jax.tree.leaves(cache)

    return jax.jit(start).lower(params, ids(B, S), ids(B)), sum(held)


@pytest.mark.parametrize("name", ["vaswani", "t5", "grouped heads, gated"])
@pytest.mark.quick("grouped heads, gated")
def test_decoding_flops_are_those_of_xla(name):
    # Costs grow linearly with the cache, so the mean over lengths 1 ... 63 is the cost at 32.
    begin, both = (flops(started(CONFIGS[name], 32, step)[0]) for step in (False, True))
    ours = accounting.decoding(CONFIGS[name], batch=B, source_length=S, target_length=63)
    assert ours.prefill == pytest.approx(begin, rel=0.01)
    assert ours.flops * B == pytest.approx(both - begin, rel=0.01)


def test_cache_bytes_are_those_of_the_cache():
    config = CONFIGS["grouped heads, gated"]
    ours = accounting.decoding(config, batch=B, source_length=S, target_length=T)
    assert ours.cache_bytes * B == started(config, T, False)[1]


def test_bytes_of_a_product_are_those_of_xla():
    config = CONFIGS["vaswani"]
    part = next(
        p for p in accounting.components(config, batch=B, target_length=T) if p.path == "head"
    )
    x, table = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((B * T, 128), (1000, 128)))
    product = jax.jit(lambda x, table: x @ table.T).lower(x, table).compile().cost_analysis()
    product = product[0] if isinstance(product, list) else product
    assert part.bytes == product["bytes accessed"]


def test_bytes_of_positions_beside_embeddings_are_those_of_xla():
    config = CONFIGS["concatenated"]
    [part] = [
        p
        for p in accounting.components(config, batch=B, source_length=S, target_length=T)
        if p.path == "encoder/positions"
    ]
    x = jax.ShapeDtypeStruct((B, S, 128), jnp.float32)
    join = jax.jit(lambda x, table: jnp.concatenate([x, table], axis=-1))
    cost = join.lower(x, x).compile().cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    # The table is read once for all rows.
    assert part.bytes == cost["bytes accessed"] - x.size * 4
    assert part.forward == 0


def test_rematerialisation_costs_the_blocks_forward_once_more():
    config = CONFIGS["vaswani"]
    again = dataclasses.replace(config, compute=ComputeConfig(remat=True))
    sizes = {"batch": B, "source_length": S, "target_length": T}
    more = (
        accounting.model_cost(again, **sizes).training
        - accounting.model_cost(config, **sizes).training
    )
    blocks = sum(p.forward for p in accounting.components(config, **sizes) if p.in_block)
    assert more == blocks


def test_narrow_numbers_move_half_the_bytes():
    config = CONFIGS["vaswani"]
    narrow = dataclasses.replace(config, compute=ComputeConfig(dtype="bfloat16"))
    assert 2 * accounting.model_cost(narrow).bytes == accounting.model_cost(config).bytes
    assert (
        accounting.model_cost(narrow).parameter_bytes
        == accounting.model_cost(config).parameter_bytes
    )

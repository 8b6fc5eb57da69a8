"""Sharding: every parameter declares its axes, sizes may not divide, no mesh axis is used twice."""

import dataclasses
import logging
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from transformer_jax.core.errors import ConfigError
from transformer_jax.core.trees import flatten_dict
from transformer_jax.functional import partitioning
from transformer_jax.models.build import make_model
from transformer_jax.models.config import (
    AttentionConfig,
    ComputeConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.heads import (
    EncoderForMaskedLM,
    ReplacedTokenDetector,
    SequenceClassifier,
    TokenClassifier,
)
from transformer_jax.models.layers.parameters import (
    is_matrix,
    layer_depths,
    map_parameters,
    parameters,
    values,
)
from transformer_jax.models.presets import PRESETS
from transformer_jax.models.transformer.models import TransformerEncoderDecoder
from transformer_jax.parallel import sharding
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.parallel.settings import MeshConfig

SIZES = {"data": 2, "fsdp": 2, "tensor": 2}


def spread(*axes, shape, sizes=SIZES):
    return partitioning.partition_spec(axes, shape, sizes)


@pytest.mark.parametrize(
    ("axes", "shape", "expected"),
    [
        (("vocab", "embed"), (10, 8), P("tensor", "fsdp")),
        (("position", "embed"), (10, 8), P(None, "fsdp")),
        (("bucket", "head"), (32, 4), P(None, None)),
        (("embed", "heads"), (8, 8), P("fsdp", "tensor")),
        (("heads",), (8,), P("tensor")),
        (("mlp", "embed"), (16, 8), P("tensor", "fsdp")),
        (("embed", None), (8, 8), P("fsdp", None)),
        (("embed", "label"), (8, 3), P("fsdp", None)),
        (("layers", "embed", "mlp"), (6, 8, 16), P(None, "fsdp", "tensor")),
        (("batch",), (8,), P(("data", "fsdp"))),
    ],
)
def test_the_rules(axes, shape, expected):
    assert spread(*axes, shape=shape) == expected


PLACES = {
    "decoder_embedding/table": P("tensor", "fsdp"),
    "encoder/relative/table": P(None, None),
    "encoder/blocks/0/self_attention/query/kernel": P("fsdp", "tensor"),
    "encoder/blocks/0/self_attention/value/bias": P("tensor"),
    "decoder/blocks/1/cross_attention/out/kernel": P("tensor", "fsdp"),
    "decoder/blocks/1/cross_attention/out/bias": P(None),
    "decoder/blocks/1/cross_attention_norm/gain": P(None),
    "encoder/blocks/0/feed_forward/up/kernel": P("fsdp", "tensor"),
    "encoder/blocks/0/feed_forward/gate/bias": P("tensor"),
    "encoder/blocks/0/feed_forward/down/kernel": P("tensor", "fsdp"),
    "encoder/final_norm/bias": P(None),
    "head/bias": P("tensor"),
}
SCANNED = {
    "encoder/blocks/feed_forward/up/kernel": P(None, "fsdp", "tensor"),
    "encoder/blocks/self_attention/query/bias": P(None, "tensor"),
    "encoder/blocks/feed_forward_norm/gain": P(None, None),
}


@pytest.mark.parametrize(("scan", "places"), [(False, PLACES), (True, SCANNED)])
def test_parameters_live_where_their_axes_say(scan, places):
    config = TransformerConfig(
        vocab_size=16,
        decoder_vocab_size=24,
        d_model=8,
        encoder_layers=2,
        decoder_layers=2,
        embedding=EmbeddingConfig(share_encoder_decoder_embeddings=False),
        positions=PositionConfig(kind="relative"),
        attention=AttentionConfig(num_heads=2),
        feed_forward=FeedForwardConfig(d_ff=16, gated=True),
        norm=NormConfig(placement="pre"),
        head=HeadConfig(bias=True),
        compute=ComputeConfig(scan_layers=scan),
    )
    declared = parameters(
        nnx.eval_shape(lambda: TransformerEncoderDecoder(config, rngs=nnx.Rngs(0)))
    )
    found = flatten_dict(
        sharding.shardings(declared, make_mesh(MeshConfig(data=2, fsdp=2, tensor=2)))
    )
    assert {name: found[name].spec for name in places} == places


@pytest.mark.parametrize("axes", [None, (), ("embed",), ("embed", "mlp", "mlp")])
def test_a_parameter_without_an_axis_a_dimension_is_an_error_that_names_it(axes):
    metadata = {} if axes is None else {"axes": axes}
    stray = {"blocks": {0: {"stray": nnx.Param(jnp.zeros((4, 4)), **metadata)}}}
    with pytest.raises(ConfigError, match=r"parameter blocks/0/stray of shape \[4, 4\] declares"):
        sharding.shardings(stray, make_mesh(MeshConfig(fsdp=2)))


def test_an_unknown_axis_name_is_an_error():
    with pytest.raises(ConfigError, match="unknown axis wdith of an array"):
        partitioning.partition_spec(("wdith",), (8,), SIZES)


def test_a_dimension_that_does_not_divide_stays_whole_and_is_said_once(caplog):
    partitioning._log_once.cache_clear()
    kernel = lambda: nnx.Param(jnp.zeros((7, 4)), axes=("embed", "mlp"))
    params = {str(n): {"up": {"kernel": kernel()}} for n in range(3)}
    mesh = make_mesh(MeshConfig(fsdp=4, tensor=2))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            found = sharding.shardings({"blocks": params}, mesh)
    assert found["blocks"]["0"]["up"]["kernel"].spec == P(None, "tensor")
    (record,) = caplog.records
    assert "blocks/*/up/kernel: dimension embed of 7 is not divisible by 4" in record.message


NAMED = st.lists(
    st.tuples(st.sampled_from([*partitioning.LOGICAL_AXIS_RULES, None]), st.integers(1, 24)),
    max_size=4,
)
MESH = st.fixed_dictionaries({a: st.sampled_from([1, 2, 3, 4]) for a in ("data", "fsdp", "tensor")})


@settings(max_examples=200, deadline=None, derandomize=True)
@given(NAMED, MESH)
def test_every_spec_divides_and_uses_no_axis_twice(dimensions, sizes):
    found = partitioning.partition_spec(
        [n for n, _ in dimensions], [s for _, s in dimensions], sizes
    )
    axes = [() if e is None else (e,) if isinstance(e, str) else e for e in found]
    flat = [a for group in axes for a in group]
    assert len(set(flat)) == len(flat)
    assert all(sizes[a] > 1 for a in flat)
    for (_, size), group in zip(dimensions, axes, strict=True):
        assert size % math.prod(sizes[a] for a in group) == 0


def models():
    """Every preset at two layers, looped and, if layers are alike, scanned, and with every head."""
    for name, full in PRESETS.items():
        layers = {f: min(2, getattr(full, f)) for f in ("encoder_layers", "decoder_layers")}
        config = dataclasses.replace(full, **layers)
        heads = [{}]
        if config.image.image_size:
            kind, heads = "image", [{}, {"task": "classify"}]
        elif config.encoder_layers and config.decoder_layers:
            kind = "encoder-decoder"
        elif config.decoder_layers:
            kind = "decoder"
        else:
            kind, heads = "encoder", [{"next_sentence": config.head.pooler}]
        alike = config.positions.rope_local_theta is None and config.norm.first
        for scan in (False, True)[: 1 + alike]:
            compute = dataclasses.replace(config.compute, scan_layers=scan)
            changed = dataclasses.replace(config, compute=compute)
            for head in heads:
                yield f"{name}, scan {scan}, {head}", kind, changed, head


@pytest.mark.slow
def test_the_parameters_of_every_preset_are_declared_and_no_big_one_is_whole():
    mesh = jax.sharding.AbstractMesh((1, 8, 1), ("data", "fsdp", "tensor"))
    for name, kind, config, head in models():
        make = lambda kind=kind, config=config, head=head: make_model(
            kind, config, labels=3, **head, rngs=nnx.Rngs(0)
        )
        declared = parameters(nnx.eval_shape(make))
        where = jax.tree.leaves(sharding.shardings(declared, mesh))
        depths = jax.tree.leaves(layer_depths(declared))
        top = 1 + config.encoder_layers + config.decoder_layers
        assert {int(d) for depth in depths for d in np.ravel(depth)} <= set(range(top + 1)), name
        leaves = jax.tree.leaves(values(declared))
        matrices = jax.tree.leaves(map_parameters(is_matrix, declared))
        for leaf, place, matrix in zip(leaves, where, matrices, strict=True):
            held = math.prod(place.shard_shape(leaf.shape))
            assert held * 8 == leaf.size or not matrix or leaf.size < 1000, (name, leaf, place)


def narrow(config):
    """With narrower tables."""
    return dataclasses.replace(
        config, embedding=dataclasses.replace(config.embedding, embedding_size=64)
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda config, rngs: EncoderForMaskedLM(config, rngs=rngs),
        lambda config, rngs: SequenceClassifier(config, labels=3, rngs=rngs),
        lambda config, rngs: TokenClassifier(config, labels=3, rngs=rngs),
        lambda config, rngs: ReplacedTokenDetector(narrow(config), rngs=rngs),
        lambda config, rngs: EncoderForMaskedLM(narrow(config), rngs=rngs),
    ],
    ids=["words", "texts", "tokens", "replaced", "narrow"],
)
def test_every_parameter_of_encoders_is_declared_and_no_big_one_is_whole(make):
    declared = parameters(nnx.eval_shape(lambda: make(PRESETS["bert_mini"], nnx.Rngs(0))))
    found = sharding.shardings(declared, make_mesh(MeshConfig(fsdp=8)))
    leaves = jax.tree.leaves(values(declared))
    for leaf, where in zip(leaves, jax.tree.leaves(found), strict=True):
        held = math.prod(where.shard_shape(leaf.shape))
        assert held * 8 == leaf.size or leaf.ndim < 2, (leaf.shape, where)


def test_copies_of_parameters_are_found_by_path_suffix_and_shape():
    mesh = make_mesh(MeshConfig(fsdp=8))
    declared = {
        "up": {"kernel": nnx.Param(jnp.zeros((8, 4)), axes=("embed", "mlp"))},
        "down": {"kernel": nnx.Param(jnp.zeros((4, 8)), axes=("mlp", "embed"))},
    }
    params, of_params = values(declared), sharding.shardings(declared, mesh)
    state = {"mu": params, "row": {"up": {"kernel": jnp.zeros(8)}}, "count": jnp.zeros(())}
    found = sharding.shardings_like(state, params, of_params, mesh)
    assert found["mu"] == of_params
    assert found["row"]["up"]["kernel"] == found["count"] == sharding.replicated(mesh)

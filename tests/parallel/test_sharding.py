"""The tables: strict about paths, forgiving about sizes, no mesh axis used twice."""

import dataclasses
import logging
import math

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from transformer_jax.config import PRESETS
from transformer_jax.errors import ConfigError
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.models.heads import (
    EncoderForMaskedLM,
    ReplacedTokenDetector,
    SequenceClassifier,
    TokenClassifier,
)
from transformer_jax.parallel import sharding
from transformer_jax.parallel.mesh import MeshConfig, make_mesh
from transformer_jax.training.state import split

SIZES = {"data": 2, "fsdp": 2, "tensor": 2}


def spread(name, *shape, sizes=SIZES):
    return sharding.partition_spec(sharding.logical_names(name, len(shape)), shape, sizes)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("embedding/table", (10, 8), P("tensor", "fsdp")),
        ("decoder_embedding/table", (10, 8), P("tensor", "fsdp")),
        ("positions/table", (10, 8), P(None, "fsdp")),
        ("encoder/relative/table", (32, 4), P(None, None)),
        ("encoder/blocks/0/self_attention/query/kernel", (8, 8), P("fsdp", "tensor")),
        ("encoder/blocks/0/self_attention/value/bias", (8,), P("tensor")),
        ("decoder/blocks/1/cross_attention/out/kernel", (8, 8), P("tensor", "fsdp")),
        ("decoder/blocks/1/cross_attention/out/bias", (8,), P(None)),
        ("decoder/blocks/1/cross_attention_norm/gain", (8,), P(None)),
        ("encoder/blocks/0/feed_forward/up/kernel", (8, 16), P("fsdp", "tensor")),
        ("encoder/blocks/0/feed_forward/gate/bias", (16,), P("tensor")),
        ("encoder/blocks/0/feed_forward/down/kernel", (16, 8), P("tensor", "fsdp")),
        ("encoder/final_norm/bias", (8,), P(None)),
        ("encoder/blocks/0/feed_forward_norm_after/gain", (8,), P(None)),
        ("head/table", (10, 8), P("tensor", "fsdp")),
        ("head/bias", (10,), P("tensor")),
        ("encoder/segments/table", (2, 8), P(None, "fsdp")),
        ("encoder/embedding_norm/gain", (8,), P(None)),
        ("pooler/kernel", (8, 8), P("fsdp", None)),
        ("pooler/bias", (8,), P(None)),
        ("transform/kernel", (8, 8), P("fsdp", None)),
        ("transform_norm/bias", (8,), P(None)),
        ("next_sentence/kernel", (8, 2), P("fsdp", None)),
        ("next_sentence/bias", (2,), P(None)),
        ("labels/kernel", (8, 3), P("fsdp", None)),
        ("labels/bias", (3,), P(None)),
        # Scanned: the layers stay whole.
        ("encoder/blocks/feed_forward/up/kernel", (6, 8, 16), P(None, "fsdp", "tensor")),
        ("encoder/blocks/self_attention/query/bias", (6, 8), P(None, "tensor")),
    ],
)
def test_the_table(name, shape, expected):
    assert spread(name, *shape) == expected


@pytest.mark.parametrize("name", ["stray", "encoder/kernel", "embedding/tables", "xquery/kernel"])
def test_an_unmatched_path_is_an_error(name):
    with pytest.raises(ConfigError, match=f"no sharding rule for parameter {name}"):
        sharding.logical_names(name, 2)


def test_too_few_dimensions_are_an_error():
    with pytest.raises(ConfigError, match="no sharding rule"):
        sharding.logical_names("up/kernel", 1)


def test_an_unknown_axis_name_is_an_error():
    with pytest.raises(ConfigError, match="unknown axis name wdith"):
        sharding.partition_spec(("wdith",), (8,), SIZES)


def test_a_dimension_that_does_not_divide_stays_whole_and_is_said_once(caplog):
    sharding._said.clear()
    params = {str(n): {"up": {"kernel": jnp.zeros((7, 4))}} for n in range(3)}
    mesh = make_mesh(MeshConfig(fsdp=4, tensor=2))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            found = sharding.param_shardings({"blocks": params}, mesh)
    assert found["blocks"]["0"]["up"]["kernel"].spec == P(None, "tensor")
    (record,) = caplog.records
    assert "blocks/*/up/kernel: dimension width of 7 does not divide by 4" in record.message


NAMED = st.lists(
    st.tuples(st.sampled_from([*sharding.LOGICAL_AXIS_RULES, None]), st.integers(1, 24)), max_size=4
)
MESH = st.fixed_dictionaries({a: st.sampled_from([1, 2, 3, 4]) for a in ("data", "fsdp", "tensor")})


@settings(max_examples=200, deadline=None, derandomize=True)
@given(NAMED, MESH)
def test_every_spec_divides_and_uses_no_axis_twice(named, sizes):
    found = sharding.partition_spec([n for n, _ in named], [s for _, s in named], sizes)
    axes = [() if e is None else (e,) if isinstance(e, str) else e for e in found]
    flat = [a for group in axes for a in group]
    assert len(set(flat)) == len(flat)
    assert all(sizes[a] > 1 for a in flat)
    for (_, size), group in zip(named, axes, strict=True):
        assert size % math.prod(sizes[a] for a in group) == 0


@pytest.mark.parametrize("preset", ["vaswani_base", "marian", "bart_base", "t5_small"])
def test_every_parameter_of_the_presets_has_a_rule_and_no_big_one_is_whole(preset):
    make = lambda: EncoderDecoder(PRESETS[preset], rngs=nnx.Rngs(0))
    _, params = split(nnx.eval_shape(make))
    mesh = make_mesh(MeshConfig(fsdp=8))
    for leaf, where in zip(
        jax.tree.leaves(params),
        jax.tree.leaves(sharding.param_shardings(params, mesh)),
        strict=True,
    ):
        held = math.prod(where.shard_shape(leaf.shape))
        assert held * 8 == leaf.size or leaf.ndim < 2 or leaf.size < 1000, (leaf.shape, where)


def narrow(config):
    """With narrower tables."""
    return dataclasses.replace(config, embedding=dataclasses.replace(config.embedding, width=64))


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
def test_every_parameter_of_encoders_has_a_rule_and_no_big_one_is_whole(make):
    _, params = split(nnx.eval_shape(lambda: make(PRESETS["bert_mini"], nnx.Rngs(0))))
    found = sharding.param_shardings(params, make_mesh(MeshConfig(fsdp=8)))
    for leaf, where in zip(jax.tree.leaves(params), jax.tree.leaves(found), strict=True):
        held = math.prod(where.shard_shape(leaf.shape))
        assert held * 8 == leaf.size or leaf.ndim < 2, (leaf.shape, where)


def test_copies_of_parameters_are_found_by_path_suffix_and_shape():
    mesh = make_mesh(MeshConfig(fsdp=8))
    params = {"up": {"kernel": jnp.zeros((8, 4))}, "down": {"kernel": jnp.zeros((4, 8))}}
    of_params = sharding.param_shardings(params, mesh)
    state = {"mu": params, "row": {"up": {"kernel": jnp.zeros(8)}}, "count": jnp.zeros(())}
    found = sharding.shardings_like(state, params, of_params, mesh)
    assert found["mu"] == of_params
    assert found["row"]["up"]["kernel"] == found["count"] == sharding.replicated(mesh)

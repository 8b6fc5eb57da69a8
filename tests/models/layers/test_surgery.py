"""Replacing modules: a model to a model, whatever lies where, and nothing given changes."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.drawing import compiled, drawn, normals
from transformer_jax.models.config import (
    AttentionConfig,
    ComputeConfig,
    FeedForwardConfig,
    TransformerConfig,
)
from transformer_jax.models.layers.basic import Linear
from transformer_jax.models.layers.parameters import parameters
from transformer_jax.models.layers.surgery import replaced, with_attention_kernels
from transformer_jax.models.transformer.layers import Attention, Stack
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.parallel.placement import prepare_for_decoding, prepared, split_model
from transformer_jax.parallel.sharding import shardings

CONFIG = TransformerConfig(
    vocab_size=11,
    d_model=16,
    encoder_layers=0,
    decoder_layers=2,
    attention=AttentionConfig(num_heads=2),
    feed_forward=FeedForwardConfig(d_ff=32),
)
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 11, (2, 7)), jnp.int32)


class Adapted(nnx.Module):
    """A linear map with a low-rank addition (Hu et al. 2021)."""

    def __init__(self, base, rank=2):
        inputs, outputs = base.kernel.shape
        self.base = base
        self.a = nnx.Param(0.1 * normals((inputs, rank))[0], axes=("embed", None))
        self.b = nnx.Param(0.1 * normals((rank, outputs))[0], axes=(None, "heads"))

    def __call__(self, x):
        return self.base(x) + x @ self.a[...] @ self.b[...]


def adapted(path, module):
    return Adapted(module) if path.endswith(("query", "value")) else None


def model(scan=False):
    config = dataclasses.replace(CONFIG, compute=ComputeConfig(scan_layers=scan))
    return nnx.merge(*drawn(lambda: Decoder(config, rngs=nnx.Rngs(0))))


def stepwise(net, tokens):
    """Logits of the last tokens, each from a cache."""
    cache = net.init_cache(None, len(tokens), tokens.shape[1])
    first, cache = compiled(net, lambda net, *args: net.prefill(*args))(tokens[:, :4], cache)
    step, logits = compiled(net, lambda net, *args: net.step(*args)), [first]
    for t in range(4, tokens.shape[1]):
        out, cache = step(tokens[:, t], cache)
        logits.append(out)
    return jnp.stack(logits, axis=1)


@pytest.mark.slow
def test_adapters_change_the_model_as_their_formula_does_and_decode():
    """Also where queries, keys and values of plain maps are one product."""
    net = model()
    given = jax.tree.map(jnp.copy, nnx.to_pure_dict(nnx.state(net)))
    made = replaced(net, adapted)
    chex.assert_trees_all_equal(nnx.to_pure_dict(nnx.state(net)), given)
    merged = model()
    for block, other in zip(merged.decoder.blocks, made.decoder.blocks, strict=True):
        for name in ("query", "value"):
            map_, added = getattr(block.self_attention, name), getattr(other.self_attention, name)
            map_.kernel.set_value(map_.kernel[...] + added.a[...] @ added.b[...])
    expected = compiled(merged)(TOKENS)
    assert jnp.abs(expected - compiled(net)(TOKENS)).max() > 1e-3
    chex.assert_trees_all_close(compiled(made)(TOKENS), expected, atol=1e-5)
    ready = prepare_for_decoding(made, wide=16)
    assert ready.decoder.blocks[0].self_attention.fused_qkv is None
    chex.assert_trees_all_close(stepwise(ready, TOKENS), expected[:, 3:], atol=1e-5)


@pytest.mark.parametrize("scan", [False, True])
def test_every_parameter_of_a_prepared_model_is_declared_and_shards(scan):
    mesh = jax.sharding.AbstractMesh((1, 2, 2), ("data", "fsdp", "tensor"))
    made = prepare_for_decoding(model(scan), wide=16)
    found = shardings(parameters(made), mesh)["decoder"]["blocks"][1]
    P = jax.sharding.PartitionSpec
    assert found["self_attention"]["fused_qkv"]["kernel"].spec == P("tensor", "fsdp")
    assert found["feed_forward"]["up"]["kernel"].spec == P("tensor", "fsdp")
    assert found["feed_forward"]["up"]["bias"].spec == P("tensor")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("scan", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_parameters_prepared_in_host_memory_are_the_same(scan, dtype):
    """Unchanged arrays are not copied."""
    net = model(scan)
    for _, module in nnx.iter_modules(net):
        if isinstance(module, Stack):
            compute = dataclasses.replace(module.config.compute, dtype=dtype)
            module.config = dataclasses.replace(module.config, compute=compute)
    graph, given = split_model(net)
    expected = split_model(with_attention_kernels(prepare_for_decoding(net), jax.devices()[0]))
    made = prepared(graph, given)
    assert made[0] == expected[0]
    chex.assert_trees_all_equal(made[1], expected[1])
    chex.assert_trees_all_equal_shapes_and_dtypes(made[1], expected[1])
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(made[1]))
    if dtype == "float32":
        assert {*map(id, jax.tree.leaves(made[1]))} & {*map(id, jax.tree.leaves(given))}


def test_a_module_in_two_places_is_replaced_in_both_and_visited_once():
    class Twice(nnx.Module):
        def __init__(self):
            self.one = Linear(2, 2, ("embed", "mlp"), rngs=nnx.Rngs(0))
            self.rest = nnx.List([self.one, nnx.Dict(other=self.one)])

    visited = []
    twice = Twice()
    made = replaced(twice, lambda path, part: visited.append(path) or (
        Adapted(part) if isinstance(part, Linear) else None))  # fmt: skip
    assert made.one is made.rest[0] is made.rest[1]["other"]
    assert isinstance(made.one, Adapted)
    assert sorted(visited) == ["", "one", "rest", "rest/1"]
    assert twice.one is twice.rest[0] and isinstance(twice.one, Linear)  # noqa: PT018


def test_the_model_itself_may_be_replaced():
    one = Linear(2, 3, ("embed", "mlp"), rngs=nnx.Rngs(0))
    assert isinstance(replaced(one, lambda path, part: Adapted(part)), Adapted)


def test_matrices_are_cast_once_where_the_model_computes_in_bfloat16():
    config = dataclasses.replace(CONFIG, compute=ComputeConfig(dtype="bfloat16"))
    made = nnx.eval_shape(lambda: prepare_for_decoding(Decoder(config, rngs=nnx.Rngs(0))))
    for leaf in jax.tree.leaves(nnx.to_pure_dict(nnx.state(made))):
        assert leaf.dtype == (jnp.bfloat16 if leaf.ndim > 1 else jnp.float32)


class Accelerator:
    """The properties of a device by which kernels are chosen."""

    def __init__(self, platform, compute_capability=None):
        self.platform, self.compute_capability = platform, compute_capability


def test_attention_kernels_are_those_of_the_device():
    half = dataclasses.replace(CONFIG, compute=ComputeConfig(dtype="bfloat16", scan_layers=True))
    abstract = lambda config: nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0)))

    def chosen(config, *device):
        given = abstract(config)
        made = with_attention_kernels(given, Accelerator(*device))
        kernels = lambda model: {
            part.attention.implementation
            for _, part in nnx.iter_modules(model)
            if isinstance(part, Attention)
        }
        assert kernels(given) == {config.attention.implementation}
        [name] = kernels(made)
        return name

    assert chosen(CONFIG, "cpu") == "auto"
    assert chosen(half, "gpu", "9.0") == chosen(half, "cuda", "8.0") == "cudnn"
    assert chosen(CONFIG, "gpu", "9.0") == "auto"
    assert chosen(CONFIG, "tpu") == "splash"
    fixed = dataclasses.replace(CONFIG.attention, implementation="splash")
    assert chosen(dataclasses.replace(CONFIG, attention=fixed), "cpu") == "auto"

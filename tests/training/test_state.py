"""The state: made where it lives, told apart by its bits, wherever they lie."""

import dataclasses
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from transformer_jax.core.errors import ConfigError
from transformer_jax.core.trees import path_name
from transformer_jax.models.config import HeadConfig
from transformer_jax.models.presets import bert
from transformer_jax.models.transformer.models import TransformerEncoderDecoder
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.parallel.settings import MeshConfig
from transformer_jax.training.state import abstract_state, create_state, digest, split


def shards(tree):
    """Path to the part of the leaf that one device holds."""
    return {
        path_name(path): leaf.addressable_shards[0].data.size / leaf.size
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        if leaf.ndim > 1
    }


@pytest.mark.slow
def test_state_is_born_sharded_with_the_optimizer_and_average(make_toy):
    mesh, tx = make_mesh(MeshConfig(fsdp=4, tensor=2)), optax.adamw(1e-3)
    graph, shapes, shardings, _ = abstract_state(make_toy, tx, mesh, ema=True)
    same, state, pinned, _ = create_state(make_toy, tx, mesh, ema=True)
    jax.block_until_ready(state)
    assert pinned == shardings
    assert same == graph
    assert jax.tree.map(lambda a: (a.shape, a.dtype, a.sharding), state) == jax.tree.map(
        lambda a: (a.shape, a.dtype, a.sharding), shapes
    )
    parts = shards(state)
    assert set(parts.values()) == {1 / 8}, parts
    assert sum(name.startswith("opt_state") for name in parts) == 2 * len(shards(state.params))
    chex.assert_trees_all_close(state.params, split(make_toy())[1], rtol=1e-6)
    chex.assert_trees_all_equal(state.ema_params, state.params)


@pytest.mark.slow
def test_what_a_seed_draws_is_the_same_on_one_device_and_on_many():
    """Parameter by parameter on one device, by one program on many: up to its rounding."""
    config = dataclasses.replace(
        bert(64, 1, vocab_size=40, max_length=16), decoder_layers=1, head=HeadConfig()
    )
    make = lambda: TransformerEncoderDecoder(config, rngs=nnx.Rngs(3))
    meshes = [make_mesh(MeshConfig(), jax.devices()[:1]), make_mesh(MeshConfig(fsdp=4, tensor=2))]
    drawn = [create_state(make, optax.adam(1e-3), mesh, ema=True)[1] for mesh in meshes]
    chex.assert_trees_all_close(*map(jax.device_get, drawn), rtol=1e-6)
    assert {leaf.sharding.mesh.size for leaf in jax.tree.leaves(drawn[0])} == {1}


@pytest.mark.parametrize(
    "tx",
    [
        optax.lion(1e-3),
        optax.sgd(1e-3, 0.9),
        optax.inject_hyperparams(optax.adam)(1e-3),
        optax.apply_if_finite(optax.adam(1e-3), 3),
        optax.adafactor(1e-3),
    ],
    ids=["lion", "momentum", "injected", "guarded", "adafactor"],
)
def test_optimizer_state_lives_like_the_parameters(make_toy, tx):
    mesh = make_mesh(MeshConfig(fsdp=8))
    _, shapes, shardings, _ = abstract_state(make_toy, tx, mesh)
    of_params = {(leaf.shape, leaf.sharding) for leaf in jax.tree.leaves(shapes.params)}
    seen = 0
    for leaf in jax.tree.leaves(shapes.opt_state):
        if leaf.ndim > 1:
            assert (leaf.shape, leaf.sharding) in of_params
            assert math.prod(leaf.sharding.shard_shape(leaf.shape)) * 8 == leaf.size
            seen += 1
    assert seen or "Factored" in str(shapes.opt_state)
    assert jax.tree.structure(shardings.opt_state) == jax.tree.structure(shapes.opt_state)


def test_given_parameters_are_placed_as_they_are(make_toy):
    mesh = make_mesh(MeshConfig(fsdp=2, tensor=4))
    given = jax.tree.map(lambda a: np.asarray(a) + 1, split(make_toy())[1])
    _, state, shardings, _ = create_state(make_toy, optax.sgd(0.1), mesh, params=given)
    chex.assert_trees_all_equal(state.params, given)
    assert jax.tree.map(lambda a: a.sharding, state.params) == shardings.params


class Stray(nnx.Module):
    def __init__(self):
        self.stray = nnx.Param(jnp.zeros(3))


@pytest.mark.parametrize("sizes", [{"fsdp": 2}, {"tensor": 2}], ids=str)
def test_a_parameter_without_axes_is_refused_where_parameters_are_split(sizes):
    mesh = make_mesh(MeshConfig(**sizes))
    with pytest.raises(ConfigError, match=r"parameter stray of shape \[3\] declares no axes"):
        abstract_state(Stray, optax.sgd(0.1), mesh)


def test_a_parameter_without_axes_is_whole_where_none_is_split():
    mesh = make_mesh(MeshConfig())
    _, _, shardings, _ = abstract_state(Stray, optax.sgd(0.1), mesh)
    assert shardings.params["stray"].is_fully_replicated
    assert shardings.params["stray"].mesh == mesh


def test_a_layer_of_flax_is_split_along_the_axes_of_its_metadata():
    axes = {"kernel_metadata": {"axes": ("embed", "mlp")}, "bias_metadata": {"axes": ("mlp",)}}
    make = lambda: nnx.Linear(4, 6, rngs=nnx.Rngs(0), **axes)
    mesh = make_mesh(MeshConfig(fsdp=2, tensor=2))
    _, _, shardings, _ = abstract_state(make, optax.sgd(0.1), mesh)
    assert shardings.params["kernel"].spec == P("fsdp", "tensor")
    assert shardings.params["bias"].spec == P("tensor")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda rngs: nnx.Dropout(0.1, rngs=rngs), r"rngs/count is RngCount.* with rngs=key"),
        (lambda rngs: nnx.BatchNorm(3, rngs=rngs), r"mean is BatchStat.*averages of nnx.BatchNorm"),
    ],
    ids=["dropout", "batch_norm"],
)
def test_a_model_with_other_state_than_parameters_is_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        split(make(nnx.Rngs(0)))
    with pytest.raises(ConfigError, match=says):
        abstract_state(lambda: make(nnx.Rngs(0)), optax.sgd(0.1), make_mesh(MeshConfig()))


def test_merging_what_was_split_is_the_model_again(make_toy, sentences):
    model, batch = make_toy(), sentences()
    again = nnx.merge(*split(model))
    inputs = batch["inputs"]
    args = inputs["source"], batch["target"], inputs["source_lengths"]
    logits = nnx.jit(lambda model, *args: model(*args))
    chex.assert_trees_all_equal(logits(again, *args), logits(model, *args))


TREE = {"a": jnp.arange(12.0).reshape(3, 4), "b": {10: jnp.zeros(2), 2: jnp.ones(2, jnp.bfloat16)}}


@pytest.mark.parametrize(
    "other",
    [
        TREE | {"a": TREE["a"].at[2, 3].set(11.000001)},
        TREE | {"a": TREE["a"].reshape(4, 3)},
        TREE | {"a": TREE["a"].astype(jnp.int32)},
        TREE | {"b": {10: -jnp.zeros(2), 2: TREE["b"][2]}},
        TREE | {"b": {11: TREE["b"][10], 2: TREE["b"][2]}},
        {"b": TREE["b"]},
    ],
    ids=["value", "shape", "type", "sign of zero", "path", "missing"],
)
def test_digest_tells_trees_apart(other):
    assert digest(TREE) == digest(jax.tree.map(np.array, TREE))
    assert digest(other) != digest(TREE)

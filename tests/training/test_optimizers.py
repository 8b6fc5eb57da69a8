"""Schedules against their formulas, and each optimizer against optax's own."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from flax import nnx

from tests.drawing import normals
from transformer_jax.core.errors import ConfigError
from transformer_jax.core.trees import flatten_dict
from transformer_jax.models.layers.parameters import layer_depths, raise_depth
from transformer_jax.models.partition import where
from transformer_jax.training.optimizers import learning_rate, make_optimizer, weight_decay_mask
from transformer_jax.training.settings import OptimizerConfig, ScheduleConfig

FLAT = ScheduleConfig("constant", 0)


even = functools.partial(np.linspace, dtype=np.float32)
PARAMS = {
    "up": {"kernel": even(-1, 1, 12).reshape(3, 4), "bias": even(0, 1, 4)},
    "embedding": {"table": even(0.5, -0.5, 10).reshape(5, 2)},
}


def declared(params, axes, depths=None):
    """The parameters with the axes and depths that trees of the same paths give."""
    make = lambda value, axes, depth: nnx.Param(value, axes=axes, depth=depth)
    depths = jax.tree.map(lambda _: None, params) if depths is None else depths
    return jax.tree.map(make, params, axes, depths, is_leaf=lambda node: node is None)


DECLARED = declared(
    PARAMS,
    {"up": {"kernel": ("embed", "mlp"), "bias": ("mlp",)},
     "embedding": {"table": ("vocab", "embed")}},
)  # fmt: skip


def updates_of(tx, grads, params):
    """The first updates of an optimizer."""
    return jax.jit(lambda grads, params: tx.update(grads, tx.init(params), params)[0])(
        grads, params
    )


def descend(tx, steps=4):
    """The parameters after some updates with gradients that differ between steps."""

    @jax.jit
    def update(params, state, n):
        grads = jax.tree.map(lambda p: jnp.sin(7 * p + n), params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    params, state = PARAMS, jax.jit(tx.init)(PARAMS)
    for n in range(steps):
        params, state = update(params, state, n)
    return params, state


MASKED = {"mask": weight_decay_mask(DECLARED)}
OPTAX = {
    "adam": (OptimizerConfig("adam", 0.1), optax.adam(0.1, 0.9, 0.98, 1e-9)),
    "adam, its own numbers": (
        OptimizerConfig("adam", 0.1, beta1=0.8, beta2=0.7, eps=1e-3),
        optax.adam(0.1, 0.8, 0.7, 1e-3),
    ),
    "adamw": (
        OptimizerConfig("adamw", 0.1, weight_decay=0.3),
        optax.adamw(0.1, 0.9, 0.98, 1e-9, weight_decay=0.3, **MASKED),
    ),
    "lion": (
        OptimizerConfig("lion", 0.1, beta2=0.95, weight_decay=0.3),
        optax.lion(0.1, 0.9, 0.95, weight_decay=0.3, **MASKED),
    ),
    "sgd": (OptimizerConfig("sgd", 0.1), optax.sgd(0.1, 0.9)),
    "adafactor": (
        OptimizerConfig("adafactor", 0.1),
        optax.adafactor(0.1, multiply_by_parameter_scale=False),
    ),
}


@pytest.mark.parametrize("name", OPTAX)
def test_each_optimizer_is_that_of_optax(name):
    config, expected = OPTAX[name]
    config = dataclasses.replace(config, schedule=FLAT, max_grad_norm=None)
    ours = make_optimizer(config, 8, 100, params=DECLARED)
    chex.assert_trees_all_close(descend(ours)[0], descend(expected)[0], rtol=1e-5, atol=1e-6)


def test_muon_is_that_of_optax_on_kernels_and_adam_elsewhere():
    axes = lambda params: jax.tree_util.tree_map_with_path(
        lambda path, _: optax.contrib.MuonDimensionNumbers() if path[-1].key == "kernel" else None,
        params,
    )
    muon = optax.contrib.muon(0.1, consistent_rms=0.2, muon_weight_dimension_numbers=axes)
    ours = make_optimizer(
        OptimizerConfig("muon", 0.1, FLAT, max_grad_norm=None), 8, 100, params=DECLARED
    )
    found, kernels, others = (
        descend(tx)[0] for tx in (ours, muon, optax.adam(0.1, 0.9, 0.99, 1e-9))
    )
    expected = jax.tree_util.tree_map_with_path(
        lambda path, one, two: one if path[-1].key == "kernel" else two, kernels, others
    )
    chex.assert_trees_all_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head", ["labels", "next_sentence"])
def test_muon_leaves_heads_of_a_few_numbers_to_adam(head):
    """They are no map between vectors: equal singular values would shout down the rest."""
    slopes = {head: {"kernel": normals((6, 2))[0]}}
    params = declared(slopes, {head: {"kernel": ("embed", "label")}})
    step = lambda config: updates_of(make_optimizer(config, 8, 100, params=params), slopes, slopes)
    muon = step(OptimizerConfig("muon", 0.1, FLAT, max_grad_norm=None))
    adam = step(OptimizerConfig("adam", 0.1, FLAT, max_grad_norm=None))
    chex.assert_trees_all_close(muon, adam, rtol=1e-5)


def test_muon_makes_the_singular_values_of_each_layer_alike():
    """In a scanned stack too, where a kernel holds those of all layers."""
    config = OptimizerConfig("muon", 1.0, FLAT, max_grad_norm=None)
    [slopes] = normals((3, 4, 6))
    apart = {str(i): {"kernel": slope} for i, slope in enumerate(slopes)}
    together = {"blocks": {"kernel": slopes}}

    def update(grads, *axes):
        params = jax.tree.map(lambda a: nnx.Param(a, axes=axes), grads)
        return updates_of(make_optimizer(config, 8, 100, params=params), grads, grads)

    stacked = update(together, "layers", "embed", "mlp")["blocks"]["kernel"]
    for i, alone in update(apart, "embed", "mlp").items():
        chex.assert_trees_all_close(stacked[int(i)], alone["kernel"], atol=1e-5)
        sizes = np.linalg.svd(alone["kernel"])[1] / (0.2 * 6**0.5)
        assert ((sizes > 0.6) & (sizes < 1.3)).all()
        # It goes down the slope.
        assert float((alone["kernel"] * slopes[int(i)]).sum()) < 0


def test_clipping_bounds_all_parameters_together():
    plain = OptimizerConfig("sgd", 1.0, FLAT, beta1=0.0, max_grad_norm=0.25)
    tx = make_optimizer(plain, 8, 100)
    grads = jax.tree.map(lambda p: 10 + p, PARAMS)
    updates = updates_of(tx, grads, PARAMS)
    np.testing.assert_allclose(optax.tree.norm(updates), 0.25, rtol=1e-5)
    small = jax.tree.map(lambda p: 1e-3 * p, PARAMS)
    updates = updates_of(tx, small, PARAMS)
    chex.assert_trees_all_close(updates, jax.tree.map(np.negative, small), rtol=1e-6)


def test_weight_decay_pulls_at_kernels_and_tables_alone():
    config = OptimizerConfig("adamw", 0.1, FLAT, weight_decay=0.5)
    tx = make_optimizer(config, 8, 100, params=DECLARED)
    mask = weight_decay_mask(DECLARED)
    updates = updates_of(tx, jax.tree.map(np.zeros_like, PARAMS), PARAMS)
    expected = jax.tree.map(lambda p, yes: -0.05 * p if yes else 0 * p, PARAMS, mask)
    chex.assert_trees_all_close(updates, expected, atol=1e-7)
    assert mask == {"up": {"kernel": True, "bias": False}, "embedding": {"table": True}}


def _tower(scan):
    """Parameters of an encoder of two layers, the same declared, and gradients of ones."""
    block = {"feed_forward": {"up": {"kernel": np.ones((2, 2), np.float32)}}}
    stacked = jax.tree.map(lambda a: np.stack([a, a]), block)
    params = {
        "embedding": {"table": np.ones((3, 2), np.float32)},
        "encoder": {
            "blocks": stacked if scan else {"0": block, "1": block},
            "positions": {"table": np.ones((4, 2), np.float32)},
            "final_norm": {"gain": np.ones(2, np.float32)},
        },
        "labels": {"kernel": np.ones((2, 2), np.float32)},
    }
    kernel = lambda *axes: {"feed_forward": {"up": {"kernel": axes}}}
    axes = {
        "embedding": {"table": ("vocab", "embed")},
        "encoder": {
            "blocks": kernel("layers", "embed", "mlp") if scan else
            {"0": kernel("embed", "mlp"), "1": kernel("embed", "mlp")},
            "positions": {"table": ("position", "embed")},
            "final_norm": {"gain": ("embed",)},
        },
        "labels": {"kernel": ("embed", "label")},
    }  # fmt: skip
    depth = lambda depth: {"feed_forward": {"up": {"kernel": depth}}}
    depths = {
        "embedding": {"table": 0},
        "encoder": {
            "blocks": depth((1, 2)) if scan else {"0": depth(1), "1": depth(2)},
            "positions": {"table": 0},
            "final_norm": {"gain": None},
        },
        "labels": {"kernel": None},
    }
    return params, declared(params, axes, depths), jax.tree.map(np.ones_like, params)


@pytest.mark.parametrize("scan", [False, True])
def test_the_rate_of_each_layer_is_a_part_of_that_above_b38(scan):
    params, tower, grads = _tower(scan)
    config = OptimizerConfig("sgd", 1.0, FLAT, beta1=0.0, max_grad_norm=None, layer_decay=0.5)
    tx = make_optimizer(config, 2, 10, params=tower)
    updates = updates_of(tx, grads, params)
    blocks = updates["encoder"]["blocks"]
    kernel = lambda block: block["feed_forward"]["up"]["kernel"]
    low, high = kernel(blocks) if scan else (kernel(blocks["0"]), kernel(blocks["1"]))
    for found, rate in (
        (updates["labels"]["kernel"], 1.0),
        (updates["encoder"]["final_norm"]["gain"], 1.0),
        (high, 0.5),
        (low, 0.25),
        (updates["embedding"]["table"], 0.125),
        (updates["encoder"]["positions"]["table"], 0.125),
    ):
        np.testing.assert_array_equal(found, -rate)


def test_a_decoder_stands_above_its_encoder_b38():
    gain = lambda **depth: nnx.Param(np.ones(2), axes=("embed",), **depth)
    side = lambda: nnx.List([gain(depth=i) for i in range(3)])
    encoder, decoder = side(), side()
    raise_depth(decoder, encoder)
    depths = layer_depths({"encoder": [*encoder], "decoder": [*decoder], "head": gain()})
    assert depths == {"encoder": [0, 1, 2], "decoder": [0, 3, 4], "head": 5}


@pytest.mark.parametrize("name", ["adamw", "muon", "adafactor"])
def test_what_is_frozen_has_no_optimizer_state_b38(name):
    params, tower, grads = _tower(scan=False)
    config = OptimizerConfig(name, 0.1, FLAT, weight_decay=0.1)
    labels = where(lambda path: path.startswith("labels/"))
    (trained, _), (declared, _), (grads, _) = (
        labels.split(tree, nnx.Rngs(0)) for tree in (params, tower, grads)
    )
    tx = make_optimizer(config, 2, 10, params=declared)
    state = tx.init(trained)
    assert not {leaf.size for leaf in jax.tree.leaves(state)} & {6, 8}  # tables of 3 and 4 rows
    updates, _ = jax.jit(tx.update)(grads, state, trained)
    after = jax.tree.map(np.add, trained, updates)
    assert set(after) == {"labels"}
    assert (after["labels"]["kernel"] != params["labels"]["kernel"]).all()


def test_learning_rate_is_that_of_the_last_update():
    tx = make_optimizer(OptimizerConfig("adamw", 0.5, ScheduleConfig("constant", 10)), 8, 100)
    for n in (1, 2, 3):
        _, state = descend(tx, n)
        np.testing.assert_allclose(learning_rate(state), 0.05 * n, rtol=1e-6)
    assert learning_rate(optax.adam(1.0).init(PARAMS)) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "adam", "weight_decay": 0.1}, "choose adamw"),
        ({"name": "lion", "eps": 1e-8}, "lion has none"),
        ({"name": "sgd", "beta2": 0.9}, "sgd has none"),
        ({"name": "adafactor", "beta1": 0.9}, "adafactor has none"),
        ({"beta1": 1.0}, "beta1 is 1.0"),
        ({"beta2": -0.1}, "beta2 is -0.1"),
        ({"max_grad_norm": 0.0}, "above 0, or None"),
        ({"max_grad_norm": float("nan")}, "above 0, or None"),
        ({"weight_decay": -1.0, "name": "adamw"}, "weight_decay is -1"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"learning_rate": -1e-3}, "learning_rate is -0.001"),
        ({"schedule": ScheduleConfig("cosine", 10)}, "cosine schedule needs"),
        ({"schedule": ScheduleConfig("noam", 0)}, "warmup_steps is 0"),
        ({"schedule": ScheduleConfig("noam", 10, 0.5)}, "final_fraction is for cosine and linear"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        OptimizerConfig(**settings)
    with pytest.raises(ConfigError, match="warmup_steps is -1"):
        ScheduleConfig("constant", -1)


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_a_warmup_longer_than_the_run_is_refused(kind):
    config = OptimizerConfig("adam", 1e-3, ScheduleConfig(kind, 100))
    with pytest.raises(ConfigError, match="the run has 100 steps"):
        make_optimizer(config, 8, 100)
    make_optimizer(config, 8, 101)


def test_a_schedule_that_cannot_be_is_refused():
    with pytest.raises(ConfigError, match=r"schedule\.final_fraction is 2\.0: at most 1"):
        ScheduleConfig("cosine", 1, 2.0)


@pytest.mark.parametrize(
    ("where", "field", "message"),
    [("", "name", "allowed are adam, adamw"), ("schedule", "kind", "allowed are noam, inverse")],
)
def test_unknown_names_are_refused_also_where_types_are_not_checked(where, field, message):
    config = OptimizerConfig(schedule=ScheduleConfig())
    part = getattr(config, where) if where else config
    object.__setattr__(part, field, "nadam")
    with pytest.raises(ConfigError, match=message):
        part.__post_init__()


@pytest.mark.parametrize("fields", [{"weight_decay": 0.1}, {"layer_decay": 0.5}, {"name": "muon"}])
def test_what_reads_declarations_is_refused_without_parameters(fields):
    config = OptimizerConfig(**{"name": "adamw", "schedule": FLAT, "learning_rate": 0.1} | fields)
    with pytest.raises(ConfigError, match="parameters"):
        make_optimizer(config, 8, 100)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_layer_decay_of_a_part_is_that_of_the_whole_b38(name):
    params, tower, grads = _tower(scan=False)
    is_frozen = lambda path: path.startswith(("embedding", "encoder/blocks/0", "encoder/pos"))
    part = where(lambda path: not is_frozen(path))
    config = OptimizerConfig(name, 0.1, FLAT, weight_decay=0.1, layer_decay=0.5)
    whole = make_optimizer(config, 2, 10, params=tower)
    expected = updates_of(whole, grads, params)
    trained, declared, slopes = (part.split(t, nnx.Rngs(0))[0] for t in (params, tower, grads))
    tx = make_optimizer(config, 2, 10, params=declared)
    found = updates_of(tx, slopes, trained)
    assert flatten_dict(found).keys() == {
        path for path in flatten_dict(expected) if not is_frozen(path)
    }
    for path, update in flatten_dict(found).items():
        np.testing.assert_allclose(update, flatten_dict(expected)[path], rtol=1e-6)

"""Optax transformations that need more than gradients, or evaluate other parameters."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from flax import nnx

from transformer_jax.core.errors import ConfigError
from transformer_jax.core.trees import flatten_dict
from transformer_jax.data.plan import ArrayPlan
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.parallel.settings import MeshConfig
from transformer_jax.runs.checkpoint_reader import load_params
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.training.settings import LoopConfig
from transformer_jax.training.state import digest
from transformer_jax.training.task import Data, Task
from transformer_jax.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("no_curves")


class Line(nnx.Module):
    """A linear map; its rows are divided over devices."""

    def __init__(self, rngs):
        draw = jax.random.normal(rngs.params(), (4, 4))
        self.kernel = nnx.Param(draw, axes=("embed", "mlp"))

    def __call__(self, x):
        return x @ self.kernel[...]


def squares(model, batch, key=None):
    errors = jnp.square(model(batch["x"]) - batch["y"])
    return {"loss": (errors.sum(), jnp.float32(errors.size))}


def line_task(**changed):
    x, y = np.random.default_rng(0).normal(size=(2, 16, 4)).astype(np.float32)
    data = Data(ArrayPlan(16, 16), lambda rows: {"x": x[rows], "y": y[rows]})
    return dataclasses.replace(Task(Line, data, squares, {"valid": data}), **changed)


def fitted(path, tx, steps=6, sizes=(1,), **how):
    mesh = make_mesh(MeshConfig(*sizes), jax.devices()[: int(np.prod(sizes))])
    loop = LoopConfig(evaluate_every=1, checkpoint_every=3)
    trainer = Trainer(line_task(), path, tx, mesh, loop=loop, **how)
    return trainer, trainer.fit(steps=steps)


def start(trainer):
    """The parameters with which a run begins."""
    tx, _, *rest = trainer._abstract(1)
    return trainer._fresh(tx, *rest)[0].params


OPAQUE = optax.contrib.sam(
    optax.sgd(0.1), optax.chain(optax.contrib.normalize(), optax.sgd(0.05)), opaque_mode=True
)
OPTIMIZERS = {
    "plateau": optax.chain(optax.sgd(1.0), optax.contrib.reduce_on_plateau(factor=0.5, patience=1)),
    "lbfgs": optax.lbfgs(),
    "clipped_lbfgs": optax.chain(optax.clip_by_global_norm(1.0), optax.lbfgs()),
    "backtracking": optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(8)),
    "polyak": optax.polyak_sgd(),
    "momo": optax.contrib.momo(),
    "sam": optax.contrib.sam(
        optax.sgd(0.1), optax.chain(optax.contrib.normalize(), optax.sgd(0.05))
    ),
    "opaque_sam": OPAQUE,
    "schedule_free": optax.contrib.schedule_free_adamw(0.1),
}


def by_hand(tx, steps):
    """Trained and evaluated parameters after some steps of Optax alone, on one device."""
    batch = jax.tree.map(jnp.asarray, line_task().train.make_batch(np.arange(16)))
    trainer = Trainer(line_task(), "unused", tx, make_mesh(devices=jax.devices()[:1]))
    params = start(trainer)

    def loss(params, **_):
        return jnp.square(batch["x"] @ jax.tree.leaves(params)[0] - batch["y"]).mean()

    value_fn = lambda params, grad_fn=None: loss(params)

    @jax.jit
    def step(params, state):
        value, grads = jax.value_and_grad(loss)(params)
        further = {"grad_fn": lambda params, _: jax.grad(loss)(params)}
        if "sam" not in str(tx.update):
            further |= {"value": value, "grad": grads, "value_fn": value_fn}
        updates, state = tx.update(grads, state, params, **further)
        return optax.apply_updates(params, updates), state

    state = tx.init(params)
    for _ in range(steps):
        params, state = step(params, state)
    return params, state


def arrays(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.slow
def test_a_run_is_what_optax_does_alone(tmp_path, name):
    tx = OPTIMIZERS[name]
    _, result = fitted(tmp_path, tx)
    params, state = by_hand(tx, 6)
    np.testing.assert_allclose(arrays(result.state.params), arrays(params), rtol=2e-5, atol=1e-6)
    for found, expected in zip(*map(jax.tree.leaves, (result.state.opt_state, state)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-4)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    losses = [row["valid_loss"] for row in rows if "valid_loss" in row]
    assert losses[-1] < losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fsdp", "tensor", "pmap", "accumulation"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_divided_run_is_the_same(tmp_path, name, how):
    sizes = {"fsdp": (2, 2), "tensor": (1, 1, 2), "pmap": (4,), "accumulation": (1,)}[how]
    more = {"pmap": {"mode": "pmap"}, "accumulation": {"accumulation": 2}}.get(how, {})
    _, one = fitted(tmp_path / "one", OPTIMIZERS[name], steps=4)
    _, other = fitted(tmp_path / "other", OPTIMIZERS[name], steps=4, sizes=sizes, **more)
    np.testing.assert_allclose(
        arrays(other.state.params), arrays(one.state.params), rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_run_ends_with_the_same_bits(tmp_path, name):
    """Also between two updates of sam, and with the averages of schedule_free."""
    _, whole = fitted(tmp_path / "whole", OPTIMIZERS[name])
    fitted(tmp_path / "parts", OPTIMIZERS[name], steps=3)
    _, parts = fitted(tmp_path / "parts", OPTIMIZERS[name])
    assert digest(parts.state) == digest(whole.state)


@pytest.mark.slow
def test_schedule_free_is_evaluated_and_loaded_with_its_average(tmp_path):
    """The average of all points is computed here, in NumPy, by Defazio et al. 2024, formula (1)."""
    rate, b1, steps = 0.3, 0.8, 5
    tx = optax.chain(optax.clip(100.0), optax.contrib.schedule_free_sgd(rate, b1=b1))
    trainer, result = fitted(tmp_path, tx, steps=steps)
    batch = line_task().train.make_batch(np.arange(16))
    x, y = batch["x"].astype(float), batch["y"].astype(float)
    average = last = np.asarray(jax.tree.leaves(start(trainer))[0], float)
    for number in range(1, steps + 1):
        point = (1 - b1) * last + b1 * average
        last = last - rate * 2 * x.T @ (x @ point - y) / y.size
        average = average + (last - average) / number
    point = (1 - b1) * last + b1 * average
    np.testing.assert_allclose(arrays(result.state.params), point.ravel(), rtol=1e-5)
    assert np.abs(point - average).max() > 1e-3
    measured = [row for row in read_metrics(tmp_path / "metrics.jsonl") if "valid_loss" in row][-1]
    assert measured["valid_loss"] == pytest.approx(np.square(x @ average - y).mean(), rel=1e-5)
    loaded = flatten_dict(load_params(tmp_path, "last").params)["kernel"]
    np.testing.assert_allclose(loaded, average, rtol=1e-5)
    np.testing.assert_array_equal(trainer.load("last").kernel[...], loaded)


@pytest.mark.slow
def test_sam_is_evaluated_without_its_adversarial_updates(tmp_path):
    """After an odd number of steps, training is at the adversarial point."""
    _, result = fitted(tmp_path, OPTIMIZERS["sam"], steps=3)
    _, before = fitted(tmp_path / "before", OPTIMIZERS["sam"], steps=2)
    np.testing.assert_array_equal(arrays(result.state.ema_params), arrays(before.state.params))
    assert np.abs(arrays(result.state.params) - arrays(before.state.params)).max() > 1e-3


def second_order():
    """A transformation that needs arguments which nobody gives."""

    def surprising(updates, state, params=None, *, hessian, **more):
        return updates, state

    return optax.GradientTransformationExtraArgs(lambda params: (), surprising)


@pytest.mark.parametrize(
    ("tx", "how", "said"),
    [
        (
            second_order(),
            {},
            "second_order needs 'hessian', and a step gives value, grad, norm, value_fn",
        ),
        (optax.contrib.sophia(0.1), {}, "obj_fn must be provided to hutch"),
        (optax.lookahead(optax.sgd(0.1), 2, 0.5), {}, "lookahead trains pairs of parameters"),
        (optax.contrib.schedule_free_sgd(0.1), {"ema_decay": 0.9}, "leave ema_decay out"),
    ],
    ids=["unknown", "hutchinson", "lookahead", "ema"],
)
def test_other_needs_are_refused_by_name(tmp_path, tx, how, said):
    with pytest.raises(ConfigError, match=said):
        fitted(tmp_path, tx, steps=1, **how)

"""Modules made of Flax's own layers: they train, resume and load as those of the library do."""

import dataclasses
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from transformer_jax.cli.main import main
from transformer_jax.core.errors import Stopped
from transformer_jax.data.plan import ArrayPlan
from transformer_jax.inference.loading import load
from transformer_jax.models.layers.parameters import parameters
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.training.optimizers import weight_decay_mask
from transformer_jax.training.settings import LoopConfig, OptimizerConfig, ScheduleConfig
from transformer_jax.training.state import digest
from transformer_jax.training.task import Data, Task
from transformer_jax.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("no_curves")


class Net(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(4, 8, rngs=rngs)
        self.dropout = nnx.Dropout(0.2)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.down = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x, key=None):
        x = self.norm(self.up(x))
        return self.down(x if key is None else self.dropout(x, rngs=key))


def squares(model, batch, key=None):
    errors = jnp.square(model(batch["x"], key) - batch["y"])
    return {"loss": (errors.sum(), jnp.float32(errors.size))}


def net_task(**changed):
    x, y = np.random.default_rng(0).normal(size=(2, 16, 4)).astype(np.float32)
    data = Data(ArrayPlan(16, 8), lambda rows: {"x": x[rows], "y": y[rows]})
    task = Task(Net, data, squares, {"valid": data}, predictor=lambda model, _: model)
    return dataclasses.replace(task, **changed)


def net_trainer(path, optimizer, task=None):
    mesh = make_mesh(devices=jax.devices()[:1])
    return Trainer(task or net_task(), path, optimizer, mesh, loop=LoopConfig(evaluate_every=2))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_flax_module_trains_resumes_and_loads(tmp_path, name):
    how = OptimizerConfig(name, 0.01, ScheduleConfig("constant", 0), weight_decay=0.1)
    whole = net_trainer(tmp_path / "whole", how).fit(steps=4)
    net_trainer(tmp_path / "stopped", how).fit(steps=2)
    again = net_trainer(tmp_path / "stopped", how).fit(steps=4)
    assert digest(again.state) == digest(whole.state)
    assert load(tmp_path / "whole", net_task())(jnp.ones((1, 4))).shape == (1, 4)


@pytest.mark.slow
def test_weight_decay_is_for_the_kernels_of_flax():
    mask = weight_decay_mask(parameters(nnx.eval_shape(lambda: Net(nnx.Rngs(0)))))
    assert mask["up"] == {"kernel": True, "bias": False}
    assert mask["norm"] == {"scale": False, "bias": False}


@pytest.mark.slow
def test_a_stopped_program_is_to_be_run_again(tmp_path, capfd):
    task, counted = net_task(), []

    def make_batch(rows):
        counted.append(1)
        if len(counted) == 3:
            signal.raise_signal(signal.SIGINT)
        return task.train.make_batch(rows)

    cut = dataclasses.replace(task, train=task.train._replace(make_batch=make_batch))
    with pytest.raises(Stopped, match=r"run the program again to continue$"):
        net_trainer(tmp_path / "run", optax.sgd(0.1), cut).fit(steps=9)
    assert main(["resume", str(tmp_path / "run")]) == 4
    assert "a run of your own task is" in capfd.readouterr().err


WRONG = """
import optax
import transformer_jax as tj
from transformer_jax.core.errors import ConfigError
data = tj.Data(tj.ArrayPlan(4, 2), len)
task = tj.Task(print, data, print)
for make in (lambda: tj.Task(print, data, print, valid=data), lambda: tj.Trainer(task, "run", 0.1)):
    try:
        make()
    except ConfigError as error:
        print(error)
"""


@pytest.mark.slow
def test_what_is_no_task_or_trainer_is_refused_where_types_are_not_enforced():
    done = subprocess.run([sys.executable, "-c", WRONG], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        'valid maps names to validation data: give {"valid": data}',
        "optimizer is 0.1: give one, such as tj.adamw(1e-3) or optax.adam(1e-3)",
    ]

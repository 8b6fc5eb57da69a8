"""The common behaviour of runs of all families."""

import dataclasses
import functools
import itertools
import os
import threading
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.documents import DocumentStream, TextChunk
from transformer_jax.data.plan import ArrayPlan, BucketPlan
from transformer_jax.data.sentences import build_sentences
from transformer_jax.data.token_file import build_tokens
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.parallel.settings import MeshConfig
from transformer_jax.recipes.checks import memory
from transformer_jax.recipes.driver import write_derived_settings
from transformer_jax.recipes.registry import named_runs
from transformer_jax.recipes.sizing import with_step_intervals
from transformer_jax.recipes.tasks.settings import EvaluationConfig
from transformer_jax.recipes.texts import token_cache
from transformer_jax.recipes.translation import SmoothedTraining as TrainingConfig
from transformer_jax.runs import manifest
from transformer_jax.runs.checkpoint import Checkpointer
from transformer_jax.runs.run_directory import RunDirectory
from transformer_jax.training.settings import LoopConfig
from transformer_jax.training.state import TrainState
from transformer_jax.training.task import Data, Task
from transformer_jax.training.trainer import Trainer

RUNS = named_runs("translation", "recurrent_translation")


class Asked(BucketPlan):
    """Counts the epochs that are built, and remembers which thread asks for a batch."""

    def __init__(self, *args, **kwargs):
        self.built, self.threads = [], set()
        super().__init__(*args, **kwargs)

    def _epoch(self, epoch):
        self.built.append(epoch)
        return super()._epoch(epoch)

    def batch(self, step):
        self.threads.add(threading.current_thread())
        return super().batch(step)


def test_each_epoch_is_planned_once_by_the_thread_that_makes_batches(tmp_path):
    lengths = np.arange(1, 41)
    plan = Asked(lengths, lengths, max_tokens=128, required_batch_size_multiple=2)
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    make = lambda batch: {"x": np.stack([batch.indices, np.full_like(batch.indices, batch.S)], 1)}
    steps = 3 * plan.steps_per_epoch
    task = Task(lambda rngs: None, Data(plan, make), lambda *_: {})
    stream = Trainer(task, tmp_path, optax.sgd(0.1), mesh).batches()
    plan.threads.clear()
    read = [jax.device_get(batch["x"]) for batch in itertools.islice(stream, steps)]
    stream.close()
    assert threading.current_thread() not in plan.threads
    assert plan.built == sorted(set(plan.built)), plan.built
    for step, rows in enumerate(read):
        np.testing.assert_array_equal(rows, make(plan.batch(step))["x"])


def test_a_run_that_may_only_be_read_keeps_ids_in_memory(tmp_path, monkeypatch):
    run, directory = types.SimpleNamespace(cache=None), RunDirectory(tmp_path)
    assert token_cache(run, directory) == (tmp_path / "store", True)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert token_cache(run, directory) == (None, False)
    given = types.SimpleNamespace(cache="elsewhere")
    assert token_cache(given, directory) == (Path("elsewhere"), True)


@pytest.mark.parametrize("build", [functools.partial(build_tokens, ends=True), build_sentences])
def test_a_store_that_may_only_be_read_is_read(tmp_path, monkeypatch, build):
    """Missing texts are kept in memory, and nothing is added to the store."""
    read = []

    def pieces():
        read.append(1)
        return [TextChunk("A. B.", True)]

    texts, other = (DocumentStream("example", identity, pieces) for identity in "12")
    tokenizer = train_tokenizer("bytes", [])
    run, directory = types.SimpleNamespace(cache=None), RunDirectory(tmp_path)
    build(texts, tokenizer, **token_cache(run, directory)._asdict())
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    before, read[:] = sorted(tmp_path.rglob("*")), []
    found = build(texts, tokenizer, **token_cache(run, directory)._asdict())
    assert read == []
    again = build(other, tokenizer, **token_cache(run, directory)._asdict())
    assert (found.ids.tolist(), found.counts) == (again.ids.tolist(), again.counts)
    assert read == [1]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("begun", [False, True])
def test_what_flags_said_when_a_run_resumed_is_not_written_to_it(tmp_path, begun):
    run = dataclasses.replace(
        RUNS["small"][1], output=str(tmp_path), training=TrainingConfig(steps=50)
    )
    directory = RunDirectory(tmp_path)
    directory.write(directory.config, dataclasses.asdict(run))
    before = directory.read_config()
    if begun:
        path = tmp_path / "checkpoints/step_00000003"
        path.mkdir(parents=True)
        manifest.rewrite(path, {"schema": manifest.SCHEMA, "config": before, "files": {}})
    loop = LoopConfig(evaluate_every=None, checkpoint_every=7, keep_last=9)
    sized = with_step_intervals(dataclasses.replace(run, loop=loop), 5)
    assert (sized.loop.evaluate_every, sized.loop.checkpoint_every) == (5, 7)
    plan = ArrayPlan(5, 1)
    learned = dataclasses.replace(run, evaluation=EvaluationConfig(max_len_a=3.5, max_len_b=10))
    train = Data(plan, lambda items: items)
    task = Task(model=lambda rngs: rngs, train=train, objective=lambda *_: {}, settings=learned)
    write_derived_settings(directory, task)
    config = directory.read_config()
    if begun:
        assert config == before
    else:
        loop = config["loop"]
        assert (loop["evaluate_every"], loop["checkpoint_every"], loop["keep_last"]) == (5, 5, 3)
        assert config["optimizer"]["schedule"]["warmup_steps"] == 5
        assert config["evaluation"] == dataclasses.asdict(learned.evaluation)


def test_a_step_that_cannot_be_made_leaves_nothing_open(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise ConfigError("the step does not exist")

    closed = []
    close = Checkpointer.close
    monkeypatch.setattr(Checkpointer, "close", lambda self: (closed.append(1), close(self)))
    data = Data(ArrayPlan(count=4, rows=2), lambda rows: {"x": np.ones((len(rows), 3), np.float32)})
    model = lambda rngs: nnx.Linear(3, 1, rngs=rngs)
    task = Task(model, data, lambda *_: {}, make_step=refused)
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    nothing = TrainState(jnp.int32(0), {}, {})
    parts = (optax.sgd(0.1), nothing, nothing, {})
    monkeypatch.setattr(Trainer, "_abstract", lambda *_: parts)
    with pytest.raises(ConfigError, match="the step does not exist"):
        Trainer(task, tmp_path, optax.sgd(0.1), mesh).fit(steps=2)
    assert closed == [1]


@dataclasses.dataclass
class Device:
    """A GPU of a process, which tells of its memory only there."""

    process_index: int
    platform: str = "gpu"

    def memory_stats(self):
        assert self.process_index == jax.process_index(), "only supported for addressable devices"
        return {"bytes_limit": 100}


@pytest.mark.parametrize("process", [0, 1, 2])
def test_each_process_asks_its_own_devices_for_their_memory(monkeypatch, process):
    devices = [Device(0), Device(0), Device(1), Device(1)]
    monkeypatch.setattr(jax, "process_index", lambda: process)
    assert memory(devices) == (400 if process < 2 else None)

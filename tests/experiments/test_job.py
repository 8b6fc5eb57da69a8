"""What the runs of all families share."""

import dataclasses
import functools
import itertools
import os
import threading
import types
from pathlib import Path

import jax
import numpy as np
import pytest

from transformer_jax.data.documents import DocumentStream, TextChunk
from transformer_jax.data.plan import BucketPlan
from transformer_jax.data.sentences import build_sentences
from transformer_jax.data.token_file import build_tokens
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.errors import ConfigError
from transformer_jax.parallel.mesh import MeshConfig, make_mesh
from transformer_jax.runs.job import Job, cache_of, train
from transformer_jax.runs.memory import memory
from transformer_jax.runs.translation_settings import RUNS, TrainingConfig
from transformer_jax.training import manifest
from transformer_jax.training.loop import LoopConfig
from transformer_jax.training.run_directory import RunDirectory


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


def test_each_epoch_is_planned_once_by_the_thread_that_makes_batches():
    lengths = np.arange(1, 41)
    plan = Asked(lengths, lengths, tokens=128, rows_multiple=2)
    job = types.SimpleNamespace(plan=plan, mesh=make_mesh(MeshConfig(), jax.devices()[:1]))
    make = lambda batch: {"x": np.stack([batch.indices, np.full_like(batch.indices, batch.S)], 1)}
    steps = 3 * plan.steps_per_epoch
    stream = Job.stream(job, make, 0)
    plan.threads.clear()
    read = [jax.device_get(batch["x"]) for batch in itertools.islice(stream, steps)]
    stream.close()
    assert threading.current_thread() not in plan.threads
    assert plan.built == sorted(set(plan.built)), plan.built
    for step, rows in enumerate(read):
        np.testing.assert_array_equal(rows, make(plan.batch(step))["x"])


def test_a_run_that_may_only_be_read_keeps_ids_in_memory(tmp_path, monkeypatch):
    run, directory = types.SimpleNamespace(cache=None), RunDirectory(tmp_path)
    assert cache_of(run, directory) == {"cache": tmp_path / "store", "writes": True}
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert cache_of(run, directory) == {"cache": None, "writes": False}
    given = types.SimpleNamespace(cache="elsewhere")
    assert cache_of(given, directory) == {"cache": Path("elsewhere")}


@pytest.mark.parametrize("build", [functools.partial(build_tokens, ends=True), build_sentences])
def test_a_store_that_may_only_be_read_is_read(tmp_path, monkeypatch, build):
    """What it lacks is kept in memory, and nothing is added to it."""
    read = []

    def pieces():
        read.append(1)
        return [TextChunk("A. B.", True)]

    texts, other = (DocumentStream("example", identity, pieces) for identity in "12")
    tokenizer = train_tokenizer("bytes", [])
    run, directory = types.SimpleNamespace(cache=None), RunDirectory(tmp_path)
    build(texts, tokenizer, **cache_of(run, directory))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    before, read[:] = sorted(tmp_path.rglob("*")), []
    found = build(texts, tokenizer, **cache_of(run, directory))
    assert read == []
    again = build(other, tokenizer, **cache_of(run, directory))
    assert (found.ids.tolist(), found.counts) == (again.ids.tolist(), again.counts)
    assert read == [1]
    assert sorted(tmp_path.rglob("*")) == before


def sized(tmp_path, loop):
    """A run whose intervals follow from its size, and a job of it that was told ``loop``."""
    run = dataclasses.replace(
        RUNS["small"][1], output=str(tmp_path), training=TrainingConfig(steps=50)
    )
    directory = RunDirectory(tmp_path)
    directory.write(directory.config, dataclasses.asdict(run))
    plan = types.SimpleNamespace(steps_per_epoch=5)
    told = dataclasses.replace(run, loop=loop)
    return types.SimpleNamespace(run=told, directory=directory, plan=plan)


@pytest.mark.parametrize("begun", [False, True])
def test_what_flags_said_when_a_run_went_on_is_not_written_to_it(tmp_path, begun):
    job = sized(tmp_path, LoopConfig(evaluate_every=None, checkpoint_every=7, keep_last=9))
    before = job.directory.read_config()
    if begun:
        path = tmp_path / "checkpoints/step_00000003"
        path.mkdir(parents=True)
        manifest.rewrite(path, {"schema": manifest.SCHEMA, "config": before, "files": {}})
    job.run = Job._sized(job)
    assert (job.run.loop.evaluate_every, job.run.loop.checkpoint_every) == (5, 7)
    Job.keep_size(job)
    config = job.directory.read_config()
    if begun:
        assert config == before
    else:
        loop = config["loop"]
        assert (loop["evaluate_every"], loop["checkpoint_every"], loop["keep_last"]) == (5, 5, 3)
        assert config["optimizer"]["schedule"]["warm_up"] == 5


class Refused(Job):
    """A job whose step cannot be made."""

    def __init__(self, **parts):
        vars(self).update(parts)

    def step(self):
        raise ConfigError("no such step")

    def keep_size(self):
        pass

    def checkpointer(self):
        return types.SimpleNamespace(close=lambda: self.closed.append(1))


Refused.__abstractmethods__ = frozenset()


def test_a_step_that_cannot_be_made_leaves_nothing_open(tmp_path):
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    job = Refused(run=RUNS["small"][1], directory=None, mesh=mesh, scheme=None, closed=[])
    with pytest.raises(ConfigError, match="no such step"):
        train(job, dict, resume=False)
    assert job.closed == [1]


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

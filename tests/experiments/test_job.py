"""What the runs of all families share."""

import itertools
import os
import threading
import types
from pathlib import Path

import jax
import numpy as np

from experiments.job import Job, cache_of
from transformer_jax.data.plan import BucketPlan
from transformer_jax.parallel.mesh import MeshConfig, make_mesh
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
    assert cache_of(run, directory) == tmp_path / "store"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert cache_of(run, directory) is None
    assert cache_of(types.SimpleNamespace(cache="elsewhere"), directory) == Path("elsewhere")

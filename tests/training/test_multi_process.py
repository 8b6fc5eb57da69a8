"""Two processes over loopback are one: the same losses, the same parameters, rows by the mesh."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.two_processes import free_port, reports
from transformer_jax.models.partition import merging
from transformer_jax.parallel.mesh import make_mesh, shard_batch
from transformer_jax.parallel.settings import MeshConfig
from transformer_jax.training.objectives import sequence_to_sequence
from transformer_jax.training.optimizers import make_optimizer
from transformer_jax.training.settings import OptimizerConfig, ScheduleConfig
from transformer_jax.training.state import create_state, digest, split
from transformer_jax.training.step import compile_step, make_step

HERE = Path(__file__).parent
TX = make_optimizer(OptimizerConfig("sgd", 0.5, ScheduleConfig("constant", 0)), 16, 100)
STEPS = 3


def train(mesh, make, batches, rows):
    """Losses of a few steps, and the digest of the parameters before and after."""
    params = jax.tree.map(np.asarray, split(make())[1])
    graph, state, shardings, _ = create_state(make, TX, mesh, params=params)
    step = compile_step(make_step(sequence_to_sequence(bos=1), TX, merging(graph)), mesh, shardings)
    digests, losses = [digest(state.params)], []
    for batch in batches:
        state, metrics = jax.block_until_ready(
            step(state, {}, shard_batch(batch, mesh, rows), None)
        )
        losses.append(float(metrics["loss"]))
    return {"losses": losses, "digests": [*digests, digest(state.params)]}


# What each process runs: this file's own train(), on the rows that the mesh gives it.
PROGRAM = """
import importlib.util, json, sys
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
from transformer_jax.parallel.coordinator import initialize
from transformer_jax.parallel.mesh import *
from transformer_jax.parallel.settings import DistributedConfig, MeshConfig
port, process, here = sys.argv[1:]
assert initialize(DistributedConfig("127.0.0.1:" + port, 2, int(process)))
def load(name):
    spec = importlib.util.spec_from_file_location(name, here + "/" + name + ".py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
toys, test = load("conftest"), load("test_multi_process")
held = {}
for name in ("fsdp", "tensor"):
    mesh = make_mesh(MeshConfig(**{name: 4}))
    held[name] = local_rows(mesh, 16).tolist()
mesh = make_mesh(MeshConfig(data=2, fsdp=2))
rows = local_rows(mesh, 16)
part = lambda batch: jax.tree.map(lambda array: array[rows], batch)
batches = [part(toys.draw_sentences(n)) for n in range(test.STEPS)]
found = test.train(mesh, lambda: toys.Toy(toys.nnx.Rngs(0)), batches, 16)
sync_global_devices("trained")
print("REPORT", json.dumps(found | {"held": held, "main": is_main_process()}))
"""


@pytest.fixture(scope="module")
def pair():
    """The reports of two processes of two devices each."""
    return reports(PROGRAM, str(HERE))


@pytest.mark.slow
def test_two_processes_train_as_one(pair, make_toy, sentences):
    mesh = make_mesh(MeshConfig(data=2, fsdp=2), jax.devices()[:4])
    alone = train(mesh, make_toy, [sentences(n) for n in range(STEPS)], 16)
    for one in pair:
        np.testing.assert_allclose(one["losses"], alone["losses"], atol=1e-6, rtol=1e-6)
        assert one["digests"][0] == alone["digests"][0]
    assert pair[0]["digests"] == pair[1]["digests"]
    assert alone["losses"][0] != alone["losses"][-1]


@pytest.mark.slow
def test_rows_are_asked_of_the_mesh_not_of_the_process(pair):
    first, second = (one["held"] for one in pair)
    assert first["fsdp"] == list(range(8))
    assert second["fsdp"] == list(range(8, 16))
    # With tensor across the processes both need every row.
    assert first["tensor"] == second["tensor"] == list(range(16))


@pytest.mark.slow
def test_one_process_is_the_main_one(pair):
    assert [one["main"] for one in pair] == [True, False]


COMMANDS = {
    "sacreBLEU": ["seq2seq", "train", "phrasebook", "--data.read.corpus-size", "500",
                  "--evaluation.sentences", "4"],
    "bits/byte": ["decoder_only", "train", "python-docs", "--evaluation.sample", "8"],
    "MLM accuracy": ["encoder_only", "pretrain", "python-docs", "--training.num-buckets", "1"],
    "spearman": ["encoder_only", "finetune", "regress", "--training.num-buckets", "1",
                 "--data.train", "{folder}/numbers.tsv", "--model.d-model", "64",
                 "--model.attention.num-heads", "2"],
}  # fmt: skip


@pytest.mark.apart
@pytest.mark.slow
@pytest.mark.parametrize("said", COMMANDS)
def test_the_whole_command_runs_on_two_processes(tmp_path, said):
    """From texts to scores: one of them scores in the end, and reads the checkpoint alone."""
    rows = "".join(f"the number {i}\t{i}\n" for i in range(60))
    (tmp_path / "numbers.tsv").write_text("text\tlabel\n" + rows)
    module, *given = (word.format(folder=tmp_path) for word in COMMANDS[said])
    command = [sys.executable, "-m", f"experiments.{module}", *given]
    command += ["--output", str(tmp_path / "run"), "--training.steps", "4", "--mesh.data", "2"]
    command += ["--optimizer.schedule.warmup-steps", "2", "--distributed.num-processes", "2"]
    command += ["--loop.evaluate-every", "2", "--loop.checkpoint-every", "2"]
    command += ["--distributed.coordinator-address", f"localhost:{free_port()}"]
    flags = "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=1"
    settings = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    how = {"env": settings, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    parts = [
        subprocess.Popen([*command, "--distributed.process-id", str(i)], **how) for i in range(2)
    ]
    told = [part.communicate(timeout=400)[0] for part in parts]
    assert [part.returncode for part in parts] == [0, 0], told
    assert said in told[0]
    assert (tmp_path / "run" / "results.json").exists()

"""A real SLURM of two nodes runs what ``launch --render slurm`` prints.

``slurm_cluster.sh install``, in this folder, installs it; ``start DIR`` starts it on this machine.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
CLUSTER = Path(__file__).with_name("slurm_cluster.sh")
SETTINGS = [
    "--data.text", "text.txt", "--output", "a run", "--training.batch-size", "8",
    "--training.sequence-length", "16", "--optimizer.schedule.warmup-steps", "2",
    "--model.d-model", "16", "--model.decoder-layers", "1", "--model.attention.num-heads", "2",
    "--mesh.data", "2", "--loop.checkpoint-every", "20", "--evaluation.sample", "8",
    "--evaluation.ngram-orders", "1",
]  # fmt: skip
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("slurmctld") and shutil.which("munged") and os.geteuid() == 0),
        reason="needs slurm-wlm, munge and root: tests/parallel/launch/slurm_cluster.sh install",
    ),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The variables of commands of a SLURM that runs here."""
    folder = tmp_path_factory.mktemp("slurm")
    try:
        subprocess.run(["bash", CLUSTER, "start", folder], check=True, timeout=120)
        own = {"SLURM_CONF": str(folder / "slurm.conf"), "PYTHONPATH": str(ROOT)}
        yield os.environ | own | {"JAX_PLATFORMS": "cpu"}
    finally:
        subprocess.run(["bash", CLUSTER, "stop", folder], check=False, timeout=60)


class Job:
    """A submitted job of two nodes."""

    def __init__(self, environ, folder, steps, limit="10", warning="60"):
        self.environ, self.folder = environ, folder
        letters = np.random.default_rng(0).choice(list("abcd "), (300, 60))
        (folder / "text.txt").write_text("\n".join("".join(line) for line in letters))
        script = self._run(
            sys.executable, "-m", "transformer_jax.cli.main", "launch", "--render", "slurm",
            "--plan", "cpu", "--nodes", "2", "--name", "test", "--time", limit,
            "--warning", warning, "--restarts", "1", "--", "train", "char-cpu", *SETTINGS,
            "--training.steps", str(steps), "--loop.evaluate-every", str(steps),
        )  # fmt: skip
        (folder / "job").write_text(script)
        self.number = self._run("sbatch", "--parsable", "job").strip()

    def _run(self, *command):
        done = subprocess.run(
            command, cwd=self.folder, env=self.environ, check=True, capture_output=True, text=True,
            timeout=60,
        )  # fmt: skip
        return done.stdout

    def log(self):
        path = self.folder / f"test-{self.number}.log"
        return path.read_text() if path.exists() else ""

    def until_step(self, step, seconds=180):
        """Waits for the checkpoint of a step."""
        path = self.folder / "a run" / "checkpoints"
        for _ in range(seconds * 10):
            if any(int(one.name[5:]) >= step for one in path.glob("step_*[0-9]")):
                return
            time.sleep(0.1)
        pytest.fail(f"no checkpoint: {self.log()[-3000:]}")

    def kill_task(self, rank):
        """Kills one task of the job where it runs."""
        wanted = {f"SLURM_JOB_ID={self.number}".encode(), f"SLURM_PROCID={rank}".encode()}
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                variables = {*path.read_bytes().split(b"\0")}
                program = path.with_name("cmdline").read_bytes()
            except OSError:
                continue
            if wanted <= variables and b"char-cpu" in program and b"python" in program:
                os.kill(int(path.parent.name), signal.SIGKILL)
                return
        pytest.fail("no task to kill")

    def start_now(self):
        """A job that is queued again waits two minutes by itself, of which five seconds will do.

        In the second in which it ended SLURM would not let it begin.
        """
        time.sleep(5)
        subprocess.run(
            ["scontrol", "update", f"JobId={self.number}", "StartTime=now"],
            env=self.environ, check=False, capture_output=True, timeout=60,
        )  # fmt: skip

    def until_done(self, seconds=420):
        """Waits until the job has ended; the run's results."""
        for _ in range(seconds):
            state = self._run("squeue", "-h", "-t", "all", "-o", "%T", "-j", self.number).strip()
            if state in ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL"):
                break
            if state == "PENDING":
                self.start_now()
            time.sleep(1)
        assert state == "COMPLETED", self.log()[-3000:]
        return json.loads((self.folder / "a run" / "results.json").read_text())


@pytest.fixture(scope="module")
def undisturbed(cluster, tmp_path_factory):
    return Job(cluster, tmp_path_factory.mktemp("undisturbed"), 200).until_done()


def test_a_killed_task_is_queued_again_and_the_run_ends_the_same(cluster, undisturbed, tmp_path):
    job = Job(cluster, tmp_path, 200)
    job.until_step(40)
    job.kill_task(1)
    results = job.until_done()
    log = job.log()
    assert "queued again" in log, log[-3000:]
    assert "0: resumed from step" in log
    assert results["state_sha256"] == undisturbed["state_sha256"]
    assert results["steps"] == 200


def test_the_warning_of_a_time_limit_saves_and_the_run_goes_on(cluster, tmp_path):
    """A limit of three minutes, and a run that lasts longer."""
    job = Job(cluster, tmp_path, 20_000, limit="3", warning="59")
    job.until_step(20)
    for _ in range(210):
        if "saved: queued again" in job.log():
            break
        time.sleep(1)
    log = job.log()
    assert "saved: queued again" in log, log[-3000:]
    assert "SIGUSR1: saving after this step" in log
    assert "stopped by a signal; the state of step" in log
    for _ in range(120):
        if "resumed from step" in job.log():
            break
        job.start_now()
        time.sleep(1)
    log = job.log()
    job._run("scancel", job.number)
    assert "resumed from step" in log, log[-3000:]

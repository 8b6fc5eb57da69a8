"""Training under ``launch``: a death, a warning and another number of processes change nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
STEPS = 120
SETTINGS = [
    "--model.d-model", "16", "--model.decoder-layers", "1", "--model.attention.num-heads", "2",
    "--model.feed-forward.d-ff", "32", "--model.positions.max-length", "32",
    "--training.steps", str(STEPS), "--training.batch-size", "8",
    "--training.sequence-length", "16", "--optimizer.schedule.warmup-steps", "2",
    "--loop.evaluate-every", "60", "--loop.checkpoint-every", "20", "--evaluation.sample", "8",
    "--evaluation.ngram-orders", "1", "--mesh.data", "2",
]  # fmt: skip
pytestmark = pytest.mark.slow


class Launched:
    """``transformer-jax launch`` of the same training, in a folder."""

    def __init__(self, folder, *flags, resume=False):
        rng = np.random.default_rng(0)
        lines = ("".join(rng.choice(list("abcd "), 60)) for _ in range(300))
        (folder / "text.txt").write_text("\n".join(lines))
        command = [
            sys.executable,
            "-m",
            "transformer_jax.cli.main",
            "launch",
            *flags,
            "--all-output",
        ]
        command += ["--", "train", "char-cpu", "--data.text", "text.txt", *SETTINGS]
        command += ["--output", "run"] + ["--resume"] * resume
        environ = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
        self.folder = folder
        self.output = folder / f"output{len(list(folder.glob('output*')))}"
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                command, cwd=folder, stdout=file, stderr=subprocess.STDOUT,
                env=environ | {"PYTHONPATH": str(ROOT)},
            )  # fmt: skip

    def until_step(self, step):
        """Waits until a checkpoint of ``step`` or later is there."""
        for _ in range(3000):
            assert self.process.poll() is None, self.output.read_text()[-3000:]
            done = [path.name for path in (self.folder / "run" / "checkpoints").glob("step_*")]
            if any(name[5:].isdecimal() and int(name[5:]) >= step for name in done):
                return
            time.sleep(0.05)
        pytest.fail("no checkpoint came")

    def child(self, rank):
        """The number of the process ``rank``."""
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                if int(path.read_text().rpartition(")")[2].split()[1]) == self.process.pid:
                    variables = path.with_name("environ").read_bytes().split(b"\0")
                    if f"JAX_PROCESS_ID={rank}".encode() in variables:
                        return int(path.parent.name)
            except (FileNotFoundError, ProcessLookupError):
                continue
        return pytest.fail(f"no process {rank}")

    def end(self):
        """Its exit code and output."""
        try:
            code = self.process.wait(300)
        finally:
            self.process.kill()
        return code, self.output.read_text()

    def results(self):
        return json.loads((self.folder / "run" / "results.json").read_text())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    launched = Launched(tmp_path_factory.mktemp("undisturbed"), "--rehearse", "2")
    code, output = launched.end()
    assert code == 0, output[-3000:]
    return launched.results()


def test_a_killed_process_is_replaced_and_the_run_ends_the_same(undisturbed, tmp_path):
    launched = Launched(tmp_path, "--rehearse", "2", "--restarts", "1", "--grace", "5")
    launched.until_step(20)
    os.kill(launched.child(1), signal.SIGKILL)
    code, output = launched.end()
    assert code == 0, output[-3000:]
    assert "ended with signal SIGKILL" in output
    assert "resumed from step" in output
    assert launched.results()["state_sha256"] == undisturbed["state_sha256"]


def test_a_warning_saves_in_both_and_a_single_process_continues(undisturbed, tmp_path):
    """One of the two gets the signal; the same devices, in one process, end the run."""
    launched = Launched(tmp_path, "--rehearse", "2")
    launched.until_step(20)
    launched.process.send_signal(signal.SIGUSR1)
    code, output = launched.end()
    assert code == 75, output[-3000:]
    assert "stopped by a signal; the state of step" in output
    again = Launched(tmp_path, "--rehearse", "1", "--devices-per-process", "2", resume=True)
    code, output = again.end()
    assert code == 0, output[-3000:]
    assert "resumed from step" in output
    value = lambda results: results["best"]["value"]
    assert value(again.results()) == pytest.approx(value(undisturbed), rel=1e-5)
    assert again.results()["steps"] == STEPS


def test_a_warning_to_one_process_restarts_all_with_the_same_end(undisturbed, tmp_path):
    launched = Launched(tmp_path, "--rehearse", "2")
    launched.until_step(20)
    os.kill(launched.child(1), signal.SIGUSR1)
    code, output = launched.end()
    assert code == 0, output[-3000:]
    assert "asked to be restarted" in output
    assert launched.results()["state_sha256"] == undisturbed["state_sha256"]

"""A kind of training that the package does not have is one file: ``captioning.py``.

Training, resuming, evaluation and ``transformer_jax.load`` come without another line.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import transformer_jax
from tests.recipes import captioning
from transformer_jax.cli.main import main
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.runs.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]
ALONE = ["--distributed.num-local-devices", "1"]
RUN = [
    *("train", "pictures", *ALONE, "--training.steps", "8", "--data.train", "48"),
    *("--loop.evaluate-every", "4", "--loop.checkpoint-every", "4"),
    *("--loop.best-checkpoint-metric", "exact"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("captioning") / "run"
    assert captioning.main([*RUN, "--output", str(path)]) == 0
    return path


def test_a_run_of_a_new_recipe_is_trained_evaluated_and_loaded(run, capfd):
    directory = RunDirectory.open(run)
    assert directory.read_config()["recipe"] == "captioning"
    assert any("exact" in row for row in read_metrics(directory.metrics))
    assert captioning.main(["evaluate", str(run), "--pictures", "4"]) == 0
    assert capfd.readouterr().out.startswith("exact ")
    captions = transformer_jax.load(run)(captioning.Pictures.made_up(2, 5).features)
    assert len(captions) == 2
    assert main(["verify", str(run)]) == 0
    assert main(["translate", str(run), "a"]) == 2  # no command describes pictures


@pytest.mark.slow
def test_a_killed_run_of_a_new_recipe_ends_with_the_same_bits(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    program = [sys.executable, "-m", "tests.recipes.captioning"]
    finish = lambda *words: subprocess.run([*program, *words], cwd=ROOT, check=True, timeout=300)
    finish(*RUN, "--output", str(whole))
    with subprocess.Popen([*program, *RUN, "--output", str(killed)], cwd=ROOT) as process:
        while process.poll() is None and not (killed / "checkpoints/step_00000004").exists():
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    assert not (killed / "results.json").exists()
    finish("resume", str(killed))
    ends = [
        json.loads((path / "results.json").read_text())["state_sha256"] for path in (whole, killed)
    ]
    assert ends[0] == ends[1]

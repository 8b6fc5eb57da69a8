"""Processes that were started in different ways, or do not share a disk, do not train."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# Of the shell of each process: R is its number.
TRAIN = (
    "{python} -m transformer_jax.cli.main train char-cpu --data.text {text} --output {output} "
    "--training.steps 4 --model.d-model 16 --model.decoder-layers 1 --mesh.data 2 "
    "--model.attention.num-heads 2 --training.batch-size 8 --training.sequence-length 16 "
    "--optimizer.schedule.warmup-steps 2 {more}"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "code", "said"),
    [
        ({"more": "--training.seed $R"}, 2, "training.seed is 1 in process 1 on "),
        # The same file name, with other text in it.
        ({"go": "cd $R", "text": "text.txt", "output": "../run"}, 3, "the checksum of the train"),
        ({"output": "$R/run"}, 2, 'output is "1/run" in process 1'),
        # The same path, on a disk of its own.
        ({"go": "cd $R", "text": "../0/text.txt"}, 4, "run: process 0 on "),
    ],
    ids=["settings", "data", "output", "disk"],
)
def test_processes_that_differ_end_with_one_line(tmp_path, changed, code, said):
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / "text.txt").write_text(f"line {rank} of a text\n" * 300)
    words = {"text": "0/text.txt", "output": "run", "more": "", "go": "true"} | changed
    script = "R=$JAX_PROCESS_ID; {go} && exec " + TRAIN
    script = script.format(python=sys.executable, **words)
    done = subprocess.run(
        [sys.executable, "-m", "transformer_jax.cli.main", "launch", "--rehearse", "2",
         "--grace", "20", "--all-output", "--", "bash", "-c", script],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    errors = [line for line in done.stdout.splitlines() if "error: " in line]
    assert done.returncode == code, done.stdout[-3000:]
    assert errors
    assert all(said in line for line in errors), errors
    assert "Traceback" not in done.stdout
    assert "step 4" not in done.stdout

"""From nothing to preferences: every stage of the chain, killed, ends as if it had not been."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from tests.cli.test_examples import example
from tests.experiments.language_runs import ALONE, SHORT, WIDTHS
from transformer_jax.cli.main import main as command

RULE = "def reward(prompt, answer):\n    return -abs(len(answer) - 3)\n"
BASE = ["train", "python-docs", *SHORT, *WIDTHS, "--training.batch-size", "4"]
BASE += ["--training.sequence-length", "32", "--tokenizer.vocab-size", "300"]
BASE += ["--evaluation.sample", "0", "--evaluation.ngram-orders"]


def begun(*given):
    """A command in a process of its own; XLA's settings of tests round some sums otherwise."""
    settings = os.environ | {"JAX_PLATFORMS": "cpu"}
    program = [sys.executable, "-m", "experiments.decoder_only", *map(str, given)]
    return subprocess.Popen(program, env=settings)


def killed(given, run):
    """Runs a command, and kills it once its first checkpoint is there."""
    process, until = begun(*given, "--output", run), time.monotonic() + 300
    while not list(run.glob("checkpoints/step_*/manifest.json")):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    process.kill()
    process.wait()


def stage(given, folder, name):
    """The run of a stage, once as it is and once killed and resumed, which end with one state."""
    whole, parts = folder / name, folder / f"{name}_killed"
    assert begun(*given, "--output", whole).wait(300) == 0
    killed(given, parts)
    assert begun("resume", parts, *ALONE).wait(300) == 0
    one, other = (json.loads((run / "results.json").read_text()) for run in (whole, parts))
    assert one["state_sha256"] == other["state_sha256"], name
    shutil.rmtree(parts)
    return whole


@pytest.mark.slow
def test_the_chain_resumes_exactly_at_every_stage(tmp_path):
    """Rows B38, B40 and B42: pre-train, instruct, collect by a rule, DPO, compare."""
    example("conversations").main(tmp_path)
    (tmp_path / "rule.py").write_text(RULE)
    for name in ("prompts", "test"):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:40]))
    base = stage(BASE, tmp_path, "base")
    start = ["--init-from", base, "--data.train", tmp_path / "chats.jsonl"]
    chat = ["--chat.template", "chatml", "--training.sequence-length", "64"]
    told = stage(["instruct", "sft-cpu", *start, *chat, *SHORT], tmp_path, "told")
    pairs = tmp_path / "pairs.jsonl"
    sampled = ["--rule", tmp_path / "rule.py", "--max-new-tokens", "8"]
    collect = ["prefer", told, tmp_path / "prompts.jsonl", "--output", pairs, *sampled]
    assert command([*map(str, collect)]) == 0
    rows = pairs.read_text().splitlines(keepends=True)
    assert len(rows) > 10
    pairs.write_text("".join(rows[:5]))
    assert command([*map(str, collect)]) == 0
    assert pairs.read_text() == "".join(rows)
    learn = ["align", "dpo", "--init-from", told, "--data.train", pairs, "--lora.rank", "2", *SHORT]
    better = stage(learn, tmp_path, "better")
    versus = ["win-rate", better, told, tmp_path / "test.jsonl", *sampled]
    assert command([*map(str, versus)]) == 0

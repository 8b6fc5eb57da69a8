"""Learning from preferences and rewards under ``launch``: two processes are one, row B40."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import language_run

ROOT = Path(__file__).parents[3]
ROWS = ["--align.max-length", "16", "--training.max-tokens", "128", "--training.num-buckets", "1"]
SAMPLES = ["--align.max-prompt-length", "8", "--align.max-new-tokens", "4", "--align.updates", "1"]
SAMPLES += ["--align.group-size", "2", "--training.batch-size", "2", "--reward.file", "reward.py"]
COMMON = ["--optimizer.learning-rate", "1e-3", "--training.steps", "4", "--mesh.data", "2"]
COMMON += ["--loop.evaluate-every", "2", "--loop.checkpoint-every", "2"]
# A conversation is the text of its messages, each of which ends with the end token.
TEMPLATE = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
pytestmark = pytest.mark.slow


@pytest.fixture
def folder(shared, tmp_path):
    """A start with a chat template, data of each kind, and a reward."""
    base = shared("align_base", lambda run: language_run(run, "characters", "rope", "bos"))
    shutil.copytree(base, tmp_path / "start")
    (tmp_path / "start/chat_template.jinja").write_text(TEMPLATE)
    pairs = [
        {"prompt": prompt, "chosen": "ab", "rejected": "cd", "completion": "ef", "label": i % 2 > 0}
        for i, prompt in enumerate(["ab", "cd", "ad", "bc", "ef", "fa", "fb", "ca", "da", "ea"])
    ]
    chats = [{"messages": [{"role": "user", "content": row["prompt"]}]} for row in pairs]
    for name, rows in (("texts", pairs), ("chats", chats)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "reward.py").write_text("def reward(p, c):\n    return c.count('a') - ord(p[0])\n")
    return tmp_path


def launched(folder, output, flags, method, more):
    """The results of ``align`` in some processes of some devices."""
    command = [sys.executable, "-m", "transformer_jax.cli.main", "launch", "--all-output", *flags]
    command += ["--", "align", method, "--init-from", "start", "--output", output, *COMMON, *more]
    environ = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        command, cwd=folder, env=environ | {"PYTHONPATH": str(ROOT)}, timeout=400,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    return json.loads((folder / output / "results.json").read_text())


@pytest.mark.apart
@pytest.mark.parametrize(
    ("method", "data", "more"),
    [
        ("dpo", "texts", ROWS),
        ("dpo", "texts", [*ROWS, "--align.reference", "frozen", "--lora.rank", "2"]),
        ("kto", "texts", ROWS),
        ("reward", "texts", ROWS),
        ("grpo", "chats", SAMPLES),
        ("ppo", "texts", SAMPLES),
    ],
    ids=["dpo", "dpo_frozen", "kto", "reward", "grpo", "ppo"],
)
def test_two_processes_align_as_one(folder, method, data, more):
    """Also where they go on from a checkpoint: what is kept beside it is read by both."""
    more = [*more, "--data.train", f"{data}.jsonl"]
    devices = ["--rehearse", "1", "--devices-per-process", "2"]
    alone = launched(folder, "one", devices, method, more)
    pair = launched(folder, "two", ["--rehearse", "2"], method, more)
    assert pair["state_sha256"] == alone["state_sha256"]
    assert pair["best"] == alone["best"]
    (folder / "two/results.json").unlink()
    shutil.rmtree(folder / "two/checkpoints/step_00000004")
    again = launched(folder, "two", ["--rehearse", "2"], method, [*more, "--resume"])
    assert again["state_sha256"] == alone["state_sha256"]


def test_two_processes_are_rewarded_by_a_reward_model_as_one(folder):
    data = ["--data.train", "texts.jsonl"]
    launched(folder, "reward", ["--rehearse", "2"], "reward", [*data, *ROWS])
    more = [*data, *SAMPLES[:-2], "--reward.run", "reward"]
    devices = ["--rehearse", "1", "--devices-per-process", "2"]
    alone = launched(folder, "one", devices, "grpo", more)
    pair = launched(folder, "two", ["--rehearse", "2"], "grpo", more)
    assert pair["state_sha256"] == alone["state_sha256"]

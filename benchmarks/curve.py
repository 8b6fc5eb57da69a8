"""The first steps of nanoGPT's character run, here and in nanoGPT, on the same batches.

    python -m benchmarks.curve TEXT --peers PYTHON --steps 100

The learning-rate schedule is for all 5,000 steps. Both read the same rows in the same order, but
with separately drawn parameters and dropout. Writes benchmarks/results/char_curve.json.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import tyro

from benchmarks.program import run_program

__all__ = ["main"]


@dataclasses.dataclass(frozen=True)
class Curve:
    """Train the first steps of the run `char` here and in torch."""

    text: tyro.conf.Positional[Path]
    """A text file, such as tinyshakespeare."""
    peers: Path
    """Python interpreter with torch."""
    steps: int = 100
    """Number of steps."""
    every: int = 25
    """Steps between evaluations on the validation text."""
    output: Path = Path("benchmarks/results/char_curve.json")
    """Output file of the figures."""


def ours(asked: Curve, folder: Path) -> list[dict[str, float]]:
    """Returns the measurements of our run, stopped after the steps."""
    run = folder / "run"
    command = [sys.executable, "-m", "experiments.decoder_only", "train", "char"]
    command += ["--data.text", str(asked.text), "--output", str(run), "--evaluation.sample", "0"]
    command += ["--loop.evaluate-every", str(asked.every), "--loop.checkpoint-every", "0"]
    process = subprocess.Popen(command)
    metrics = run / "metrics.jsonl"
    try:
        while process.poll() is None:
            time.sleep(2)
            found = _read(metrics)
            if any(r["step"] >= asked.steps and "valid_loss" in r for r in found):
                break
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    return [r for r in _read(metrics) if r["step"] <= asked.steps]


def _read(path: Path) -> list[dict[str, float]]:
    if not path.exists():
        return []
    lines = path.read_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def export(asked: Curve, folder: Path) -> Path:
    """Writes the tokens, and the rows of each step, for the peer."""
    from transformer_jax.data.documents import TextData, open_texts
    from transformer_jax.data.language_model_plans import ContiguousPlan
    from transformer_jax.data.token_file import build_tokens
    from transformer_jax.data.tokenizer import load_tokenizer
    from transformer_jax.recipes.registry import named_runs

    training = named_runs("language_model")["char"][1].training
    texts = open_texts(TextData(text=str(asked.text)))
    tokenizer = load_tokenizer(folder / "run" / "tokenizer.json")
    assert texts.valid is not None
    train, valid = (build_tokens(t, tokenizer, ends=False) for t in (texts.train, texts.valid))
    how = {"length": training.sequence_length, "rows": training.batch_size, "seed": training.seed}
    plan = ContiguousPlan(len(train.ids), **how)
    # A block predicts its tokens from the second one.
    begins = np.stack([plan.batch(step).begins[:, 0] - 1 for step in range(asked.steps)])
    path = folder / "tokens.npz"
    np.savez(path, train=train.ids, valid=valid.ids, begins=begins)
    return path


def main() -> int:
    """Runs both and writes the figures."""
    from benchmarks.harness import environment

    asked = tyro.cli(Curve)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        here = ours(asked, folder)
        tokens = export(asked, folder)
        command = [str(asked.peers), "-m", "benchmarks.curve_peer", str(tokens)]
        there = folder / "peer.json"
        settings = os.environ | {"OMP_NUM_THREADS": str(os.cpu_count())}
        subprocess.run([*command, str(asked.every), str(there)], check=True, env=settings)
        peer = json.loads(there.read_text())
    result = {
        "what": "train char: 6 layers, 6 heads, 384, context 256, 64 rows, dropout .2; the first "
        f"{asked.steps} of 5,000 steps",
        "command": "python -m benchmarks.curve tinyshakespeare/input.txt "
        f"--peers PYTHON --steps {asked.steps} --every {asked.every}",
        "seed": 1,
        **environment(),
        "ours": {
            "loss": [[r["step"], r["loss"]] for r in here if "loss" in r],
            "valid_loss": [[r["step"], r["valid_loss"]] for r in here if "valid_loss" in r],
        },
        "nanogpt_torch": peer,
    }
    asked.output.write_text(json.dumps(result, indent=1) + "\n")
    for side in ("ours", "nanogpt_torch"):
        print(side, result[side]["valid_loss"])
    return 0


if __name__ == "__main__":
    run_program(main)

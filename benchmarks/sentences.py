"""Sentence encoders on STS-B, here and in sentence-transformers: correlations and step times.

    python -m benchmarks.sentences FOLDER TRAIN DEV TEST --peers PYTHON --seeds 1 2 3

Both start from the folder, such as all-MiniLM-L6-v2, and train one epoch with the same settings on
CSV files with the columns sentence1, sentence2 and score, in separately drawn orders. Steps are
measured in turns, in one process each, on batches that are tokenized before. Writes
benchmarks/results/sentence_encoder.json.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import tyro

from benchmarks.program import run_program

__all__ = ["main"]

SETTINGS = """--task.loss cosine --task.label-range 0 5 --training.batch-size 32 --training.epochs 1
--optimizer.learning-rate 2e-5 --optimizer.schedule.warmup-steps 0.1"""
COUNT = 24  # batches of the measured steps


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Train a sentence encoder here and in sentence-transformers."""

    folder: tyro.conf.Positional[Path]
    """Folder of the sentence encoder to start from."""
    train: tyro.conf.Positional[Path]
    """CSV file of pairs with scores from 0 to 5."""
    dev: tyro.conf.Positional[Path]
    """Another one, to evaluate on."""
    test: tyro.conf.Positional[Path]
    """Another one, to evaluate on."""
    peers: Path
    """Python interpreter with sentence-transformers."""
    seeds: tuple[int, ...] = (1, 2, 3)
    """Seeds of the runs; none measures steps alone."""
    rounds: int = 7
    """Rounds of measured steps."""
    output: Path = Path("benchmarks/results/sentence_encoder.json")
    """Output file of the figures."""


def ours(asked: Sentences, seed: int) -> dict[str, Any]:
    """Returns the correlations of our run of a seed."""
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        command = [sys.executable, "-m", "transformer_jax.cli.main", "finetune", "similarity"]
        command += ["--init-from", str(asked.folder), "--output", str(run), *SETTINGS.split()]
        for part in ("train", "test"):
            command += [f"--data.{part}", str(getattr(asked, part))]
        command += ["--data.valid", str(asked.dev), "--training.seed", str(seed)]
        subprocess.run(command, check=True, stdout=sys.stderr)
        scores = json.loads((run / "results.json").read_text())["scores"]
    names = {"dev": "valid", "test": "test"}
    rounded = lambda found: {name: round(value, 4) for name, value in found.items()}
    before = {f"{name}, before": f"{part}, before training" for name, part in names.items()}
    return {name: rounded(scores[part]) for name, part in (names | before).items()}


def theirs(asked: Sentences, seed: int) -> dict[str, Any]:
    """Returns the correlations of the peer's run of a seed."""
    files = map(str, (asked.folder, asked.train, asked.dev, asked.test))
    command = [str(asked.peers), "-m", "benchmarks.sentences_peer", *files, str(seed)]
    settings = os.environ | {"OMP_NUM_THREADS": str(os.cpu_count())}
    out = subprocess.run(command, check=True, env=settings, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def steps(asked: Sentences) -> list[dict[str, Any]]:
    """Returns the times of steps, measured in turns, in processor seconds."""
    from benchmarks.harness import Bench

    bench = Bench(title="steps of 32 pairs")
    how = {"folder": str(asked.folder), "train": str(asked.train), "count": COUNT}
    bench.add("transformer_jax", "steps", how, module="benchmarks.ours_sentences", times=3)
    peer = {"python": str(asked.peers), "module": "benchmarks.sentences_peer"}
    bench.add("sentence-transformers", "steps", how, times=3, **peer)  # type: ignore[arg-type]
    rows = bench.measure(asked.rounds, 32, "sentence-transformers")
    bench.close()
    return [dataclasses.asdict(row) for row in rows]


def main() -> int:
    """Runs both and writes the figures."""
    from benchmarks.harness import environment

    asked = tyro.cli(Sentences)
    result: dict[str, Any] = {
        "what": "all-MiniLM-L6-v2, 22.7 M parameters, one epoch of STS-B's training pairs: squared "
        "error of cosines, batches of 32 pairs, AdamW at 2e-5, linear warmup and decay",
        "command": "python -m benchmarks.sentences FOLDER TRAIN DEV TEST --peers PYTHON",
        **environment(),
        "peer": subprocess.run(
            [str(asked.peers), "-c", "import sentence_transformers as s, torch, transformers as t; "
             "print('sentence-transformers', s.__version__, 'torch', torch.__version__, "
             "'transformers', t.__version__)"],
            check=True, capture_output=True, text=True,
        ).stdout.strip(),
        "runs": {},
    }  # fmt: skip

    def write() -> None:
        asked.output.write_text(json.dumps(result, indent=1) + "\n")

    for seed in asked.seeds:
        for name, run in (("transformer_jax", ours), ("sentence-transformers", theirs)):
            result["runs"].setdefault(name, {})[str(seed)] = run(asked, seed)
            write()
    result["steps"] = steps(asked)
    write()
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    run_program(main)

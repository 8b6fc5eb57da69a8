"""Processor time of short commands, from the start of Python to its end, against another checkout.

    python -m benchmarks starts CHECKOUT

Runs are those of version 0.1.0 in ``tests/stored``, so small that nearly all time is the start:
imports, reading a run, tracing, and the end of Python. Each command runs in both checkouts in turn,
with their programs cached on disk ("warm"), and once without ("cold"); the first round, which fills
the caches, is the cold one.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import TREE, environment, tell
from benchmarks.lines import timed

__all__ = ["main"]

_LOAD = "import transformer_jax as tj; translate = tj.load('runs/translation-finished')"
_COMMAND = ("-m", "transformer_jax.cli.main")
_CASES: dict[str, tuple[str, ...]] = {
    "translate": (*_COMMAND, "translate", "runs/translation-finished", "--input", "line.txt"),
    "generate": (*_COMMAND, "generate", "runs/packed", "the red dog", "--max-new-tokens", "8"),
    "embed": (*_COMMAND, "embed", "runs/pretraining", "line.txt", "--output", "vectors.npz"),
    "classify": (*_COMMAND, "classify", "runs/classification", "the red dog sees a cat."),
    "score": (*_COMMAND, "score", "runs/packed", "line.txt"),
    "tj.load": ("-c", _LOAD),
    "tj.load and a call": ("-c", f"{_LOAD}; translate('l l l')"),
    "imports of JAX and Flax": ("-c", "import jax; from flax import nnx"),
}


def main(arguments: Sequence[str]) -> None:
    """Runs ``python -m benchmarks starts``."""
    parser = argparse.ArgumentParser("python -m benchmarks starts", description=__doc__)
    parser.add_argument("checkout", type=Path, help="checkout to compare with")
    parser.add_argument("--rounds", type=int, default=7, help="number of timed rounds")
    parser.add_argument("--cases", nargs="+", choices=_CASES, default=list(_CASES))
    output = TREE / "benchmarks" / "results" / "starts_cpu.json"
    parser.add_argument("--output", type=Path, default=output, help="file of the figures")
    asked = parser.parse_args(arguments)
    trees = {"before": asked.checkout.resolve(), "now": TREE}
    times: dict[str, dict[str, list[float]]] = {
        case: {name: [] for name in trees} for case in asked.cases
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with tarfile.open(TREE / "tests" / "stored" / "runs.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        (folder / "line.txt").write_text("l l l\n", "utf-8")
        for round_ in range(asked.rounds + 1):
            for case in asked.cases:
                for tree, root in trees.items():
                    how = {"cwd": folder, "env": _environment(root, folder / f"cache-{tree}")}
                    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
                    _, cpu = timed([sys.executable, *_CASES[case]], **how, **quiet)
                    times[case][tree].append(cpu)
            tell(f"round {round_} of {asked.rounds}")
    rows = {case: _row(found["before"], found["now"]) for case, found in times.items()}
    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"],
        cwd=trees["before"], capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    result = {
        "what": __doc__,
        "command": f"python -m benchmarks starts CHECKOUT --rounds {asked.rounds}",
        "before": commit,
        **environment(),
        "rows": rows,
    }
    asked.output.write_text(json.dumps(result, indent=1) + "\n")
    for case, row in rows.items():
        before, now = row["warm"]["before"][1], row["warm"]["now"][1]
        print(f"{case:24} {before:.2f} -> {now:.2f} s, {row['warm']['ratio'][1]:.2f}")


def _environment(root: Path, cache: Path) -> dict[str, str]:
    settings = {"PYTHONPATH": str(root), "TRANSFORMER_JAX_CACHE": str(cache)}
    return os.environ | settings | {"JAX_PLATFORMS": "cpu"}


def _row(before: list[float], now: list[float]) -> dict[str, Any]:
    """Returns the least, the median and the most of warm times and of their ratios in a round."""
    ratios = [mine / other for mine, other in zip(now[1:], before[1:], strict=True)]
    middle = lambda found: [round(f(found), 3) for f in (min, statistics.median, max)]
    warm = {"before": middle(before[1:]), "now": middle(now[1:]), "ratio": middle(ratios)}
    return {"warm": warm, "cold": {"before": round(before[0], 2), "now": round(now[0], 2)}}

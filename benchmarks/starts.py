"""Processor and wall time of commands that mostly start, in turns with another checkout.

    python -m benchmarks starts CHECKOUT
    python -m benchmarks starts CHECKOUT --translator RUN FILE --pairs SOURCE TARGET --output OTHER

Runs are those of version 0.1.0 in ``tests/stored``, so small that nearly all time is the start:
imports, reading a run, tracing, and the end of Python. With ``--translator``, RUN translates the
first line of FILE, and FILE, instead; with ``--pairs``, ``train small`` runs on files of sentence
pairs to the line of its first step. Each command runs in both checkouts in turn, with their
programs cached on disk ("warm"), and once without ("cold"); the first round, which fills the
caches, is the cold one. Times are the least, the median and the most.
"""

import argparse
import dataclasses
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import TREE, environment, tell

__all__ = ["main", "to_line"]

_LOAD = "import transformer_jax as tj; translate = tj.load('runs/translation-finished')"
_MAIN = ("-m", "transformer_jax.cli.main")


@dataclasses.dataclass(frozen=True)
class _Case:
    """A command, the line that ends its measurement, and whether it never finds programs."""

    words: tuple[str, ...]
    until: str | None = None
    uncached: bool = False


_STORED = {
    "translate": ("translate", "runs/translation-finished", "--input", "line.txt"),
    "generate": ("generate", "runs/packed", "the red dog", "--max-new-tokens", "8"),
    "embed": ("embed", "runs/pretraining", "line.txt", "--output", "vectors.npz"),
    "classify": ("classify", "runs/classification", "the red dog sees a cat."),
    "score": ("score", "runs/packed", "line.txt"),
}
_CASES = {
    **{name: _Case((*_MAIN, *words)) for name, words in _STORED.items()},
    "tj.load": _Case(("-c", _LOAD)),
    "tj.load and a call": _Case(("-c", f"{_LOAD}; translate('l l l')")),
    "imports of JAX and Flax": _Case(("-c", "import jax; from flax import nnx")),
}


def to_line(command: Sequence[str], begin: str | None, **options: Any) -> tuple[float, float]:
    """Runs a command until it prints a line, and returns its processor and wall seconds.

    Args:
        command: The command.
        begin: The beginning of the line on standard error, after which the command is killed; None
            waits for its end.
        **options: Arguments of ``subprocess.Popen``.

    Raises:
        RuntimeError: It failed, or ended without this line.
    """
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        how = options | {"stderr": subprocess.PIPE if begin else said, "text": True}
        with subprocess.Popen(command, **how) as process:
            lines = process.stderr or ()
            found = begin is not None and any(line.startswith(begin) for line in lines)
            wall = time.perf_counter() - began if found else None
            if found:
                process.kill()
        if not found and (begin or process.returncode):
            said.seek(0)
            raise RuntimeError(f"{' '.join(command)}: {said.read()[-500:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, wall or time.perf_counter() - began


def main(arguments: Sequence[str]) -> None:
    """Runs ``python -m benchmarks starts``."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks starts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkout", type=Path, help="checkout to compare with")
    parser.add_argument("--rounds", type=int, default=7, help="number of timed rounds")
    parser.add_argument("--cases", nargs="+", choices=_CASES, help="commands with stored runs")
    parser.add_argument("--translator", nargs=2, type=Path, metavar=("RUN", "FILE"))
    parser.add_argument("--pairs", nargs=2, type=Path, metavar=("SOURCE", "TARGET"))
    output = TREE / "benchmarks" / "results" / "starts_cpu.json"
    parser.add_argument("--output", type=Path, default=output, help="file of the figures")
    asked = parser.parse_args(arguments)
    trees = {"before": asked.checkout.resolve(), "now": TREE}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        cases = _cases(asked, folder)
        times: dict[str, dict[str, list[tuple[float, float]]]]
        times = {name: {tree: [] for tree in trees} for name in cases}
        for round_ in range(asked.rounds + 1):
            for name, case in cases.items():
                for tree, root in trees.items():
                    cache = folder / f"cache-{tree}{'-empty' * case.uncached}"
                    shutil.rmtree(folder / f"cache-{tree}-empty", ignore_errors=True)
                    more = {"PYTHONPATH": str(root), "TRANSFORMER_JAX_CACHE": str(cache)}
                    spent = to_line(
                        [sys.executable, *case.words], case.until,
                        cwd=folder, env=os.environ | more | {"JAX_PLATFORMS": "cpu"},
                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    )  # fmt: skip
                    times[name][tree].append(spent)
            tell(f"round {round_} of {asked.rounds}")
    rows = {name: _row(found["before"], found["now"]) for name, found in times.items()}
    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"],
        cwd=trees["before"], capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    given = "".join(f" --{name}" for name in ("translator", "pairs") if getattr(asked, name))
    result = {
        "what": __doc__,
        "command": f"python -m benchmarks starts CHECKOUT --rounds {asked.rounds}{given}",
        "before": commit,
        **environment(),
        "rows": rows,
    }
    asked.output.write_text(json.dumps(result, indent=1) + "\n")
    for name, row in rows.items():
        before, now = row["warm"]["before"][1], row["warm"]["now"][1]
        print(f"{name:24} {before:.2f} -> {now:.2f} s, {row['warm']['ratio'][1]:.2f}")


def _cases(asked: argparse.Namespace, folder: Path) -> dict[str, _Case]:
    """Returns the commands to time, whose files are in a folder then."""
    cases: dict[str, _Case] = {}
    if asked.translator:
        run, file = (str(path.resolve()) for path in asked.translator)
        lines = Path(file).read_text("utf-8").splitlines()
        (folder / "one.txt").write_text(f"{lines[0]}\n", "utf-8")
        translate = lambda text: _Case((*_MAIN, "translate", run, "--input", text))
        cases["translate, one line"] = translate("one.txt")
        cases[f"translate, {len(lines):,} lines"] = translate(file)
    if asked.pairs:
        source, target = (str(path.resolve()) for path in asked.pairs)
        files = ("--data.source", source, "--data.target", target)
        train = (*_MAIN, "train", "small", *files, "--output", "run", "--overwrite")
        cases["train, first step"] = _Case(train, "step ")
        cases["train, first step, empty cache"] = _Case(train, "step ", uncached=True)
    if asked.cases or not cases:
        with tarfile.open(TREE / "tests" / "stored" / "runs.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        (folder / "line.txt").write_text("l l l\n", "utf-8")
        cases |= {case: _CASES[case] for case in asked.cases or _CASES}
    return cases


def _row(before: list[tuple[float, float]], now: list[tuple[float, float]]) -> dict[str, Any]:
    """Returns what a case took: warm, processor and wall seconds; cold, processor seconds."""
    (first, *before), (start, *now) = before, now

    def compared(unit: int) -> dict[str, list[float]]:
        times = {"before": [one[unit] for one in before], "now": [one[unit] for one in now]}
        ratios = [mine / other for other, mine in zip(*times.values(), strict=True)]
        middle = lambda some: [round(of(some), 3) for of in (min, statistics.median, max)]
        return {name: middle(some) for name, some in (times | {"ratio": ratios}).items()}

    cold = {"before": round(first[0], 2), "now": round(start[0], 2)}
    return {"warm": compared(0), "wall": compared(1), "cold": cold}

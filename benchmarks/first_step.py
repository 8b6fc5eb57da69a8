"""Processor time of commands that mostly start, in interleaved pairs with another checkout.

    python -m benchmarks.first_step RUN FILE --base CHECKOUT --source FILE --target FILE

`translate` with RUN translates the first line of FILE, and FILE, with every program cached on disk;
`train small` on the files of sentence pairs runs to the line of its first step, with an empty cache
and with every program cached. In each round, both checkouts run each command one after the other,
in the same environment of packages. A ratio is the median over the rounds.
"""

import dataclasses
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

import tyro

from benchmarks.program import run_program

__all__ = ["main", "to_line"]

_ROOT = Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class FirstStep:
    """Time starts of commands against those of another checkout."""

    run: tyro.conf.Positional[Path]
    """Run directory of a translator."""
    file: tyro.conf.Positional[Path]
    """File of sentences, one per line."""
    base: Path
    """Checkout to compare with."""
    source: Path
    """Sentences to train on, one per line."""
    target: Path
    """Their translations."""
    rounds: int = 7
    """Number of timed pairs."""
    output: Path = Path("benchmarks/results/first_step_pairs.json")
    """Output file of the figures."""


def to_line(command: list[str], begin: str | None, **options: Any) -> dict[str, float]:
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
            found = begin is not None and any(line.startswith(begin) for line in _lines(process))
            wall = time.perf_counter() - began if found else None
            if found:
                process.kill()
        if not found and (begin or process.returncode):
            said.seek(0)
            raise RuntimeError(f"{' '.join(command)}: {said.read()[-500:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_s": cpu, "wall_s": wall or time.perf_counter() - began}


def _lines(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stderr is not None
    return process.stderr


def _spread(numbers: list[float]) -> list[float]:
    """Returns the median, the smallest and the largest number."""
    return [round(n, 3) for n in (statistics.median(numbers), min(numbers), max(numbers))]


def _compared(pairs: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for unit in ("cpu_s", "wall_s"):
        for which in ("base", "ours"):
            row.setdefault(which, {})[unit] = _spread([pair[which][unit] for pair in pairs])
        row[f"ratio_{unit[:-2]}"] = _spread(
            [pair["ours"][unit] / pair["base"][unit] for pair in pairs]
        )
    return row


def main() -> int:
    """Times all pairs and writes medians with their ranges, each as soon as it is known."""
    from benchmarks.harness import environment

    asked = tyro.cli(FirstStep)
    roots = {"base": asked.base.resolve(), "ours": _ROOT}
    describe = ["git", "-C", str(roots["base"]), "describe", "--always"]
    result: dict[str, Any] = {
        "what": __doc__,
        "base": subprocess.run(describe, capture_output=True, text=True).stdout.strip(),
        "rounds": asked.rounds,
        "lines": len(asked.file.read_text("utf-8").splitlines()),
        **environment(),
        "commands": {},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one = folder / "one.txt"
        one.write_text(asked.file.read_text("utf-8").split("\n")[0] + "\n", "utf-8")
        translate = ["translate", str(asked.run.resolve())]
        pairs = ["--data.source", str(asked.source.resolve()), "--data.target"]
        train = ["train", "small", *pairs, str(asked.target.resolve())]
        train += ["--output", str(folder / "run"), "--overwrite"]
        cases: dict[str, tuple[list[str], Path | None, bool]] = {
            "translate, one line, cached": (translate, one, True),
            "translate, the file, cached": (translate, asked.file, True),
            "train, first step, cached": (train, None, True),
            "train, first step, empty cache": (train, None, False),
        }

        def once(
            which: str, words: list[str], given: Path | None, cached: bool
        ) -> dict[str, float]:
            cache = folder / f"cache_{which}"
            if not cached:
                shutil.rmtree(cache, ignore_errors=True)
            more = {"PYTHONPATH": str(roots[which]), "TRANSFORMER_JAX_CACHE": str(cache)}
            with open(given or os.devnull, "rb") as file:
                return to_line(
                    [sys.executable, "-m", "transformer_jax.cli.main", *words],
                    "step " if words[0] == "train" else None,
                    stdin=file, stdout=subprocess.DEVNULL, cwd=folder,
                    env=os.environ | more | {"JAX_PLATFORMS": "cpu"},
                )  # fmt: skip

        for case, how in cases.items():
            if how[2]:  # fill the cache
                for which in roots:
                    once(which, *how)
            timed = [{which: once(which, *how) for which in roots} for _ in range(asked.rounds)]
            result["commands"][case] = _compared(timed)
            print(case, json.dumps(result["commands"][case]), flush=True)
            asked.output.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    run_program(main)

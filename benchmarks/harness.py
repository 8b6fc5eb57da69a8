"""The controller: starts workers, runs their cases in turn, round after round, and compares.

Every worker is pinned to as many cores as it has threads. With one thread the measure is the
process's CPU time, which other programs on the machine hardly disturb; with more it is wall time.
Cases take turns within a round, forwards and backwards in alternate rounds, and ratios are formed
within rounds, so drifts of the machine cancel.
"""

import dataclasses
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["Bench", "Row", "environment", "table"]

TREE = Path(__file__).resolve().parents[1]  # this checkout

# Of the instruction sets of a processor those that decide how fast matrices are multiplied.
_INSTRUCTIONS = (
    "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16",
    "asimd", "sve",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Row:
    """What one case took: medians over rounds, and the speed relative to the base case."""

    name: str
    ms: float
    low_ms: float
    wall_ms: float
    ratio: float  # how many times as fast as the base; the median over rounds
    quartiles: tuple[float, float]
    units_per_s: float | None
    facts: dict[str, Any]


class Worker:
    """A process that sets up cases and runs them when asked."""

    def __init__(
        self, python: str, module: str, threads: int, variables: dict[str, str], tree: Path
    ):
        env = os.environ | {
            "PYTHONPATH": str(tree),
            "JAX_PLATFORMS": "cpu",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": str(threads),
        }
        cores = sorted(os.sched_getaffinity(0))[:threads]
        command = ["taskset", "-c", ",".join(map(str, cores)), python, "-m", module]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env | variables,
            cwd=tree,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """The worker's answer; RuntimeError if it cannot give one."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("@"):
                answer = json.loads(line[1:])
                if "error" in answer:
                    raise RuntimeError(f"{answer['error']}\n{answer['trace']}")
                return answer
        raise RuntimeError(f"the worker ended with code {self.process.wait()}")

    def close(self) -> None:
        """Asks the process to end, and ends it if it does not."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write('{"do": "exit"}\n')
            self.process.stdin.close()
            self.process.wait(20)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
        finally:
            self.process.stdout.close()


class Bench:
    """Cases of any number of workers, measured in turn."""

    def __init__(self, threads: int = 1):
        self.threads = threads
        self.workers: dict[tuple, Worker] = {}
        self.cases: list[tuple[str, Worker, str, dict, int]] = []

    def add(
        self,
        name: str,
        case: str,
        arguments: dict[str, Any],
        *,
        python: str = sys.executable,
        module: str = "benchmarks.ours",
        times: int = 1,
        variables: dict[str, str] | None = None,
        tree: Path = TREE,
    ) -> dict[str, Any] | None:
        """Set a case up in its worker; a case that fails is left out with a note.

        Args:
            name: Row of the table.
            case: Name of the case in ``module``.
            arguments: What the case is set up with; paths are absolute.
            python: Interpreter of the worker.
            module: Module of the worker.
            times: Repetitions within a measurement.
            variables: Environment variables of the worker.
            tree: Checkout that the worker imports from.
        """
        at = (python, module, tuple(sorted((variables or {}).items())), tree)
        try:
            if at not in self.workers:
                self.workers[at] = Worker(python, module, self.threads, variables or {}, tree)
            worker, token = self.workers[at], str(len(self.cases))
            facts = worker.ask(do="setup", id=token, case=case, arguments=arguments)
        except (RuntimeError, OSError) as error:
            print(f"left out: {name}: {error}", file=sys.stderr)
            if at in self.workers and self.workers[at].process.poll() is not None:
                del self.workers[at]
            return None
        self.cases.append((name, worker, token, facts, times))
        return facts

    def measure(self, rounds: int, units: int | None, base: str) -> list[Row]:
        """Runs all cases ``rounds`` times, after one round that is not counted.

        Args:
            rounds: That count.
            units: Of work in a run; None where each run returns how many there were in it, and
                times are then of 1,000 of them.
            base: The case that speeds are relative to.
        """
        samples: dict[str, list[dict]] = {name: [] for name, *_ in self.cases}
        for turn in range(rounds + 1):
            for name, worker, token, _, times in self.cases[:: 1 if turn % 2 else -1]:
                sample = worker.ask(do="run", id=token, times=times)
                if turn:
                    done = times if units is not None else sample["result"] / 1000
                    samples[name].append(
                        {k: sample[k] / done for k in ("wall", "cpu")} | {"r": sample["result"]}
                    )
        if base not in samples:
            base = next(iter(samples))
        key = "cpu" if self.threads == 1 else "wall"
        return [
            _row(name, samples[name], samples[base], key, 1000 if units is None else units, facts)
            for name, _, _, facts, _ in self.cases
        ]

    def close(self) -> None:
        """Ends all workers."""
        for worker in self.workers.values():
            worker.close()


def _row(name, samples, base, key, units, facts) -> Row:
    mine = [s[key] for s in samples]
    ratios = sorted(b[key] / s[key] for s, b in zip(samples, base, strict=True))
    median = statistics.median(mine)
    quarter = len(ratios) // 4
    return Row(
        name,
        round(median * 1e3, 3),
        round(min(mine) * 1e3, 3),
        round(statistics.median(s["wall"] for s in samples) * 1e3, 3),
        round(statistics.median(ratios), 3),
        (round(ratios[quarter], 3), round(ratios[-1 - quarter], 3)),
        round(units / median, 1) if units else None,
        facts,
    )


def _processor() -> dict[str, str]:
    """What Linux says of the first processor; nothing elsewhere."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().split("\n\n")[0].splitlines() if file.exists() else []
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def environment(packages: tuple[str, ...] = ("jax", "jaxlib", "flax", "optax")) -> dict[str, Any]:
    """The machine, the versions and the commit that figures were measured with."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
    ).stdout.strip()
    said = _processor()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit,
        "cpu": said.get("model name", platform.processor()),
        "instructions": [
            name
            for name in _INSTRUCTIONS
            if name in said.get("flags", said.get("Features", "")).split()
        ],
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }


def table(title: str, rows: list[Row], unit: str) -> str:
    """The rows as text, fastest named by its ratio to the base."""
    width = max(len(row.name) for row in rows)
    lines = [
        title,
        f"{'case':{width}}  {'ms':>9}  {'ratio':>6}  {'quartiles':>13}  {unit + '/s':>11}",
    ]
    for row in rows:
        low, high = row.quartiles
        lines.append(
            f"{row.name:{width}}  {row.ms:9.2f}  {row.ratio:6.2f}  {low:5.2f} .. {high:4.2f}  "
            f"{row.units_per_s or 0:11,.0f}"
        )
    return "\n".join(lines)

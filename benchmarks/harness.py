"""The controller: starts workers, runs their cases in turns, round by round, and compares them.

On a CPU, every worker is pinned to as many cores as it has threads. With one thread, CPU time of
the process is measured, which other programs on the machine hardly affect; with more threads, and
on a GPU, wall time. Cases take turns within a round, in alternating order, and ratios are computed
within rounds, so drifts of the machine cancel.
"""

import contextlib
import dataclasses
import importlib.metadata
import itertools
import json
import os
import platform
import queue
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

__all__ = [
    "Bench", "Case", "Limits", "Row", "Worker", "environment", "kill_workers", "table", "tell",
]  # fmt: skip

_LEAST = 30.0  # seconds minimum time for an answer, regardless of the time of its table

TREE = Path(__file__).resolve().parents[1]  # this checkout

# Environment of workers on a device; on a GPU, several of them share its memory.
_DEVICE = {
    "cpu": {"JAX_PLATFORMS": "cpu", "BENCHMARK_DEVICE": "cpu"},
    "gpu": {
        "JAX_PLATFORMS": "cuda,cpu",
        "BENCHMARK_DEVICE": "cuda",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    },
}

# Instruction sets of a processor that determine the speed of matrix products.
_INSTRUCTIONS = (
    "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16",
    "asimd", "sve",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Row:
    """The figures of one case: medians over rounds, and the speed relative to the base case."""

    name: str
    ms: float
    low_ms: float
    wall_ms: float
    ratio: float  # speed relative to the base; the median over rounds
    quartiles: tuple[float, float]
    units_per_s: float | None
    facts: dict[str, Any]
    rounds: int = 0  # measured rounds
    process_ms: tuple[float, ...] = ()  # the median of each process that ran the case


class Worker:
    """A process that sets up cases and runs them when asked."""

    def __init__(
        self,
        python: str,
        module: str,
        threads: int,
        tree: Path,
        device: str = "cpu",
        variables: Mapping[str, str] = MappingProxyType({}),  # further environment
    ):
        paths = [str(tree), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = os.environ | _DEVICE[device] | {
            "PYTHONPATH": os.pathsep.join(paths),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": str(threads),
        } | dict(variables)  # fmt: skip
        command = [python, "-m", module]
        if device == "cpu":
            cores = sorted(os.sched_getaffinity(0))[:threads]
            command = ["taskset", "-c", ",".join(map(str, cores)), *command]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
            cwd=tree,
            start_new_session=True,  # so that its children end with it
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        _workers.append(self)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                if line.startswith("@"):
                    self._lines.put(line[1:])
        self._lines.put(None)

    def ask(self, within: float | None = None, **request: Any) -> dict[str, Any]:
        """Returns the worker's answer.

        Args:
            within: Timeout in seconds; None waits.
            request: The request.

        Raises:
            RuntimeError: The case failed, the process ended, or the timeout passed; then it is
                killed.
        """
        assert self.process.stdin is not None
        if not self.alive:  # another case ended it
            raise RuntimeError(f"the worker ended with code {self.process.wait()}")
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self._lines.get(timeout=within)
        except queue.Empty:
            self.kill()
            raise RuntimeError(f"no answer within {within:.0f} s (--patience)") from None
        except OSError:  # it ended before the request
            line = None
        if line is None:
            raise RuntimeError(f"the worker ended with code {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{answer['error']}\n{answer['trace']}")
        return answer

    @property
    def alive(self) -> bool:
        """Returns whether the process runs."""
        return self.process.poll() is None

    def kill(self) -> None:
        """Kills the process and its children."""
        if self.alive:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._forget()

    def close(self) -> None:
        """Asks the process to end, and ends it if it does not."""
        assert self.process.stdin is not None
        try:
            if self.alive:
                self.process.stdin.write('{"do": "exit"}\n')
                self.process.stdin.close()
                self.process.wait(20)
        except (OSError, subprocess.TimeoutExpired):
            self.kill()
        self._forget()

    def _forget(self) -> None:
        """Closes the pipes of an ended process."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self._listener.join(5)
        with contextlib.suppress(ValueError):
            _workers.remove(self)


_workers: list[Worker] = []  # those that run
_tokens = itertools.count()  # names of cases in workers


def kill_workers() -> None:
    """Kills all workers, which would otherwise finish what they compile and disturb others."""
    while _workers:
        _workers[-1].kill()


@dataclasses.dataclass(eq=False)
class Case:
    """A case that a worker has set up; cases of one name are the same program in processes."""

    name: str
    worker: Worker
    token: str  # name in the worker
    facts: dict[str, Any]
    times: int
    shared: bool = False  # whether the worker outlives the bench


@dataclasses.dataclass(frozen=True)
class Limits:
    """Time limits in seconds."""

    patience: float | None = None  # for the answer to one request; slower cases are skipped
    table: float | None = None  # after which no further round begins, and patience is short

    def within(self, spent: float) -> float | None:
        """Returns the time limit of the next answer, given the time that a table has taken.

        Example:
            >>> [Limits(60.0, 120.0).within(spent) for spent in (0.0, 80.0, 500.0)]
            [60.0, 40.0, 30.0]
        """
        if self.patience is None or self.table is None:
            return self.patience
        return min(self.patience, max(_LEAST, self.table - spent))


class Bench:
    """Cases in separate processes, measured in turns, with progress on stderr.

    Args:
        threads: Threads of each worker; on a CPU, 1 measures CPU time.
        title: Title for progress.
        limits: Time limits.
        device: Device of the workers.
        record: Called with each sample and each case that is left out, as soon as it is known.
        processes: Processes that run each case, except in shared workers.

    Attributes:
        cases: The cases that are set up.
    """

    def __init__(
        self,
        threads: int = 1,
        title: str = "",
        limits: Limits = Limits(),
        device: Literal["cpu", "gpu"] = "cpu",
        record: Callable[..., object] = lambda **_: None,
        processes: int = 1,
    ):
        self.processes = processes
        self.threads, self.limits, self.device = threads, limits, device
        self.cases: list[Case] = []
        self._record = record
        self._began = time.monotonic()
        if title:
            tell(f"{title}:")

    def add(
        self,
        name: str,
        case: str,
        arguments: dict[str, Any],
        *,
        python: str = sys.executable,
        module: str = "benchmarks.ours",
        times: int = 1,
        tree: Path = TREE,
        worker: Worker | None = None,
    ) -> dict[str, Any] | None:
        """Sets up a case in its worker; a case that fails is skipped with a note.

        A case that is added again, in another worker, is the same row of the table.

        Args:
            name: Row of the table.
            case: Name of the case in ``module``.
            arguments: Arguments of the case, with absolute paths.
            python: Interpreter of the worker.
            module: Module of the worker.
            times: Repetitions within a measurement.
            tree: Checkout that the worker imports from.
            worker: A running worker that other cases use too; None starts one for this case.

        Returns:
            The facts from the worker; None if the case is skipped.
        """
        found = None
        for _ in range(self.processes if worker is None else 1):
            facts = self._set_up(name, case, arguments, python, module, times, tree, worker)
            found = found or facts
        return found

    def _set_up(
        self,
        name: str,
        case: str,
        arguments: dict[str, Any],
        python: str,
        module: str,
        times: int,
        tree: Path,
        worker: Worker | None,
    ) -> dict[str, Any] | None:
        tell(f"  setting up {name}")
        shared = worker is not None
        try:
            worker = worker or Worker(python, module, self.threads, tree, self.device)
        except OSError as error:
            self.leave_out(name, error)
            return None
        token = str(next(_tokens))
        try:
            within = self.limits.within(self._spent())
            facts = worker.ask(within, do="setup", id=token, case=case, arguments=arguments)
        except RuntimeError as error:
            if not shared:
                worker.kill()
            self.leave_out(name, error)
            return None
        self.cases.append(Case(name, worker, token, facts, times, shared))
        return facts

    def profile(self, name: str) -> dict[str, Any] | None:
        """Returns the kernels of one measurement of a case, in its first process, if it has any."""
        case = next((case for case in self.cases if case.name == name), None)
        if case is None:
            return None
        try:
            within = self.limits.within(self._spent())
            return case.worker.ask(within, do="profile", id=case.token, times=case.times)
        except RuntimeError as error:
            tell(f"  no profile of {name}: {error}")
            self._record(case=name, no_profile=_first_line(error))
        return None

    def _spent(self) -> float:
        return time.monotonic() - self._began

    def leave_out(self, name: str, error: Exception) -> None:
        """Notes that a case is not measured, and why."""
        tell(f"  left out: {name}: {error}")
        self._record(case=name, left_out=_first_line(error))

    def measure(self, rounds: int, units: int | None, base: str) -> list[Row]:
        """Runs all cases in rounds, after a warmup round.

        Args:
            rounds: Number of measured rounds; fewer, but at least one, if the time of the table is
                up.
            units: Units of work per run; None if each run returns the number, and then times are
                per 1,000 units.
            base: The case to which speeds are relative.
        """
        samples: dict[Case, list[dict]] = {}
        for turn in range(rounds + 1):
            spent = self._spent()
            if turn > 1 and self.limits.table is not None and spent > self.limits.table:
                tell(f"  {turn - 1} of {rounds} rounds: {self.limits.table:.0f} s are over")
                break
            tell(f"  round {turn} of {rounds}, {spent:.0f} s" if turn else "  warming up")
            for case in self.cases[:: 1 if turn % 2 else -1]:
                sample = self._run(case)
                if sample is None:
                    samples.pop(case, None)
                elif turn:
                    done = case.times if units is not None else sample["result"] / 1000
                    one = {k: sample[k] / done for k in ("wall", "cpu")}
                    samples.setdefault(case, []).append(one)
                    self._record(case=case.name, process=case.token, round=turn, **one)
        key = "cpu" if self.threads == 1 and self.device == "cpu" else "wall"
        names = list(dict.fromkeys(case.name for case in self.cases if case in samples))
        of = {name: [case for case in samples if case.name == name] for name in names}
        base = base if base in of else next(iter(of), base)
        # The time of the base in each round: the median of its processes.
        times = [
            statistics.median(sample[key] for sample in of_round)
            for of_round in zip(*(samples[case] for case in of.get(base, [])), strict=True)
        ]
        per = 1000 if units is None else units
        return [
            _row(name, [samples[case] for case in of[name]], times, key, per, of[name][0].facts)
            for name in names
        ]

    def remove(self, name: str) -> None:
        """Drops the cases of a name."""
        for case in [case for case in self.cases if case.name == name]:
            self.cases.remove(case)
            self._end(case)

    def _run(self, case: Case) -> dict[str, Any] | None:
        """Returns a measurement; None for a case that fails, which is then skipped."""
        try:
            within = self.limits.within(self._spent())
            return case.worker.ask(within, do="run", id=case.token, times=case.times)
        except RuntimeError as error:
            if not case.shared:
                case.worker.kill()
            self.cases.remove(case)
            self.leave_out(case.name, error)
        return None

    def close(self) -> None:
        """Ends all workers, except shared ones, which drop their cases."""
        for case in self.cases:
            self._end(case)

    @staticmethod
    def _end(case: Case) -> None:
        if not case.shared:
            case.worker.close()
        elif case.worker.alive:
            with contextlib.suppress(RuntimeError):
                case.worker.ask(_LEAST, do="drop", id=case.token)


def tell(line: str) -> None:
    """Prints a line of progress on stderr, unbuffered."""
    print(line, file=sys.stderr, flush=True)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _row(
    name: str,
    processes: list[list[dict[str, float]]],
    base: list[float],
    key: str,
    units: int,
    facts: dict[str, Any],
) -> Row:
    """Returns a row from the samples of each process, and the times of the base in each round."""
    mine = [sample[key] for samples in processes for sample in samples]
    ratios = sorted(
        b / sample[key] for samples in processes for sample, b in zip(samples, base, strict=True)
    )
    median = statistics.median(mine)
    quarter = len(ratios) // 4
    ms = lambda seconds: round(seconds * 1e3, 3)
    return Row(
        name,
        ms(median),
        ms(min(mine)),
        ms(statistics.median(s["wall"] for samples in processes for s in samples)),
        round(statistics.median(ratios), 3),
        (round(ratios[quarter], 3), round(ratios[-1 - quarter], 3)),
        round(units / median, 1) if units else None,
        facts,
        len(processes[0]),
        tuple(ms(statistics.median(s[key] for s in samples)) for samples in processes),
    )


def _processor() -> dict[str, str]:
    """Returns Linux's description of the first processor; empty on other systems."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().split("\n\n")[0].splitlines() if file.exists() else []
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def environment(packages: tuple[str, ...] = ("jax", "jaxlib", "flax", "optax")) -> dict[str, Any]:
    """Returns the machine, the versions and the commit of measurements."""
    commit = ""
    with contextlib.suppress(OSError):  # a copy on a machine without git
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
    """Formats the rows as text, with ratios to the base."""
    if not rows:
        return f"{title}\nno case ran: the lines above say why"
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

"""A session of measurements on one GPU: its workers, its time, and its figures on disk."""

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import kernel_profile
from benchmarks.harness import TREE, Bench, Limits, Worker, environment, table, tell
from benchmarks.sizes import sized
from benchmarks.stored import named
from transformer_jax.core.errors import ConfigError
from transformer_jax.parallel.device_catalog import DEVICES

__all__ = ["Measured", "Session", "accepted", "gpu_facts", "installed", "short_name"]

# Packages whose versions determine a figure.
_PACKAGES = (
    "jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "nvidia-cudnn-cu13",
    "nvidia-cublas", "nvidia-cuda-runtime", "flax", "optax", "torch", "triton", "transformers",
    "ctranslate2",
)  # fmt: skip
_SMI = ("name", "driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit")
_OURS = "benchmarks.ours_gpu"
_PEERS = "benchmarks.peers_gpu"
# Peers by their worker: the packages that each needs.
_NEEDS = {
    "torch": ("torch",),
    "transformers": ("torch", "transformers"),
    "ctranslate2": ("torch", "transformers", "ctranslate2"),
}
# Further workers of ours, by the flag that makes each.
_FLAGS = {
    "ours, loops as graphs": "--xla_gpu_enable_command_buffer=+WHILE,+CONDITIONAL",
    # Without it, sums of products with few results are divided over more processors.
    "ours, whole sums": "--xla_gpu_experimental_force_split_k=1",
}
_PROBE = {"JAX_PLATFORMS": "cpu"}


def short_name(gpu: str) -> str:
    """Returns the model of a GPU, as files of results have it; "cpu" without a name.

    Example:
        >>> [short_name(gpu) for gpu in ("NVIDIA H200", "NVIDIA H100 80GB HBM3", "")]
        ['h200', 'h100', 'cpu']
    """
    number = re.search(r"\w*\d\w*", gpu)
    return number[0].lower() if number else "gpu" if gpu else "cpu"


def gpu_facts() -> dict[str, str]:
    """Returns what the driver says about the first GPU; empty without one."""
    query = ["nvidia-smi", f"--query-gpu={','.join(_SMI)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return {}
    values = map(str.strip, done.stdout.splitlines()[0].split(","))
    return dict(zip(_SMI, values, strict=True))


def installed(python: str) -> dict[str, str]:
    """Returns the versions of packages that an interpreter has; empty if it does not start."""
    program = (
        "import importlib.metadata as m, json, sys\n"
        "there = {d.metadata['Name'].lower(): d.version for d in m.distributions()}\n"
        "print(json.dumps({n: there[n] for n in sys.argv[1:] if n in there}))"
    )
    try:
        done = subprocess.run(
            [python, "-c", program, *_PACKAGES], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    found: dict[str, str] = json.loads(done.stdout)
    return found


def accepted(flags: Sequence[str]) -> list[str]:
    """Returns the flags of XLA that this version knows: an unknown one ends a process."""
    starts = lambda *some: (
        not subprocess.run(
            [sys.executable, "-c", "import jax; jax.devices()"],
            env=os.environ | _PROBE | {"XLA_FLAGS": " ".join(some)},
            capture_output=True,
        ).returncode
    )
    return list(flags) if starts(*flags) else [flag for flag in flags if starts(flag)]


class Session:
    """Workers, time and figures of one command.

    Figures are lines of ``NAME.jsonl``, flushed one by one, and the tables of ``NAME.json``, which
    is replaced after each table. Tables of an earlier session stay in it if commit, GPU and
    versions are the same.

    Args:
        given: Arguments of the command.
        command: The command.

    Raises:
        ConfigError: There is no GPU, without ``--tiny``.
    """

    def __init__(self, given: argparse.Namespace, command: str):
        self.tiny, self.patience, self.rounds = given.tiny, given.patience, given.rounds
        self._began, self._limit = time.monotonic(), 60 * given.minutes
        self._python, self._workers = given.peers, dict[str, Worker]()
        self.gpu = gpu_facts()
        if not self.gpu and not self.tiny:
            raise ConfigError("nvidia-smi finds no GPU: --tiny measures a tiny model on a CPU")
        ours, self._theirs = installed(sys.executable), installed(given.peers)
        facts = environment() | {"gpu": self.gpu, "versions": ours, "peers": self._theirs}
        facts["commit"] = given.commit or facts["commit"]
        tell(json.dumps(facts))
        given.output.mkdir(parents=True, exist_ok=True)
        self._path = given.output / named("gpu", short_name(self.gpu.get("name", "")), facts,
                                          given.tiny)  # fmt: skip
        self._found = self._earlier(facts) | {"command": command, "environment": facts}
        self._shared = tempfile.TemporaryDirectory()
        self.record(environment=facts)

    @property
    def folder(self) -> str:
        """A folder for weights that peers share, until the session is closed."""
        return self._shared.name

    @property
    def file(self) -> Path:
        """The file of results."""
        return self._path.with_name(f"{self._path.name}.json")

    def _earlier(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Returns the results of an earlier session under the same conditions."""
        if not self.file.exists():
            return {}
        found: dict[str, Any] = json.loads(self.file.read_text())
        same = lambda one: (
            {k: v for k, v in one.items() if k not in ("date", "gpu")}
            | {"gpu": [one["gpu"].get(name) for name in ("name", "driver_version", "power.limit")]}
        )
        return found if same(found["environment"]) == same(facts) else {}

    # --- time ------------------------------------------------------------------------------------

    @property
    def left(self) -> float:
        """Seconds until no section begins."""
        return self._limit - (time.monotonic() - self._began)

    def size(self, **size: int) -> dict[str, Any]:
        """Returns sizes of a model and of its work, small with ``--tiny``."""
        return sized(self.tiny, **size)

    # --- figures ---------------------------------------------------------------------------------

    def record(self, **values: Any) -> None:
        """Appends a line to the file of lines, and flushes it to the disk."""
        line = {"at_s": round(time.monotonic() - self._began, 1), **values}
        with open(self._path.with_name(f"{self._path.name}.jsonl"), "a") as lines:
            lines.write(json.dumps(line) + "\n")
            lines.flush()
            os.fsync(lines.fileno())

    def keep(self, name: str, value: dict[str, Any]) -> None:
        """Adds entries to a mapping of the results, and writes them."""
        self._found.setdefault(name, {}).update(value)
        self._write()

    def keep_table(self, title: str, rows: list[dict[str, Any]], base: str) -> None:
        """Adds or replaces a table of the results, and writes them.

        Args:
            title: Title of the table.
            rows: Its rows.
            base: Name of the row that ratios refer to; without it, they refer to the first.
        """
        for row in rows:
            self._found.get("left_out", {}).pop(f"{title}: {row['name']}", None)
        tables: list[dict[str, Any]] = self._found.setdefault("tables", [])
        tables[:] = [one for one in tables if one["title"] != title]
        there = base if any(row["name"] == base for row in rows) else rows[0]["name"]
        tables.append({"title": title, "base": there, "rows": rows})
        self._write()

    def _write(self) -> None:
        draft = self.file.with_suffix(".draft")
        draft.write_text(json.dumps(self._found, indent=1) + "\n")
        os.replace(draft, self.file)

    # --- workers ---------------------------------------------------------------------------------

    def worker(self, kind: str) -> Worker:
        """Returns the running worker of a kind, or starts it.

        Args:
            kind: "ours", "ours again" for another process, "ours, loops as graphs", "ours, whole
                sums", or one of the peers.

        Raises:
            RuntimeError: The interpreter has not the packages that the peer needs.
        """
        here = self._workers.get(kind)
        if here is None or not here.alive:
            device = "gpu" if self.gpu else "cpu"
            if kind in _NEEDS:
                missing = [name for name in _NEEDS[kind] if name not in self._theirs]
                if missing:
                    raise RuntimeError(f"{self._python} has no {', '.join(missing)}")
                here = Worker(self._python, _PEERS, 1, TREE, device)
            else:
                here = Worker(sys.executable, _OURS, 1, TREE, device, self._flags(kind))
            self._workers[kind] = here
        return here

    def _flags(self, kind: str) -> dict[str, str]:
        """Returns the compiler's flags of a worker of ours; it writes what autotuning chose.

        Raises:
            RuntimeError: This version of XLA does not know the flag that makes the kind.
        """
        chosen = self._path.with_name(f"{self._path.name}_{re.sub('[ ,]+', '_', kind)}_kernels.txt")
        own = [_FLAGS[kind]] if kind in _FLAGS else []
        known = accepted([f"--xla_gpu_dump_autotune_results_to={chosen}", *own])
        if not set(own) <= set(known):
            raise RuntimeError(f"this version of XLA has no {own[0]}")
        return {"XLA_FLAGS": " ".join([os.environ.get("XLA_FLAGS", ""), *known]).strip()}

    def close(self) -> None:
        """Ends all workers, and removes the weights that they shared."""
        for worker in self._workers.values():
            worker.close()
        self._shared.cleanup()

    @contextmanager
    def table(self, title: str, unit: str, units: int, base: str) -> Iterator["Measured"]:
        """Context manager: a table, whose cases are dropped at the end."""
        limits = Limits(self.patience, max(self.left, 0.0))

        def record(**values: Any) -> None:
            self.record(table=title, **values)
            if "left_out" in values:
                self.keep("left_out", {f"{title}: {values['case']}": values["left_out"]})

        bench = Bench(1, title, limits, "gpu" if self.gpu else "cpu", record)
        try:
            yield Measured(self, bench, title, unit, units, base)
        finally:
            bench.close()


@dataclasses.dataclass
class Measured:
    """A table that is measured again whenever a case joins it.

    Attributes:
        session: The session.
        bench: The bench of the table.
        title: Its title.
        unit: Unit of the work.
        units: Work of a run.
        base: Name of the case that ratios refer to.
    """

    session: Session
    bench: Bench
    title: str
    unit: str
    units: int
    base: str

    def add(self, name: str, kind: str, case: str, arguments: dict[str, Any], times: int) -> bool:
        """Sets up a case in the worker of a kind; returns whether that succeeded."""
        try:
            if self.session.left < 0:
                raise RuntimeError("the time is over (--minutes)")
            worker = self.session.worker(kind)
        except (OSError, RuntimeError) as error:
            self.bench.leave_out(name, error)
            return False
        facts = self.bench.add(name, case, arguments, times=times, worker=worker)
        return facts is not None

    def measure(self, rounds: int | None = None) -> list[dict[str, Any]]:
        """Measures all cases in turns, prints, stores and returns the rows."""
        found = self.bench.measure(rounds or self.session.rounds, self.units, self.base)
        rows = self._with_mfu([dataclasses.asdict(row) for row in found])
        if rows:
            print(table(self.title, found, self.unit), end="\n\n", flush=True)
            # Those of an idle GPU are low.
            clocks = {name: value for name, value in gpu_facts().items() if "clocks" in name}
            self.session.record(table=self.title, clocks=clocks)
            self.session.keep_table(self.title, rows, self.base)
        return rows

    def _with_mfu(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Adds the fraction of the GPU's bfloat16 peak; FLOPs are those of the same work."""
        kinds = [one.flops for one in DEVICES.values() if self.session.gpu.get("name") in one.kinds]
        flops = next((row["facts"]["flops"] for row in rows if "flops" in row["facts"]), None)
        if kinds and flops is not None:
            for row in rows:
                row["facts"] |= {"mfu": round(flops / row["ms"] * 1e3 / kinds[0], 4)}
        return rows

    def profile(self, name: str, steps: int, top: int) -> None:
        """Stores the kernels of a step of a case.

        Args:
            name: The case.
            steps: Steps of a measurement.
            top: Number of the longest kernels to store.
        """
        found = self.bench.profile(name)
        if found is None:
            return
        shown = kernel_profile.per_step(found, steps, top)
        self.session.record(table=self.title, case=name, profile=shown)
        self.session.keep("profiles", {f"{self.title}: {name}": shown})
        tell(
            f"  {name}: {shown['launches']:,.0f} launches, {shown['busy_ms']:.2f} ms a step: "
            + ", ".join(f"{kind} {ms:.2f}" for kind, ms in shown["classes"].items())
        )

"""A budget for tests: CPU seconds of all workers, and memory of each.

CPU seconds depend on the machine, and on what else it does meanwhile, so the unit is a run of a
reference program, which each worker measures before, between and after its files of tests: what
it spends between two measurements is divided by their mean. ``make test`` fails when its tests
cost more.
"""

import os
import resource
import sys
import time
from collections import Counter

import jax
import jax.numpy as jnp
import pytest

from tests.lowering import drop_context

HEAVIEST = 10
MEASURE_EVERY = 60  # CPU seconds


def cpu_seconds() -> float:
    """CPU seconds of this process and of the child processes that it waited for."""
    return sum(os.times()[:4])


def peak_gigabytes() -> float:
    """Most memory that this process held at once."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def reference_seconds(lengths: range = range(8, 32)) -> float:
    """CPU seconds of a fixed program that traces and lowers, as tests mostly do."""
    _lower(lengths.start - 1)  # one-time work of JAX is not counted
    start = time.process_time()
    for length in lengths:
        _lower(length)
    return time.process_time() - start


def _lower(length: int) -> None:
    def layers(x, matrices):  # a new function, of which nothing is cached
        for matrix in matrices:
            a = jax.nn.softmax(jnp.einsum("tv,sv->ts", x, x))
            x = x + jax.nn.gelu((a @ x) @ matrix)
        return (x - x.mean(-1, keepdims=True)).sum()

    drop_context()  # what is measured is the machine, not what tests before had prepared
    x = jax.ShapeDtypeStruct((length, 8), "float32")
    matrices = [jax.ShapeDtypeStruct((8, 8), "float32")] * 4
    jax.jit(jax.grad(layers, argnums=1)).lower(x, matrices)


class Budget:
    """Adds up the costs of workers; the first process reports them, and fails above the budget."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.worker = hasattr(config, "workerinput")
        self.tests_here = self.worker or not config.getoption("numprocesses", None)
        self.references: list[float] = []
        self.measuring = 0.0  # CPU seconds of all references, which no test costs
        self.measured_at = 0.0  # CPU seconds of this process at the latest reference
        self.runs = 0.0  # of the reference program, as much as was spent until then
        self.spent: Counter[str] = Counter()  # CPU seconds by test; "" is the rest
        self.peaks: list[float] = []
        self.lines: list[str] = []

    def pytest_sessionstart(self):
        if self.tests_here:
            self._measure()

    def _measure(self):
        start = cpu_seconds()
        self.references.append(reference_seconds())
        around = self.references[-2:]
        self.runs += (start - self.measured_at) / (sum(around) / len(around))
        self.measured_at = cpu_seconds()
        self.measuring += self.measured_at - start

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem):
        start = cpu_seconds()
        try:
            return (yield)
        finally:
            self.spent[item.nodeid] += cpu_seconds() - start
            between_files = nextitem is not None and nextitem.path != item.path
            if between_files and cpu_seconds() - self.measured_at > MEASURE_EVERY:
                self._measure()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        nothing = ([], 0.0, {}, [])  # after a crash
        references, runs, spent, peaks = node.workeroutput.get("budget", nothing)
        self.references += references
        self.runs += runs
        self.spent.update(spent)
        self.peaks += peaks

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session, exitstatus):
        if self.tests_here:
            self._measure()
            self.spent[""] = cpu_seconds() - self.spent.total() - self.measuring
            self.peaks.append(peak_gigabytes())
        if self.worker:
            worth = self.references, self.runs, dict(self.spent), self.peaks
            self.config.workeroutput["budget"] = worth
        elif self.peaks:
            self._compare(session, exitstatus)

    def _compare(self, session, exitstatus):
        reference = sum(self.references) / len(self.references)
        runs, gigabytes = self.runs, max(self.peaks)
        most_runs, most_gigabytes = map(self.config.getoption, ("cpu_budget", "memory_budget"))
        self.lines = [
            f"CPU: {self.spent.total():.0f} s, or {runs:.0f} runs of the reference program of"
            f" {reference:.2f} s; the budget is {most_runs:.0f} runs",
            f"memory: at most {gigabytes:.2f} GB a worker; the budget is {most_gigabytes:.2f} GB",
        ]
        if runs > most_runs:
            del self.spent[""]
            self.lines += [
                "FAILED: the tests cost more than their budget. Make the heaviest cheaper, or mark"
                " as slow what repeats a law of others:",
                *(f"{cpu:8.2f} s  {name}" for name, cpu in self.spent.most_common(HEAVIEST)),
            ]
        if gigabytes > most_gigabytes:
            self.lines.append("FAILED: a worker held more memory than its budget")
        if len(self.lines) > 2 and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        for line in self.lines:
            terminalreporter.write_line(line)

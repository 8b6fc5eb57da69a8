"""The cost of `make test` is checked, and slices of the other tests are all of them."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax._src.interpreters import mlir

from tests import budget, checked_signatures, memory
from tests.budget import Budget, cpu_seconds, reference_seconds
from tests.lowering import drop_context
from tests.slices import Slice

ROOT = Path(__file__).parents[1]


def outcome(most_runs=10, most_gigabytes=2.0, workers=({"a": 3.0, "": 1.0}, {"b": 5.0}), code=0):
    """Lines and exit code of a session with these CPU seconds, at a reference of one second."""
    options = {"numprocesses": 2, "cpu_budget": most_runs, "memory_budget": most_gigabytes}
    plugin = Budget(SimpleNamespace(getoption=lambda name, default=None: options[name]))
    for spent in workers:
        output = {"budget": ([0.5, 1.5], sum(spent.values()), spent, [1.8])}
        plugin.pytest_testnodedown(SimpleNamespace(workeroutput=output))
    session = SimpleNamespace(exitstatus=code)
    plugin.pytest_sessionfinish(session, code)
    return plugin.lines, session.exitstatus


def test_seconds_of_all_workers_count_with_what_is_no_test():
    lines, code = outcome(most_runs=9)
    assert code == 0
    assert len(lines) == 2
    assert lines[0].startswith("CPU: 9 s, or 9 runs of the reference program of 1.00 s")
    lines, code = outcome(most_runs=8.9)
    assert code == 1
    assert [line.split() for line in lines[3:]] == [["5.00", "s", "b"], ["3.00", "s", "a"]]


def test_the_machine_is_measured_between_files_and_at_no_cost_to_tests(monkeypatch):
    clock = SimpleNamespace(now=0.0)

    def spend(seconds):
        clock.now += seconds
        return seconds

    monkeypatch.setattr(budget, "cpu_seconds", lambda: clock.now)
    costs = iter((2.0, 2.0, 4.0))  # the machine is slower at the end
    monkeypatch.setattr(budget, "reference_seconds", lambda: spend(next(costs)))
    plugin = Budget(SimpleNamespace(workerinput={}, workeroutput={}))
    plugin.pytest_sessionstart()
    spend(5)  # collection
    files = ["a", "a", "a", "b", "c"]
    items = [SimpleNamespace(nodeid=f"{i}", path=path) for i, path in enumerate(files)]
    for item, following in zip(items, [*items[1:], None], strict=True):
        hook = plugin.pytest_runtest_protocol(item, following)
        next(hook)
        spend(40)
        with pytest.raises(StopIteration):
            hook.send(None)
    plugin.pytest_sessionfinish(SimpleNamespace(), 0)
    references, runs, spent, _ = plugin.config.workeroutput["budget"]
    assert references == [2.0, 2.0, 4.0]  # before, after the first file, and at the end
    assert runs == (5 + 3 * 40) / 2 + 2 * 40 / 3
    assert spent == {**dict.fromkeys("01234", 40), "": 5}


def test_the_ten_heaviest_are_named():
    lines, _ = outcome(most_runs=1, workers=[{f"t{n}": float(n) for n in range(30)}])
    assert [line.split()[-1] for line in lines[3:]] == [f"t{n}" for n in range(29, 19, -1)]


def test_memory_of_a_worker_has_a_bound():
    assert outcome(most_gigabytes=1.81)[1] == 0
    lines, code = outcome(most_gigabytes=1.79)
    assert code == 1
    assert "at most 1.80 GB a worker; the budget is 1.79" in lines[1]


def test_a_failure_stays_what_it_was():
    assert outcome(most_runs=1, code=2)[1] == 2


def test_the_reference_costs_the_same_again():
    first, second = (reference_seconds(range(8, 11)) for _ in range(2))
    assert second > first / 3  # nothing of the first is kept
    assert cpu_seconds() > second


@pytest.mark.parametrize(("held", "same", "dropped"), [
    (memory.MOST_BYTES_IN_A_FILE + 1, True, 1), (memory.MOST_BYTES_IN_A_FILE, True, 0),
    (memory.MOST_BYTES + 1, False, 1), (memory.MOST_BYTES, False, 0),
])  # fmt: skip
def test_a_large_process_drops_its_programs(monkeypatch, held, same, dropped):
    """Between files earlier than within one."""
    assert memory.MOST_BYTES < memory.MOST_BYTES_IN_A_FILE
    done = []
    monkeypatch.setattr(memory, "resident_bytes", lambda: held)
    monkeypatch.setattr(memory, "drop_programs", lambda: done.append(1))
    item, following = SimpleNamespace(path="a"), SimpleNamespace(path="a" if same else "b")
    hook = memory.MemoryBound().pytest_runtest_teardown(item, following)
    next(hook)
    with pytest.raises(StopIteration):
        hook.send(None)
    assert len(done) == dropped


def test_what_stays_in_memory_is_not_dropped_again(monkeypatch):
    """A process that is large without programs drops them when it has gained enough of them."""
    sizes = iter([10**9, 10**9, 10**9 + 1, 10**9 + memory.MOST_GAINED + 1, 10**9])
    done, bound = [], memory.MemoryBound()
    monkeypatch.setattr(memory, "resident_bytes", lambda: next(sizes))
    monkeypatch.setattr(memory, "drop_programs", lambda: done.append(1))
    for dropped in (1, 1, 2):
        hook = bound.pytest_runtest_teardown(SimpleNamespace(path="a"), SimpleNamespace(path="b"))
        next(hook)
        with pytest.raises(StopIteration):
            hook.send(None)
        assert len(done) == dropped


def test_programs_share_a_context_until_they_are_dropped():
    """A context of its own for each program takes as long as lowering it."""

    def context(power):  # of a program that nobody has lowered before
        return jax.jit(lambda x: x**power).lower(jnp.float32(0)).compiler_ir().context

    first = context(3)
    assert context(5) is first
    drop_context()  # newer versions of JAX may give the same one again
    assert mlir.make_ir_context.cache_info().currsize == 0


def test_functions_within_functions_are_left_unchecked_where_asked(monkeypatch):
    def inner(): ...

    decorated = checked_signatures._of_outer_functions(lambda function, name="checked": name)
    for everything, found in ((True, "checked"), (False, inner)):
        monkeypatch.setattr(checked_signatures, "inner_functions", everything)
        assert decorated(inner) == found
        assert decorated(outcome) == "checked"
        assert decorated(name="named")(outcome) == "named"
    monkeypatch.setattr(checked_signatures, "inner_functions", True)
    monkeypatch.setattr(checked_signatures, "OFTEN", 5)
    found = [decorated(inner) for _ in range(9)]
    assert found[:3] == ["checked"] * 3  # two calls before
    assert found[3:] == [inner] * 6


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 2])
def test_a_session_over_its_budget_fails_and_names_its_tests(processes):
    run = [sys.executable, "-m", "pytest", "-q", f"-n{processes}", "tests/core/test_keys.py"]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}
    for most, code in (("1000", 0), ("0.01", 1)):
        found = subprocess.run(
            [*run, "--cpu-budget", most], cwd=ROOT, env=kept, capture_output=True, text=True
        )
        assert found.returncode == code, found.stdout
        assert ("s  tests/core/test_keys.py::" in found.stdout) == bool(code)


def test_slices_are_disjoint_and_all():
    names = [f"tests/test_{n % 7}.py::test_{n}[{case}]" for n in range(200) for case in "ab"]
    slices = [{name for name in names if Slice(i, 5).holds(name)} for i in range(5)]
    assert sum(map(len, slices)) == len(names)
    assert set().union(*slices) == set(names)
    for part in slices:
        assert all(name.replace("[a]", "[b]") in part for name in part)
    apart = [{name for name in names if Slice(i, 5).holds(name, [])} for i in range(5)]
    assert sum(map(len, apart)) == len(set().union(*apart)) == len(names)
    assert any(name.replace("[a]", "[b]") not in part for part in apart for name in part)


def test_cases_are_told_apart_by_the_parameters_that_the_mark_names():
    cases = [
        (f"tests/test_a.py::test_b[{mesh}-{task}]", [task]) for mesh in "xy" for task in "pqrst"
    ]
    of = {case: [i for i in range(50) if Slice(i, 50).holds(case, by)] for case, by in cases}
    assert all(of[case] == of[case.replace("[x", "[y")] for case in of)
    assert len({i for [i] in of.values()}) > 2


def test_the_mark_of_a_collected_test_decides():
    """Marks and parameters are those of the item."""
    item = SimpleNamespace(nodeid="tests/test_a.py::test_b[x-p]")
    item.callspec = SimpleNamespace(params={"mesh": "x", "task": "p"})
    for names, by in (None, None), ((), []), (("task",), ["p"]):
        mark = None if names is None else SimpleNamespace(args=names)
        item.get_closest_marker = lambda _, mark=mark: mark
        for index in range(50):
            assert Slice(index, 50).has(item) == Slice(index, 50).holds(item.nodeid, by)


@pytest.mark.parametrize("text", ["5/5", "1", "-1/3", "a/b"])
def test_what_is_no_slice_is_refused(text):
    with pytest.raises(pytest.UsageError, match=r"it is I/N, I from 0 to N - 1"):
        Slice.parse(text)

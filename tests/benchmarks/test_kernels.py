"""The kernel benchmark: what it counts, what it runs and what it refuses."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import kernel_cases as cases
from benchmarks import kernels as benchmark
from benchmarks.kernel_timing import passes, repeated
from benchmarks.roofline import Peak
from transformer_jax.cli.process import guarded
from transformer_jax.functional.kernels import choice as kernels

RESULTS = Path(benchmark.__file__).parent / "results"


@pytest.mark.slow
def test_every_registered_kernel_runs_or_says_why_not():
    for case in cases.ATTENTION:
        small = dataclasses.replace(case, batch=1)
        work = cases.attention(small, "cpu", 9.0, "float32")
        assert set(kernels.KERNELS) < work.entries.keys()
        for entry in work.entries.values():
            assert (entry.run is None) == bool(entry.reason)
        assert work.entries[work.auto].run is not None
        assert {"cudnn", "splash", "ring"} <= {n for n, e in work.entries.items() if e.reason}


def test_there_are_as_many_attention_cases_as_names():
    assert len({case.name for case in cases.ATTENTION + cases.LENGTHS}) == 24 + len(cases.LENGTHS)


def test_auto_takes_the_faster_kernel_at_every_length_of_the_stored_results():
    stored = json.loads((RESULTS / "kernels_cpu.json").read_text())["cases"]
    times = {case["case"]: {way["name"]: way for way in case["ways"]} for case in stored}
    for case in cases.LENGTHS:
        ms = lambda name, case=case: times[case.name][name]["forward+backward"]["ms"]
        ways = {True: ms("chunked"), False: ms("xla in blocks of queries")}
        # Below a tenth the order changes from run to run.
        assert ways[case.queries >= kernels.LONG] < 1.1 * min(ways.values()), case.name


def test_flops_are_those_of_visible_pairs():
    case = cases.AttentionCase("small", batch=1, heads=2, queries=4, head_dim=8, causal=True)
    work = cases.attention(case, "cpu", 9.0, "float32")
    # Two products of 2 FLOPs for each number of a head, 10 of 16 pairs, 2 heads.
    assert work.flops == pytest.approx((2 * 2 * 8 * 10 * 2, 3.5 * 2 * 2 * 8 * 10 * 2))
    assert work.bytes[0] == 4 * 4 * 2 * 4 * 8


@pytest.mark.slow
def test_all_ways_compute_the_same():
    case = cases.AttentionCase("small", batch=2, queries=40, head_dim=8, causal=True, lengths=True)
    work = cases.attention(case, "cpu", 9.0, "float32")
    runs = [entry.run for entry in work.entries.values() if entry.run]
    assert len(runs) == 3
    first, *rest = (run(*map(jnp.asarray, work.inputs)) for run in runs)
    for other in rest:
        np.testing.assert_allclose(other, first, atol=2e-6)


@pytest.mark.parametrize("differentiated", [0, 1])
def test_each_call_of_a_repeated_function_is_made(differentiated):
    made = []

    def note(x):
        made.append(1)
        return np.asarray(x) * 2

    def function(fixed, x):
        args = (x, fixed) if differentiated == 0 else (fixed, x)
        return jax.pure_callback(note, jax.ShapeDtypeStruct((3,), jnp.float32), args[0])

    inputs = jnp.ones(3), jnp.ones(3)
    y = repeated(function, inputs, differentiated)(5, inputs)
    np.testing.assert_array_equal(y, [2, 2, 2])
    assert len(made) == 5


def test_both_passes_give_the_result_and_the_gradients():
    both = passes(lambda x, n: (x * x * n).sum(), 1)["forward+backward"]
    y, (slope,) = both(jnp.array([1.0, 2.0]), jnp.array(3))
    assert y == 15
    np.testing.assert_array_equal(slope, [6, 12])
    assert list(passes(jnp.sin, 0)) == ["forward"]


def test_the_roofline_is_the_slower_of_memory_and_products():
    peak = Peak(flops=100.0, bandwidth=10.0, source="")
    assert peak.least_seconds(flops=1000.0, size=10.0) == 10
    assert peak.least_seconds(flops=10.0, size=1000.0) == 100


@pytest.mark.quick("flags0---target v5e:2x4", "flags2-there is no target 'v9z:2'")
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--compile-only"], "--target v5e:2x4"),
        (["--target", "v5e:2x4"], "add --compile-only"),
        (["--target", "v9z:2", "--compile-only"], "there is no target 'v9z:2'"),
        (["--only", "nonsense"], "--only: no case has nonsense in its name"),
    ],
)
def test_flags_that_do_not_go_together_are_refused_in_one_line(flags, message, capsys, tmp_path):
    code = guarded(lambda: benchmark.main([*flags, "--output", str(tmp_path)]) or 0)
    said = capsys.readouterr().err
    assert code != 0
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.slow
def test_a_measurement_has_its_figures_and_a_picture(tmp_path):
    settings = benchmark.Settings(only=("197",), batch=1, rounds=1, peers=False, output=tmp_path)
    where = benchmark.run(settings)
    found = json.loads(where.read_text())
    assert (
        found["command"]
        == "python -m benchmarks kernels --batch 1 --only 197 --rounds 1 --no-peers"
    )
    assert where.with_suffix(".png").stat().st_size > 10_000
    (case,) = found["cases"]
    for way in case["ways"]:
        if "refused" in way:
            continue
        assert way["error"] < 1e-5
        for which in ("forward", "forward+backward"):
            one = way[which]
            assert 0 < one["roofline_share"] < 1.5
            assert one["ms"] >= one["low_ms"] > 0
            assert one["temporary_bytes"] >= 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in cases.others("float32") if "x 768" in name])
def test_other_parts_have_gradients_and_ways_that_agree(name):
    work = cases.others("float32")[name]()
    assert work.name == name
    assert work.flops[1] == 3 * work.flops[0] > 0
    inputs = [jnp.asarray(x[:16]) if x.shape[0] == cases.ROWS else jnp.asarray(x)
              for x in work.inputs]  # fmt: skip
    results = [
        jax.tree.leaves(passes(entry.run, work.differentiated)["forward+backward"](*inputs))
        for entry in work.entries.values()
    ]
    assert len(results[0]) == 1 + work.differentiated
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)

"""Estimates of memory against what the compilers of GPUs and TPUs said; nothing is compiled."""

import dataclasses
import json
import re

import jax
import pytest

from benchmarks import programs as cases
from tests.planning.compiled_plans import NAMED, RESULTS, run_of, stored_cases
from transformer_jax.functional.partitioning import on_mesh
from transformer_jax.models.layers.surgery import with_attention_kernels
from transformer_jax.parallel.device_catalog import plan_target
from transformer_jax.planning import plan
from transformer_jax.planning.planned_kernels import attention_kernels
from transformer_jax.planning.run_programs import Shape, mesh_on, parts_of
from transformer_jax.recipes.sizing import for_device

CASES = stored_cases()
PROGRAMS = json.loads((RESULTS.parent / "programs.json").read_text())["cases"]


def without_compiler(name):
    target = plan_target(name)
    return dataclasses.replace(target, devices=(), number=target.number)


def estimated(case, **changes):
    target = without_compiler(case["target"])
    run = run_of(case | changes, target)
    return plan.estimate_program(run, target, "training", Shape(*case["batch"]))


@pytest.mark.quick(
    "gpt2-small, h200:8, 8x1x1, 2 layers, 64 x 1024",
    "bert-base, h200:8, 8x1x1, 2 layers, 256 x 512",
    "gpt2-small, v5e:2x4, 1x8x1, 2 layers, 64 x 1024",
    "gpt2-small, h200:8, 1x8x1, 2 layers, 64 x 1024, remat",
    "base, h200:8, 8x1x1, 2 layers, 96 x 256",
)
@pytest.mark.parametrize("name", CASES)
def test_an_estimate_is_within_10_percent_of_the_compiled_memory(name):
    case = CASES[name]
    found = estimated(case)
    assert found.memory == pytest.approx(case["compiled_bytes"], rel=0.1)
    # What the state and the batch take is no estimate; a device adds a few numbers of its own.
    assert found.estimate.arguments == pytest.approx(case["arguments_bytes"], rel=0.005)
    assert found.memory == case["estimated_bytes"], "write the results anew"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name in cases.CASES])
def test_an_estimate_with_its_margin_is_no_less_than_the_compiled_memory(name):
    target, found = without_compiler(cases.CASES[name].target), PROGRAMS[name]["training"]
    run = cases.CASES[name].run_on(target)
    needed = plan.estimate_program(run, target, "training", Shape(*found["shape"])).memory
    assert needed * (1 + plan.MARGIN) >= found["memory_GiB"] * 2**30
    assert needed <= 1.4 * found["memory_GiB"] * 2**30


def test_the_stored_cases_are_ten_or_more_of_each_kind():
    assert len(CASES) >= 10
    assert {case["run"] for case in CASES.values()} >= {"base", "bert-base", "gpt2-small"}
    assert {case["remat"] for case in CASES.values()} == {False, True}
    assert len({tuple(case["mesh"]) for case in CASES.values()}) >= 2
    assert {case["target"].partition(":")[0] for case in CASES.values()} >= {"h200", "v5e"}


@pytest.mark.parametrize(
    ("target", "chunks", "compute"),
    [
        ("h200:1", 1, {}),
        ("80GiB", 4, {}),
        ("v5e:2x4", 2, {}),
        ("80GiB", 2, {"logits_dtype": "bfloat16"}),
        ("v5e:2x4", 8, {"logits_chunk": 8 * 1024}),
    ],
)
@pytest.mark.quick("h200:1-1-compute0", "v5e:2x4-8-compute4")
def test_the_plan_holds_as_many_logits_as_the_program(target, chunks, compute):
    target, shape = without_compiler(target), Shape(64 if ":2" in target else 16, 1024)
    case = next(case for case in CASES.values() if case["run"] == "gpt2-small")
    changes = {"layers": 1, "implementation": "xla", "mesh": [target.number, 1, 1]}
    run = run_of(case | changes, target)
    compute = dataclasses.replace(run.model.compute, **compute)
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, compute=compute))
    mesh, V = mesh_on(run, target), run.model.vocab_size
    parts = parts_of(run, mesh, shape)
    made = lambda: with_attention_kernels(parts.model(), target.device)
    with on_mesh(mesh):
        traced = jax.make_jaxpr(lambda batch: parts.evaluation(made(), batch, None))(parts.batch)
    held = max(int(rows) for rows in re.findall(rf"f32\[(\d+),{V}\]", str(traced)))
    assert held == shape.rows // target.number * shape.length // chunks
    table = V * run.model.d_model * (2 if compute.dtype == "bfloat16" else 4)
    found = plan.estimate_program(run, target, "evaluation", shape).estimate
    assert found.loss == (2 if compute.logits_dtype == "bfloat16" else 4) * held * V + table


@pytest.mark.slow
def test_an_accuracy_compares_all_logits_however_the_loss_stores_them():
    target, shape = without_compiler("80GiB"), Shape(64, 512)
    case = next(case for case in CASES.values() if case["run"] == "bert-base")
    run = run_of(case | {"layers": 1, "implementation": "xla", "mesh": [1, 1, 1]}, target)
    V, stored = run.model.vocab_size, {"logits_dtype": "bfloat16", "logits_chunk": 512}
    compute = dataclasses.replace(run.model.compute, **stored)
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, compute=compute))
    parts = parts_of(run, mesh_on(run, target), shape)
    traced = jax.make_jaxpr(lambda batch: parts.evaluation(parts.model(), batch, None))(parts.batch)
    sizes = re.findall(rf"f32\[(\d+),(\d+),{V}\]", str(traced))
    held = max(int(rows) * int(scored) for rows, scored in sizes)
    table = V * run.model.embedding_size * (2 if compute.dtype == "bfloat16" else 4)
    found = plan.estimate_program(run, target, "evaluation", shape).estimate
    assert found.loss == pytest.approx(8 * held * V + table, rel=0.01)


def test_rematerialization_and_micro_batches_need_less():
    case = next(case for case in CASES.values() if not case["remat"] and case["layers"] == 4)
    plain = estimated(case)
    assert estimated(case, remat=True).memory < plain.memory
    steps = case["training"] | {"gradient_accumulation_steps": 4}
    assert estimated(case, training=steps).estimate.kept == pytest.approx(plain.estimate.kept / 4)


@pytest.mark.parametrize(
    ("name", "target", "training", "kernel", "why"),
    [
        ("gpt2-small", "h200:8", True, "chunked", "it takes no segments"),
        ("gpt2-small", "v5e:2x4", True, "splash", ""),
        ("gpt2-small, unpacked", "h200:8", True, "cudnn", ""),
        ("gpt2-small, dropout", "h200:8", True, "xla", "attention dropout needs the weights"),
        ("gpt2-small, dropout", "h200:8", False, "chunked", "it takes no segments"),
        ("gpt2-small, float32", "a100:8", True, "chunked", "needs half precision"),
        ("bert-base", "h200:8", True, "cudnn", ""),
        ("base", "v5e:2x4", True, "xla", "not both multiples of 128"),
        ("base, asked", "h200:8", True, "chunked", "requested"),
    ],
)
def test_an_attention_says_why_it_has_no_fused_kernel(name, target, training, kernel, why):
    target = without_compiler(target)
    name, _, how = name.partition(", ")
    run = for_device(NAMED[name][1], target.device)
    attention, compute, layout = run.model.attention, run.model.compute, {}
    if how == "dropout":
        attention = dataclasses.replace(attention, dropout=0.1)
    if how == "asked":
        attention = dataclasses.replace(attention, implementation="chunked")
    if how == "float32":
        compute = dataclasses.replace(compute, dtype="float32")
    if how == "unpacked":
        layout = {"layout": "contiguous"}
    model = dataclasses.replace(run.model, attention=attention, compute=compute)
    run = dataclasses.replace(
        run, model=model, training=dataclasses.replace(run.training, **layout)
    )
    shape = Shape(512, 64 if name == "base" else 1024)
    found = attention_kernels(run, target, shape, training=training)
    expected = {"base": 3}.get(name, 1)
    assert len(found) == expected
    for chosen in found.values():
        assert (chosen.kernel, why in chosen.why, bool(chosen.why)) == (kernel, True, bool(why))

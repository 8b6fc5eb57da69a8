"""Plans: what is compared with a device's memory, and what is advised where it is too much."""

import dataclasses
import json
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from transformer_jax.cli import plan as command
from transformer_jax.core.errors import ConfigError
from transformer_jax.models.costs.accounting import training_flops
from transformer_jax.parallel.device_catalog import DEVICES, Target, plan_target
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.parallel.program_report import ProgramReport
from transformer_jax.planning import plan
from transformer_jax.planning import run_programs as planned
from transformer_jax.recipes import driver
from transformer_jax.recipes.explicit_settings import Given
from transformer_jax.recipes.registry import named_runs
from transformer_jax.recipes.sizing import for_device

PRETRAIN_RUNS = named_runs("masked_lm")
RUNS = named_runs("language_model", "ngram")
TRANSLATION_RUNS = named_runs("translation", "recurrent_translation")

GIB = 2**30


def device(platform="gpu"):
    """A device that need not be there."""
    about = {"compute_capability": "9.0", "device_kind": "NVIDIA H200"}
    return mock.Mock(spec=jax.Device, platform=platform, **about)


def target(kind="h200", devices=8):
    return Target(f"{kind}:{devices}", DEVICES[kind], (device(),) * devices)


def mesh_without_devices(run, target):
    return mesh_on(run, Target(target.name, target.type, (), target.number))


mesh_on = planned.mesh_on


def planned_programs(run):
    return [plan.measure(run, target(), *one) for one in plan.programs(run, target())]


@pytest.fixture
def compiled(monkeypatch):
    """Programs whose memory is ``needs(run, what)``; nothing is compiled."""
    needs = {}

    def compile_program(run, target, what, shape):
        memory = needs["of"](run, what)
        report = None if memory is None else ProgramReport(memory, 0, 0, 0, (), {"cudnn": 2})
        return plan.Program(what, shape, memory or 2**60, report, 1.0)

    def estimate_program(run, target, what, shape):
        return compile_program(run, target, what, shape)._replace(report=None)

    monkeypatch.setattr(plan, "compile_program", compile_program)
    monkeypatch.setattr(plan, "estimate_program", estimate_program)
    for module in (plan, planned):
        monkeypatch.setattr(module, "mesh_on", mesh_without_devices)
    monkeypatch.setattr(
        "transformer_jax.parallel.device_catalog.plan_target", lambda name: target()
    )
    return needs


def test_a_gpu_has_what_jax_takes_of_it(monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    assert target().usable == int(0.75 * DEVICES["h200"].memory)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    assert target().usable == int(0.9 * DEVICES["h200"].memory)
    for wrong in ("much", "0", "1.5", "nan"):
        monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", wrong)
        with pytest.raises(ConfigError, match="above 0 and up to 1"):
            target().usable  # noqa: B018
    assert target("v5e").usable == DEVICES["v5e"].memory


@pytest.mark.parametrize("too_much", ["training", "evaluation"])
def test_the_advice_lets_training_and_evaluation_fit(compiled, too_much):
    run = RUNS["gpt2-small"][1]

    def needs(run, what):
        if what != too_much:
            return GIB
        if what == "evaluation":
            return 450 * GIB // run.mesh.fsdp
        return 900 * GIB // run.training.gradient_accumulation_steps

    compiled["of"] = needs
    flags, found = plan.nearest_that_fits(run, target())
    if too_much == "evaluation":  # which no accumulation makes smaller
        assert flags == "--mesh.data -1 --mesh.fsdp 8"
        assert found.training.gradient_accumulation_steps == 1
    else:
        assert flags == "--training.gradient-accumulation-steps 16"
    assert all(plan.fits(program, target()) for program in planned_programs(found))


@pytest.mark.parametrize("too_much", ["training", "evaluation", "decoding"])
def test_what_fits_nowhere_is_known_without_compiling(compiled, too_much):
    tried = []
    compiled["of"] = lambda run, what: None if what == too_much else GIB
    found = plan.nearest_that_fits(RUNS["gpt2-small"][1], target(), lambda *one: tried.append(one))
    assert found is None
    assert tried == []


@pytest.mark.slow
def test_a_run_that_does_not_fit_is_a_table_and_an_error_that_says_what_does(compiled, capsys):
    compiled["of"] = lambda run, what: GIB if run.mesh.fsdp == 8 else None
    run = RUNS["gpt2-small"][1]
    with pytest.raises(
        ConfigError, match=r"h200:8: the run needs .*it fits with --mesh.data -1 --mesh.fsdp 8"
    ):
        command.plan_run("gpt2-small", run, run, "h200:8", False)
    out, _ = capsys.readouterr()
    assert out.splitlines()[1].split()[:3] == ["training", "512", "x"]


@pytest.mark.slow
def test_json_of_a_plan(compiled, capsys):
    compiled["of"] = lambda run, what: GIB
    run = RUNS["gpt2-small"][1]
    assert command.plan_run("gpt2-small", run, run, "h200:8", True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fits"]
    assert [program["program"] for program in found["programs"]] == [
        "training",
        "evaluation",
        "decoding",
    ]
    assert found["programs"][0]["kernels"] == {"cudnn": 2}


@pytest.mark.slow
def test_a_plan_has_the_vocabulary_that_the_tokenizer_will_have(compiled, capsys):
    seen = []
    compiled["of"] = lambda run, what: seen.append(run.model.vocab_size) or GIB
    named = RUNS["gpt2-small"][1]
    larger = dataclasses.replace(
        named, tokenizer=dataclasses.replace(named.tokenizer, vocab_size=128_000)
    )
    command.plan_run("gpt2-small", larger, named, "h200:8", True)
    given = dataclasses.replace(named, model=dataclasses.replace(named.model, vocab_size=999))
    command.plan_run("gpt2-small", given, named, "h200:8", True)
    assert seen == [128_000] * 3 + [999] * 3


def test_settings_that_a_plan_does_not_follow_are_refused():
    base = TRANSLATION_RUNS["base"][1]
    for run, message in (
        (dataclasses.replace(base, init_from="runs/bert"), "does not support init_from"),
        (
            dataclasses.replace(RUNS["modern"][1], init_from="runs/a"),
            "does not support init_from",
        ),
        (
            dataclasses.replace(base, training=dataclasses.replace(base.training, mode="pmap")),
            "does not support training.mode pmap",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            plan.compile_program(run, target(), "training")


def test_a_batch_has_as_many_masked_tokens_as_training_masks():
    run = PRETRAIN_RUNS["bert-base"][1]
    run = dataclasses.replace(run, masking=dataclasses.replace(run.masking, mlm_probability=0.4))
    mesh = make_mesh(run.mesh)
    parts = planned.parts_of(run, mesh, planned.buckets(run, mesh.shape)[0])
    assert parts.batch["masked_positions"].shape[1] == round(0.4 * run.training.sequence_length)


PICTURES = named_runs("images", "captions", "clip")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "scenes", "clip-scenes"])
def test_what_is_planned_of_pictures_is_what_is_trained(name, tmp_path):
    """The batches have the same shapes, and the model the same parameters but those of labels."""
    run = PICTURES[name][1]
    if name == "digits":
        path, pixels = tmp_path / "a.npz", np.zeros((200, 8, 8), np.uint8)
        np.savez(path, images=pixels, labels=np.arange(200) % 3)
        data = dataclasses.replace(run.data, images=str(path))
    else:
        data = dataclasses.replace(run.data, corpus_size=40)
    training = dataclasses.replace(run.training, batch_size=8)
    run = dataclasses.replace(run, data=data, training=training, output=str(tmp_path / "run"))
    run, directory, data = driver.create_run(for_device(run, jax.devices()[0]), Given(run))
    tokenizer = None if run.tokenizer is None else driver.tokenizer_of(run, directory)
    task = driver.make_task(run, directory, tokenizer, data)
    mesh = make_mesh(run.mesh)
    parts = planned.parts_of(run, mesh, planned.buckets(run, mesh.shape)[0])
    batch = task.train.make_batch(task.train.plan.batch(0))
    chex.assert_trees_all_equal_shapes_and_dtypes(
        jax.tree.map(np.zeros_like, batch),
        jax.tree.map(lambda shape: np.zeros(shape.shape, shape.dtype), parts.batch),
    )
    shapes = lambda make: nnx.to_pure_dict(nnx.state(nnx.eval_shape(make)))
    ours, theirs = (shapes(make) for make in (lambda: task.model(nnx.Rngs(0)), parts.model))
    for tree in (ours, theirs):
        tree.pop("labels", None)
    assert jax.tree.map(jnp.shape, ours) == jax.tree.map(jnp.shape, theirs)


@pytest.mark.parametrize("name", PICTURES)
def test_each_attention_to_pictures_has_a_kernel(name):
    gpu = plan_target("80GiB")
    run = for_device(PICTURES[name][1], gpu.device)
    assert [*plan.kernels(run, gpu)] == {
        "images": ["encoder"],
        "captions": ["encoder", "decoder", "cross-attention"],
        "clip": ["encoder of images", "encoder of texts"],
    }[run.recipe]


@pytest.mark.parametrize(
    ("name", "part", "first"),
    [("vit", "model", "encoder"), ("clip-scenes", "encoder", "encoder of images")],
)
def test_a_pool_of_images_has_a_kernel_too(name, part, first):
    gpu = plan_target("80GiB")
    run = for_device(PICTURES[name][1], gpu.device)
    image = dataclasses.replace(getattr(run, part).image, pooling="attention")
    pooled = dataclasses.replace(getattr(run, part), image=image)
    found = [*plan.kernels(dataclasses.replace(run, **{part: pooled}), gpu)]
    assert found[:2] == [first, "pool"]


def test_the_memory_of_pictures_is_not_estimated():
    run = PICTURES["vit"][1]
    with pytest.raises(ConfigError, match="memory of an image model is not estimated, and a"):
        command.plan_run("vit", run, run, "80GiB", False)


def test_the_compilers_message_says_how_much_was_needed():
    message = "RESOURCE_EXHAUSTED: Ran out of memory on HBM: 48.00G exceeds available HBM (15.75G)"
    assert max(plan._sizes(message)) == 48 * GIB


@pytest.mark.parametrize(("platform", "dtype", "unit"), [
    ("cpu", "float32", None), ("gpu", "bfloat16", 64), ("tpu", "bfloat16", 128)
])  # fmt: skip
def test_the_device_decides_over_settings_that_are_not_given(platform, dtype, unit):
    here = device(platform)
    for _, named in [*TRANSLATION_RUNS.values(), *PRETRAIN_RUNS.values()]:
        run = for_device(named, here)
        assert (run.model.compute.dtype, run.training.pad_to_multiple_of) == (dtype, unit)
        given = dataclasses.replace(run.training, pad_to_multiple_of=16)
        assert for_device(dataclasses.replace(named, training=given), here).training == given
    for _, named in RUNS.values():  # their rows have one length, and an n-gram model none
        assert getattr(for_device(named, here), "training", None) == getattr(
            named, "training", None
        )


def test_the_speed_of_a_plan_is_that_of_the_formula_at_the_assumed_utilization():
    run = for_device(RUNS["gpt2-small"][1], device())
    run = dataclasses.replace(
        run,
        model=dataclasses.replace(run.model, decoder_layers=2),
        training=dataclasses.replace(run.training, steps=3600),
    )
    speed = plan.training_speed(run, plan_target("h100:8"))
    assert speed["step_flops"] == pytest.approx(training_flops(run.model, 512, 1024), rel=0.03)
    assert speed["step_seconds"] * 8 * 989e12 * 0.4 == pytest.approx(speed["step_flops"])
    assert speed["tokens_per_second"] * speed["step_seconds"] == pytest.approx(512 * 1024)
    assert speed["hours"] == pytest.approx(speed["step_seconds"])
    by_data = dataclasses.replace(run, training=dataclasses.replace(run.training, steps=None))
    assert "hours" not in plan.training_speed(by_data, plan_target("h100:8"))
    assert plan.training_speed(run, plan_target("80GiB:8")) == {}  # of unknown speed

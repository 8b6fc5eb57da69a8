"""Plans of models without self-attention, against what XLA makes of their steps on a CPU."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

from tests.compiled_on_cpu import CASES, RESULTS, run_of, this_cpu
from transformer_jax.cli.plan import plan_run
from transformer_jax.core.errors import ConfigError
from transformer_jax.functional.recurrent import CELLS
from transformer_jax.models.config import MixerConfig
from transformer_jax.parallel.device_catalog import plan_target
from transformer_jax.planning import memory_estimate, plan
from transformer_jax.planning.memory_estimate import (
    recurrence_bytes,
    residual_bytes,
    translator_bytes,
)
from transformer_jax.planning.run_programs import Shape
from transformer_jax.recipes.registry import named_runs

RUNS = named_runs("language_model", "ngram")
TRANSLATION_RUNS = named_runs("translation", "recurrent_translation")

COMPILED = json.loads(RESULTS.read_text())["cases"]
FARTHEST = {"sutskever, tanh": 0.2, "encoder of GRUs": 0.19, "convs2s": 0.16}


def estimated(run, shape, what="training"):
    return plan.estimate_program(run, plan_target("80GiB"), what, Shape(*shape))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow
def test_an_estimate_is_near_the_memory_that_xla_needs_on_a_cpu(name):
    run, settings, shape = CASES[name]
    found, case = estimated(run_of(run, **settings), shape), COMPILED[name]
    assert found.memory == pytest.approx(case["compiled_bytes"], rel=FARTHEST.get(name, 0.15))
    assert found.estimate.arguments == pytest.approx(case["arguments_bytes"], rel=0.01)


def test_there_is_a_figure_for_every_case():
    assert {*COMPILED} == {*CASES}


@pytest.mark.parametrize("cell", CELLS)
def test_what_a_recurrence_keeps_grows_with_states_and_gates(cell):
    """No less than its outputs and gates.

    In bfloat16 gates stay in float32, and some versions of JAX keep a copy of what meets the kernel
    beside: the two differ by no more than a number.
    """
    size, narrow = recurrence_bytes(cell, "float32"), recurrence_bytes(cell, "bfloat16")
    assert min(size, narrow) >= 4 * CELLS[cell].products * (cell != "relu")
    assert size < 16 * recurrence_bytes("tanh", "float32")
    assert abs(narrow - size) <= 4


def test_residuals_are_those_of_differentiation():
    x, w = jnp.ones((4, 8)), jnp.ones((8, 16))
    assert residual_bytes(lambda x, w: x @ w, x, w) == 0  # both are arguments
    assert residual_bytes(lambda x, w: jnp.exp(x @ w), x, w) == 4 * 4 * 16
    twice = residual_bytes(lambda x, w: jnp.exp(jnp.exp(x @ w)), x, w)
    assert twice == 2 * 4 * 4 * 16


@pytest.mark.slow
def test_what_a_translator_keeps_is_that_of_its_rows_and_tokens():
    config = run_of("bahdanau").model
    small = translator_bytes(config, 4.0, 16)  # from the traces of one row and of two
    assert small == memory_estimate._translator_bytes(config, 4, 16)
    # Additive attention keeps arrays of all pairs of positions.
    of = [translator_bytes(config, 4.0, length) for length in (16, 32, 64)]
    assert of[2] - of[1] > 2.5 * (of[1] - of[0])


@pytest.mark.slow
@pytest.mark.parametrize("what", ["training", "evaluation", "decoding"])
@pytest.mark.parametrize("name", ["bahdanau", "luong", "convs2s", "lstm"])
def test_every_program_of_a_run_compiles(name, what):
    """The programs that the run itself compiles, lowered for a device as a plan lowers them."""
    small = {"vocab_size": 64, "d_model": 16}
    run = run_of(name, **small)
    if name in RUNS:
        training = dataclasses.replace(run.training, sequence_length=16, batch_size=8)
        run = dataclasses.replace(run, training=training)
    shape = next(shape for kind, shape in plan.programs(run, this_cpu()) if kind == what)
    shape = shape if what == "decoding" else Shape(8, 16)
    found = plan.compile_program(run, this_cpu(), what, shape)
    assert found.report is not None
    assert found.memory > found.report.arguments > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["luong", "cho", "convs2s"])
def test_a_plan_of_another_translator_is_printed(name, capsys):
    run = TRANSLATION_RUNS[name][1]
    assert plan_run(name, run, run, "80GiB", False) == 0
    out, err = capsys.readouterr()
    rows = [line.split()[0] for line in out.splitlines()]
    assert {"training", "evaluation", "decoding"} <= set(rows)
    assert ("cross-attention:" in rows) == (name == "convs2s")
    assert "fits:" in err


@pytest.mark.slow
def test_settings_that_fit_are_found_without_rematerialization(capsys):
    run = TRANSLATION_RUNS["bahdanau"][1]
    training = dataclasses.replace(run.training, max_tokens=32_768)
    run = dataclasses.replace(run, training=training)
    with pytest.raises(ConfigError, match=r"it fits with --training\.gradient-accumulation-steps"):
        plan_run("bahdanau", run, TRANSLATION_RUNS["bahdanau"][1], "4GiB", False)
    assert "remat" not in capsys.readouterr().err


def test_mixers_need_less_with_rematerialization_and_micro_batches():
    for mixer in (MixerConfig("recurrent"), MixerConfig("convolution", kernel_size=4)):
        run = run_of("gated-conv", mixer=mixer)
        plain = estimated(run, (32, 128))
        again = estimated(run_of("gated-conv", mixer=mixer, **{"compute.remat": True}), (32, 128))
        assert again.estimate.kept < plain.estimate.kept / 3
        steps = dataclasses.replace(run.training, gradient_accumulation_steps=4)
        parts = estimated(dataclasses.replace(run, training=steps), (32, 128))
        assert parts.estimate.kept == pytest.approx(plain.estimate.kept / 4)


def test_a_state_is_all_that_decoding_keeps_of_a_text():
    """Not so of a Transformer: its cache grows with the text."""
    caches = {}
    for name in ("sutskever", "convs2s"):
        run, target = run_of(name), plan_target("80GiB")
        found = [shape for what, shape in plan.programs(run, target) if what == "decoding"]
        caches[name] = estimated(run, found[0], "decoding").estimate.cache
    rows = found[0].rows
    states = 2 * 4 * 256 * 2 + 4 * 256  # two layers of two arrays, and the last hidden state
    assert caches["sutskever"] == 2 * rows * states
    assert caches["convs2s"] > 20 * caches["sutskever"]
    assert jax.devices()[0].platform == "cpu"

"""Training steps of models without self-attention and what XLA:CPU makes of them.

``python -m tests.compiled_on_cpu`` compiles all cases and writes their memory to
``benchmarks/results/plan_estimates_cpu.json``.
"""

import dataclasses
import json
import os
from pathlib import Path

import jax

from transformer_jax.parallel.device_catalog import DeviceType, Target
from transformer_jax.planning import plan
from transformer_jax.planning.run_programs import Shape
from transformer_jax.recipes.registry import named_runs

PRETRAIN_RUNS = named_runs("masked_lm")
RUNS = named_runs("language_model", "ngram")
TRANSLATION_RUNS = named_runs("translation", "recurrent_translation")

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "plan_estimates_cpu.json"
NAMED = {**TRANSLATION_RUNS, **PRETRAIN_RUNS, **RUNS}

# XLA:CPU orders operations for many threads, the compilers of GPUs and TPUs for little memory.
LITTLE_MEMORY = "--xla_cpu_enable_concurrency_optimized_scheduler=false"

# Run, settings of the model, rows and tokens of a batch.
CASES = {
    "cho": ("cho", {}, (32, 64)),
    "cho, 3 layers": ("cho", {"num_layers": 3}, (32, 64)),
    "sutskever": ("sutskever", {}, (64, 32)),
    "sutskever, tanh": ("sutskever", {"cell": "tanh"}, (64, 32)),
    "bahdanau": ("bahdanau", {}, (32, 64)),
    "bahdanau, 2 layers": ("bahdanau", {"num_layers": 2, "dropout": 0.0}, (32, 32)),
    "luong": ("luong", {}, (32, 64)),
    "luong, 3 layers": ("luong", {"num_layers": 3, "cell": "gru_reset_after"}, (32, 64)),
    "luong, not fed": ("luong", {"attention.input_feeding": False}, (32, 64)),
    "luong, concat": (
        "luong",
        {"attention.input_feeding": False, "attention.score": "concat"},
        (32, 48),
    ),
    "lstm": ("lstm", {}, (32, 128)),
    "gated-conv": ("gated-conv", {}, (32, 128)),
    "gated-conv, 8 places": ("gated-conv", {"mixer.kernel_size": 8}, (32, 128)),
    "convs2s": ("convs2s", {}, (64, 64)),
    "convs2s, feed-forward": ("convs2s", {"feed_forward.d_ff": 512}, (64, 64)),
    "encoder of GRUs": (
        "small",
        {"positions.kind": "none", "mixer.kind": "recurrent", "mixer.cell": "gru"},
        (64, 64),
    ),
}


class ThisCPU(Target):
    """A device that is there and is compiled for as accelerators are."""

    lowering = "cpu"


def this_cpu():
    kind = DeviceType("cpu", 2**40, 0.0, 0.0, ())
    return ThisCPU("cpu:1", kind, (jax.devices("cpu")[0],))


def changed(value, name, setting):
    first, _, rest = name.partition(".")
    new = changed(getattr(value, first), rest, setting) if rest else setting
    return dataclasses.replace(value, **{first: new})


def run_of(name, **model):
    """A named run in float32: the emulation of bfloat16 on CPUs has arrays of its own."""
    run = NAMED[name][1]
    for setting, value in ({"compute.dtype": "float32", "vocab_size": 2000} | model).items():
        run = changed(run, f"model.{setting}", value)
    return run


def main():
    os.environ["XLA_FLAGS"] = LITTLE_MEMORY  # read as the first program is compiled
    cases = {}
    for case, (name, settings, shape) in CASES.items():
        run = run_of(name, **settings)
        found = plan.compile_program(run, this_cpu(), "training", Shape(*shape))
        cases[case] = {"arguments_bytes": found.report.arguments, "compiled_bytes": found.memory}
        print(case, cases[case], flush=True)
    about = {
        "versions": {"jax": jax.__version__},
        "note": f"Training steps compiled by XLA:CPU with {LITTLE_MEMORY}; bytes.",
        "cases": cases,
    }
    RESULTS.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Runs whose compiled memory is stored, each with what it needed."""

import dataclasses
import json
from pathlib import Path

from transformer_jax.parallel.settings import MeshConfig
from transformer_jax.recipes.registry import named_runs
from transformer_jax.recipes.sizing import with_dtype

PRETRAIN_RUNS = named_runs("masked_lm")
RUNS = named_runs("language_model", "ngram")
TRANSLATION_RUNS = named_runs("translation", "recurrent_translation")

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "plan_estimates.json"
NAMED = {**TRANSLATION_RUNS, **PRETRAIN_RUNS, **RUNS}


def stored_cases():
    return {case["name"]: case for case in json.loads(RESULTS.read_text())["cases"]}


def run_of(case, target):
    """The run of a case: a named one with few layers, on a mesh of the target."""
    run = NAMED[case["run"]][1]
    model, layers = run.model, case["layers"]
    compute = dataclasses.replace(model.compute, remat=case["remat"])
    attention = dataclasses.replace(model.attention, implementation=case["implementation"])
    model = dataclasses.replace(
        model,
        encoder_layers=min(layers, model.encoder_layers),
        decoder_layers=min(layers, model.decoder_layers),
        compute=compute,
        attention=attention,
    )
    run = dataclasses.replace(
        run,
        model=model,
        mesh=MeshConfig(*case["mesh"]),
        training=dataclasses.replace(run.training, **case["training"]),
    )
    return with_dtype(run, target.device)

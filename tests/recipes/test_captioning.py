"""A kind of training that the package does not have is one file: ``captioning.py``.

Training, resuming, evaluation and ``transformer_jax.load`` come without another line.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import transformer_jax
from tests.opened import load
from tests.recipes import captioning
from transformer_jax.cli.main import main
from transformer_jax.core.errors import ConfigError
from transformer_jax.data.plan import ArrayPlan
from transformer_jax.models.config import TransformerConfig
from transformer_jax.recipes import driver
from transformer_jax.recipes.explicit_settings import Given, with_normalization
from transformer_jax.recipes.recipe import Recipe
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.runs.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]
ALONE = ["--distributed.num-local-devices", "1"]
RUN = [
    *("train", "pictures", *ALONE, "--training.steps", "8", "--data.train", "48"),
    *("--loop.evaluate-every", "4", "--loop.checkpoint-every", "4"),
    *("--loop.best-checkpoint-metric", "exact"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("captioning") / "run"
    assert captioning.main([*RUN, "--output", str(path)]) == 0
    return path


@pytest.mark.slow
def test_a_run_of_a_new_recipe_is_trained_evaluated_and_loaded(run, capfd):
    directory = RunDirectory.open(run)
    assert directory.read_config()["recipe"] == "captioning"
    assert any("exact" in row for row in read_metrics(directory.metrics))
    assert captioning.main(["evaluate", str(run), "--pictures", "4"]) == 0
    assert capfd.readouterr().out.startswith("exact ")
    pictures = captioning.Pictures.drawn(2, 5).pixels
    captions = transformer_jax.load(run)(pictures)
    assert len(captions) == 2
    assert main(["verify", str(run)]) == 0
    output = str(run / "captions.txt")
    assert captioning.main(["evaluate", str(run), "--pictures", "2", "--output", output]) == 0
    assert len(Path(output).read_text().splitlines()) == 2


@pytest.mark.slow
def test_describe_shows_the_parts_of_the_model_of_a_new_recipe(run, capfd):
    assert main(["describe", str(run)]) == 0
    printed = capfd.readouterr().out
    kept = sum(leaf.size for leaf in jax.tree.leaves(RunDirectory.open(run).load_params().params))
    assert f"EncoderDecoder: {kept:,} parameters" in printed
    assert "VisionEncoder" in printed
    assert main(["describe", str(run), "--plan", "h200:1"]) == 2
    assert "--plan: a model that describes pictures" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["translate", "{run}"], "which this command does not support: use transformer_jax.load"),
        (["attention", "{run}", "a"], "whose attention is not shown here"),
        (["export", "{run}", "{run}/hf"], "which this command does not support"),
        (["train", "small", "--init-from", "{run}"], "not of an encoder"),
    ],
)
def test_commands_of_texts_refuse_a_run_of_a_new_recipe(run, arguments, said, capfd):
    assert main([one.format(run=run) for one in arguments]) == 2
    [line] = [one for one in capfd.readouterr().err.splitlines() if "error: " in one]
    assert f"{run}: the run of a model that describes pictures, {said}" in line


@pytest.mark.slow
def test_load_refuses_a_run_of_a_new_recipe_under_the_name_of_a_task(run):
    with pytest.raises(ConfigError, match="is of another kind: leave it out"):
        transformer_jax.load(run, "translation")


@pytest.mark.slow
def test_a_model_of_a_new_recipe_may_be_smaller_than_its_settings_say(run):
    """Settings that its model does not use, such as an unused table of tokens, do not count."""

    def with_unused(config):
        apart = dataclasses.replace(config.embedding, share_encoder_decoder_embeddings=False)
        sizes = {"vocab_size": 1_000_000, "decoder_vocab_size": config.vocab_size}
        return dataclasses.replace(config, embedding=apart, **sizes)

    (_, params), _ = load(run, kind="captions", change=with_unused)
    stored = RunDirectory.open(run).load_params().params
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, stored)


def test_a_recipe_needs_no_settings_of_reading_text():
    run = captioning.Captioning().runs["pictures"][1]
    assert not hasattr(run.data, "read")
    assert with_normalization(run, "none", Given(run)) == run


def test_the_model_of_a_family_of_its_own_has_to_be_made_by_the_recipe():
    recipe = captioning.Captioning()
    with pytest.raises(NotImplementedError, match=r"Captioning.model must make models of captions"):
        Recipe.model(recipe, TransformerConfig(), {}, nnx.Rngs(0))


def test_batches_of_any_plan_are_described():
    run = captioning.Captioning().runs["pictures"][1]
    assert driver.describe_batches(run, ArrayPlan(5, 2)) == "at most 512 tokens a batch"


@pytest.mark.slow
def test_a_killed_run_of_a_new_recipe_ends_with_the_same_bits(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    program = [sys.executable, "-m", "tests.recipes.captioning"]
    finish = lambda *words: subprocess.run([*program, *words], cwd=ROOT, check=True, timeout=300)
    finish(*RUN, "--output", str(whole))
    with subprocess.Popen([*program, *RUN, "--output", str(killed)], cwd=ROOT) as process:
        while process.poll() is None and not (killed / "checkpoints/step_00000004").exists():
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    assert not (killed / "results.json").exists()
    finish("resume", str(killed))
    ends = [
        json.loads((path / "results.json").read_text())["state_sha256"] for path in (whole, killed)
    ]
    assert ends[0] == ends[1]

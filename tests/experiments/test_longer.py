"""A run resumed for more steps is the one that began with them, or says where it differs."""

import dataclasses
import json

import pytest

from experiments import decoder_only
from tests.experiments.language_runs import ALONE, LANGUAGE, WIDTHS, write_texts
from tests.training.test_config_guard import as_json, sealed_run
from transformer_jax.core.errors import ConfigError
from transformer_jax.data.documents import TextData
from transformer_jax.recipes.language_model import LanguageRun
from transformer_jax.recipes.longer import lengthen, store_length
from transformer_jax.runs.config_guard import latest_manifest
from transformer_jax.training.settings import ScheduleConfig


def run_with(kind="constant", warmup=0, **training):
    plain = LanguageRun()
    schedule = ScheduleConfig(kind, warmup)
    optimizer = dataclasses.replace(plain.optimizer, schedule=schedule, learning_rate=0.1)
    training = dataclasses.replace(plain.training, **training)
    return dataclasses.replace(plain, optimizer=optimizer, training=training)


@pytest.mark.parametrize("name", ["steps", "epochs"])
def test_the_new_length_is_stored_with_the_run(tmp_path, capsys, name):
    run = run_with(**{"epochs": None, "steps": None, name: 2})
    directory = sealed_run(tmp_path / "run", as_json(run))
    longer = lengthen(run, directory, **{"steps": None, "epochs": None, name: 5})
    assert getattr(longer.training, name) == 5
    store_length(longer, directory)
    assert directory.read_config()["training"][name] == 5  # as the checkpoints have it
    assert latest_manifest(directory.path)["config"]["training"][name] == 5
    assert lengthen(longer, directory, **{"steps": None, "epochs": None, name: 5}) == longer
    assert "schedule" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_whose_data_cannot_be_read_is_no_longer_one(tmp_path, capsys):
    text = str(tmp_path / "gone.txt")
    run = dataclasses.replace(run_with(steps=2), data=TextData(text=text))
    directory = sealed_run(tmp_path / "run", as_json(run))
    before = directory.config.read_bytes()
    assert decoder_only.main(["resume", str(directory.path), "--training.steps", "5", *ALONE]) != 0
    assert "gone.txt" in capsys.readouterr().err
    assert directory.config.read_bytes() == before


@pytest.mark.parametrize("kind", [("linear", 0), ("constant", 0.1), ("constant", None)])
def test_a_schedule_that_depends_on_the_length_is_told(tmp_path, capsys, kind):
    run = run_with(*kind, steps=2)
    directory = sealed_run(tmp_path / "run", as_json(run))
    lengthen(run, directory, 5, None)
    told = f"the {kind[0]} schedule depends on the length of the run, now 5 steps: after step 2"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("training", "given", "said"),
    [
        ({"steps": 4}, (3, None), "--training.steps 3: the run has 4: give more"),
        ({"steps": None}, (1, None), "--training.steps 1: the run has 2: give more"),
        ({"steps": None, "epochs": 7}, (None, 3), "--training.epochs 3: the run has 7: give more"),
        (
            {"steps": 4},
            (None, 9),
            "--training.epochs 9: the run has 4 steps: give --training.steps",
        ),
        ({"steps": 4}, (5, 5), "give one of them"),
    ],
)
def test_a_length_that_is_no_longer_one_is_refused(tmp_path, training, given, said):
    run = run_with(**training)
    directory = sealed_run(tmp_path / "run", as_json(run))
    before = directory.config.read_bytes()
    with pytest.raises(ConfigError, match=said):
        lengthen(run, directory, *given)
    assert directory.config.read_bytes() == before


@pytest.mark.slow
def test_a_longer_run_is_the_one_that_began_with_its_length(tmp_path, capsys):
    write_texts(tmp_path / "texts")
    command = [word.format(texts=tmp_path / "texts") for word in [*LANGUAGE, *WIDTHS]]
    command += ["--optimizer.schedule.kind", "constant", "--optimizer.schedule.final-fraction", "0"]
    command += ["--model.norm.residual-dropout", "0.1"]
    ends = []
    for name, steps in (("short", "4"), ("long", "6")):
        output = ["--output", str(tmp_path / name)]
        assert decoder_only.main([*command, *output, "--training.steps", steps]) == 0
    short, longer = str(tmp_path / "short"), ["--training.steps", "6"]
    capsys.readouterr()
    again = [*command, "--output", short, *longer, "--resume"]
    assert decoder_only.main(again) == 2
    line = f"train longer with `transformer-jax resume {short} --training.steps 6`"
    assert line in capsys.readouterr().err
    assert decoder_only.main(["resume", short, *ALONE]) == 0
    told = f"{short}: has all of its 4 steps; to train longer: `transformer-jax resume {short} "
    assert told in capsys.readouterr().err
    assert decoder_only.main(["resume", short, *longer, *ALONE]) == 0
    for name in ("short", "long"):
        ends.append(json.loads((tmp_path / name / "results.json").read_text()))
    assert ends[0]["state_sha256"] == ends[1]["state_sha256"]
    assert ends[0]["steps"] == 6
    assert decoder_only.main(again) == 0  # the same command as at the beginning

"""Command lines of the training programs, explained before anything is read or trained."""

import dataclasses
import json
import logging
import os

import pytest

from transformer_jax.cli import decoder_only, encoder_only, resuming, seq2seq
from transformer_jax.cli.run_flags import asked_run
from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.recipes import driver
from transformer_jax.recipes.registry import named_runs
from transformer_jax.runs import manifest
from transformer_jax.runs.lock import LOCK
from transformer_jax.runs.run_directory import RunDirectory
from transformer_jax.training.settings import LoopConfig

LANGUAGE_RUNS = named_runs("language_model", "ngram")
RUNS = named_runs("translation", "recurrent_translation")


@pytest.fixture(autouse=True)
def en_quiet():
    yield
    logging.getLogger().handlers.clear()


def en_run(folder, run, **fields):
    """The directory of a run as far as it is read before its data."""
    directory = RunDirectory(folder)
    directory.path.mkdir(exist_ok=True)
    directory.write(directory.config, dataclasses.asdict(dataclasses.replace(run, **fields)))
    directory.tokenizer.write_text("{}")
    return directory


@pytest.mark.parametrize(
    "given",
    [
        ["{run}", "--loop.keep-last", "5"],
        ["--loop.keep-last", "5", "{run}"],
        ["--loop.keep-last=5", "{run}", "--distributed.num-local-devices", "1"],
    ],
    ids=["after", "before", "between"],
)
def test_what_a_resumed_run_is_not_told_stays_as_it_was(tmp_path, monkeypatch, given):
    loop = LoopConfig(evaluate_every=123, checkpoint_every=77, patience=4)
    en_run(tmp_path, RUNS["small"][1], loop=loop)
    seen = []

    def train(run, directory, texts):
        seen.append(run)
        return 0

    monkeypatch.setattr(driver, "open_data", lambda run: None)
    monkeypatch.setattr(driver, "train", train)
    assert seq2seq.main(["resume", *(word.format(run=tmp_path) for word in given)]) == 0
    [run] = seen
    assert run.loop == dataclasses.replace(loop, keep_last=5)


def test_an_earlier_flag_of_resume_is_named_once(tmp_path, monkeypatch, caplog):
    en_run(tmp_path, RUNS["small"][1])
    monkeypatch.setattr(driver, "open_data", lambda run: None)
    monkeypatch.setattr(driver, "train", lambda run, directory, texts: 0)
    with caplog.at_level(logging.WARNING):
        assert seq2seq.main(["resume", str(tmp_path), "--loop.max-skipped", "5"]) == 0
    named = [record.getMessage() for record in caplog.records]
    assert named.count("--loop.max-skipped is now --loop.max-nonfinite-steps") == 1


@pytest.mark.parametrize("given", [["--help"], ["RUN", "--help"], ["--loop.keep-last", "5", "-h"]])
def test_help_of_resume_needs_no_run(tmp_path, capsys, given):
    en_run(tmp_path, RUNS["small"][1], loop=LoopConfig(evaluate_every=123))
    filled = [str(tmp_path) if word == "RUN" else word for word in given]
    assert seq2seq.main(["resume", *filled]) == 0
    shown = capsys.readouterr().out
    assert "--loop.evaluate-every" in shown
    assert ("123" in shown) == ("RUN" in given)


def en_asked(family, *arguments):
    return asked_run("program train", family.commands, arguments)[1]


def test_a_repeated_flag_of_several_values_has_all_of_them():
    given = ["--tokenizer.add-tokens", "a", "b", "--first", "eos"]
    given += ["--tokenizer.add_tokens=c", "--first", "newline"]
    found = en_asked(decoder_only.FAMILY, "char-cpu", *given)
    assert found.tokenizer.add_tokens == ("a", "b", "c")
    assert found.first == "newline"  # of one value the last counts


def test_passes_that_a_flag_gives_are_not_those_of_the_named_steps(caplog):
    named = LANGUAGE_RUNS["char-cpu"][1]
    assert named.training.steps is not None
    asked = en_asked(decoder_only.FAMILY, "char-cpu", "--training.epochs", "2").training
    assert (asked.steps, asked.epochs) == (None, 2)
    asked = en_asked(decoder_only.FAMILY, "char-cpu", "--training.epochs", "None").training
    assert asked.steps == named.training.steps
    both = ["--training.epochs", "2", "--training.steps", "9"]
    assert en_asked(decoder_only.FAMILY, "char-cpu", *both).training.steps == 9
    assert "training.epochs is not used" in caplog.text


def test_an_ngram_run_begins_from_the_configuration_of_another(tmp_path, capsys):
    directory = en_run(tmp_path, LANGUAGE_RUNS["ngram"][1])
    asked = en_asked(decoder_only.FAMILY, "--config", str(directory.config), "--model.order", "3")
    assert (asked.model.kind, asked.model.order) == ("ngram", 3)
    assert decoder_only.main(["resume", str(tmp_path)]) == 2
    assert "there is nothing to resume" in capsys.readouterr().err


def test_checkpoints_say_nothing_of_a_configuration_that_another_run_begins_from(tmp_path):
    directory = en_run(tmp_path, RUNS["small"][1])
    checkpoint = directory.checkpoints / "step_00000003"
    checkpoint.mkdir(parents=True)
    config = directory.read_config()
    manifest.rewrite(checkpoint, {"schema": manifest.SCHEMA, "config": config, "files": {}})
    config["training"]["seed"] = 77
    for name in ("config.json", "other.json"):
        (tmp_path / name).write_text(json.dumps(config))
        asked = en_asked(seq2seq.FAMILY, "--config", str(tmp_path / name))
        assert asked.training.seed == 77
    with pytest.raises(CheckpointError, match="changed after training"):
        RunDirectory(tmp_path).read_config()


def test_what_texts_begin_with_is_told_anew_from_other_texts(tmp_path):
    directory = en_run(tmp_path, LANGUAGE_RUNS["char-cpu"][1], first="newline")
    config = ["--config", str(directory.config)]
    assert en_asked(decoder_only.FAMILY, *config).first == "auto"
    assert en_asked(decoder_only.FAMILY, *config, "--first", "eos").first == "eos"


@pytest.mark.parametrize("text", ['{"packages": {}}', "---\nyaml"])
def test_nothing_is_written_to_a_folder_that_is_no_run(tmp_path, text):
    (tmp_path / LOCK).write_text(text)
    (tmp_path / "thesis.tex").write_text("x")
    os.utime(tmp_path / LOCK, (0, 0))
    alone = resuming.writing_alone(str(tmp_path), lambda: RunDirectory.check_free(tmp_path))
    with pytest.raises(ConfigError, match="not a run"), alone:
        pass
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        LOCK: text,
        "thesis.tex": "x",
    }


LARGE = str(10**30)


@pytest.mark.parametrize(
    ("module", "given", "says"),
    [
        (seq2seq, ["evaluate", "run", "--source", "\ud800", "--target", "x"], "--source is"),
        (seq2seq, ["evaluate", "run", "--source", "x", "--target", "x", "--num-beams", LARGE],
         "--num-beams is 1"),
        (seq2seq, ["resume", "run", "--loop.keep-last", LARGE], "--loop.keep-last is 1"),
        (seq2seq, ["resume", "a\0b"], "error: run is 'a\\x00b': text without NUL"),
        (decoder_only, ["evaluate", "run", "--ngrams", LARGE], "--ngrams is (1"),
        (encoder_only, ["evaluate", "run", "--output", "\ud800"], "--output is"),
        (encoder_only, ["glue", "SST-2=\ud800"], "error: runs is"),
    ],
)  # fmt: skip
def test_values_that_mean_nothing_are_refused_before_a_run_is_looked_for(
    capfd, module, given, says
):
    assert module.main(given) == 2
    assert says in capfd.readouterr().err


def test_a_training_run_may_be_larger_than_a_command(tmp_path):
    asked = en_asked(seq2seq.FAMILY, "small", "--training.max-tokens", "8000000")
    assert asked.training.max_tokens == 8_000_000

"""Settings of a run from outside make no command ask object stores that its user never named."""

import dataclasses
import json

import pytest

from transformer_jax.cli.main import main
from transformer_jax.core.errors import ConfigError
from transformer_jax.core.storage import reach
from transformer_jax.core.storage.objects import Objects
from transformer_jax.core.storage.reach import check_buckets, remember_buckets
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.recipes import driver
from transformer_jax.recipes.explicit_settings import Given
from transformer_jax.recipes.registry import get_recipe
from transformer_jax.runs.run_directory import RunDirectory, describe_run

THEIRS = "s3://theirs/secret.txt"


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine on which no command has named a bucket."""
    monkeypatch.setenv("TRANSFORMER_JAX_STORAGE", str(tmp_path / "cache"))
    monkeypatch.delenv(reach.ALLOWED, raising=False)
    monkeypatch.setattr(reach, "_now", set())
    return tmp_path


def written(folder, **data):
    """A run directory of a language model with other data."""
    named = get_recipe("language_model").runs["char-cpu"][1]
    run = dataclasses.replace(named, data=dataclasses.replace(named.data, **data))
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(describe_run(run)))
    train_tokenizer("bytes", []).save(folder / "tokenizer.json")
    return folder


@pytest.mark.parametrize("data", [{"text": THEIRS}, {"valid": THEIRS, "text": "a.txt"}])
@pytest.mark.parametrize("command", ["resume", "evaluate", "--config"])
def test_a_bucket_in_a_run_from_outside_is_refused(data, command, machine, monkeypatch, capsys):
    run = written(machine / "run", **data)
    monkeypatch.setattr(Objects, "__init__", lambda *_: pytest.fail("an object store is asked"))
    words = ["train", "--config", str(run / "config.json")] if command == "--config" else [command]
    words += ["--output", str(machine / "new")] if command == "--config" else [str(run)]
    assert main(words) == 2
    [line] = [one for one in capsys.readouterr().err.splitlines() if "error" in one]
    assert "config.json: names s3://theirs, which no command on this machine has named" in line
    assert "`export TRANSFORMER_JAX_BUCKETS=s3://theirs`" in line


def test_an_allowed_bucket_is_remembered(machine, monkeypatch):
    directory = RunDirectory(written(machine / "run", text=THEIRS))
    monkeypatch.setenv(reach.ALLOWED, "s3://theirs")
    driver.read(directory)
    monkeypatch.delenv(reach.ALLOWED)
    monkeypatch.setattr(reach, "_now", set())  # another process
    assert driver.read(directory).data.text == THEIRS


def test_a_bucket_that_a_command_named_is_known(machine, monkeypatch):
    """The command fails later, since no server answers."""
    directory = RunDirectory(written(machine / "run", text=THEIRS))
    monkeypatch.setattr(driver.checks, "check_rows", lambda *_: 1 / 0)
    named = get_recipe("language_model").runs["char-cpu"][1]
    data = dataclasses.replace(named.data, text="s3://theirs/other.txt")
    with pytest.raises(ZeroDivisionError):
        driver.create_run(dataclasses.replace(named, data=data), Given(named))
    monkeypatch.setattr(reach, "_now", set())
    driver.read(directory)


def test_a_run_on_a_bucket_may_name_it(machine):
    local = machine / "cache/runs/s3/theirs/runs/a/config.json"
    check_buckets({"data": {"text": THEIRS}}, local)
    with pytest.raises(ConfigError, match=r"^s3://theirs/runs/a/config\.json: names s3://others, "):
        check_buckets({"data": {"text": "s3://others/x"}}, local)


def test_a_folder_that_cannot_be_written_is_no_obstacle(machine, monkeypatch):
    (machine / "cache").write_text("a file")
    remember_buckets({"text": THEIRS})
    check_buckets({"text": THEIRS}, machine / "config.json")

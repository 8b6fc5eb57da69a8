"""Run directories are never lost by accident, and what is none is said to be none."""

import json
from pathlib import Path

import pytest

from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.runs.run_directory import RunDirectory
from transformer_jax.training.curves import training_curves


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"output": "run"}, "continue with `transformer-jax resume"),  # a command began it
        ({"model": {}}, "run the program again to continue, choose another"),  # a Trainer
    ],
    ids=["command", "program"],
)
def test_what_was_begun_is_refused_unless_it_may_be_deleted(tmp_path, settings, says):
    run = RunDirectory.create(tmp_path / "a" / "run")
    run.write(run.config, settings)
    assert RunDirectory.create(run.path).path == run.path  # nothing was trained
    run.write(run.config, settings)
    run.metrics.write_text("")
    with pytest.raises(ConfigError, match=says):
        RunDirectory.create(run.path)
    RunDirectory.create(run.path, overwrite=True)
    assert not list(run.path.iterdir())


@pytest.mark.parametrize("left", [["lock.json"], [".lock.json.12ab"], ["config.json"]])
def test_what_a_kill_left_before_anything_was_begun_is_in_nobodys_way(tmp_path, left):
    for name in left:
        (tmp_path / name).write_text("{}")
    RunDirectory.check_free(tmp_path)


@pytest.mark.parametrize("name", ["thesis.tex", "package-lock.json", "lock.json.old", "lock.jsonl"])
def test_what_is_no_run_is_never_deleted(tmp_path, name):
    (tmp_path / name).write_text("x")
    with pytest.raises(ConfigError, match="not a run"):
        RunDirectory.create(tmp_path, overwrite=True)
    assert (tmp_path / name).exists()


@pytest.mark.parametrize("text", ["{", "[]", "\x00", "[" * 100_000])
def test_a_damaged_configuration_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"config\.json: damaged"):
        RunDirectory.open(tmp_path).read_config()


def test_a_file_is_no_run(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="no such run"):
        RunDirectory.open(tmp_path / "file")
    with pytest.raises(CheckpointError, match="cannot be written"):
        RunDirectory.create(tmp_path / "file" / "run")


@pytest.mark.parametrize("tail", ['{"step": 3, "lo', "garbage", '{"loss": 1}', "\x00\x00"])
def test_measurements_end_where_a_kill_cut_them(tmp_path, tail):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n' + tail)
    assert read_metrics(path) == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize(
    "history",
    [
        [],
        [{"step": 1, "loss": None, "grad_norm": None}],
        [{"step": n, "loss": 1 / n, "grad_norm": 1.0, "learning_rate": 0.1} for n in range(1, 9)]
        + [{"step": 8, "valid_loss": 1.0, "sacrebleu": 3.0}],
    ],
)
@pytest.mark.quick("history0")
def test_curves_are_drawn_whatever_was_measured(tmp_path, history):
    path = tmp_path / "curves.png"
    training_curves(json.loads(json.dumps(history)), path)
    assert Path(path).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("path", ["ftp://node/run", "hdfs:/node/run", Path("hdfs://node/run")])
def test_a_url_is_refused_and_no_folder_of_its_scheme_is_made(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"(ftp|hdfs):// is not supported: give a local path"):
        RunDirectory.create(path)
    assert not any(tmp_path.iterdir())


def fail():
    raise KeyError


def write_whole(place, meanwhile=lambda: None, **how):
    with RunDirectory.whole(place, **how) as run:
        run.write(run.config, {"a": 1})
        meanwhile()


def test_a_run_that_is_written_whole_is_there_when_it_is_complete(tmp_path):
    """Nothing at its place looks like a run before, also where writing fails."""
    place = tmp_path / "new" / "run"
    with RunDirectory.whole(place) as run:
        run.write(run.config, {"a": 1})
        assert not place.exists()
        assert run.path.parent == place.parent
    assert json.loads((place / "config.json").read_text()) == {"a": 1}
    with pytest.raises(KeyError):
        write_whole(tmp_path / "other", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert [path.name for path in place.parent.iterdir()] == ["run"]


def test_a_run_that_gives_way_is_there_until_the_new_one_is_complete(tmp_path):
    place = tmp_path / "run"
    old = RunDirectory.create(place)
    old.write(old.config, {"output": "run"})
    old.metrics.write_text("")
    with pytest.raises(ConfigError, match="resume"):
        write_whole(place)
    with pytest.raises(KeyError):
        write_whole(place, fail, overwrite=True)
    assert json.loads(old.config.read_text()) == {"output": "run"}
    with RunDirectory.whole(place, overwrite=True) as run:
        run.write(run.config, {"a": 2})
        assert old.metrics.exists()
    assert [path.name for path in place.iterdir()] == ["config.json"]
    link = tmp_path / "link"
    link.symlink_to(place)
    with RunDirectory.whole(link) as run:
        run.write(run.config, {"a": 3})
    assert link.is_symlink()
    assert json.loads((place / "config.json").read_text()) == {"a": 3}


def test_a_run_that_another_process_began_meanwhile_stays(tmp_path):
    place = tmp_path / "run"

    def begin():
        other = RunDirectory.create(place)
        other.write(other.config, {"b": 1})
        other.metrics.write_text("")

    with pytest.raises(ConfigError, match="has a run"):
        write_whole(place, begin)
    assert json.loads((place / "config.json").read_text()) == {"b": 1}

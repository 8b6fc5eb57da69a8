"""Exports on disk: written once, whole or not there, whoever else writes at the same time."""

import os
import signal
import subprocess
import sys
import time

import pytest

from transformer_jax.core.errors import CheckpointError
from transformer_jax.interop.cached_exports import cached_export, user_cache


def write(draft):
    (draft / "model.bin").write_bytes(b"weights")
    return "a model"


def never(draft):
    raise AssertionError("it is there already")


def contents(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_it_is_written_once_and_told_once(tmp_path):
    told = []
    tell = lambda folder, said: told.append((folder, said))
    place = cached_export([tmp_path / "a"], "key", write, tell)
    assert cached_export([tmp_path / "a"], "key", never, tell) == place == tmp_path / "a" / "key"
    assert told == [(place, "a model")]
    assert contents(tmp_path) == {"a/key/model.bin", "a/key/export.json"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, CheckpointError, ValueError])
def test_one_that_fails_leaves_nothing(tmp_path, error):
    def fail(draft):
        write(draft)
        raise error

    with pytest.raises(error):
        cached_export([tmp_path], "key", fail)
    assert contents(tmp_path) == set()
    assert list(tmp_path.iterdir()) == []
    cached_export([tmp_path], "key", write)


PROGRAM = """
import sys, time
from pathlib import Path
from transformer_jax.interop.cached_exports import cached_export

def write(draft):
    (draft / "model.bin").write_bytes(b"weights")
    print("writing", flush=True)
    sys.stdin.readline()
    return ""

print(cached_export([Path(sys.argv[1])], "key", write).name, flush=True)
"""


def start(folder):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder)], **pipes)
    assert process.stdout.readline() == "writing\n"
    return process


def test_one_that_was_killed_is_not_read_and_is_removed_later(tmp_path):
    process = start(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(contents(tmp_path)) == 1  # the draft
    cached_export([tmp_path], "key", write)
    assert contents(tmp_path) == {"key/model.bin", "key/export.json"}


def test_a_draft_that_is_being_written_is_left_alone(tmp_path):
    """If two write at once, both get a whole export, and nothing else is left."""
    process = start(tmp_path)
    place = cached_export([tmp_path], "key", write)
    assert len(contents(tmp_path)) == 3
    written = (place / "export.json").stat().st_ino
    assert process.communicate("\n")[0] == "key\n"
    assert process.returncode == 0
    assert contents(tmp_path) == {"key/model.bin", "key/export.json"}
    assert (place / "export.json").stat().st_ino == written  # the first stays


@pytest.mark.parametrize("damage", ["shorter", "missing", "unsaid"])
def test_a_damaged_one_is_written_again(tmp_path, damage):
    place = cached_export([tmp_path], "key", write)
    if damage == "shorter":
        os.truncate(place / "model.bin", 3)
    else:
        (place / ("model.bin" if damage == "missing" else "export.json")).unlink()
    assert cached_export([tmp_path], "key", write) == place
    assert (place / "model.bin").read_bytes() == b"weights"
    assert contents(tmp_path) == {"key/model.bin", "key/export.json"}


def test_the_next_folder_is_used_where_the_first_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")  # no folder can be made in it, by anybody
    folders = [tmp_path / "file" / "a", tmp_path / "b"]
    assert cached_export(folders, "key", write) == tmp_path / "b" / "key"
    assert cached_export(folders, "key", never) == tmp_path / "b" / "key"
    with pytest.raises(CheckpointError, match=r"cannot be written \(.*/file/a: .*--engine-cache"):
        cached_export(folders[:1], "key", write)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_rights_is_passed_over(tmp_path):
    (tmp_path / "a").mkdir(mode=0o500)
    assert cached_export([tmp_path / "a", tmp_path / "b"], "key", write).parent == tmp_path / "b"


def test_the_three_that_were_used_last_are_kept(tmp_path):
    for age, key in enumerate("abcd"):
        place = cached_export([tmp_path], key, write)
        os.utime(place, (time.time() - 100 + age,) * 2)
    cached_export([tmp_path], "b", never)  # used again
    (tmp_path / "mine").mkdir()
    cached_export([tmp_path], "e", write)
    assert {path.name for path in tmp_path.iterdir()} == {"b", "d", "e", "mine"}


def test_the_cache_of_the_user_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", str(tmp_path))
    assert user_cache() == tmp_path / "exports"
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", "off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert user_cache() == tmp_path / "home" / "transformer_jax" / "exports"

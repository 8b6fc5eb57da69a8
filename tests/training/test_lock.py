"""Of several processes one writes to a run; whoever died holds nothing, wherever it ran."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from transformer_jax.data.processes import process_started, this_process
from transformer_jax.errors import CheckpointError
from transformer_jax.training.lock import LOCK, RunLock, check_lock
from transformer_jax.training.run_directory import RunDirectory


def lk_record(path, *, age=0.0, **fields):
    """Leaves the lock of another process."""
    record = this_process() | {"host": "elsewhere", "token": "other"} | fields
    (path / LOCK).write_text(json.dumps(record))
    os.utime(path / LOCK, (time.time() - age,) * 2)


@pytest.fixture
def sleeper():
    """A living process."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def test_a_lock_is_held_once_and_given_back(tmp_path):
    said = []
    with RunLock(tmp_path, say=said.append):
        with pytest.raises(CheckpointError, match=rf"in use by process {os.getpid()} on "):
            RunLock(tmp_path).__enter__()
        check_lock(tmp_path)  # it is ours
    assert not list(tmp_path.iterdir())
    with RunLock(tmp_path, say=said.append):
        pass
    assert said == []


def test_a_directory_in_which_nothing_was_begun_is_not_left_behind(tmp_path):
    with RunLock(tmp_path / "run"):
        assert (tmp_path / "run" / LOCK).exists()
    assert not (tmp_path / "run").exists()


def test_whoever_lives_on_this_machine_keeps_its_lock_however_long_it_is_silent(tmp_path, sleeper):
    lk_record(tmp_path, pid=sleeper.pid, started=process_started(sleeper.pid), age=1e6)
    with pytest.raises(CheckpointError, match=f"process {sleeper.pid} on elsewhere"):
        RunLock(tmp_path).__enter__()
    with pytest.raises(CheckpointError, match="writes nothing more"):
        check_lock(tmp_path)


@pytest.mark.parametrize("waited", [False, True])
def test_the_lock_of_a_killed_process_is_taken_over_at_once(tmp_path, sleeper, waited):
    lk_record(tmp_path, pid=sleeper.pid, started=process_started(sleeper.pid))
    os.kill(sleeper.pid, signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    if waited:
        sleeper.wait()
    check_lock(tmp_path)
    said = []
    with RunLock(tmp_path, say=said.append):
        assert len(said) == 1
        assert f"process {sleeper.pid} on elsewhere" in said[0]


def test_a_number_that_was_given_to_another_process_is_no_holder(tmp_path, sleeper):
    lk_record(tmp_path, pid=sleeper.pid, started="12")
    with RunLock(tmp_path):
        pass


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"pid": "x"}'])
def test_on_other_machines_silence_is_death(tmp_path, text):
    lk_record(tmp_path, machine="another")
    if text is not None:
        (tmp_path / LOCK).write_text(text)
    with pytest.raises(CheckpointError, match=r"try again in \d+ s"):
        RunLock(tmp_path, stale=60).__enter__()
    os.utime(tmp_path / LOCK, (time.time() - 61,) * 2)
    with RunLock(tmp_path, stale=60):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()


def test_who_holds_a_lock_is_not_silent(tmp_path):
    with RunLock(tmp_path, every=0.02):
        os.utime(tmp_path / LOCK, (0, 0))
        for _ in range(500):
            if (tmp_path / LOCK).stat().st_mtime > 1e6:
                return
            time.sleep(0.01)
    pytest.fail("the lock was not touched")


def test_a_file_system_without_links_has_locks_too(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with RunLock(tmp_path), pytest.raises(CheckpointError, match="in use"):
        RunLock(tmp_path).__enter__()


@pytest.mark.parametrize("stale", [False, True])
def test_of_many_at_once_one_wins(tmp_path, stale):
    for _ in range(20):
        if stale:
            lk_record(tmp_path, started="12")
        start, won, lost = threading.Barrier(8), [], []

        def attempt(start=start, won=won, lost=lost):
            one = RunLock(tmp_path)
            start.wait()
            try:
                won.append(one.__enter__())
            except CheckpointError as error:
                lost.append(error)

        threads = [threading.Thread(target=attempt) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(won), len(lost)) == (1, 7)
        won[0].__exit__()
        assert not list(tmp_path.iterdir())


def test_a_run_in_progress_is_not_deleted(tmp_path, sleeper):
    run = RunDirectory.create(tmp_path / "run")
    run.write(run.config, {})
    run.metrics.write_text("")
    lk_record(run.path, pid=sleeper.pid, started=process_started(sleeper.pid))
    with pytest.raises(CheckpointError, match=f"process {sleeper.pid}"):
        RunDirectory.create(run.path, overwrite=True)
    assert run.metrics.exists()


def test_overwriting_keeps_ones_own_lock(tmp_path):
    with RunLock(tmp_path):
        run = RunDirectory(tmp_path)
        run.write(run.config, {})
        run.metrics.write_text("")
        run.checkpoints.mkdir()
        RunDirectory.create(tmp_path, overwrite=True)
        assert [path.name for path in tmp_path.iterdir()] == [LOCK]

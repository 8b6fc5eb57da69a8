"""One of several processes writes to a run; a dead one holds nothing, wherever it ran."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from transformer_jax.core import processes
from transformer_jax.core.errors import CheckpointError
from transformer_jax.core.processes import process_alive, process_started, this_process
from transformer_jax.runs import lock, metrics
from transformer_jax.runs.lock import LOCK, RunLock, check_lock
from transformer_jax.runs.metrics import MetricsLog
from transformer_jax.runs.run_directory import RunDirectory


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
    with pytest.raises(CheckpointError, match="no longer writes to it"):
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


@pytest.mark.parametrize("text", [None, "", "{", '{"token": "x"}'])
def test_on_other_machines_silence_is_death(tmp_path, text):
    lk_record(tmp_path, machine="another")
    if text is not None:
        (tmp_path / LOCK).write_text(text)
    with pytest.raises(CheckpointError, match=r"try again in \d+ s"):
        RunLock(tmp_path, stale=60).__enter__()
    os.utime(tmp_path / LOCK, (time.time() - 61,) * 2)
    with RunLock(tmp_path, stale=60):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("text", ['{"packages": {}}', "[]", "3", '{"pid": 5}'])
def test_the_file_of_another_program_is_left_alone(tmp_path, text):
    (tmp_path / LOCK).write_text(text)
    os.utime(tmp_path / LOCK, (0, 0))
    with pytest.raises(CheckpointError, match="not written by this program"):
        RunLock(tmp_path).__enter__()
    assert [path.read_text() for path in tmp_path.iterdir()] == [text]
    check_lock(tmp_path)  # nor is it in anybody's way


def test_a_folder_of_that_name_is_refused_and_leaves_no_file_open(tmp_path):
    (tmp_path / LOCK).mkdir()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(CheckpointError, match="Is a directory"):
            check_lock(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_lock_that_is_just_being_written_is_waited_for(tmp_path, sleeper):
    (tmp_path / LOCK).touch()
    record = {"pid": sleeper.pid, "started": process_started(sleeper.pid)}
    writes = threading.Timer(0.15, lk_record, (tmp_path,), record)
    writes.start()
    with pytest.raises(CheckpointError, match=f"in use by process {sleeper.pid}"):
        RunLock(tmp_path).__enter__()
    writes.join()


def test_a_turn_that_was_taken_away_takes_nothing_over(tmp_path, sleeper, monkeypatch):
    """Another process took ours for dead, and then the run."""
    lk_record(tmp_path, started="12")
    read, taken = lock._read, []

    def slowly(file):
        found = read(file)
        turn = tmp_path / f".{LOCK}.turn"
        if turn.exists() and not taken:
            taken.append(found)
            turn.rename(tmp_path / "away")
            lk_record(tmp_path, pid=sleeper.pid, started=process_started(sleeper.pid))
        return found

    monkeypatch.setattr(lock, "_read", slowly)
    with pytest.raises(CheckpointError, match=f"in use by process {sleeper.pid} on elsewhere"):
        RunLock(tmp_path).__enter__()
    assert taken
    assert json.loads((tmp_path / LOCK).read_text())["pid"] == sleeper.pid


@pytest.mark.parametrize("age", [0.0, 1e4])
def test_whoever_dies_in_its_turn_stops_others_for_a_while_only(tmp_path, age):
    lk_record(tmp_path, started="12")
    turn = tmp_path / f".{LOCK}.turn"
    turn.mkdir()
    (turn / "token").write_text("{}")
    os.utime(turn, (time.time() - age,) * 2)
    with RunLock(tmp_path, stale=0.3):
        assert not turn.exists()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", ["released", "dead", "alive", "damaged"])
def test_a_lock_that_was_lost_is_noticed_whatever_became_of_it(
    tmp_path, sleeper, what, monkeypatch
):
    """After a night with the lid closed: the run was taken over, and may be free again."""
    monkeypatch.setattr(metrics, "_CHECKED", 0.0)
    log, run = MetricsLog(tmp_path / "metrics.jsonl"), RunDirectory(tmp_path)
    with RunLock(tmp_path):
        log.write({"step": 1})
        run.write(run.config, {"a": 1})
        if what == "released":
            (tmp_path / LOCK).unlink()
        elif what == "damaged":
            (tmp_path / LOCK).write_text("")
        else:
            started = process_started(sleeper.pid) if what == "alive" else "12"
            lk_record(tmp_path, pid=sleeper.pid, started=started)
        for write in (
            lambda: check_lock(tmp_path),
            lambda: log.write({"step": 2}),
            lambda: run.write(run.config, {"a": 2}),
            lambda: MetricsLog(tmp_path / "metrics.jsonl"),
        ):
            with pytest.raises(CheckpointError, match="no longer writes to it"):
                write()
    log.close()
    assert run.read_config() == {"a": 1}
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1
    if what == "released":
        check_lock(tmp_path)  # nobody's any more


def test_a_process_that_the_system_hides_is_not_taken_for_dead(monkeypatch, sleeper):
    """Processes of other users are not in /proc where it is mounted with hidepid."""
    record = this_process() | {"pid": sleeper.pid, "started": process_started(sleeper.pid)}
    whole = processes.Path.read_text

    def hidden(path, *rest):
        if str(path).startswith(f"/proc/{sleeper.pid}/"):
            raise FileNotFoundError(2, "No such file or directory")
        return whole(path, *rest)

    def foreign(pid, number):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(processes.Path, "read_text", hidden)
    assert process_alive(record) is None
    monkeypatch.setattr(os, "kill", foreign)
    assert process_alive(record) is None
    monkeypatch.undo()
    sleeper.kill()
    sleeper.wait()
    assert process_alive(record) is False


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

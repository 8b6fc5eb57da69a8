"""A checkpoint that cannot be read now stops a command; it is not damaged and nothing changes.

The tests also run as root, whom permissions do not bind, so opening a file fails by a patch.
"""

import asyncio
import errno
import io
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.training.test_trainer import trainer
from transformer_jax.cli.main import main
from transformer_jax.cli.process import guarded, terminated
from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.runs.checkpoint_reader import load_params, weights_digest
from transformer_jax.runs.config_guard import latest_manifest
from transformer_jax.runs.manifest import UnreadableError
from transformer_jax.runs.verification import verify

NEWEST, BEFORE = "checkpoints/step_00000006", "checkpoints/step_00000004"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of a user's own task with three checkpoints, and what they are."""
    folder = tmp_path_factory.mktemp("unreadable") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformer_jax.training.curves.training_curves", lambda *_, **__: None)
        trainer(folder).fit(steps=6)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def deny(monkeypatch):
    """A function after which opening a file fails with an error of the system."""
    denied = {}

    def guarded(open_it):
        def opened(path, *args, **kwargs):
            at = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
            if at in denied:
                raise OSError(denied[at], os.strerror(denied[at]), at)
            return open_it(path, *args, **kwargs)

        return opened

    for module in (os, io):
        monkeypatch.setattr(module, "open", guarded(module.open))
    monkeypatch.setattr("builtins.open", guarded(open))
    return lambda path, code=errno.EACCES: denied.__setitem__(str(path), code)


def contents(run):
    """Sizes and times of the files of a run, whose logs grow."""
    files = (path for path in run.rglob("*") if path.is_file() and path.parent.name != "logs")
    return {path.relative_to(run): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def payload(run, name):
    files = [path for path in (run / name / "params").rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("part", ["manifest", "payload"])
@pytest.mark.quick("manifest-5")
def test_training_does_not_go_on_beside_a_checkpoint_that_cannot_be_read(run, deny, part, code):
    path = run / NEWEST / "manifest.json" if part == "manifest" else payload(run, NEWEST)
    before = contents(run)
    deny(path, code)
    with pytest.raises(CheckpointError, match=f"cannot be read: {os.strerror(code)}") as caught:
        trainer(run).fit(steps=8)
    assert f"move {run / NEWEST} away" in str(caught.value)
    assert contents(run) == before


def test_using_a_run_does_not_take_an_earlier_checkpoint_instead(run, deny):
    deny(payload(run, NEWEST))
    for load in (load_params, weights_digest):
        with pytest.raises(UnreadableError, match="cannot be read: Permission denied"):
            load(run, "last")
    deny(run / BEFORE / "manifest.json", errno.EIO)
    with pytest.raises(UnreadableError, match=r"step_00000004.*Input/output error"):
        load_params(run, "best")
    with pytest.raises(UnreadableError, match="step_00000004"):
        load_params(run, 4)
    assert load_params(run, 2).step == 2


def test_the_newest_is_used_though_an_older_one_cannot_be_read(run, deny):
    deny(run / BEFORE / "manifest.json")
    assert load_params(run, "last").step == 6


def test_a_run_without_a_readable_manifest_is_not_a_new_run(run, deny):
    deny(run / NEWEST / "manifest.json")
    assert latest_manifest(run)["step"] == 4
    shutil.rmtree(run / BEFORE)
    shutil.rmtree(run / "checkpoints/step_00000002")
    with pytest.raises(UnreadableError, match="step_00000006"):
        latest_manifest(run)


def test_verify_says_what_it_cannot_read_and_checks_the_rest(run, deny, capsys):
    assert main(["verify", str(run)]) == 0  # of a user's own task, without a tokenizer
    out, err = capsys.readouterr()
    assert (out.splitlines(), err) == ([f"step_0000000{n}\tok" for n in (6, 4, 2)], "")
    deny(run / BEFORE / "manifest.json")
    assert [finding.unreadable for finding in verify(run)] == [False, True, False]
    assert main(["verify", str(run)]) == 4
    out, err = capsys.readouterr()
    assert [line.endswith("\tok") for line in out.splitlines()] == [True, False, True]
    assert err == f"error: {run}: cannot be read: step_00000004\n"
    deny(run / "config.json")
    assert main(["verify", str(run)]) == 4
    assert "cannot be read: step_00000004, config.json" in capsys.readouterr().err


def best_step(run):
    return json.loads((run / "results.json").read_text())["best_step"]


@pytest.mark.parametrize("kind", ["last", "best"])
@pytest.mark.parametrize("results", ["kept", "of an earlier version", "missing"])
@pytest.mark.quick("kept-best", "of an earlier version-last")
def test_verify_misses_the_best_and_the_last_checkpoint(run, capsys, kind, results):
    file = run / "results.json"
    best, fields = best_step(run), json.loads(file.read_text())
    gone = best if kind == "best" else 6
    if results == "missing":
        file.unlink()
    elif results == "of an earlier version":
        file.write_text(json.dumps({k: v for k, v in fields.items() if k != "best_step"}))
    shutil.rmtree(run / f"checkpoints/step_{gone:08d}")
    code = main(["verify", str(run)])
    out, err = capsys.readouterr()
    if results == "missing" and gone == 6:
        return  # nothing says that training went so far
    assert code == 4
    assert "is missing" in out
    lines = [line.partition("\t")[0] for line in out.splitlines()]
    assert len(set(lines)) == len(lines)  # each checkpoint once
    assert "error: " in err


def test_verify_takes_results_of_an_earlier_end_for_what_they_are(run):
    fields = json.loads((run / "results.json").read_text())
    early = fields | {"steps": 3, "best_step": 3}
    (run / "results.json").write_text(json.dumps(early))
    assert [finding.problem for finding in verify(run)] == [None, None, None]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_verify_names_damaged_results(run, capsys, content):
    (run / "results.json").write_bytes(content)
    assert main(["verify", str(run)]) == 4
    assert "results.json: damaged" in capsys.readouterr().out


@pytest.mark.parametrize("inside", ["plain", "event loop"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_while_a_checkpoint_is_read_is_no_damage(run, monkeypatch, capsys, inside, number):
    async def stopped():
        os.kill(os.getpid(), number)
        await asyncio.sleep(5)

    def read(*_):
        asyncio.run(stopped()) if inside == "event loop" else os.kill(os.getpid(), number)

    monkeypatch.setattr("transformer_jax.runs.checkpoint_reader.read_arrays", read)
    before = contents(run)
    for act in (lambda: load_params(run, "best"), lambda: verify(run)):
        with terminated("stopped by a signal"):
            code = guarded(lambda act=act: act() and 0)
        assert code == {signal.SIGTERM: 143, signal.SIGUSR1: 75}[number]
        assert capsys.readouterr().err == "stopped by a signal\n"
    monkeypatch.setattr("transformer_jax.runs.checkpoint.read_item", read)
    with terminated("stopped by a signal"):
        assert guarded(lambda: trainer(run).fit(steps=8) and 0) in (75, 143)
    assert "stopped by a signal" in capsys.readouterr().err
    assert contents(run) == before


def test_a_path_that_is_not_utf_8_is_verified_and_read(trained, tmp_path, capsys):
    run = Path(shutil.copytree(trained, tmp_path / os.fsdecode(b"r\xff")))
    assert main(["verify", str(run)]) == 0
    assert capsys.readouterr().out.count("\tok\n") == 3
    assert load_params(run, "last").step == 6
    with pytest.raises(ConfigError, match="the path is not UTF-8"):
        trainer(run).fit(steps=8)

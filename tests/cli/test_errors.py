"""Whatever a command raises, its end is one line and a code."""

import importlib
import logging
import signal
import subprocess
import sys
import time
import warnings

import pytest

from transformer_jax.cli.process import guarded, plain_warnings, run_log, terminated
from transformer_jax.core.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    ListedError,
    NumericsError,
    Stopped,
)


def er_raising(error):
    def command():
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("a\nb"), 2),
        (DataError("a b"), 3),
        (CheckpointError("a b"), 4),
        (NumericsError("a b"), 5),
        (MemoryError(), 1),
        (RuntimeError("RESOURCE_EXHAUSTED: too much\nmore"), 1),
        (ValueError("a\nb"), 1),
    ],
)
def test_every_error_is_one_line_and_a_code(error, code, capsys):
    assert guarded(er_raising(error)) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("stop", "code", "said"),
    [
        (Stopped("stopped by a signal", signal.SIGINT), 130, "stopped by a signal\n"),
        (Stopped("stopped by a signal", signal.SIGTERM), 143, "stopped by a signal\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_a_stop_on_request_is_no_error(stop, code, said, capsys):
    assert guarded(er_raising(stop)) == code
    assert capsys.readouterr().err == said


def test_an_error_about_several_rows_is_a_line_for_each(capsys):
    error = ListedError("a.tsv: 2 bad rows", ["a.tsv:1: no\ntext", "a.tsv:7: empty"])
    assert guarded(er_raising(error)) == 3
    said = capsys.readouterr().err
    assert said == "error: a.tsv: 2 bad rows\nerror: a.tsv:1: no text\nerror: a.tsv:7: empty\n"


def test_ordinary_ends_say_nothing(capsys):
    assert [guarded(lambda: None), guarded(lambda: 3)] == [0, 3]
    assert [guarded(er_raising(SystemExit(n))) for n in (None, 0, 2)] == [0, 0, 2]
    assert capsys.readouterr().err == ""


def test_an_error_of_ours_leaves_its_traceback_in_the_log(tmp_path, capsys):
    run_log(tmp_path / "error.log")
    try:
        assert guarded(er_raising(ValueError("odd"))) == 1
    finally:
        run_log(None)
    assert str(tmp_path / "error.log") in capsys.readouterr().err
    assert "ValueError: odd" in (tmp_path / "error.log").read_text()


def test_warnings_are_lines_without_the_names_of_loggers(capsys):
    """Warnings of logs and of Python, of this package and of others."""

    def command():
        logging.getLogger("transformer_jax.parallel.sharding").warning("a %s\nb", "size")
        logging.getLogger("absl").error("gone")
        logging.getLogger("jax._src.xla_bridge").info("not for people")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("an old flag", UserWarning, stacklevel=1)

    before = warnings.showwarning
    with plain_warnings():
        shown = warnings.showwarning
    assert guarded(command) == 0
    err = capsys.readouterr().err
    assert err == "warning: a size b\nerror: gone\nwarning: an old flag\n"
    assert warnings.showwarning is before is not shown


def test_what_is_said_can_be_written(capsys):
    assert guarded(er_raising(ConfigError("a \ud800"))) == 2
    assert capsys.readouterr().err == "error: a \\ud800\n"


def test_debugging_lets_errors_pass(monkeypatch):
    with pytest.raises(ValueError, match="odd"):
        guarded(er_raising(ValueError("odd")), debug=True)
    monkeypatch.setenv("TRANSFORMER_JAX_DEBUG", "1")
    with pytest.raises(ConfigError, match="odd"):
        guarded(er_raising(ConfigError("odd")))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_midst_of_a_callback_is_not_lost(number, capsys):
    def stop(number, frame):
        raise KeyboardInterrupt if number == signal.SIGINT else Stopped("stopped", number)

    class Collected:
        def __del__(self):  # Python discards what is raised here
            signal.raise_signal(number)
            time.sleep(0)

    def work():
        one = Collected()
        del one
        for _ in range(100):
            time.sleep(0.02)

    before = signal.signal(number, stop)
    try:
        assert guarded(work) == 128 + number
    finally:
        signal.signal(number, before)
    assert "ignored" not in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_an_import_waits_for_its_end(number, tmp_path, monkeypatch):
    """An exception there would crash compiled modules, which call Python as they begin."""
    (tmp_path / "interrupted_module.py").write_text(
        f"import signal\nsignal.raise_signal({int(number)})\nwhole = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "interrupted_module", raising=False)

    def work():
        with terminated("stopped"):
            importlib.import_module("interrupted_module")
            time.sleep(5)

    # A job in the background begins with SIGINT ignored.
    before, began = signal.signal(signal.SIGINT, signal.default_int_handler), time.monotonic()
    try:
        assert guarded(work) == 128 + number
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - began < 4
    assert sys.modules["interrupted_module"].whole


def test_a_hook_that_was_put_on_top_meanwhile_stays(monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", before := sys.unraisablehook)
    guarded(lambda: None)
    assert sys.unraisablehook is before

    def work():
        sys.unraisablehook = work

    guarded(work)
    assert sys.unraisablehook is work


def test_who_was_stopped_waits_for_no_thread():
    """A compilation in the background cannot be interrupted, and takes minutes."""
    code = (
        "import threading, time; from transformer_jax.cli.process import leave;"
        "threading.Thread(target=time.sleep, args=(120,)).start();"
        "print('said', end=''); leave(130)"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (130, "said")
    assert time.monotonic() - began < 60

"""Standard streams that are closed, full or a terminal: one line, a code, and no steering."""

import contextlib
import errno
import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_jax.cli import process
from transformer_jax.cli.main import main
from transformer_jax.cli.output import escaped, say
from transformer_jax.cli.process import guarded
from transformer_jax.core.errors import UserError
from transformer_jax.core.task_progress import log

ROOT = Path(__file__).parents[2]
FULL = "standard output cannot be written: No space left on device"
CLOSED = "standard output cannot be written: it is closed"
VECTORS = b"3 2\nred 1 0\n\x1b[31mro\xc2\x9bt 1 0.1\nblue\x07 0 1\n"


@pytest.fixture
def stream():
    """A function that opens a file as standard output of a program."""
    opened = []

    def make(path, *, buffering=-1):
        raw = open(path, "wb", buffering)  # noqa: SIM115  (closed below)
        plain = io.TextIOWrapper(raw, "utf-8", write_through=buffering == 0)
        opened.append(process._text_on(process._Output(plain)))
        opened.append(plain)
        return opened[-2]

    yield make
    for one in opened:
        with contextlib.suppress(OSError, UserError):
            one.close()


@pytest.mark.parametrize("buffering", [-1, 0])
@pytest.mark.parametrize("size", [3, 100_000])
def test_a_full_standard_output_is_named(monkeypatch, capsys, stream, size, buffering):
    monkeypatch.setattr(sys, "stdout", stream("/dev/full", buffering=buffering))
    assert guarded(lambda: print("x" * size)) == 2
    assert capsys.readouterr().err == f"error: {FULL}\n"
    sys.stdout.flush()  # as Python does at the end


def test_the_code_of_a_failed_command_stays(monkeypatch, capsys, stream):
    monkeypatch.setattr(sys, "stdout", stream("/dev/full"))
    assert guarded(lambda: print("x") or 4) == 4
    assert FULL in capsys.readouterr().err


def test_standard_error_that_cannot_be_written_stops_nothing(monkeypatch):
    with open("/dev/full", "wb", 0) as raw:
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw, "utf-8", write_through=True))
        say("dropped")
        plain, dropping = sys.stderr, process._Dropping(raw, "utf-8", write_through=True)
        monkeypatch.setattr(sys, "stderr", dropping)
        print("x" * 100_000, file=sys.stderr, flush=True)
        log("dropped too")
        monkeypatch.setattr(sys, "stderr", None)
        say("there is none")
        for one in (plain, dropping):
            one.detach()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ENOSPC])
def test_errors_of_the_system_name_their_file(capsys, code):
    def command():
        raise OSError(code, os.strerror(code), "runs/a\nb")

    assert guarded(command) == 3
    assert capsys.readouterr().err == f"error: runs/a b: {os.strerror(code)}\n"


PROGRAM = [sys.executable, "-m", "transformer_jax.cli.main"]
CASES = {
    "full": (">/dev/full", 2, FULL),
    "closed": (">&-", 2, CLOSED),
    "error closed": ("2>&-", 0, ""),
    "error full": ("2>/dev/full", 0, ""),
    "all closed": (">&- 2>&- <&-", 2, ""),
}
COMMANDS = ["most-similar {v} red", "--help", "translate --help", "train --help", "--version",
            "word-vectors --help", "train translate --help", "report bleu"]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.quick("most-similar {v} red-full", "--help-all closed")
def test_programs_end_in_order_whatever_their_streams_are(tmp_path, command, case):
    (tmp_path / "v.txt").write_bytes(VECTORS)
    redirection, code, says = CASES[case]
    words = " ".join([*PROGRAM, command.format(v=tmp_path / "v.txt"), redirection])
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(["bash", "-c", words], cwd=ROOT, env=environ, capture_output=True,
                          text=True, timeout=120)  # fmt: skip
    if command.startswith("train translate"):
        code = 2
    assert done.returncode == code, done.stderr
    assert says in done.stderr or code == 2
    assert "Traceback" not in done.stderr
    assert "unexpected" not in done.stderr


def on_terminal(act):
    """The output of ``act`` on a terminal."""
    ours, theirs = pty.openpty()
    plain, before = io.TextIOWrapper(open(theirs, "wb"), "utf-8"), sys.stdout  # noqa: SIM115
    sys.stdout = plain
    try:
        act()
        plain.write("END")
        plain.flush()
        shown = b""
        while not shown.endswith(b"END"):
            shown += os.read(ours, 1 << 16)
        return shown.decode().removesuffix("END")
    finally:
        sys.stdout = before
        plain.close()
        os.close(ours)


def test_text_of_a_file_does_not_steer_a_terminal(tmp_path):
    (tmp_path / "v.txt").write_bytes(VECTORS)
    shown = on_terminal(lambda: main(["most-similar", str(tmp_path / "v.txt"), "red"]))
    assert shown.splitlines() == [r"\x1b[31mro\x9bt	0.9950", r"blue\x07	0.0000"]
    text = "a\tb\x1b[2J\x07\x9b\x7f\r\n日本"
    shown = on_terminal(lambda: guarded(lambda: print(text)))
    assert shown.split() == ["a", r"b\x1b[2J\x07\x9b\x7f\x0d", "日本"]
    raw = on_terminal(lambda: guarded(lambda: sys.stdout.buffer.write(text.encode()) and 0))
    assert "\x1b" not in raw
    assert "日本" in raw


def test_help_keeps_its_styles_on_a_terminal():
    def show():
        with process.as_terminal(), process.as_help():
            print("\x1b[1mbold\x1b[0m")

    assert "\x1b[1mbold" in on_terminal(show)


def test_messages_and_cells_hold_no_control_characters(capsys):
    say("a\x1b[31m\x9b\x07b")
    log("a\x1bb")
    assert capsys.readouterr().err == "a\\x1b[31m\\x9b\\x07b\na\\x1bb\n"
    assert escaped("\x00\x1b\x85") == r"\x00\x1b\x85"


def test_names_that_are_not_utf_8_can_be_printed(monkeypatch, tmp_path, stream):
    monkeypatch.setattr(sys, "stdout", stream(tmp_path / "out"))
    assert guarded(lambda: print("a\udcffb")) == 0
    sys.stdout.flush()
    assert (tmp_path / "out").read_bytes() == b"a\\udcffb\n"


def test_help_in_five_columns_ends():
    done = subprocess.run([*PROGRAM, "--help"], cwd=ROOT, env=os.environ | {"COLUMNS": "5"},
                          capture_output=True, timeout=60)  # fmt: skip
    assert done.returncode == 0
    assert b"translate" in done.stdout


def test_leaving_with_a_full_standard_output_is_no_error_of_python(monkeypatch, stream):
    monkeypatch.setattr(sys, "stdout", stream("/dev/full"))
    print("x")
    with pytest.raises(SystemExit) as end:
        process.leave(0)
    assert end.value.code == 0

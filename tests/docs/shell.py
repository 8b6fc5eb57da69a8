"""Command lines as a shell runs them, the program in this process and all else in others."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.docs.documented import ROOT, words
from tests.docs.shortening import shorten
from transformer_jax.cli.commands import PROGRAM
from transformer_jax.cli.main import main

# What a person types, by the command; other commands that read get a line of text.
TYPED = {"prefer": "1\n2\n" * 20, "chat": "Hi\n/quit\n"}
SAID = "Once upon a time\n"


class Done(NamedTuple):
    """The exit code and the output of a command line."""

    code: int
    out: str
    err: str


class Shell:
    """Runs command lines in the current folder.

    Args:
        monkeypatch: For standard input.
        capsys: The fixture ``capsysbinary``.
    """

    def __init__(self, monkeypatch, capsys):
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, line: str) -> Done:
        """Runs a line, pipes and redirections included; training is shortened."""
        piped: bytes | None = None
        done = Done(0, "", "")
        for part in _parts(words(line)):
            arguments, source, target = _redirected(part)
            given = Path(source).read_bytes() if source else piped
            done = self.run(arguments, given)
            piped = done.out.encode()
            if target:
                Path(target).expanduser().write_bytes(piped)
            if done.code:
                break
        return done

    def run(self, arguments: list[str], given: bytes | None) -> Done:
        """Runs a program with bytes on standard input."""
        name, *rest = arguments
        if name != PROGRAM:
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            program = [sys.executable] if name.startswith("python") else [name]
            rest = [str(ROOT / one) if one.startswith("examples/") else one for one in rest]
            rest = [os.path.expanduser(one) for one in rest]
            ran = subprocess.run(
                [*program, *rest], input=given or b"", capture_output=True, env=environment
            )
            return Done(ran.returncode, ran.stdout.decode(), ran.stderr.decode())
        if given is None:
            given = TYPED.get(rest[0], SAID).encode()
        self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        self.capsys.readouterr()
        code = main(shorten(rest))
        out, err = self.capsys.readouterr()
        return Done(code, out.decode(), err.decode())


def _parts(found: list[str]) -> list[list[str]]:
    """The programs of a pipe."""
    parts: list[list[str]] = [[]]
    for word in found:
        if word == "|":
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _redirected(part: list[str]) -> tuple[list[str], str | None, str | None]:
    """A program's words, and the files of its standard input and output."""
    files: dict[str, str | None] = {"<": None, ">": None}
    arguments, rest = [], iter(part)
    for word in rest:
        if word in files:
            files[word] = next(rest)
        else:
            arguments.append(word)
    return arguments, files["<"], files[">"]

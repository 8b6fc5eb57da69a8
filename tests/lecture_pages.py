"""The pages of the lectures as text: their sections by anchor, and their cells as plain Python."""

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "lectures"
NAMES = ("inf721", "cs4391", "bishop", "cs287r", "assistant")
ANCHOR = re.compile(r"^\(([\w-]+)\)=$")
_FENCE = re.compile(r"^(`{3,})\s*(.*)$")


def read(name):
    return (FOLDER / f"{name}.md").read_text()


def sections(name):
    """The text of a page by anchor, each from its anchor to the next, its heading first."""
    found, lines = {}, None
    for line in read(name).splitlines():
        if match := ANCHOR.match(line):
            assert match[1] not in found, f"{name}: anchor {match[1]} twice"
            lines = found[match[1]] = []
        elif lines is not None:
            lines.append(line)
    return {anchor: "\n".join(lines).strip() for anchor, lines in found.items()}


def blocks(text):
    """The fenced blocks of a text: the line of the first of each, what the fence says, and code."""
    fence, kind, start, lines = None, "", 0, []
    for number, line in enumerate(text.splitlines(), 1):
        match = _FENCE.match(line)
        if fence is None and match:
            fence, kind, start, lines = match[1], match[2], number + 1, []
        elif fence is not None and line.strip() == fence:
            yield start, kind, "\n".join(lines)
            fence = None
        elif fence is not None:
            lines.append(line)
    assert fence is None, f"a block without an end begins in line {start}"


class Cell(NamedTuple):
    """A code cell: the line of the first line of its code, the code, and whether it is hidden."""

    start: int
    code: str
    hidden: bool


def cells_of(text):
    """The code cells of a text."""
    for start, kind, code in blocks(text):
        if kind.startswith("{code-cell}"):
            options = re.match(r"(?::[\w-]+:.*\n?)*", code)[0]
            yield Cell(start + options.count("\n"), code[len(options) :], "remove-cell" in options)


def cells(name):
    """The code cells of a page."""
    return cells_of(read(name))


def execute(name, cell, namespace):
    """Executes a cell, whose traceback names the page and its line; returns what it printed."""
    padded = "\n" * (cell.start - 1) + cell.code
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(padded, str(FOLDER / f"{name}.md"), "exec"), namespace)
    return printed.getvalue()


def run(name, namespace=None):
    """Executes the cells of a page in one namespace, which it returns.

    Hidden cells print nothing if the numbers are those of the page.
    """
    namespace = {"__name__": "__main__"} if namespace is None else namespace
    for cell in cells(name):
        printed = execute(name, cell, namespace)
        assert not (cell.hidden and printed), f"{name}.md: {printed}"
    return namespace


def output_of(folder, *arguments):
    """Returns what a program of tests prints, run in a folder without the flags of tests.

    Warnings are errors.
    """
    env = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    run = subprocess.run(
        [sys.executable, "-W", "error", "-m", *arguments], cwd=folder, capture_output=True,
        text=True, env=env | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout

"""Faults, done to copies of sound folders, and what a command makes of them."""

import contextlib
import json
import logging
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

LONGEST = 30  # seconds that a command may take

Command = Callable[[list[str]], int]


class Case(NamedTuple):
    """A fault: what is done to a copy of a folder, and what is asked of it then."""

    name: str
    harm: Callable[[Path], None]
    command: Command
    arguments: list[str]  # {run} is the copy


class Ended(NamedTuple):
    """The end of a command."""

    code: int | None  # None is not within the time
    out: str
    err: str
    result: Any  # what it left behind, where that is checked


class _Hangs(BaseException):
    """No `except Exception` takes it for something else."""


@contextlib.contextmanager
def limited(seconds: int = LONGEST) -> Iterator[None]:
    """Raises inside after so many seconds of work, or of waiting for what does not come.

    On a busy machine the clock of the wall would count what other programs do; so a command hangs
    that has worked for ``seconds``, by the clock of this process, or not at all for a third of it.
    """
    began = seen = time.process_time()

    def handle(number, frame):
        nonlocal seen
        now = time.process_time()
        if now - began > 2 * seconds or now - seen < 0.1:  # two processors
            raise _Hangs
        seen = now

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, seconds / 3, seconds / 3)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def ended(case: Case, folder: Path, capture: Any, look: Callable[[Path], Any]) -> Ended:
    """Runs the command of a case on a folder that was harmed."""
    given = [word.format(run=folder) for word in case.arguments]
    capture.readouterr()
    # Python shows warnings that nobody handles; here pytest handles them.
    shown = logging.StreamHandler(sys.stderr)
    shown.setLevel(logging.WARNING)
    logging.getLogger().addHandler(shown)
    try:
        with limited():
            code: int | None = case.command(given)
    except _Hangs:
        code = None
    finally:
        logging.getLogger().removeHandler(shown)
    out, err = capture.readouterr()
    # Columns are as wide as the name of the folder.
    words = out.replace(str(folder), "RUN").split(" ")
    return Ended(code, " ".join(filter(None, words)), err, look(folder))


def verdict_of(case: Case, sound: Ended, found: Ended) -> str:
    """The outcome of a fault: refused, reported, without effect; or an outcome that must not be."""
    if found.code is None:
        return "HANGS"
    if "Traceback" in found.err or "unexpected" in found.err:
        return "CRASHES"
    errors = [line for line in found.err.splitlines() if line.startswith("error: ")]
    if found.code != 0:
        known = found.code in (2, 3, 4, 5, 130, 143) and len(errors) == 1
        return "refused" if known else f"ENDS WITH {found.code} AND {len(errors)} LINES"
    same = (found.out, found.result) == (sound.out, sound.result)
    told = len(found.err.splitlines()) > len(sound.err.splitlines()) or found.out != sound.out
    if found.result != sound.result or not same:
        return "told" if _warns(found.err) else "SILENT"
    return "told" if told and _warns(found.err) else "no effect"


def _warns(err: str) -> bool:
    return any(word in err for word in ("damaged", "not used", "was in use", "made anew"))


DAMAGES = ("flip", "truncate", "empty", "delete", "swap", "pipe", "folder")


def damaged(path: Path, kind: str, seed: str, other: Path | None = None) -> None:
    """Harms a file; by ``swap`` it becomes ``other``, which is sound and of another origin."""
    rng, data = random.Random(seed), bytearray(path.read_bytes())
    if kind == "flip":
        place = rng.randrange(max(1, len(data)))
        data[place : place + 1] = bytes([(data[place] if data else 0) ^ (1 << rng.randrange(8))])
        path.write_bytes(data)
    elif kind == "truncate":
        path.write_bytes(data[: rng.randrange(max(1, len(data)))])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "swap" and other is not None:
        shutil.copyfile(other, path)
    else:
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()


def changed(path: Path, where: str, value: Any) -> None:
    """Sets a field of a JSON file, named by the keys on the way to it; an ellipsis removes it."""
    whole = json.loads(path.read_text())
    *way, last = where.split("/")
    inner = whole
    for key in way:
        inner = inner[int(key)] if isinstance(inner, list) else inner[key]
    key: Any = int(last) if isinstance(inner, list) else last
    if value is ...:
        del inner[key]
    else:
        inner[key] = value
    path.write_text(json.dumps(whole))

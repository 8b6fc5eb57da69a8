"""Answers in a file, checked in a process of their own within limits of time, memory and output.

The limits stop loops and mistakes; they are no sandbox: the process may read files and use the
network, as the file's own author may.
"""

import ast
import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, NamedTuple

from transformer_jax.core.errors import DataError, UserError
from transformer_jax.data.corpora.phrasebook import L1_PAIRS
from transformer_jax.data.tokenizer_files.trial_process import limit_process
from transformer_jax.exercises.checking import Verdict, check, line_of
from transformer_jax.exercises.table import TRANSFORMER

__all__ = ["Trial", "check_file", "defined", "main"]

_MEMORY, _OUTPUT = 8 * 2**30, 16 * 2**20  # bytes; threads of JAX reserve much that they never use
_SETTINGS = {"JAX_PLATFORMS": "cpu", "TRANSFORMER_JAX_CACHE": "off", "PYTHONUNBUFFERED": "1"}
_START = 120  # seconds until the process is ready


class Trial(NamedTuple):
    """The result of a file.

    Attributes:
        verdicts: One for each exercise.
        translations: Source, translation by the file's functions, and loss per token.
        notes: What else was done.
        printed: What the file printed.
    """

    verdicts: list[Verdict]
    translations: list[tuple[str, str, float]]
    notes: list[str]
    printed: str


def check_file(
    file: Path,
    names: Sequence[str],
    *,
    seconds: int,
    run: Path | None = None,
    page: Path | None = None,
) -> Trial:
    """Checks functions of a file, each named like its exercise.

    Args:
        file: The file.
        names: The exercises.
        seconds: Most seconds of processor time; those after a function that took more get as many.
        run: A run whose parameters the functions get if all that a Transformer needs are right.
        page: Output file of the attention of that Transformer.

    Raises:
        DataError: The file cannot be imported, or a model cannot be made.
    """
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as told:
        asked = {"file": str(file), "names": list(names), "seconds": seconds, "told": told.fileno()}
        asked |= {
            "run": None if run is None else str(run),
            "page": None if page is None else str(page),
        }
        program = subprocess.Popen(
            [sys.executable, "-m", "transformer_jax.exercises.trial", json.dumps(asked)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            pass_fds=[told.fileno()],
            env=os.environ | _SETTINGS,
            start_new_session=True,
        )
        try:
            written, _ = program.communicate(timeout=4 * seconds + _START)
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, signal.SIGKILL)
            written, _ = program.communicate()
        last, printed = _read(said).splitlines()[-1:], _read(told)
    lines = [json.loads(line) for line in written.decode().splitlines() if line.startswith("{")]
    if any("refused" in line for line in lines):
        raise DataError(next(line["refused"] for line in lines if "refused" in line))
    verdicts = [Verdict(**line["verdict"]) for line in lines if "verdict" in line]
    if len(verdicts) < len(names):
        ended = _ended(names[len(verdicts)], program.returncode, seconds, last)
        if not lines:
            raise DataError(f"{file}: when imported, {ended.law}: mend the file")
        verdicts.append(ended)
        rest = names[len(verdicts) :]
        verdicts += check_file(file, rest, seconds=seconds).verdicts if rest else []
    elif program.returncode:
        said_last = last[0] if last else f"status {program.returncode}"
        raise DataError(f"{file}: the model of these functions failed: {said_last:.200}")
    translations = [tuple(line["translation"]) for line in lines if "translation" in line]
    notes = [line["note"] for line in lines if "note" in line]
    return Trial(verdicts, translations, notes, printed)


def _read(file: IO[bytes]) -> str:
    """The text of a temporary file."""
    file.seek(0)
    return file.read(_OUTPUT).decode(errors="replace").strip()


def defined(file: Path) -> set[str]:
    """Returns the names of the functions in a file, without running it.

    Raises:
        DataError: The file is no Python.
    """
    try:
        body = ast.parse(file.read_bytes()).body
    except (SyntaxError, ValueError, OSError) as error:
        line = getattr(error, "lineno", None)
        at = f", line {line}" if line else ""
        raise DataError(f"{file}{at}: {error.args[0]}: mend the file") from None
    names = {one.name for one in body if isinstance(one, ast.FunctionDef)}
    targets = [target for one in body if isinstance(one, ast.Assign) for target in one.targets]
    return names | {target.id for target in targets if isinstance(target, ast.Name)}


def _ended(name: str, status: int, seconds: int, last: list[str]) -> Verdict:
    """The verdict on an answer during which the process ended."""
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        return Verdict(
            name,
            False,
            f"not done within {seconds} s",
            cause="a loop never ends; for slow answers raise --seconds",
        )
    said = f": {last[0]:.200}" if last else ""
    return Verdict(name, False, f"the process ended with status {status}{said}")


def main() -> None:
    """The program of the process."""
    asked = json.loads(sys.argv[1])
    # What the file prints goes elsewhere.
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(asked["told"], 1)
    limit_process(asked["seconds"], _MEMORY, _OUTPUT)
    for line in _results(asked):
        results.write(json.dumps(line) + "\n")
        results.flush()


def _results(asked: dict[str, object]) -> Iterator[dict[str, object]]:
    file, names = Path(str(asked["file"])), list[str](asked["names"])  # type: ignore[call-overload]
    if asked["run"] is not None:
        from transformer_jax.exercises.assembly import facts_of

        try:
            facts_of(Path(str(asked["run"])))  # before the minute that the functions take
        except UserError as error:
            yield {"refused": str(error)}
            return
    try:
        module = _imported(file)
    except BaseException as error:
        said, where = str(error).partition("\n")[0], line_of(error)
        if isinstance(error, SyntaxError):
            said, where = error.msg, f"line {error.lineno}"
            inner = Path(error.filename or file)
            file = file if inner == file.absolute() else inner
        at = f", {where}" if where else ""
        yield {"refused": f"{file}{at}: {type(error).__name__} {said:.200}: mend the file"}
        return
    yield {"imported": True}
    right = set()
    for name in names:
        answer = getattr(module, name, None)
        missing = f"{file.name} has no function {name}"
        verdict = Verdict(name, False, missing) if not callable(answer) else check(name, answer)
        right |= {name} if verdict.holds else set()
        yield {"verdict": dataclasses.asdict(verdict)}
    if asked["run"] is not None:
        missing = ", ".join(name for name in TRANSFORMER if name not in right)
        if missing:
            yield {"note": f"your Transformer still needs {missing}"}
            return
        yield from _own(module, Path(str(asked["run"])), asked["page"])


def _own(module: ModuleType, run: Path, page: object) -> Iterator[dict[str, object]]:
    from transformer_jax.exercises.assembly import OwnTransformer

    try:
        own = OwnTransformer(module, run)
    except UserError as error:
        yield {"refused": str(error)}
        return
    for source, _ in L1_PAIRS:
        [(text, loss)] = own.translate([source])
        yield {"translation": (source, text, loss)}
    if page is not None:
        html = own.page(L1_PAIRS[-1][0])
        if html is None:
            yield {"note": "no attention page: your multi_head does not call your attention"}
            return
        Path(str(page)).write_text(html, encoding="utf-8")
        yield {"note": f"wrote {page}"}


def _imported(file: Path) -> ModuleType:
    """The module of a file, whose folder its own imports see."""
    sys.path.insert(0, str(file.resolve().parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ImportError("a file of Python is needed, whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()

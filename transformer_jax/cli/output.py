"""What commands write: cells of tables, files that are whole or not there, and where they are."""

import gzip
import os
import sys
from pathlib import Path
from typing import Any

from transformer_jax.errors import ConfigError, plural

__all__ = ["TextOutput", "escaped", "note", "say", "tsv", "waiting", "wrote"]

_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


def escaped(text: str) -> str:
    r"""A text on one line and in one cell, from which it can be read back.

    Example:
        >>> escaped("a\tb\nC:\\new")
        'a\\tb\\nC:\\\\new'
    """
    return text.translate(_ESCAPES)


def tsv(*cells: str | int | float) -> bytes:
    r"""One row of a table, UTF-8 whatever the locale says; numbers have four decimals if any.

    Example:
        >>> tsv(1, -0.25, "a\nb")
        b'1\t-0.2500\ta\\nb\n'
    """
    shown = (f"{cell:.4f}" if isinstance(cell, float) else escaped(str(cell)) for cell in cells)
    return "\t".join(shown).encode() + b"\n"


def say(text: str) -> None:
    """One line on standard error, whatever is in it; half a character is shown by its number."""
    shown = " ".join(text.split()).encode("utf-8", "backslashreplace").decode()
    print(shown, file=sys.stderr, flush=True)


def note(text: str) -> None:
    """Says ``text``, which is worth knowing and no mistake, on standard error."""
    say(f"note: {text}")


def wrote(*paths: Path, what: str = "") -> None:
    """Says where a command wrote, and perhaps ``what``, in one line on standard error."""
    say(f"wrote {', '.join(map(str, paths))}" + (f": {what}" if what else ""))


def waiting(what: str) -> None:
    """Says that a command waits for ``what``, if a person at a terminal is to write it."""
    if sys.stdin.isatty():
        note(f"waiting for {what} at the terminal, one a line; Ctrl-D ends")


class TextOutput:
    """Standard output, or a file that appears under its name when all of it is written.

    What was written before a command failed or was stopped stays in ``NAME.partial``.

    Args:
        path: The file, packed if its name ends in ``.gz``; None is standard output. What is no
            regular file (a pipe, a device) is written directly.
        source: What is read meanwhile, if that is a file.

    Raises:
        ConfigError: ``path`` is what is read, is a folder, or cannot be written.
    """

    def __init__(self, path: Path | None, source: Path | None = None):
        self.path, self._lines = path, 0
        self._file: Any = None
        self._draft: Path | None = None
        if path is None:
            return
        if path.is_dir():
            raise ConfigError(f"--output {path}: this is a folder: name a file")
        if source is not None and path.exists() and source.exists() and path.samefile(source):
            raise ConfigError(f"--output {path}: is the file that is read: name another")
        if not path.exists() or path.is_file():
            self._draft = path.with_name(f".{path.name}.{os.getpid()}")

    def __enter__(self) -> "TextOutput":
        if self.path is not None:
            at = self._draft or self.path
            try:
                at.parent.mkdir(parents=True, exist_ok=True)
                packed = self.path.suffix == ".gz"
                self._file = gzip.open(at, "wb") if packed else open(at, "wb")
            except OSError as error:
                raise self._refused(error) from None
        return self

    def write(self, line: bytes) -> None:
        """Writes ``line``, whose end is part of it."""
        self._lines += 1
        self._guarded(lambda out: out.write(line))

    def flush(self) -> None:
        """Passes on what was written."""
        self._guarded(lambda out: out.flush())

    def _guarded(self, act: Any) -> None:
        if self._file is None:
            act(sys.stdout.buffer)
            return
        try:
            act(self._file)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise self._refused(error) from None

    def __exit__(self, kind: Any, *error: object) -> None:
        if self._file is None or self.path is None:
            if kind is None:
                sys.stdout.buffer.flush()
            return
        try:
            self._file.close()
            if kind is None:
                if self._draft is not None:
                    os.replace(self._draft, self.path)
                wrote(self.path, what=plural(self._lines, "line"))
            else:
                self._keep()
        except OSError as problem:
            if kind is None:
                raise self._refused(problem) from None

    def _keep(self) -> None:
        """What was written before a failure, under a name that says so."""
        assert self.path is not None
        if self._draft is None:
            return
        if not self._lines:
            self._draft.unlink(missing_ok=True)
            return
        partial = self.path.with_name(f"{self.path.name}.partial")
        os.replace(self._draft, partial)
        lines = plural(self._lines, "line")
        wrote(partial, what=f"{lines}, the beginning of what was to be written")

    def _refused(self, error: OSError) -> ConfigError:
        return ConfigError(f"--output {self.path}: cannot be written: {error.strerror or error}")

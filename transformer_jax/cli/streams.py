"""Standard streams of a program: closed, full, or a terminal that text must not control."""

import contextlib
import errno
import io
import os
import re
import shutil
import sys
from collections.abc import Iterator
from typing import Any

from transformer_jax.core.errors import ConfigError

__all__ = ["as_help", "as_terminal", "open_streams", "silence"]

_NARROWEST = 40  # columns; the minimum for the layout of help
# Bytes that control a terminal: C0 except tabs and line ends, DEL, and C1 in UTF-8.
_CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2([\x80-\x9f])")


def open_streams() -> None:
    """Opens those of the three standard streams that the parent process closed.

    Standard error that cannot be written, such as a log on a full disk, is dropped: the work of a
    command matters more than its messages. Writing to a closed standard output fails.
    """
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY), encoding="utf-8")
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = _text_on(_Output(sys.stdout))
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    elif isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _Dropping(
            sys.stderr.buffer, sys.stderr.encoding, "backslashreplace", line_buffering=True
        )


def silence(stream: Any) -> None:
    """Discards the output of a stream, so that its buffer can be flushed at exit."""
    with contextlib.suppress(OSError, ValueError), open(os.devnull, "w") as sink:
        os.dup2(sink.fileno(), stream.fileno())


class _Dropping(io.TextIOWrapper):
    """A stream that discards its output after the first error."""

    def write(self, text: str) -> int:
        """Writes ``text``."""
        try:
            return super().write(text)
        except OSError:
            silence(self)
            return len(text)

    def flush(self) -> None:
        """Flushes what was written."""
        try:
            super().flush()
        except OSError:
            silence(self)
            super().flush()


class _Output(io.BufferedIOBase):
    """The byte stream of standard output; errors in writing name it."""

    def __init__(self, plain: Any):
        self.plain, self._to = plain, plain.buffer

    @property
    def name(self) -> str:
        """The name of standard output."""
        return "<stdout>"

    def writable(self) -> bool:
        """Returns True."""
        return True

    def isatty(self) -> bool:
        """Returns whether it is a terminal."""
        return bool(self.plain.isatty())

    def fileno(self) -> int:
        """Returns the file descriptor."""
        return int(self.plain.fileno())

    def write(self, data: Any) -> int:
        """Writes ``data``.

        Raises:
            BrokenPipeError: The reader of a pipe has ended.
            ConfigError: Standard output is closed or full.
        """
        raw = bytes(data)
        with self._named():
            self._to.write(raw)
        return len(raw)

    def flush(self) -> None:
        """Flushes what was written.

        Raises:
            BrokenPipeError: The reader of a pipe has ended.
            ConfigError: Standard output is closed or full.
        """
        with self._named():
            self._to.flush()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            silence(self)
            raise
        except OSError as error:
            silence(self)
            why = "it is closed" if error.errno == errno.EBADF else error.strerror or str(error)
            raise ConfigError(f"standard output cannot be written: {why}") from None


class _Terminal(_Output):
    r"""Writes bytes to a terminal with control characters as escapes, such as ``\x1b``."""

    def write(self, data: Any) -> int:
        """Writes ``data``."""
        super().write(_CONTROL.sub(lambda one: b"\\x%02x" % (one[1] or one[0])[0], bytes(data)))
        return len(data)


def _text_on(output: _Output) -> io.TextIOWrapper:
    """Returns a text stream on bytes of standard output, with the settings of the original stream.

    File names that are not UTF-8, and characters that the locale lacks, are written as escapes.
    """
    plain = output.plain
    errors = "backslashreplace" if plain.errors == "strict" else plain.errors
    return io.TextIOWrapper(
        output,
        plain.encoding,
        errors,
        line_buffering=plain.line_buffering,
        write_through=plain.write_through,
    )


@contextlib.contextmanager
def as_terminal() -> Iterator[None]:
    """Context manager: text on standard output cannot control a terminal.

    Texts from files, such as words in a file of vectors, may contain escape sequences. They are
    written unchanged to a file or a pipe.
    """
    plain = sys.stdout
    if not isinstance(plain, io.TextIOWrapper) or not plain.isatty():
        yield
        return
    plain.flush()
    wrapped = io.TextIOWrapper(_Terminal(plain), plain.encoding, plain.errors, line_buffering=True)
    sys.stdout = wrapped
    try:
        yield
    finally:
        if sys.stdout is wrapped:
            sys.stdout = plain
        with contextlib.suppress(OSError):
            wrapped.flush()
        wrapped.detach()


@contextlib.contextmanager
def as_help() -> Iterator[None]:
    """Context manager: standard output may be styled, and is wide enough for help."""
    inner = getattr(sys.stdout, "buffer", None)
    plain = inner.plain if isinstance(inner, _Terminal) else sys.stdout
    with _wide_enough(), contextlib.redirect_stdout(plain):
        yield


@contextlib.contextmanager
def _wide_enough() -> Iterator[None]:
    """Context manager: help has at least 40 columns, since the layout in very few does not end."""
    before = os.environ.get("COLUMNS")
    if shutil.get_terminal_size().columns >= _NARROWEST:
        yield
        return
    os.environ["COLUMNS"] = str(_NARROWEST)
    try:
        yield
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before

"""The process of a command: exit codes, errors in one line, signals, standard streams."""

import contextlib
import errno
import gc
import io
import logging
import os
import platform
import re
import shutil
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from transformer_jax.cli.output import say
from transformer_jax.core.errors import ConfigError, DataError, ListedError, Stopped, UserError
from transformer_jax.core.runtime import remove_unreadable

__all__ = [
    "as_help",
    "as_terminal",
    "collect_late",
    "guarded",
    "leave",
    "open_streams",
    "plain_warnings",
    "run_and_leave",
    "run_log",
    "silence",
    "terminated",
]

# Errors about the machine, regardless of the file.
_MENDABLE = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ESTALE, errno.EBADF),
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENAMETOOLONG, errno.EMFILE, errno.ENFILE),
}
_log: Path | None = None
_PATIENCE = 10.0  # seconds that a signal waits for imports to finish
_IMPORTS = "<frozen importlib._bootstrap>"  # the file of frames that import a module
_Handler = Callable[[int, FrameType | None], None]


def run_log(path: Path | None) -> None:
    """Sets the file for tracebacks of internal errors of the command that runs; None is none."""
    global _log
    _log = path


def guarded(command: Callable[[], int | None], *, debug: bool = False) -> int:
    """Runs ``command`` and returns its exit code; an exception becomes one line on stderr.

    An error begins with "error: "; a stop on request is none.

    The exit code is the error's own for a ``UserError``, 128 + number for a signal (75 for
    SIGUSR1), and 141 for a closed pipe (``| head``). An internal error gives 1, and its line names
    the file with the traceback.

    Args:
        command: The work; it returns the exit code, or None for 0.
        debug: Whether to raise exceptions with their traceback; TRANSFORMER_JAX_DEBUG=1 does the
            same.
    """
    debug = debug or os.environ.get("TRANSFORMER_JAX_DEBUG", "0") == "1"
    try:
        with plain_warnings(), _no_signal_lost(), _interrupted_between_imports(), as_terminal():
            code = command() or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 2
        if isinstance(end.code, str):
            _say(end.code)
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
        say("interrupted")
    except BrokenPipeError:
        code = 128 + signal.SIGPIPE
        silence(sys.stdout)  # Python flushes it again at exit, which must not fail
    except Stopped as stop:  # on request: no error
        if debug:
            raise
        code = stop.exit_code
        say(str(stop))
    except UserError as error:
        if debug:
            raise
        code = error.exit_code
        for line in error.lines if isinstance(error, ListedError) else [str(error)]:
            _say(line)
    except MemoryError:
        code = 1
        _say("out of memory: lower the tokens of a batch or the size of the model")
    except Exception as error:
        if debug:
            raise
        code = 1
        if isinstance(error, OSError) and error.errno in _MENDABLE:
            code = DataError.exit_code
            _say(f"{error.filename or 'a file'}: {error.strerror}")
        else:
            _say(_of_ours(error))
    finally:
        run_log(None)
    return _ended(code)


def _ended(code: int) -> int:
    """Flushes the output of a command and returns its exit code."""
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)
        return code or 128 + signal.SIGPIPE
    except UserError as error:
        _say(str(error))
        return code or error.exit_code
    return code


@contextlib.contextmanager
def terminated(message: str) -> Iterator[None]:
    """Context manager: SIGTERM and SIGUSR1 raise ``Stopped``, so that cleanup runs.

    Only the main thread receives signals; in other threads this does nothing. A handler that other
    code installs meanwhile stays in place, such as JAX's with several processes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def raise_stopped(number: int, frame: FrameType | None) -> None:
        del frame
        raise Stopped(message, number)

    stop = _between_imports(raise_stopped)
    heard = (signal.SIGTERM, signal.SIGUSR1)
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None stands for a handler that was not installed from Python; it cannot be restored.
            if handler is not None and signal.getsignal(number) is stop:
                signal.signal(number, handler)


@contextlib.contextmanager
def _interrupted_between_imports() -> Iterator[None]:
    """Context manager: Ctrl-C waits until no module is being imported."""
    usual = signal.default_int_handler
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGINT) is not usual:
        yield
        return
    waiting = _between_imports(usual)
    signal.signal(signal.SIGINT, waiting)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is waiting:
            signal.signal(signal.SIGINT, usual)


def _between_imports(handler: _Handler) -> _Handler:
    """Returns a signal handler that waits until no module is being imported.

    Compiled modules, such as jaxlib's, crash if an exception interrupts their initialization. An
    import that takes longer than 10 seconds is interrupted.
    """
    deadline: float | None = None

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal deadline
        now = time.monotonic()
        deadline = now + _PATIENCE if deadline is None else deadline
        if now < deadline and _is_importing(frame):
            _send_again(number)
        else:
            deadline = None
            handler(number, frame)

    return handle


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTS:
            return True
        frame = frame.f_back
    return False


def _send_again(number: int) -> None:
    """Sends this process a signal after a short delay."""
    timer = threading.Timer(0.05, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()


class _Plain(logging.Handler):
    """Writes log records as plain lines, without the names of loggers and modules."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record."""
        _say(record.getMessage(), record.levelname.lower())


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Context manager: each warning of any package is one line with only its message.

    Other handlers of the root logger, and settings such as JAX_LOGGING_LEVEL, are unchanged.
    """
    handler, root, shown = _Plain(logging.WARNING), logging.getLogger(), warnings.showwarning
    root.addHandler(handler)

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        _say(f"{message}{remove_unreadable(str(message))}", "warning")

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = shown
        root.removeHandler(handler)


@contextlib.contextmanager
def _no_signal_lost() -> Iterator[None]:
    """Context manager: sends a signal again if the exception that it raised was discarded.

    Python prints and discards exceptions in ``__del__`` and in callbacks of the garbage collector,
    such as JAX's. A Ctrl-C during one of these would be lost.
    """
    discard, active = sys.unraisablehook, True

    def again(lost: Any) -> None:
        number = _signal_behind(lost.exc_value) if active else None
        if number is None:
            discard(lost)
            return
        # Sent immediately, it would be raised in this callback and also discarded.
        _send_again(number)

    sys.unraisablehook = again
    try:
        yield
    finally:
        active = False
        if sys.unraisablehook is again:  # other code may have installed another hook, as Orbax does
            sys.unraisablehook = discard


def _signal_behind(error: BaseException | None) -> int | None:
    if isinstance(error, KeyboardInterrupt):
        return signal.SIGINT
    return error.signal if isinstance(error, Stopped) else None


def _say(message: str, kind: str = "error") -> None:
    say(f"{kind}: {message}")


def _of_ours(error: Exception) -> str:
    if "RESOURCE_EXHAUSTED" in str(error):
        return "the device is out of memory: lower the tokens of a batch, or accumulate more"
    what = f"unexpected {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    hint = "set TRANSFORMER_JAX_DEBUG=1 to see where"
    if _log is not None and (_log.is_file() or not _log.exists()):
        try:
            with _log.open("a", encoding="utf-8") as file:
                file.write(f"{' '.join(sys.argv)}\nPython {platform.python_version()}\n")
                file.writelines(traceback.format_exception(error))
            hint = f"see {_log}"
        except OSError:
            pass
    return f"{what}; {hint}"


def run_and_leave(main: Callable[[], int]) -> None:
    """Runs the ``main`` of a program with usable standard streams, and exits."""
    open_streams()
    collect_late()
    leave(_ended(main()))


_FIRST = 500_000  # objects; a translated line needs 340,000, nearly all of them to the end


def collect_late() -> None:
    """Makes the garbage collector wait until a program has made many objects.

    To search modules and compiled programs, which live on, again and again while they are made
    takes a seventh of the time of a short command.
    """
    usual = gc.get_threshold()

    def go_on(*_: object) -> None:
        gc.callbacks.remove(go_on)
        gc.set_threshold(*usual)

    gc.callbacks.append(go_on)
    gc.set_threshold(_FIRST)


def leave(code: int) -> None:
    """Exits with ``code``; after a failure or signal, without waiting for threads or processes.

    Objects that refer to each other are not searched for first: the system frees all memory.

    A normal exit waits at the barrier of ``jax.distributed``, which the other processes never reach
    after an error, and for threads that compile for minutes and cannot be interrupted. All files
    are closed before this call. A finished run does not wait for background compilation either.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, UserError, AttributeError):
            stream.flush()
    if code:
        os._exit(code)
    compilation = sys.modules.get("transformer_jax.training.compilation")
    if compilation is not None and compilation.compiling():
        os._exit(code)
    gc.freeze()
    sys.exit(code)


# --- Standard streams -----------------------------------------------------------------------------

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

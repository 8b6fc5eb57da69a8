"""Exit codes of commands, and errors as one line on standard error."""

import contextlib
import errno
import logging
import os
import platform
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
from transformer_jax.cli.streams import as_terminal, open_streams, silence
from transformer_jax.core.errors import DataError, ListedError, Stopped, UserError

__all__ = ["guarded", "leave", "plain_warnings", "run_and_leave", "run_log", "terminated"]

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
    """Sets the file for tracebacks of internal errors; None disables them."""
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
        _say(str(message), "warning")

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
    leave(_ended(main()))


def leave(code: int) -> None:
    """Exits with ``code``; after a failure or signal, without waiting for threads or processes.

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
    sys.exit(code)

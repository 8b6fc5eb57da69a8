"""Chat templates rendered in another process, with limits on its time and memory."""

import atexit
import contextlib
import fcntl
import importlib.util
import json
import marshal
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import transformer_jax
from transformer_jax.core.errors import ConfigError
from transformer_jax.data.chat import render_process

__all__ = ["RenderAnswer", "render_elsewhere"]

# Seconds that the process may take to start on a busy machine.
_START = 60.0
# In addition to processor time, which the system limits: a process may have to wait.
_PATIENCE = 30.0
_LOOK = 0.1  # seconds between checks of the process: suspended, or too large
# Environment variables to keep: the locations of libraries, and the time zone.
_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TZ", "TZDIR")
# Signals by which others stop processes.
_STOPPED = frozenset(-one for one in (signal.SIGTERM, signal.SIGKILL, signal.SIGHUP, signal.SIGINT))


class RenderAnswer(NamedTuple):
    """The result of a template, or the reason for its failure."""

    text: str = ""
    answers: tuple[tuple[int, int], ...] = ()
    kind: str = ""  # of an error: syntax, conversation, refused or fails; empty without an error
    reason: str = ""
    line: int = 0  # of a syntax error


def render_elsewhere(text: str, values: dict[str, Any]) -> RenderAnswer:
    """Renders a conversation in the template process, which is started if necessary.

    Args:
        text: The template.
        values: Its variables, of plain types, including ``messages``.

    Raises:
        ConfigError: The process cannot be started.
    """
    try:
        request = marshal.dumps((text, values))
    except ValueError:
        return RenderAnswer(kind="fails", reason="its variables are too deeply nested")
    with _lock:
        for again in (True, False):
            answer = _ask(request, len(values["messages"]))
            if answer is not None:
                return answer
            if not again:
                break
    return RenderAnswer(kind="refused", reason="something stops the process that renders it")


def _ask(request: bytes, messages: int) -> RenderAnswer | None:
    """Returns the answer to a request; None if something else stopped the process."""
    global _process
    if _process is None:
        _process = _RenderProcess()
    process = _process
    try:
        answer, ends = process.ask(request, messages)
    except _Ended as error:
        _process = None
        code = process.close()
        reason = error.reason or _reason(code)
        return None if reason is None else RenderAnswer(kind="refused", reason=reason)
    except BaseException:  # such as Ctrl-C: an unread answer would be taken for the next one's
        _process = None
        process.close()
        raise
    if ends:
        _process = None
        process.close()
    return answer


_MEMORY = "it needs more memory than a conversation of this size"
_TIME = "it computes longer than a conversation of this size needs"


def _reason(code: int) -> str | None:
    """Returns the template's fault, from the exit code; None if something else stopped it."""
    if code == -signal.SIGPROF:
        return _TIME
    if code in (-signal.SIGSEGV, -signal.SIGBUS):
        return "it nests too deeply"
    return None if code in _STOPPED else _MEMORY


class _Ended(Exception):  # noqa: N818  (no error of the program)
    """The process ended, or must end: the reason, if known."""

    def __init__(self, reason: str | None = None):
        super().__init__(reason)
        self.reason = reason


class _RenderProcess:
    """A process that renders conversations one at a time.

    It has its own session, so Ctrl-C in a terminal does not reach it, and it ends with its standard
    input.
    """

    def __init__(self) -> None:
        theirs_in, self._sink = _pipe()
        self._source, theirs_out = _pipe()
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", render_process.__file__, *_folders()],
                stdin=theirs_in,
                stdout=theirs_out,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={name: os.environ[name] for name in _VARIABLES if name in os.environ},
                start_new_session=True,
            )
        except OSError as error:
            self._close_pipes()
            raise _no_process(error.strerror or error) from None
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        self._limits_memory, self._read = True, bytearray()
        try:
            self._limits_memory = json.loads(self._line(time.monotonic() + _START))["limits_memory"]
        except _Ended as error:
            raise _no_process(error.reason or f"it ended with {self.close()}") from None
        except BaseException:
            self.close()
            raise

    def ask(self, request: bytes, messages: int) -> tuple[RenderAnswer, bool]:
        """Returns the answer to a request, and whether the process ends after it.

        Raises:
            _Ended: The process ended, or exceeds its limits.
        """
        size = len(request)
        until = time.monotonic() + _PATIENCE + 10 * render_process.most_seconds(size, messages)
        waiting = memoryview(size.to_bytes(8, "little") + request)
        try:
            while waiting:
                waiting = waiting[os.write(self._sink, waiting) :]
        except BrokenPipeError:
            raise _Ended from None
        answer = json.loads(self._line(until, size))
        while len(self._read) < answer.get("size", 0):
            self._more(until, size)
        text = self._read.decode("utf-8", "surrogatepass")
        self._read.clear()
        kind, reason = answer.get("kind", ""), answer.get("reason", "")
        if kind in _REASONS:
            kind, reason = "refused", _REASONS[kind]
        spans = tuple((int(start), int(end)) for start, end in answer.get("answers", ()))
        return RenderAnswer(text, spans, kind, reason, answer.get("line", 0)), answer["ends"]

    def close(self) -> int:
        """Ends the process and returns its exit code."""
        self._close_pipes()
        self._child.kill()  # it writes no files
        return self._child.wait()

    def forget(self) -> None:
        """Detaches from the process, which belongs to the process that this one was forked from."""
        self._close_pipes()
        self._child.returncode = 0

    def _close_pipes(self) -> None:
        for handle in (self._sink, self._source):
            os.close(handle)

    def _line(self, until: float, size: int = 0) -> bytes:
        """Returns the next line."""
        while (end := self._read.find(b"\n")) < 0:
            self._more(until, size)
        line = bytes(self._read[:end])
        del self._read[: end + 1]
        return line

    def _more(self, until: float, size: int) -> None:
        """Reads available bytes, or waits for them."""
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        while not poll.poll(1000 * _LOOK):
            if time.monotonic() > until:
                raise _Ended(_TIME)
            if self._is_stopped():
                raise _Ended
            if not self._limits_memory and self._memory() > 2 * render_process.most_memory(size):
                raise _Ended(_MEMORY)
        if not (part := os.read(self._source, 2**20)):
            raise _Ended
        self._read += part

    def _is_stopped(self) -> bool:
        """Returns whether something suspended the process, as SIGSTOP does."""
        how = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        with contextlib.suppress(ChildProcessError):
            return os.waitid(os.P_PID, self._child.pid, how) is not None
        return False

    def _memory(self) -> int:
        """Memory of the process in bytes."""
        command = ["ps", "-o", "rss=", "-p", str(self._child.pid)]
        with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
            return 1024 * int(done.stdout)
        return 0


_REASONS = {"memory": _MEMORY, "recursion": "it calls itself without end, or is too deeply nested"}


def _pipe() -> tuple[int, int]:
    """A pipe whose ends differ from the standard streams, even if these are closed."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


def _folders() -> list[str]:
    """Returns the folders of this package, and of Jinja with its dependencies."""
    specs = map(importlib.util.find_spec, ("jinja2", "markupsafe"))
    files = [transformer_jax.__file__, *(spec.origin for spec in specs if spec and spec.origin)]
    return list(dict.fromkeys(str(Path(str(file)).resolve().parents[1]) for file in files))


def _no_process(reason: object) -> ConfigError:
    return ConfigError(
        f"chat templates run in a separate process, which cannot be started with "
        f"{sys.executable or 'no Python'}: {reason}"
    )


_lock = threading.Lock()
_process: _RenderProcess | None = None


def _forget() -> None:
    """Makes a forked process start its own: two would read each other's answers."""
    global _lock, _process
    _lock = threading.Lock()
    if _process is not None:
        _process.forget()
    _process = None


def _close() -> None:
    global _process
    with _lock:
        if _process is not None:
            _process.close()
        _process = None


os.register_at_fork(after_in_child=_forget)
atexit.register(_close)

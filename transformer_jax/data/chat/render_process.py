"""The program of the process in which chat templates run, within limits of the system.

It is started by its path, without the modules of its parent, and imports only Jinja and the
sandbox. It reads one request at a time from standard input and ends with it, so that it does not
outlive its parent. See :mod:`transformer_jax.data.chat.render_client` for the other side.
"""

import contextlib
import json
import marshal
import mmap
import resource
import signal
import sys
from collections.abc import Callable
from typing import IO

__all__ = ["main", "most_memory", "most_seconds"]

# From a template and its variables to a text, and the character spans of answers.
Render = Callable[[str, dict[str, object]], tuple[str, list[tuple[int, int]]]]

_MEGABYTE = 2**20
# Memory for an empty conversation, and for each byte of a request.
_MEMORY, _MEMORY_PER_BYTE = 128 * _MEGABYTE, 32
# Seconds of processor time for an empty conversation, per byte, and per message.
_SECONDS, _SECONDS_PER_BYTE, _SECONDS_PER_MESSAGE = 0.5, 4e-6, 5e-4
# A process that has grown by this much is restarted.
_MOST_GROWTH = 64 * _MEGABYTE


def main(paths: list[str]) -> None:
    """Answers requests until standard input ends.

    A request is its size, then the text and variables encoded by ``marshal``; an answer is a line
    of JSON, followed by ``size`` bytes of text if it has a ``size``. The first line is written
    before any request.

    Args:
        paths: Folders of the packages to import.
    """
    sys.path += paths
    from transformer_jax.data.chat.sandbox import render

    for name in (signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, whatever it is computing
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(limit, (0, 0))
    source, sink, begun = sys.stdin.buffer, sys.stdout.buffer, _memory()
    _write(sink, {"limits_memory": _limit_memory(begun, 0)})
    while len(head := source.read(8)) == 8:
        size = int.from_bytes(head, "little")
        _limit_memory(begun, size)
        text, values = marshal.loads(source.read(size))
        signal.setitimer(signal.ITIMER_PROF, most_seconds(size, len(values["messages"])))
        answer, shown = _answer(render, text, values)
        signal.setitimer(signal.ITIMER_PROF, 0)
        del values
        answer["ends"] = answer.get("kind") == "memory" or _memory() > begun + _MOST_GROWTH
        _write(sink, answer, shown)
        if answer["ends"]:
            return


def most_seconds(size: int, messages: int) -> float:
    """The seconds of processor time that a request may take, by its bytes and messages."""
    return _SECONDS + size * _SECONDS_PER_BYTE + messages * _SECONDS_PER_MESSAGE


def most_memory(size: int) -> int:
    """The memory in bytes that a request may take, in addition to the program's."""
    return _MEMORY + size * _MEMORY_PER_BYTE


def _answer(
    render: Render, text: str, values: dict[str, object]
) -> tuple[dict[str, object], bytes]:
    """Renders a conversation, or returns the kind of error and its message."""
    try:
        return _answer_or_reason(render, text, values)
    except RecursionError:
        return {"kind": "recursion"}, b""
    except MemoryError:
        return {"kind": "memory"}, b""
    except Exception:  # the message of an error may fail too
        return {"kind": "fails", "reason": "its error has no message"}, b""


def _answer_or_reason(
    render: Render, text: str, values: dict[str, object]
) -> tuple[dict[str, object], bytes]:
    import jinja2
    from jinja2.sandbox import SecurityError

    from transformer_jax.data.chat.sandbox import ConversationRefused, OutputTooLong

    try:
        shown, answers = render(text, values)
        coded = shown.encode("utf-8", "surrogatepass")
        return {"size": len(coded), "answers": answers}, coded
    except jinja2.TemplateSyntaxError as error:
        return {"kind": "syntax", "reason": _line(error), "line": error.lineno}, b""
    except ConversationRefused as error:
        return {"kind": "conversation", "reason": _line(error)}, b""
    except (SecurityError, OutputTooLong) as error:
        return {"kind": "refused", "reason": _line(error)}, b""
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # expressions in a template raise any error
        return {"kind": "fails", "reason": _line(error)}, b""


def _line(error: object) -> str:
    return " ".join(str(error).split())[:200]


def _write(sink: IO[bytes], answer: dict[str, object], text: bytes = b"") -> None:
    sink.write(json.dumps(answer).encode() + b"\n" + text)
    sink.flush()


def _memory() -> int:
    """Size of the address space in bytes; 0 if the system does not report it."""
    with contextlib.suppress(OSError), open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
    return 0


def _limit_memory(begun: int, size: int) -> bool:
    """Limits the address space for a request of ``size`` bytes; returns whether this worked."""
    if not begun:
        return False
    most = begun + most_memory(size)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    except (OSError, ValueError):
        return False
    if size:
        return True
    try:
        mmap.mmap(-1, most).close()
    except (OSError, MemoryError):
        return True
    return False


if __name__ == "__main__":
    main(sys.argv[1:])

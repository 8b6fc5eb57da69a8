"""The identity of a process and of its machine, for lock files."""

import contextlib
import functools
import os
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from transformer_jax.core.json_types import Json

__all__ = ["machine", "process_alive", "process_started", "this_process"]


def this_process() -> dict[str, Json]:
    """A unique identity of this process across machines, for people and programs."""
    return {
        "host": socket.gethostname(),
        "machine": machine(),
        "pid": os.getpid(),
        "started": process_started(os.getpid()),
        "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }


@functools.cache
def machine() -> str:
    """The identity of this machine, its boot and its container.

    A process number identifies a process only within the same machine.
    """
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def process_started(pid: int) -> str | None:
    """The start time of a process on this machine, in the system's format; None if it has ended.

    It is empty if the system does not report it.

    Process numbers are reused; number and start time together are unique.
    """
    try:
        # The second field is the name of the program, in parentheses, and may contain anything.
        told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if told[0] in "ZX" else told[19]  # a zombie: ended, but not yet reaped
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return _unseen(pid)
    except (OSError, IndexError):
        pass
    command = ["ps", "-o", "lstart=", "-p", str(pid)]
    with contextlib.suppress(OSError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        return done.stdout.strip() or _unseen(pid)
    return ""


def _unseen(pid: int) -> str | None:
    """The start time of a hidden process; None if there is no such process.

    Processes of other users may be hidden, for example by the option ``hidepid`` of ``/proc``.
    """
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except OSError:
        pass
    return ""


def process_alive(found: Mapping[str, Json]) -> bool | None:
    """Returns whether the process of a record is still running; None if this machine cannot tell.

    Example:
        >>> process_alive(this_process()), process_alive(this_process() | {"started": "long ago"})
        (True, False)
        >>> process_alive(this_process() | {"machine": "another"}) is None
        True
    """
    pid = found.get("pid")
    if found.get("machine") != machine() or not isinstance(pid, int) or pid < 1:
        return None
    started = process_started(pid)
    return None if started == "" else started is not None and started == found.get("started")

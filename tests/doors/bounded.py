"""Runs readers on hostile input, each in a process of its own whose time and memory are measured.

    python -m tests.doors.bounded FOLDER NAME...

One process imports the package and is then copied for each case, which costs milliseconds. It
prints a line of JSON for each.
"""

import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["SECONDS", "main", "measure"]

SECONDS = 5
_MEMORY = 6 * 2**30  # bytes of address space, of which most are never used
_MEGABYTE = 2**20


def measure(prepare: Callable[[Path], Callable[[], object]], folder: Path) -> dict[str, object]:
    """Runs ``prepare(folder)``, and then what it returns in a process of its own.

    Returns:
        Kind and text of the error (of the kind ``none`` without one), seconds of processor time,
        megabytes of memory more than before, and addresses that the process talked to.
    """
    folder.mkdir(parents=True)
    read = prepare(folder)
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(source)
        _run(read, sink)
    os.close(sink)
    with os.fdopen(source, "rb") as file:
        answer = file.read()
    _, status, usage = os.wait4(child, 0)
    told = json.loads(answer) if answer else {"kind": f"ended with {status}", "text": ""}
    return told | {"seconds": usage.ru_utime + usage.ru_stime}


def _run(read: Callable[[], object], sink: int) -> None:
    """Runs a reader in this process, and ends it."""
    talked: list[str] = []
    sys.addaudithook(
        lambda event, args: (
            talked.append(str(args[event == "socket.connect"]))
            if event in ("socket.connect", "socket.getaddrinfo")
            else None
        )
    )
    signal.alarm(12 * SECONDS)  # a process may wait for ever
    _limit(resource.RLIMIT_CPU, 4 * SECONDS)
    _limit(resource.RLIMIT_AS, _address_space() + _MEMORY)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    before, begun, told = _most(), time.monotonic(), {"kind": "none", "text": ""}
    try:
        read()
    except BaseException as error:  # panics of libraries are no Exceptions
        bases = [kind.__name__ for kind in type(error).__mro__]
        told = {"kind": "UserError" if "UserError" in bases else bases[0], "text": str(error)}
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    grown = max(_most() - before, children)
    answer = told | {"megabytes": grown, "talked": talked, "wall": time.monotonic() - begun}
    os.write(sink, json.dumps(answer)[:60_000].encode())
    os._exit(0)


def _most() -> int:
    """The largest memory of this process so far, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard < 0 else min(most, hard), hard))


def _work(seconds: float) -> None:
    """Uses processor time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


# Calls that are not bounded, which the measurement must see.
UNBOUNDED: dict[str, Callable[[], object]] = {
    "nothing is refused": lambda: None,
    "another error": lambda: [].index(1),
    "memory": lambda: bytearray(700 * _MEGABYTE).count(1),
    "time": lambda: _work(SECONDS + 1),
    "another machine": lambda: socket.create_connection(("127.0.0.1", 9), 1),
}


def main(folder: str, names: list[str]) -> None:
    """Prints the results of cases, a line each."""
    from tests.doors import hostile

    calls = {name: lambda _, call=call: call for name, call in UNBOUNDED.items()}
    for number, name in enumerate(names):
        result = measure((hostile.ALL | calls)[name], Path(folder) / str(number))
        print(json.dumps({"name": name, **result}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

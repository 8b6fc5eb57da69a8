"""Joining the processes of a run, in bounded time: JAX would wait for minutes and then abort."""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator

from transformer_jax.errors import ConfigError, UserError

__all__ = ["check_port", "joining", "wait_for_coordinator"]

_EVERY = 0.2  # seconds between two attempts


def _parts(address: str, name: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"{name} is {address!r}: it must be host:port, such as node1:8476")
    return host.strip("[]"), int(port)


def check_port(address: str, name: str) -> None:
    """Refuses an address whose port another program of this machine has; process 0 calls it.

    Args:
        address: Where process 0 will listen, as host:port.
        name: The flag or variable that gave the address, for the message.

    Raises:
        ConfigError: The address is none, or the port is not free.
    """
    _, port = _parts(address, name)
    try:
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(("", port))
    except OSError as error:
        raise ConfigError(
            f"process 0 cannot listen at {address}: {(error.strerror or 'no').lower()}: choose "
            f"another port in {name}"
        ) from None


def wait_for_coordinator(address: str, name: str, seconds: float | int) -> None:
    """Waits until process 0 listens.

    Args:
        address: Where, as host:port.
        name: The flag or variable that gave the address, for the message.
        seconds: The longest wait.

    Raises:
        ConfigError: The address is none, or nobody listens in time.
    """
    host, port = _parts(address, name)
    deadline, problem = time.monotonic() + seconds, "no answer"
    while (left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection((host, port), timeout=left):
                return
        except OSError as error:
            # A name may not be known yet, where names come with the machines.
            problem = (error.strerror or str(error) or "no answer").lower()
        time.sleep(min(_EVERY, max(0.0, left)))
    raise ConfigError(
        f"process 0 does not answer at {address} within {seconds:g} s ({problem}): start it, or "
        f"correct {name}"
    )


@contextlib.contextmanager
def joining(said: str, seconds: float | int) -> Iterator[None]:
    """Context that ends this process with exit code 2 if it lasts too long.

    JAX joins processes in one call that nothing interrupts and that aborts with a core dump when
    its time is over. So after ``seconds`` a thread prints the error and ends the process.

    Args:
        said: The error, in one line.
        seconds: The longest that it may last.
    """

    def end() -> None:
        print(f"error: {said}", file=sys.stderr, flush=True)
        os._exit(UserError.exit_code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()

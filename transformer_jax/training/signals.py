"""Signals to stop, as flags that are read between steps, in one or many processes."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

import jax
import numpy as np

__all__ = ["StopSignals"]

# What `signal.signal` returns.
Handler = Callable[[int, FrameType | None], object] | int | signal.Handlers | None


class StopSignals:
    """Context manager: SIGTERM, SIGINT and SIGUSR1 set a flag instead of ending the process.

    A second signal ends the process immediately, except SIGUSR1, a scheduler's warning of the time
    limit. With ``jax.distributed``, a signal to any process reaches all processes at a common step:
    this is done by JAX's own handler of SIGTERM, which stays in place and receives the other
    signals too.

    Example:
        >>> with StopSignals() as stop:
        ...     stop.reached(1)
        ...     signal.raise_signal(signal.SIGTERM)
        ...     stop.reached(2)
        15
    """

    def __init__(self) -> None:
        self._received: int | None = None
        self._many = jax.process_count() > 1
        self._before: dict[int, Handler] = {}

    def __enter__(self) -> "StopSignals":
        # Only the main thread can set handlers; in other threads, signals are unchanged.
        if threading.current_thread() is threading.main_thread():
            heard = [signal.SIGINT, signal.SIGUSR1]
            for number in heard if self._many else [*heard, signal.SIGTERM]:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._received is not None:
            if number == signal.SIGUSR1:
                return
            os._exit(128 + number)
        self._received = number
        name = signal.Signals(number).name
        # Only a plain write is safe inside a signal handler.
        more = "" if number == signal.SIGUSR1 else "; another signal ends it immediately"
        note = f"\n{name}: saving after this step{more}\n"
        os.write(2, note.encode())
        if self._many:
            os.kill(os.getpid(), signal.SIGTERM)

    @property
    def received(self) -> int | None:
        """Returns the signal that a single process received; in several, use ``reached``."""
        return None if self._many else self._received

    def reached(self, step: int) -> int | None:
        """Returns the signal to stop by after ``step``, or None, the same in all processes.

        Every process must call it at every step.
        """
        if not self._many:
            return self._received
        from jax.experimental import multihost_utils

        if not multihost_utils.reached_preemption_sync_point(step):
            return None
        # All end with the same code, since JAX's handler does not name the signal.
        answers = multihost_utils.process_allgather(np.int32(self._received or 0))
        heard = {int(number) for number in np.ravel(answers)}
        return next(
            (number for number in (signal.SIGINT, signal.SIGUSR1) if number in heard),
            signal.SIGTERM,
        )

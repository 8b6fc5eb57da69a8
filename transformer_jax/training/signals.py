"""Signals to stop, as flags that are read between two steps, in one or many processes."""

import os
import signal
import threading
from types import FrameType
from typing import Any

import jax
import numpy as np

__all__ = ["StopSignals"]


class StopSignals:
    """While entered, SIGTERM, SIGINT and SIGUSR1 set a flag instead of ending the process.

    A second signal ends it at once. SIGUSR1 is the warning of a scheduler that time runs out: a
    second one changes nothing. With ``jax.distributed`` a signal to any process reaches all
    of them at one common step: JAX's own handler of SIGTERM does that and stays, and the others
    are passed on to it.

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
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        # Handlers can be set by the main thread alone; elsewhere signals stay as they are.
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
        more = "" if number == signal.SIGUSR1 else "; once more ends at once"
        note = f"\n{name}: saving after this step{more}\n"
        os.write(2, note.encode())
        if self._many:
            os.kill(os.getpid(), signal.SIGTERM)

    @property
    def received(self) -> int | None:
        """The signal that this process received, if it is the only one; else use ``reached``."""
        return None if self._many else self._received

    def reached(self, step: int) -> int | None:
        """The signal to stop by after ``step``, or None; in many processes all get the same step.

        Every process must call it at every step.
        """
        if not self._many:
            return self._received
        from jax.experimental import multihost_utils

        if not multihost_utils.reached_preemption_sync_point(step):
            return None
        # All end with the same code; JAX's handler does not say whom it was called for.
        answers = multihost_utils.process_allgather(np.int32(self._received or 0))
        heard = {int(number) for number in np.ravel(answers)}
        return next(
            (number for number in (signal.SIGINT, signal.SIGUSR1) if number in heard),
            signal.SIGTERM,
        )

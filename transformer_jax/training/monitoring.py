"""Reports about devices and processes: speed, memory, profiles, and hanging steps."""

import contextlib
import faulthandler
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from transformer_jax.core.errors import CheckpointError
from transformer_jax.core.task_progress import duration, log
from transformer_jax.parallel.device_catalog import DEVICES

__all__ = [
    "Profiler", "Rates", "Watchdog", "peak_memory", "slowest", "writing_log",
]  # fmt: skip

_SMOOTHING = 0.95  # weight of earlier steps in a rate


class Profiler:
    """Records a device profile during a window of steps.

    Args:
        steps: The steps to record.
        folder: Folder for the traces of all processes, in the format of XProf and Perfetto.
    """

    def __init__(self, steps: range, folder: Path):
        self._steps, self._folder = steps, folder
        self._began: int | None = None

    def before(self, number: int) -> None:
        """Begins the trace if step ``number`` is the first one taken within the window.

        Raises:
            CheckpointError: The folder cannot be written.
        """
        if self._began is None and number in self._steps:
            try:
                jax.profiler.start_trace(str(self._folder))
            except (OSError, RuntimeError) as error:
                raise CheckpointError(f"{self._folder}: no profile: {error}") from None
            self._began = number

    def after(self, number: int, state: PyTree, *, stopping: bool = False) -> None:
        """Ends the trace after the last step of the window, or when training stops."""
        if self._began is None or (number < self._steps[-1] and not stopping):
            return
        jax.block_until_ready(state)
        jax.profiler.stop_trace()
        log(
            f"profile of steps {self._began} to {number}: {self._folder} (open it with "
            f"tensorboard --logdir, and the plugin xprof)"
        )
        self._began, self._steps = None, range(0)


class Watchdog:
    """Writes the stacks of all threads if a step takes too long.

    Args:
        seconds: Time limit of a step; 0 is no limit.
        folder: Folder for the stacks, one file per process.
    """

    def __init__(self, seconds: float | int, folder: Path):
        self._seconds, self._folder = seconds, folder
        self._lock = threading.Condition()
        self._began: float | None = None
        self._number = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def begin(self, number: int) -> None:
        """Starts the timer for step ``number``."""
        if not self._seconds:
            return
        with self._lock:
            self._number, self._began = number, time.monotonic()
            self._lock.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()

    def rest(self) -> None:
        """Stops the timer between steps."""
        with self._lock:
            self._began = None

    def close(self) -> None:
        """Stops watching."""
        with self._lock:
            self._closed = True
            self._lock.notify()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        with self._lock:
            while not self._closed:
                if self._began is None:
                    self._lock.wait(self._seconds)
                    continue
                left = self._began + self._seconds - time.monotonic()
                if left > 0:
                    self._lock.wait(left)
                    continue
                self._report()
                # Once a step.
                self._began = None

    def _report(self) -> None:
        process = jax.process_index()
        path = self._folder / f"stacks_process_{process}.txt"
        took = duration(self._seconds)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(f"step {self._number} has not finished for {took}\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
        except OSError as error:
            path = Path(f"nowhere ({error.strerror})")
        print(
            f"process {process}: step {self._number} has not finished for {took}: the stacks of "
            f"its threads are in {path}",
            file=sys.stderr,
            flush=True,
        )


@runtime_checkable
class Device(Protocol):
    """A device of JAX."""

    @property
    def device_kind(self) -> str:
        """The product, such as "NVIDIA H200"."""

    def memory_stats(self) -> dict[str, int] | None:
        """Returns counters of its memory in bytes; None where there are none."""


class Rates:
    """Speed, smoothed over steps.

    Args:
        devices: All devices of the run.
        flops: Function from a batch to the FLOPs of a training step, by its shapes; None is
            unknown.
        counts: The unit of the weight of the loss, such as "tokens".
        trace: The same function where ``flops`` is None, which takes time: it is called only if
            the peak of the devices is known.

    Attributes:
        counts: The unit as a name of metrics: ``answer_tokens``.
    """

    def __init__(
        self,
        devices: Sequence[Device] = (),
        flops: Callable[[Mapping[str, PyTree]], float] | None = None,
        counts: str = "tokens",
        trace: Callable[[Mapping[str, PyTree]], float] | None = None,
    ):
        self._devices = len(devices)
        self.counts = counts.replace(" ", "_")
        kind = devices[0].device_kind if devices else ""
        types = (device for device in DEVICES.values() if kind in device.kinds)
        self._peak = next((device.flops for device in types), None)
        self._flops = trace if flops is None and self._peak is not None else flops
        self._smooth: dict[str, float] = {}
        self._known: dict[tuple[tuple[int, ...], ...], float] = {}

    def flops(self, batch: Mapping[str, PyTree]) -> float | None:
        """Returns the FLOPs of a step on ``batch``, if known; computed once per shape.

        None from the first error on, which is logged.
        """
        shapes = tuple(np.shape(array) for array in jax.tree.leaves(batch))
        if self._flops is not None and shapes not in self._known:
            try:
                self._known[shapes] = self._flops(batch)
            except Exception as error:  # a step that runs need not be one that can be counted
                log(f"warning: FLOPs of steps are not counted: {type(error).__name__}: {error}")
                self._flops = None
        return None if self._flops is None else self._known[shapes]

    def measure(self, count: float, flops: float | None, seconds: float) -> dict[str, float]:
        """Returns the rates after a step, such as ``tokens_per_second``.

        ``mfu`` is the fraction of the devices' bfloat16 peak spent on the products of the model,
        including padding but not recomputation (Chowdhery et al. 2022, appendix B).
        """
        seconds = max(seconds, 1e-9)
        rate, name = self._smoothed("count", count / seconds, 1), f"{self.counts}_per_second"
        found = {name: rate}
        if self._devices > 1:
            found[f"{name}_per_device"] = round(rate / self._devices, 1)
        if flops is not None and self._peak is not None:
            found["mfu"] = self._smoothed("mfu", flops / seconds / self._devices / self._peak, 4)
        return found

    def _smoothed(self, name: str, value: float, digits: int) -> float:
        before = self._smooth.get(name, value)
        self._smooth[name] = _SMOOTHING * before + (1 - _SMOOTHING) * value
        return round(self._smooth[name], digits)


def peak_memory(devices: Sequence[Device] | None = None) -> dict[str, int]:
    """Returns the peak memory of a device of this process in bytes; empty if unknown, as on CPUs.

    Example:
        >>> peak_memory(jax.devices("cpu"))
        {}
    """
    devices = jax.local_devices() if devices is None else devices
    stats = [device.memory_stats() or {} for device in devices]
    peaks = [int(held["peak_bytes_in_use"]) for held in stats if "peak_bytes_in_use" in held]
    return {"peak_memory_bytes": max(peaks)} if peaks else {}


def slowest(seconds: float) -> dict[str, float | int]:
    """Returns the maximum of all processes' seconds, and its process; all processes must call it.

    Example:
        >>> slowest(0.25)
        {'input_seconds': 0.25}
    """
    if jax.process_count() == 1:
        return {"input_seconds": round(seconds, 4)}
    of_all = multihost_utils.process_allgather(np.float32(seconds))
    which = int(np.argmax(of_all))
    return {"input_seconds": round(float(of_all[which]), 4), "slowest_process": which}


@contextlib.contextmanager
def writing_log(folder: Path) -> Iterator[None]:
    """Context manager: each of several processes logs its warnings and its final error.

    The file is ``process_N.log`` in ``folder``. A single process writes none.
    """
    if jax.process_count() == 1:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder / f"process_{jax.process_index()}.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    package = logging.getLogger("transformer_jax")
    package.addHandler(handler)
    try:
        devices = ", ".join(str(device) for device in jax.local_devices())
        _note(handler, f"{socket.gethostname()}: process {jax.process_index()} with {devices}")
        yield
        _note(handler, "finished")
    except BaseException as error:
        _note(handler, f"ended by {type(error).__name__}: {error}", error)
        raise
    finally:
        package.removeHandler(handler)
        handler.close()


def _note(handler: logging.Handler, text: str, error: BaseException | None = None) -> None:
    """Logs a line to the file of the process only."""
    level = logging.INFO if error is None else logging.ERROR
    trace = None if error is None else (type(error), error, error.__traceback__)
    handler.handle(logging.LogRecord(__name__, level, __file__, 0, text, (), trace))

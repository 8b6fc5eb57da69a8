"""A training step, compiled for each shape in the background during training."""

import concurrent.futures
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax import stages
from jaxtyping import Array, PyTree

from transformer_jax.core.trees import path_name
from transformer_jax.training.micro_batches import Batch, OfBatch, StepKey
from transformer_jax.training.state import TrainState
from transformer_jax.training.step import Program

__all__ = ["CompiledStep", "compiling"]

log = logging.getLogger(__name__)

Lower = OfBatch[stages.Lowered]
Future = concurrent.futures.Future[Program]
# The state, frozen parameters, the batch and the key, or what describes their arrays.
Arguments = tuple[TrainState, PyTree, Batch, PyTree]
Shape = tuple[tuple[str, tuple[int, ...]], ...]

Context = Callable[[Any], contextlib.AbstractContextManager[object]]
Setting = tuple[Context, object]
Settings = Sequence[Setting]

_THREADS = "compile-step"
_POLL = 0.05  # seconds between checks whether to stop
# Settings that affect programs and may differ between threads.
_CONTEXTS: dict[str, Context] = {
    "jax_default_device": jax.default_device,
    "jax_default_matmul_precision": jax.default_matmul_precision,
    "jax_default_prng_impl": jax.default_prng_impl,
    "jax_debug_infs": jax.debug_infs,
    "jax_debug_nans": jax.debug_nans,
    "jax_enable_x64": jax.enable_x64,
    "jax_numpy_dtype_promotion": jax.numpy_dtype_promotion,
    "jax_numpy_rank_promotion": jax.numpy_rank_promotion,
    "jax_softmax_custom_jvp": jax.softmax_custom_jvp,
    "jax_threefry_partitionable": jax.threefry_partitionable,
}


class CompiledStep:
    """A training step with a program for each batch shape, and a report of late compilations.

    Announced shapes are compiled in the background, up to four at a time, in the order of
    announcement, so that training starts as soon as the first program is compiled. No shape is
    compiled twice: a step waits until its program is ready. A program depends only on the
    shapes, and on the settings of JAX at announcement, so results do not depend on timing.

    Several processes do not compile in the background. They compile when a step first needs a
    shape, so that all processes run the same programs in the same order.

    Args:
        step: ``(state, frozen, batch, key) -> (state, metrics)``. A step without ``lower``, as
            under ``pmap``, compiles when called.
        key: The key of every step; None means no dropout.
        frozen: Frozen parameters; ``jax.ShapeDtypeStruct`` may replace their arrays until the first
            step.

    Attributes:
        late: Unannounced shapes, compiled only when a batch had them.
    """

    def __init__(self, step: Program, key: StepKey = None, frozen: PyTree = None):
        self._step = step
        self._lower: Lower | None = getattr(step, "lower", None)
        self._key, self.frozen = key, {} if frozen is None else frozen
        self._ahead = self._lower is not None and jax.process_count() == 1
        # Leave half of the CPUs to training steps.
        workers = max(1, min(4, (os.cpu_count() or 1) // 2))
        self._pool = concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix=_THREADS)
        self._programs: dict[Shape, Future] = {}
        self._announced: list[Future] = []
        self._traced = threading.Event()  # of the first shape
        self._closed = False
        self._began = self._ended = time.monotonic()
        self.late: list[str] = []

    def prepare(self, state: TrainState, batches: Iterable[Batch]) -> None:
        """Announces the shapes of ``batches`` and starts to compile for them.

        Returns when the first is traced: what Python does meanwhile would delay its compilation.

        Args:
            state: Arrays, or ``jax.ShapeDtypeStruct`` with shardings; values are not read.
            batches: One of each shape, in the order in which training needs them.

        Raises:
            RuntimeError: The step is closed.
        """
        self._refuse_closed()
        settings = _settings()
        state, frozen, key = jax.tree.map(_abstract, (state, self.frozen, self._key))
        for batch in batches:
            shape = _shape(batch)
            if shape in self._programs:
                continue
            future = Future()
            if self._lower is None:
                future.set_result(self._step)
            elif self._ahead:
                args = (state, frozen, jax.tree.map(_abstract, batch), key)
                future = self._pool.submit(self._compile, self._lower, args, settings)
            self._programs[shape] = future
            self._announced.append(future)
        if self._ahead and self._announced:
            self._announced[0].add_done_callback(lambda _: self._traced.set())
            self._traced.wait()

    @property
    def announced(self) -> int:
        """The number of announced shapes."""
        return len(self._announced)

    @property
    def ready(self) -> int:
        """The number of announced shapes with a compiled program."""
        done = (future for future in self._announced if future.done() and not future.cancelled())
        return sum(future.exception() is None for future in done)

    @property
    def seconds(self) -> float:
        """Seconds from the first announcement to the latest compiled program."""
        return self._ended - self._began

    def wait(self, batch: Batch, stopped: Callable[[], object] = lambda: False) -> bool:
        """Waits for the program of ``batch`` unless ``stopped``; returns whether a step can begin.

        Raises:
            RuntimeError: The step is closed.
        """
        self._refuse_closed()
        future = self._programs.get(_shape(batch))
        if future is None or not self._ahead:
            return True
        while not concurrent.futures.wait([future], _POLL).done:
            if stopped():
                return False
        return True

    def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
        """Takes a step; returns the new state and the metrics.

        Raises:
            RuntimeError: The step is closed.
        """
        self._refuse_closed()
        shape, args = _shape(batch), (state, self.frozen, batch, self._key)
        if shape not in self._programs:
            self._compile_late(shape, args)
        future = self._programs[shape]
        if self._lower is not None and not self._ahead and not future.done():
            future.set_result(self._compile(self._lower, args))
        return future.result()(*args)

    def close(self) -> None:
        """Cancels compilations that have not started; running ones finish by themselves."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        for future in self._programs.values():
            future.cancel()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise RuntimeError("this compiled step is closed: create a new one")

    def _compile(self, lower: Lower, args: Arguments, settings: Settings = ()) -> Program:
        try:
            with contextlib.ExitStack() as inside:
                for enter, value in settings:
                    inside.enter_context(enter(value))
                lowered = lower(*args)
                self._traced.set()
                return lowered.compile()
        finally:
            self._ended = time.monotonic()

    def _compile_late(self, shape: Shape, args: Arguments) -> None:
        words = ", ".join(f"{name} {list(size)}" for name, size in shape)
        self.late.append(words)
        began = time.monotonic()
        future = Future()
        future.set_result(self._step if self._lower is None else self._compile(self._lower, args))
        self._programs[shape] = future
        log.warning(
            "compiled after warmup, %.1f s, for the batch shape %s", time.monotonic() - began, words
        )


def _settings() -> Settings:
    """Returns the settings of this thread, as context managers for another thread."""
    found: list[Setting] = [(enter, getattr(jax.config, name)) for name, enter in _CONTEXTS.items()]
    mesh = jax.sharding.get_mesh()
    return found if mesh.empty else [*found, (jax.set_mesh, mesh)]


def compiling() -> bool:
    """Returns whether a background compilation is in progress."""
    return any(thread.name.startswith(_THREADS) for thread in threading.enumerate())


def _shape(batch: Batch) -> Shape:
    leaves = jax.tree_util.tree_leaves_with_path(batch)
    return tuple((path_name(path), tuple(array.shape)) for path, array in leaves)


def _abstract(x: Array | np.ndarray | jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Returns shape, dtype and sharding of an array; an uncommitted array has no sharding."""
    sharding = getattr(x, "sharding", None) if getattr(x, "committed", True) else None
    weak = bool(getattr(x, "weak_type", False))
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding, weak_type=weak)

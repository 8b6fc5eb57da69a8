"""The training loop: steps, metrics, checkpoints, early stopping and signals."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
from jaxtyping import Array

from transformer_jax.core.errors import NumericsError, Stopped, plural
from transformer_jax.core.task_progress import show_progress
from transformer_jax.runs.checkpoint import Checkpointer, CheckpointScore
from transformer_jax.runs.checkpoint_score import Metric
from transformer_jax.runs.metrics import MetricsLog
from transformer_jax.runs.run_directory import how_to_continue
from transformer_jax.training.compilation import CompiledStep
from transformer_jax.training.curves import Curves
from transformer_jax.training.micro_batches import Batch
from transformer_jax.training.monitoring import Profiler, Rates, Watchdog, peak_memory, slowest
from transformer_jax.training.progress import Progress, duration
from transformer_jax.training.settings import LoopConfig, profile_window
from transformer_jax.training.signals import StopSignals
from transformer_jax.training.state import TrainState

__all__ = ["FitResult", "Loop", "fit"]


class FitResult(NamedTuple):
    """The result of training.

    Attributes:
        state: The state after the last step.
        step: The last step.
        best: The best score by the metric of the best checkpoint; None where nothing measured it.
        best_step: The step of that checkpoint.
        early: Whether training stopped early.
        recompilations: Number of batch shapes that were not compiled before the first step.
    """

    state: TrainState
    step: int
    best: CheckpointScore | None
    best_step: int | None
    early: bool
    recompilations: int

    def __repr__(self) -> str:
        """Omits the state, whose arrays would fill pages."""
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields[1:])
        return f"FitResult(state=..., {shown})"


@dataclasses.dataclass(frozen=True)
class Loop:
    """The parts of a training loop.

    Attributes:
        step: ``(state, batch) -> (state, metrics)``, compiled per shape.
        batches: Function from a number of steps to the following batches, on the devices.
        checkpointer: Checkpointer of the run.
        metrics: Log of metrics.
        config: Intervals and stopping criteria.
        metric: Metric that selects the best checkpoint.
        evaluate: Function from a state to metrics by name, such as ``valid_loss``.
        steps_per_epoch: Steps per epoch, to compute the epoch in metrics.
        rates: Measurement of speed.
        curves: Picture of the metrics, redrawn after evaluations and checkpoints.
    """

    step: CompiledStep
    batches: Callable[[int], Iterator[Batch]]
    checkpointer: Checkpointer
    metrics: Path
    config: LoopConfig = LoopConfig()
    metric: Metric = Metric("valid_loss", better="lower")
    evaluate: Callable[[TrainState], dict[str, float]] | None = None
    steps_per_epoch: int | None = None
    rates: Rates = dataclasses.field(default_factory=Rates)
    curves: Curves | None = None


def fit(
    state: TrainState, loop: Loop, *, steps: int, start: int = 0, padding: Iterable[Batch] = ()
) -> FitResult:
    """Trains up to step ``steps`` and leaves the best and the last checkpoints.

    If stopped at any step and resumed from its checkpoint, training takes the same steps on the
    same batches with the same keys: the final state is bit-for-bit the same.

    Args:
        state: The state after ``start`` steps, which is donated.
        loop: The parts of the loop; its step is closed at the end.
        steps: The last step, counted from the beginning of the run.
        start: Number of steps of ``state``.
        padding: A batch of every shape, in the order in which training needs them, to compile in
            the background.

    Raises:
        Stopped: Stopped by SIGTERM or SIGINT, after saving.
        NumericsError: Too many consecutive steps were non-finite.
        CheckpointError: A checkpoint or the metrics could not be written.
    """
    config, main = loop.config.for_steps(steps), jax.process_index() == 0
    board = loop.metrics.parent / "tensorboard" if config.tensorboard else None
    records = MetricsLog(loop.metrics, start, tensorboard=board, writes=main)
    progress = Progress(steps, start, quiet=not main)
    closing = contextlib.closing
    watchdog = Watchdog(config.hang_seconds, loop.metrics.parent / "logs")
    with closing(loop.step), closing(records), closing(watchdog), StopSignals() as stop, progress:
        loop = dataclasses.replace(loop, config=config)
        running = _TrainingLoop(loop, records, progress, watchdog, start)
        return running.run(state, steps, padding, stop)


class _TrainingLoop:
    def __init__(
        self, loop: Loop, records: MetricsLog, progress: Progress, watchdog: Watchdog, start: int
    ):
        self.step, self.config, self.metric = loop.step, loop.config, loop.metric
        self.checkpointer, self.records, self.progress = loop.checkpointer, records, progress
        self.batches, self.evaluate, self.per_epoch = (
            loop.batches,
            loop.evaluate,
            loop.steps_per_epoch,
        )
        self.start = self.saved = start
        self.watchdog, self.rates, self.curves = watchdog, loop.rates, loop.curves
        self.profiler = Profiler(
            profile_window(loop.config.profile), records.path.parent / "profile"
        )
        self.waited, self.taken = 0.0, 0  # seconds of waiting, and steps, since an evaluation
        self.pending: tuple[int, dict[str, Array], float | None] | None = None
        self.standing = loop.checkpointer.standing(start, self.metric, records.history)
        self.clock = time.monotonic()
        self.reported_shapes = self.unmeasured = False

    def run(
        self, state: TrainState, steps: int, padding: Iterable[Batch], stop: StopSignals
    ) -> FitResult:
        number, early = self.start, self._patience_over()
        if number < steps and not early:
            self.step.prepare(state, padding)
        self._look_again(state, steps)
        early = self._patience_over()
        self.progress.begin()
        self.clock = time.monotonic()
        with contextlib.closing(self.batches(self.start)) as iterator:  # type: ignore[type-var]
            while number < steps and not early:
                batch = self._next(iterator)
                self._wait_for(batch, state, number, stop)
                number += 1
                self.watchdog.begin(number)
                self.profiler.before(number)
                state, measured = self.step(state, batch)
                # The metrics of the previous step, so that the loop never waits for the device.
                self._record()
                self._tell_compiled()
                self.pending = (number, measured, self.rates.flops(batch))
                signal = stop.reached(number)
                last = number == steps
                self.profiler.after(number, state, stopping=last or bool(signal))
                early = self._after(state, number, last=last, stopping=bool(signal)) and not last
                if signal:
                    raise self._stopped(signal, number)
        self.checkpointer.wait()
        return FitResult(
            state,
            number,
            self.standing.best,
            self.standing.best_step or None,
            early,
            len(self.step.late),
        )

    def _next(self, iterator: Iterator[Batch]) -> Batch:
        began = time.monotonic()
        batch = next(iterator)
        self.waited += time.monotonic() - began
        self.taken += 1
        return batch

    def _wait_for(self, batch: Batch, state: TrainState, number: int, stop: StopSignals) -> None:
        """Waits until a step on ``batch`` can begin, after ``number`` steps."""
        if self.step.wait(batch, lambda: True):
            return
        # Report completed steps before the wait.
        self._record()
        began = time.monotonic()
        with show_progress(
            f"compiling for batch shape {self.step.ready + 1} of {self.step.announced}"
        ):
            ready = self.step.wait(batch, lambda: stop.received)
        self.clock = time.monotonic()
        self.progress.leave_out(self.clock - began)
        if not ready:
            assert stop.received is not None
            if number > self.saved:
                self._after(state, number, last=False, stopping=True)
            raise self._stopped(stop.received, number)

    def _tell_compiled(self) -> None:
        """Prints once that all programs are compiled."""
        shapes = self.step.announced
        if not self.reported_shapes and shapes and self.step.ready >= shapes:
            self.reported_shapes = True
            self.progress.say(
                f"compiled {plural(shapes, 'batch shape')} in {duration(self.step.seconds)}"
            )

    def _stopped(self, signal: int, number: int) -> Stopped:
        self.checkpointer.wait()
        where = "no step was taken yet" if number == 0 else f"the state of step {number} is saved"
        run = self.records.path.parent
        return Stopped(f"stopped by a signal; {where}: {how_to_continue(run)}", signal)

    def _after(self, state: TrainState, number: int, *, last: bool, stopping: bool) -> bool:
        """Evaluates and save when due; returns whether to stop early."""
        config = self.config
        every = config.evaluate_every
        look = self.evaluate is not None and (last or bool(every and number % every == 0))
        look = look and not stopping  # a resumed run repeats it
        save = (
            last
            or stopping
            or bool(config.checkpoint_every and number % config.checkpoint_every == 0)
        )
        if not (look or save):
            return False
        # Write earlier metrics to disk before a checkpoint.
        self._record()
        self.watchdog.rest()
        score = self._look(state, number) if look else None
        over = self._patience_over()
        if save or over or (score is not None and self.standing.best_step == number):
            progress = self.standing.fields(self.metric)
            self.checkpointer.save(number, state, score=score, progress=progress)
            self.saved = number
        if self.curves is not None and not last and jax.process_index() == 0:
            self.curves.draw_if_due(self.records.history)
        self.clock = time.monotonic()
        return over

    def _patience_over(self) -> bool:
        return self.config.patience is not None and self.standing.since >= self.config.patience

    def _look(self, state: TrainState, number: int) -> CheckpointScore | None:
        assert self.evaluate is not None
        began = time.monotonic()
        with show_progress("evaluating"):
            scores = self.evaluate(state)
        took = time.monotonic() - began
        record = {"step": number, **scores, "evaluation_seconds": round(took, 3)}
        waited = slowest(self.waited / max(self.taken, 1))
        self.records.write({**record, **waited, **peak_memory()})
        self.waited, self.taken = 0.0, 0
        name = self.metric.name
        score = CheckpointScore(name, scores[name], self.metric.better) if name in scores else None
        self.standing = self.standing.after(number, score)
        if score is None and self.standing.best is None and not self.unmeasured:
            self.unmeasured = True
            self.progress.say(
                f"warning: no measurement is called {name}, so no checkpoint is the best by it: "
                f"there are {', '.join(scores)}"
            )
        words = "  ".join(f"{name} {value:.4g}" for name, value in scores.items())
        mark = "  best" if self.standing.best_step == number else ""
        self.progress.say(f"step {number}  {words}  ({duration(took)}){mark}")
        return score

    def _look_again(self, state: TrainState, steps: int) -> None:
        """Repeats an evaluation interrupted by a signal, so that results do not depend on it."""
        every, start = self.config.evaluate_every, self.start
        due = start > 0 and (start == steps or (every and start % every == 0))
        if self.evaluate is None or not due or self.standing.evaluated == start:
            return
        score = self._look(state, start)
        self.checkpointer.set_score(start, score, self.standing.fields(self.metric))

    def _record(self) -> None:
        if self.pending is None:
            return
        number, measured, flops = self.pending
        self.pending = None
        values = {name: jax.device_get(value).item() for name, value in measured.items()}
        now = time.monotonic()
        count, seconds = values.pop("weight", None), now - self.clock
        self.clock = now
        record: dict[str, int | float | None] = {"step": number}
        if self.per_epoch:
            record["epoch"] = round(number / self.per_epoch, 4)
        record |= values
        if count is not None:
            record |= {self.rates.counts: count, **self.rates.measure(count, flops, seconds)}
        if flops is not None:
            record["flops"] = flops
        self.records.write(record)
        self.progress.step(self.records.history[-1])
        self._count_skipped(number, bool(values.get("skipped")))

    def _count_skipped(self, number: int, skipped: bool) -> None:
        count = self.standing.skipped + 1 if skipped else 0
        self.standing = self.standing._replace(skipped=count)
        if skipped:
            self.progress.say(
                f"step {number}  non-finite loss or gradients, update skipped ({count} consecutive)"
            )
        if count >= self.config.max_nonfinite_steps:
            raise NumericsError(
                f"non-finite loss or gradients in {plural(count, 'consecutive step')} up to "
                f"step {number}: lower optimizer.learning_rate or optimizer.max_grad_norm, raise "
                f"optimizer.schedule.warmup_steps, or use float32; last checkpoint: step "
                f"{self.saved}"
            )

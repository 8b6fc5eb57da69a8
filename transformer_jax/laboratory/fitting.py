"""Training of small models on generated batches, many steps per compiled program."""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Key

from transformer_jax.models.partition import merging
from transformer_jax.training.state import TrainState, split
from transformer_jax.training.step import (
    Batch,
    Objective,
    add_sums,
    make_eval_step,
    make_step,
    means,
)

__all__ = ["FitProgress", "Fitted", "Say", "Schedule", "evaluated", "fit"]

Say = Callable[[str], None]
Model = TypeVar("Model", bound=nnx.Module)
MakeBatch = Callable[[Key[Array, ""]], Batch]

_CHUNK = 50  # steps per call of the program
_TRAINING, _EVALUATION = 1, 2  # random streams of batches


class FitProgress:
    """Lines about work in progress: all that end a part, and otherwise one every few seconds."""

    def __init__(self, say: Say | None = None, seconds: float = 3.0):
        self._say, self._seconds, self._last = say, seconds, -float("inf")

    def __call__(self, text: str, *, ends: bool = False) -> None:
        """Prints ``text`` if it ``ends`` a part, or if nothing was printed for some seconds."""
        now = time.monotonic()
        if self._say is not None and (ends or now - self._last >= self._seconds):
            self._say(text)
            self._last = now

    def within(self, part: str) -> Say:
        """Returns a function that prints lines about this part."""
        return lambda text: self(f"{part}: {text}")


class Schedule(NamedTuple):
    """The training schedule of a model.

    Attributes:
        steps: Largest number of optimizer steps.
        learning_rate: Learning rate of Adam, a number or an optax schedule; gradients are clipped
            to norm 1.
        goal: Accuracy over 50 steps at which training ends; None never ends it.
    """

    steps: int
    learning_rate: float | optax.Schedule
    goal: float | None = None


@dataclasses.dataclass(frozen=True)
class Fitted(Generic[Model]):
    """A trained model.

    Attributes:
        model: The model.
        steps: Number of steps taken.
        metrics: Means over the last steps, by name.
    """

    model: Model
    steps: int
    metrics: dict[str, float]


def fit(
    model: Model,
    objective: Objective,
    make_batch: MakeBatch,
    schedule: Schedule,
    *,
    seed: int,
    progress: Say = lambda text: None,
) -> Fitted[Model]:
    """Trains a copy of the model on batches that ``make_batch`` generates inside the program.

    The same seed gives the same batches for any model.

    Args:
        model: The model, which does not change.
        objective: Its ``loss`` is minimized; see :func:`.make_step`.
        make_batch: Function from a random key to a batch, traceable by JAX.
        schedule: Steps and learning rate.
        seed: Random seed of the batches.
        progress: Called with a line every 50 steps.
    """
    graph, params = split(model)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule.learning_rate))
    step = make_step(objective, tx, merging(graph))
    root = jax.random.fold_in(jax.random.key(seed), _TRAINING)

    def one(state: TrainState) -> tuple[TrainState, dict[str, Array]]:
        return step(state, {}, make_batch(jax.random.fold_in(root, state.step)), None)

    @functools.partial(jax.jit, donate_argnums=0)
    def many(state: TrainState, count: Array) -> tuple[TrainState, dict[str, Array]]:
        shapes = jax.eval_shape(one, state)[1]
        zeros = {name: jnp.zeros((), jnp.float32) for name in shapes}

        def body(
            _: Array, carry: tuple[TrainState, dict[str, Array]]
        ) -> tuple[TrainState, dict[str, Array]]:
            state, metrics = one(carry[0])
            return state, {name: carry[1][name] + metrics[name] / count for name in zeros}

        return jax.lax.fori_loop(0, count, body, (state, zeros))

    # The program donates its argument, and the given model keeps its parameters.
    state, done, known = TrainState.create(jax.tree.map(jnp.copy, params), tx), 0, {}
    while done < schedule.steps:
        count = min(_CHUNK, schedule.steps - done)
        state, metrics = many(state, jnp.int32(count))
        known, done = {name: float(value) for name, value in metrics.items()}, done + count
        shown = [f"{name} {known[name]:.3f}" for name in ("loss", "accuracy") if name in known]
        progress(f"step {done:,} of {schedule.steps:,}, {', '.join(shown)}")
        if schedule.goal is not None and known["accuracy"] >= schedule.goal:
            break
    return Fitted(nnx.merge(graph, state.params), done, known)


def evaluated(
    model: nnx.Module, objective: Objective, make_batch: MakeBatch, *, batches: int, seed: int
) -> dict[str, float]:
    """Evaluates a model on batches that :func:`fit` never generates for training.

    Args:
        model: The model.
        objective: The objective to measure.
        make_batch: As in :func:`fit`.
        batches: Number of batches.
        seed: Random seed of the batches.
    """
    graph, params = split(model)
    evaluate = make_eval_step(objective, merging(graph))
    root = jax.random.fold_in(jax.random.key(seed), _EVALUATION)
    program = jax.jit(lambda params, key: evaluate(params, {}, make_batch(key)))
    sums = [program(params, jax.random.fold_in(root, i)) for i in range(batches)]
    return {name: float(np.asarray(value)) for name, value in means(add_sums(sums)).items()}

"""Training of small models on made-up batches, many steps in one compiled program."""

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

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
MakeBatch = Callable[[Key[Array, ""]], Batch]

_CHUNK = 50  # steps of one call of the program
_TRAINING, _EVALUATION = 1, 2  # streams of batches


class FitProgress:
    """Lines about work under way: every one that ends a part, of others one in some seconds."""

    def __init__(self, say: Say | None = None, seconds: float = 3.0):
        self._say, self._seconds, self._last = say, seconds, -float("inf")

    def __call__(self, text: str, *, ends: bool = False) -> None:
        """Says ``text``, if it ``ends`` a part or nothing was said for some seconds."""
        now = time.monotonic()
        if self._say is not None and (ends or now - self._last >= self._seconds):
            self._say(text)
            self._last = now

    def within(self, part: str) -> Say:
        """A function that says a text of this part."""
        return lambda text: self(f"{part}: {text}")


class Schedule(NamedTuple):
    """The training schedule of a model.

    Attributes:
        steps: Most optimizer steps.
        learning_rate: Of Adam, a number or an optax schedule; gradients are clipped to norm 1.
        goal: Training ends once the accuracy of the last 50 steps is as high; None never.
    """

    steps: int
    learning_rate: float | optax.Schedule
    goal: float | None = None


class Fitted(NamedTuple):
    """A trained model.

    Attributes:
        model: The model.
        steps: Steps that it took.
        metrics: Means of the last steps, by name.
    """

    model: Any
    steps: int
    metrics: dict[str, float]


def fit(
    model: nnx.Module,
    objective: Objective,
    make_batch: MakeBatch,
    schedule: Schedule,
    *,
    seed: int,
    progress: Say = lambda text: None,
) -> Fitted:
    """The model after training on batches that ``make_batch`` makes within the program.

    The same seed gives the same batches, whatever the model.

    Args:
        model: The model, which stays as it is.
        objective: Minimized by its ``loss``; see :func:`.make_step`.
        make_batch: A function from a random key to a batch, which JAX can trace.
        schedule: Steps and learning rate.
        seed: Of the batches.
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

        def body(_: Any, carry: Any) -> Any:
            state, metrics = one(carry[0])
            return state, {name: carry[1][name] + metrics[name] / count for name in zeros}

        found: Any = jax.lax.fori_loop(0, count, body, (state, zeros))
        return found

    # The program uses its argument up, and the model given keeps its parameters.
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
    """The metrics of a model on batches that no training with :func:`fit` draws.

    Args:
        model: The model.
        objective: What is measured.
        make_batch: As in :func:`fit`.
        batches: How many batches.
        seed: Of the batches.
    """
    graph, params = split(model)
    evaluate = make_eval_step(objective, merging(graph))
    root = jax.random.fold_in(jax.random.key(seed), _EVALUATION)
    program = jax.jit(lambda params, key: evaluate(params, {}, make_batch(key)))
    sums = [program(params, jax.random.fold_in(root, i)) for i in range(batches)]
    return {name: float(np.asarray(value)) for name, value in means(add_sums(sums)).items()}

"""Training steps of our cases: one compiled program, on batches in turn."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from transformer_jax.models.layers.parameters import parameters, values
from transformer_jax.models.layers.surgery import with_attention_kernels
from transformer_jax.models.partition import EVERYTHING, Partition
from transformer_jax.training.optimizers import make_optimizer
from transformer_jax.training.settings import OptimizerConfig, ScheduleConfig
from transformer_jax.training.state import TrainState
from transformer_jax.training.step import make_step

__all__ = ["StepParts", "step_parts", "training_steps"]


class StepParts(NamedTuple):
    """A step, not compiled, and what it begins with: real for a real model, else described."""

    step: Callable[..., Any]
    start: Callable[[Any], TrainState]  # from the trained parameters
    params: Any
    frozen: Any


def step_parts(
    model: nnx.Module,
    objective: Any,
    width: int,
    device: Any,
    partition: Partition = EVERYTHING,
    **adamw: float,
) -> StepParts:
    """Returns a step of AdamW with clipping: see :func:`training_steps`."""
    model = with_attention_kernels(model, device)
    trained, kept = partition.split(parameters(model), nnx.Rngs(0))
    rate = OptimizerConfig(
        name="adamw", learning_rate=1e-3, schedule=ScheduleConfig("constant", 0), **adamw
    )
    tx = make_optimizer(rate, width, 1000, params=trained)
    merge = functools.partial(partition.merge, nnx.graphdef(model))
    start = lambda params: TrainState(jnp.int32(0), params, tx.init(params), None)
    return StepParts(make_step(objective, tx, merge), start, values(trained), values(kept))


def training_steps(
    model: nnx.Module,
    objective: Any,
    width: int,
    batches: Sequence[Any],
    partition: Partition = EVERYTHING,
    options: Mapping[str, Any] | None = None,
    **adamw: float,
) -> tuple[Callable[[int], float], dict[str, int]]:
    """Returns a function that takes steps of AdamW with clipping, and facts of the model.

    Args:
        model: The model, without dropout.
        objective: The objective.
        width: Model dimension, for the learning rate.
        batches: Batches to use in turn; the first compiles the program.
        partition: The trained parameters.
        options: Options of the compiler.
        adamw: Settings of the optimizer.
    """
    made = step_parts(model, objective, width, jax.devices()[0], partition, **adamw)
    params, frozen = made.params, made.frozen
    batches = jax.device_put(list(batches))
    how = dict(options) if options else None
    step = jax.jit(made.step, donate_argnums=0, compiler_options=how)
    state, _ = step(made.start(params), frozen, batches[0], None)
    held = {"state": state, "at": 0}

    def run(times: int) -> float:
        for _ in range(times):
            held["at"] += 1
            batch = batches[held["at"] % len(batches)]
            held["state"], metrics = step(held["state"], frozen, batch, None)
        return float(metrics["loss"])

    return run, {"parameters": sum(a.size for a in jax.tree.leaves(params))}

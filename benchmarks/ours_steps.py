"""Training steps of our cases: one compiled program, on batches in turn."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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

__all__ = ["training_steps"]


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
    model = with_attention_kernels(model, jax.devices()[0])
    graph = nnx.graphdef(model)
    batches = jax.device_put(list(batches))
    trained, kept = partition.split(parameters(model), nnx.Rngs(0))
    params, frozen = values(trained), values(kept)
    rate = OptimizerConfig(
        name="adamw", learning_rate=1e-3, schedule=ScheduleConfig("constant", 0), **adamw
    )
    tx = make_optimizer(rate, width, 1000, params=trained)
    merge = functools.partial(partition.merge, graph)
    how = dict(options) if options else None
    step = jax.jit(make_step(objective, tx, merge), donate_argnums=0, compiler_options=how)
    first = TrainState(jnp.int32(0), params, tx.init(params), None)
    state, _ = step(first, frozen, batches[0], None)
    held = {"state": state, "at": 0}

    def run(times: int) -> float:
        for _ in range(times):
            held["at"] += 1
            batch = batches[held["at"] % len(batches)]
            held["state"], metrics = step(held["state"], frozen, batch, None)
        return float(metrics["loss"])

    return run, {"parameters": sum(a.size for a in jax.tree.leaves(params))}

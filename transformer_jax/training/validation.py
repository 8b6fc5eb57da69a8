"""Validation: the sums of held-out data, and what a task measures of its model."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from transformer_jax.parallel.mesh import broadcast_json, gather_to_host, is_main_process
from transformer_jax.training.activity import tracked
from transformer_jax.training.batches import put_batch
from transformer_jax.training.partition import Merge
from transformer_jax.training.state import TrainState
from transformer_jax.training.step import add_sums, compile_eval, make_eval_step
from transformer_jax.training.task import Task

__all__ = ["make_validation"]


def make_validation(
    task: Task, merge: Merge, mesh: Mesh, frozen: Any, shardings: TrainState
) -> Callable[[TrainState], dict[str, float]] | None:
    """A function from a state to validation scores; None without anything to evaluate.

    Args:
        task: Whose validation data, objective and ``evaluate`` are used.
        merge: Makes a model of trained and frozen parameters.
        mesh: The devices.
        frozen: Parameters that are not trained, on the devices.
        shardings: Of the state.
    """
    if not task.valid and task.evaluate is None:
        return None
    sums = compile_eval(
        make_eval_step(task.eval_objective or task.objective, merge), mesh, shardings.params,
        frozen=jax.tree.map(lambda leaf: leaf.sharding, frozen),
    )  # fmt: skip

    def scores(state: TrainState) -> dict[str, float]:
        params = state.params if state.ema_params is None else state.ema_params
        found: dict[str, float] = {}
        for name, data in task.valid.items():
            epoch = tracked(range(data.plan.steps_per_epoch), "validation loss")
            batches = (put_batch(data, data.plan.batch(step), mesh) for step in epoch)
            total = add_sums(sums(params, frozen, batch) for batch in batches)
            for what, (value, weight) in total.items():
                found[f"{name}_{what}"] = value / weight if weight > 0 else value
        if task.evaluate is not None:
            found |= _evaluated(task.evaluate, merge, params, frozen)
        return found

    return scores


def _evaluated(evaluate: Any, merge: Merge, params: Any, frozen: Any) -> dict[str, float]:
    """What ``evaluate`` measures, in the main process, known to all."""
    if jax.process_count() == 1:
        # What decodes and predicts runs on the mesh of its parameters.
        return {name: float(value) for name, value in evaluate(merge(params, frozen, None)).items()}
    found: dict[str, float] = {}
    host = gather_to_host((params, frozen))
    if is_main_process():
        trainable, still = jax.device_put(host, jax.local_devices()[0])
        model = merge(trainable, still, None)
        found = {name: float(value) for name, value in evaluate(model).items()}
    return broadcast_json(found)

"""Validation on held-out data, during training and of a stored checkpoint."""

import os
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import jax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import PyTree

from transformer_jax.core.task_progress import tracked
from transformer_jax.core.trees import default_device, flatten_dict, with_leaves
from transformer_jax.models.layers.parameters import Shapes, values
from transformer_jax.models.layers.surgery import with_attention_kernels
from transformer_jax.models.partition import Merge
from transformer_jax.parallel.mesh import broadcast_json, gather_to_host, is_main_process, make_mesh
from transformer_jax.parallel.settings import MeshConfig
from transformer_jax.parallel.sharding import shardings
from transformer_jax.runs.checkpoint_reader import check_parameters, load_all_parts
from transformer_jax.training.batches import put_batch
from transformer_jax.training.state import TrainState, abstract_parts
from transformer_jax.training.step import add_sums, compile_eval, make_eval_step
from transformer_jax.training.task import Task

__all__ = ["Validated", "make_validation", "validate_checkpoint"]


def make_validation(
    task: Task, merge: Merge, mesh: Mesh, frozen: PyTree, shardings: TrainState
) -> Callable[[TrainState], dict[str, float]] | None:
    """Returns a function from a state to validation metrics; None if there is nothing to evaluate.

    Args:
        task: The task, with validation data, objective and ``evaluate``.
        merge: Function from trained and frozen parameters to a model.
        mesh: The devices.
        frozen: Frozen parameters, on the devices.
        shardings: Shardings of the state.
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
        for name, others in task.means.items():
            found[name] = sum(found[other] for other in others) / len(others)
        if task.evaluate is not None:
            found |= _evaluated(task.evaluate, merge, params, frozen)
        return found

    return scores


def _evaluated(
    evaluate: Callable[[PyTree], Mapping[str, float]], merge: Merge, params: PyTree, frozen: PyTree
) -> dict[str, float]:
    """Evaluates in the main process, and returns the metrics to all."""
    if jax.process_count() == 1:
        # Decoding and prediction run on the mesh of the parameters.
        return {name: float(value) for name, value in evaluate(merge(params, frozen, None)).items()}
    found: dict[str, float] = {}
    host = gather_to_host((params, frozen))
    if is_main_process():
        trainable, still = jax.device_put(host, jax.local_devices()[0])
        model = merge(trainable, still, None)
        found = {name: float(value) for name, value in evaluate(model).items()}
    return broadcast_json(found)


class Validated(NamedTuple):
    """The result of :func:`validate_checkpoint`."""

    scores: dict[str, float]  # by name of the metric, such as valid_loss
    model: PyTree  # the model argument of the task's objective
    step: int  # step of the checkpoint


def validate_checkpoint(
    task: Task,
    directory: str | os.PathLike[str],
    which: int | Literal["best", "last"] = "best",
    *,
    average: int = 1,
    mesh: Mesh | None = None,
    beside: Mapping[str, PyTree] | None = None,
) -> Validated:
    """Computes the validation metrics of a checkpoint, on the validation data of the task.

    On the same mesh and data, the values are the same as in training.

    Args:
        task: The task that the run trained, with the data to validate on.
        directory: The run directory.
        which: A step, the newest, or the best.
        average: Number of checkpoints to average: the chosen one and its predecessors.
        mesh: The devices; None is the default device.
        beside: Replacements of the run's frozen parameters, such as another reward model, in nested
            dictionaries.

    Raises:
        CheckpointError: The checkpoint does not exist, none verifies, or the task's model has
            different parameters.
    """
    mesh = make_mesh(MeshConfig(), [default_device()]) if mesh is None else mesh
    loaded = load_all_parts(directory, which, average=average)
    make = lambda: task.model(Shapes(0))
    declared = abstract_parts(make, task.partition)
    trained, frozen = map(flatten_dict, (loaded.params, loaded.frozen))
    known = frozen | flatten_dict(dict(beside or {}))
    frozen = {name: known[name] for name in flatten_dict(values(declared[1])) if name in known}
    parts = []
    for part, leaves in zip(map(values, declared), (trained, frozen), strict=True):
        why = "by the task: it is not the trained task"
        check_parameters(directory, part, leaves, why)
        parts.append(with_leaves(part, leaves))
    places = [shardings(part, mesh) for part in declared]
    trained, frozen = jax.device_put(tuple(parts), tuple(places))
    model = nnx.eval_shape(make)
    graph = nnx.graphdef(with_attention_kernels(model, mesh.devices.flat[0]))
    merge = lambda trained, frozen, key: task.partition.merge(graph, trained, frozen, key)
    validation = make_validation(task, merge, mesh, frozen, TrainState(0, places[0], {}))
    scores = {} if validation is None else validation(TrainState(loaded.step, trained, {}))
    return Validated(scores, merge(trained, frozen, None), loaded.step)

"""Validation of a checkpoint as in training, after it: on held-out data or on others."""

import os
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
from flax import nnx
from jax.sharding import Mesh

from transformer_jax.devices import default_device
from transformer_jax.modules.parameters import values
from transformer_jax.modules.replace import with_attention_kernels
from transformer_jax.parallel.mesh import MeshConfig, make_mesh
from transformer_jax.parallel.sharding import shardings
from transformer_jax.training.state import TrainState, abstract_parts
from transformer_jax.training.stored import load_all_parts
from transformer_jax.training.task import Task
from transformer_jax.training.trained_model import check_parameters
from transformer_jax.training.trees import flatten_dict, with_leaves
from transformer_jax.training.validation import make_validation

__all__ = ["Validated", "validate_checkpoint"]


class Validated(NamedTuple):
    """What :func:`validate_checkpoint` returns."""

    scores: dict[str, float]  # by the names of metrics: valid_loss and others
    model: Any  # what the task's objective takes
    step: int  # of the checkpoint


def validate_checkpoint(
    task: Task,
    directory: str | os.PathLike[str],
    which: int | Literal["best", "last"] = "best",
    *,
    average: int = 1,
    mesh: Mesh | None = None,
    beside: Mapping[str, Any] | None = None,
) -> Validated:
    """The metrics that training logs of a checkpoint, on the validation data of the task.

    On the mesh of the training, and of the data that were validated there, they are the same
    numbers.

    Args:
        task: The task that the run trained, with the data to validate on.
        directory: Of the run.
        which: A step, the newest, or the best.
        average: How many checkpoints to average: the chosen one and those before it.
        mesh: The devices; None is the default device.
        beside: Frozen parameters that take the place of those that the run keeps, such as another
            reward model, in nested dictionaries.

    Raises:
        CheckpointError: There is no such checkpoint, nothing verifies, or the task makes a model
            with other parameters.
    """
    mesh = make_mesh(MeshConfig(), [default_device()]) if mesh is None else mesh
    loaded = load_all_parts(directory, which, average=average)
    make = lambda: task.model(nnx.Rngs(0))
    declared = abstract_parts(make, task.partition)
    trained, frozen = map(flatten_dict, (loaded.params, loaded.frozen))
    known = frozen | flatten_dict(dict(beside or {}))
    frozen = {name: known[name] for name in flatten_dict(values(declared[1])) if name in known}
    parts = []
    for part, leaves in zip(map(values, declared), (trained, frozen), strict=True):
        why = "by the task: it is not the one that was trained"
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

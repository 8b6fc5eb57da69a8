"""The model of a checkpoint, created by the task that trained it."""

import os
from typing import TYPE_CHECKING, Literal, NamedTuple

import jax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import PyTree

from transformer_jax.core.trees import default_device
from transformer_jax.models.layers.parameters import Shapes, values
from transformer_jax.models.layers.surgery import with_attention_kernels
from transformer_jax.models.partition import overlay
from transformer_jax.parallel.sharding import shardings
from transformer_jax.runs.checkpoint_reader import check_parameters, load_parts
from transformer_jax.runs.manifest import Manifest
from transformer_jax.training.state import abstract_parts

if TYPE_CHECKING:
    from transformer_jax.training.task import Task

__all__ = ["TrainedModel", "load_model"]


class TrainedModel(NamedTuple):
    """The result of :func:`load_model`."""

    model: PyTree  # the model argument of the task's objective
    step: int  # step of the checkpoint
    manifest: Manifest  # manifest of the checkpoint


def load_model(
    task: "Task",
    directory: str | os.PathLike[str],
    which: int | Literal["best", "last"] = "best",
    *,
    average: int = 1,
    mesh: Mesh | None = None,
) -> TrainedModel:
    """Loads the model of a checkpoint, without dropout.

    Args:
        task: The task that the run trained.
        directory: The run directory.
        which: A step, the newest, or the best.
        average: Number of checkpoints to average: the chosen one and its predecessors.
        mesh: Devices for the model; None is the default device.

    Raises:
        CheckpointError: The checkpoint does not exist, none verifies, or the task's model has
            different parameters.
    """
    loaded = load_parts(directory, which, average=average)
    make = lambda: task.model(Shapes(0))
    declared = abstract_parts(make, task.partition)
    trained, kept = map(values, declared)
    check_parameters(
        directory,
        overlay(kept, trained),
        overlay(loaded.frozen, loaded.params),
        "by the task: it is not the trained task",
    )
    device = default_device() if mesh is None else mesh.devices.flat[0]
    graph = nnx.graphdef(with_attention_kernels(nnx.eval_shape(make), device))
    places = device if mesh is None else tuple(shardings(part, mesh) for part in declared)
    trainable, frozen = jax.device_put((loaded.params, loaded.frozen), places)
    model = task.partition.merge(graph, trainable, frozen, None)
    return TrainedModel(model, loaded.step, loaded.manifest)

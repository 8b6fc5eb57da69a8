"""The model of a checkpoint, made by the task that trained it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import PyTree

from transformer_jax.core.devices import default_device
from transformer_jax.core.errors import CheckpointError
from transformer_jax.core.trees import flatten_dict
from transformer_jax.models.layers.parameters import values
from transformer_jax.models.layers.replace import with_attention_kernels
from transformer_jax.models.partition import overlay
from transformer_jax.parallel.sharding import shardings
from transformer_jax.runs.checkpoint_reader import load_parts
from transformer_jax.training.state import abstract_parts

if TYPE_CHECKING:
    from transformer_jax.training.task import Task

__all__ = ["TrainedModel", "check_parameters", "load_model"]


class TrainedModel(NamedTuple):
    """The result of :func:`load_model`."""

    model: Any  # what the task's objective takes
    step: int  # of the checkpoint
    manifest: Mapping[str, Any]  # of the checkpoint


def load_model(
    task: "Task",
    directory: str | os.PathLike[str],
    which: int | Literal["best", "last"] = "best",
    *,
    average: int = 1,
    mesh: Mesh | None = None,
) -> TrainedModel:
    """The model of a checkpoint, without dropout.

    Args:
        task: The task that the run trained.
        directory: Of the run.
        which: A step, the newest, or the best.
        average: How many checkpoints to average: the chosen one and those before it.
        mesh: Devices that share it; None is the default device, which then holds it whole.

    Raises:
        CheckpointError: There is no such checkpoint, nothing verifies, or the task makes a model
            with other parameters.
    """
    loaded = load_parts(directory, which, average=average)
    make = lambda: task.model(nnx.Rngs(0))
    declared = abstract_parts(make, task.partition)
    trained, kept = map(values, declared)
    check_parameters(
        directory,
        overlay(kept, trained),
        overlay(loaded.frozen, loaded.params),
        "by the task: it is not the one that was trained",
    )
    device = default_device() if mesh is None else mesh.devices.flat[0]
    graph = nnx.graphdef(with_attention_kernels(nnx.eval_shape(make), device))
    places = device if mesh is None else tuple(shardings(part, mesh) for part in declared)
    trainable, frozen = jax.device_put((loaded.params, loaded.frozen), places)
    model = task.partition.merge(graph, trainable, frozen, None)
    return TrainedModel(model, loaded.step, loaded.manifest)


def check_parameters(
    path: str | os.PathLike[str], expected: PyTree, found: PyTree, otherwise: str
) -> None:
    """Refuses parameters of other names or shapes than a model has.

    Args:
        path: The run, for the message.
        expected: The model's parameters, real or abstract.
        found: Those of a checkpoint.
        otherwise: End of the message: where the expected ones come from, and what that means.

    Raises:
        CheckpointError: It names the first that differs.
    """
    expected, found = (
        {name: tuple(leaf.shape) for name, leaf in flatten_dict(tree).items()}
        for tree in (expected, found)
    )
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise CheckpointError(
                f"{Path(path)}: parameter {name} is {_shape(found.get(name))} in the checkpoint "
                f"and {_shape(expected.get(name))} {otherwise}"
            )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else str(list(shape))

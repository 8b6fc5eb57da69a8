"""Programs that a run compiles: shapes of batches, model, objectives; no data is read."""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.plan import rows_within
from transformer_jax.data.shapes import padded_length
from transformer_jax.parallel.mesh import make_mesh, mesh_shape
from transformer_jax.parallel.sharding import batch_sharding
from transformer_jax.parallel.target import Target
from transformer_jax.recipes.parts import BatchShapes, Parts
from transformer_jax.recipes.registry import get_recipe
from transformer_jax.recipes.settings import RowBatches, start_config

__all__ = ["Shape", "buckets", "check_planned", "mesh_on", "parts_of"]

STEPS = 100_000  # of schedules, which do not change the size of a program


class Shape(NamedTuple):
    """Rows of a batch, and tokens of each."""

    rows: int
    length: int


def mesh_on(run: Any, target: Target) -> Mesh | AbstractMesh:
    """The mesh of a run over the devices of a target; without devices, its shape alone.

    Raises:
        ConfigError: The sizes do not fit the number of devices.
    """
    if target.compiles:
        return make_mesh(run.mesh, target.devices)
    sizes = mesh_shape(run.mesh, target.number)
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * 4)


def check_planned(run: Any) -> None:
    """Refuses settings that a plan does not support.

    Raises:
        ConfigError: A run under ``pmap``, or a run that takes its model from another run.
    """
    if run.training.mode != "jit":
        raise ConfigError(f"--plan: there is no plan with training.mode {run.training.mode}")
    if run.model.features.num_features:
        raise ConfigError("--plan: there is no plan of models of features yet")
    start = start_config(run)
    if start.init_from is not None:
        raise ConfigError(
            f"--plan: there is no plan with {start.prefix}init_from: leave it out, and give the "
            f"size of that model by --model flags"
        )


def buckets(run: Any, sizes: Mapping[str, int]) -> list[Shape]:
    """The shapes of the batches of a run, the longest texts first.

    The lengths of buckets follow from the data, which are not read: here they are spread evenly.
    The longest is that of a run whose texts reach its limit.

    Args:
        run: The run.
        sizes: Axes of the mesh, and their sizes.

    Raises:
        ConfigError: Rows that the mesh and accumulation do not divide, or more of them than the
            tokens of a batch have room for.
    """
    training, shards = run.training, sizes["data"] * sizes["fsdp"]
    parts = shards * training.gradient_accumulation_steps
    if isinstance(training, RowBatches):
        rows = run.training.batch_size
        if rows % parts:
            raise ConfigError(
                f"training.batch_size is {rows}: with mesh.data x mesh.fsdp {shards} and "
                f"training.gradient_accumulation_steps {training.gradient_accumulation_steps} it "
                f"must be a multiple of {parts}"
            )
        return [Shape(rows, run.training.sequence_length)]
    count = run.training.num_buckets
    even = np.ceil(
        get_recipe(run.recipe).length_limit(run)[1] / count * np.arange(1, count + 1)
    ).astype(int)
    unit = training.pad_to_multiple_of or training.cpu_multiple
    lengths = set(padded_length(even, unit).tolist())
    multiple = math.lcm(run.training.required_batch_size_multiple, parts)
    fitting = functools.partial(rows_within, run.training.max_tokens, multiple=multiple)
    return [Shape(fitting(length), length) for length in sorted(lengths, reverse=True)]


def parts_of(run: Any, mesh: Mesh | AbstractMesh, shape: Shape) -> Parts:
    """Returns what a step is made of, with the shapes of a batch."""
    batch = BatchShapes(shape.rows, shape.length, batch_sharding(mesh))
    return get_recipe(run.recipe).planned_parts(run, batch)

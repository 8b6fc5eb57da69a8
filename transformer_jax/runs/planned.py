"""What a run compiles: the shapes of its batches, its model, its objectives; no data is read."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, Mesh

from transformer_jax.data.plan import rows_within
from transformer_jax.data.shapes import padded_length
from transformer_jax.errors import ConfigError
from transformer_jax.models.making import make_model
from transformer_jax.parallel.mesh import make_mesh, mesh_shape
from transformer_jax.parallel.sharding import batch_sharding
from transformer_jax.parallel.target import Target
from transformer_jax.runs.checks import length_limit
from transformer_jax.runs.denoising_settings import DenoisingRun
from transformer_jax.runs.encoder_settings import FinetuneRun, PretrainRun
from transformer_jax.runs.freezing import partition_of
from transformer_jax.runs.language_settings import LanguageRun
from transformer_jax.runs.settings import start_config
from transformer_jax.runs.translation_settings import Run as TranslationRun
from transformer_jax.tasks.labeled import OBJECTIVES
from transformer_jax.training import objectives
from transformer_jax.training.partition import EVERYTHING, Partition
from transformer_jax.training.step import Batch, Objective

__all__ = ["Parts", "PlannedRun", "Shape", "buckets", "check_planned", "mesh_on", "parts_of"]

PlannedRun = TranslationRun | DenoisingRun | LanguageRun | PretrainRun | FinetuneRun

BOS = 1  # of programs that are compiled only, any token will do
STEPS = 100_000  # of schedules, which do not change the size of a program
LABELS = 2  # of tasks, whose labels are in the data: they hardly change the size of a program


class Shape(NamedTuple):
    """Rows of a batch, and tokens of each."""

    rows: int
    length: int


class Parts(NamedTuple):
    """What the programs of a run are made of.

    Attributes:
        model: Makes the model.
        objective: Of training.
        evaluation: Of validation.
        batch: Shapes of a batch.
        partition: Which parameters are trained.
    """

    model: Callable[[], nnx.Module]
    objective: Objective
    evaluation: Objective
    batch: Batch
    partition: Partition


def mesh_on(run: PlannedRun, target: Target) -> Mesh | AbstractMesh:
    """The mesh of a run over the devices of a target; without devices, its shape alone.

    Raises:
        ConfigError: The sizes do not fit the number of devices.
    """
    if target.compiles:
        return make_mesh(run.mesh, target.devices)
    sizes = mesh_shape(run.mesh, target.number)
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * 4)


def check_planned(run: PlannedRun) -> None:
    """Refuses settings that a plan does not follow.

    Raises:
        ConfigError: A run under ``pmap``, or one whose model is that of another run.
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


def buckets(run: PlannedRun, sizes: Mapping[str, int]) -> list[Shape]:
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
    if isinstance(run, LanguageRun):
        rows = run.training.batch_size
        if rows % parts:
            raise ConfigError(
                f"training.batch_size is {rows}: with mesh.data x mesh.fsdp {shards} and "
                f"training.gradient_accumulation_steps {training.gradient_accumulation_steps} it "
                f"must be a multiple of {parts}"
            )
        return [Shape(rows, run.training.sequence_length)]
    count = run.training.num_buckets
    even = np.ceil(length_limit(run)[1] / count * np.arange(1, count + 1)).astype(int)
    unit = run.training.pad_to_multiple_of or (
        8 if isinstance(run, PretrainRun | DenoisingRun) else 4
    )
    lengths = set(padded_length(even, unit).tolist())
    multiple = math.lcm(run.training.required_batch_size_multiple, parts)
    fitting = functools.partial(rows_within, run.training.max_tokens, multiple=multiple)
    return [Shape(fitting(length), length) for length in sorted(lengths, reverse=True)]


def parts_of(run: PlannedRun, mesh: Mesh | AbstractMesh, shape: Shape) -> Parts:
    """What a step is made of, with the shapes of a batch."""
    config, (rows, length) = run.model, shape

    def array(*shape: int, dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, *shape), dtype, sharding=batch_sharding(mesh))

    made = lambda kind, **heads: lambda: make_model(kind, config, rngs=nnx.Rngs(0), **heads)
    if isinstance(run, TranslationRun | DenoisingRun):
        batch: Batch = {
            "inputs": {"source": array(length), "source_lengths": array()},
            "target": array(length),
            "lengths": array(),
        }
        smoothed = objectives.sequence_to_sequence(BOS, run.training.label_smoothing)
        plain = objectives.sequence_to_sequence(BOS)
        return Parts(made("encoder-decoder"), smoothed, plain, batch, EVERYTHING)
    if isinstance(run, LanguageRun):
        names = ["tokens", "targets"]
        names += ["segments", "positions"] * (run.training.layout == "packed")
        batch = {name: array(length) for name in names}
        batch["weights"] = array(length, dtype=jnp.float32)
        objective = objectives.language_model()
        return Parts(made("decoder"), objective, objective, batch, EVERYTHING)
    batch = {"tokens": array(length), "types": array(length), "lengths": array()}
    if isinstance(run, FinetuneRun):
        kind = run.task.kind
        labels = {"regress": array(dtype=jnp.float32), "tag": array(length), "qa": array(2)}
        batch["labels"] = labels.get(kind, array())
        if kind == "qa":
            batch["allowed"] = array(length, dtype=jnp.bool_)
        model = made("encoder-task", task=kind, labels=len(run.task.labels) or LABELS)
        objective = OBJECTIVES[kind]()
        return Parts(model, objective, objective, batch, partition_of(run.task.freeze))
    masked = max(1, round(run.masking.mlm_probability * length))
    batch |= {
        "next_sentence_label": array(),
        "masked_positions": array(masked),
        "targets": array(masked),
        "weights": array(masked, dtype=jnp.float32),
    }
    pairs = run.masking.sentence_objective
    of = lambda accuracy: objectives.masked_lm(accuracy=accuracy, sentence_objective=pairs)
    model = made("encoder", next_sentence=pairs != "none")
    return Parts(model, of(False), of(True), batch, EVERYTHING)

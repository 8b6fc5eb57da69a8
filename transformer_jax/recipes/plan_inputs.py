"""Inputs of the plan of a run: what its programs are made of, without data or compilation."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from transformer_jax.models.build import Kind, make_model
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.partition import EVERYTHING, Partition
from transformer_jax.models.recurrent_config import ModelConfig
from transformer_jax.recipes.settings import Trained
from transformer_jax.training import objectives
from transformer_jax.training.step import Batch, Objective

__all__ = ["BatchShapes", "PlanInputs", "fresh_model", "pair_inputs", "row_inputs"]

BOS = 1  # any token will do for programs that are only compiled


class PlanInputs(NamedTuple):
    """The parts of the programs of a run.

    Attributes:
        model: Function that creates the model.
        objective: The training objective.
        evaluation: The validation objective.
        batch: Shapes of a batch.
        partition: Selects the trained parameters.
        scored: The fraction of tokens with logits.
        ranked: Whether evaluation also ranks the logits, for an accuracy.
        attentions: Names of the attentions with their configurations, in the order in which a
            one-layer model computes them; None is derived from the configuration of the run.
    """

    model: Callable[[], nnx.Module]
    objective: Objective
    evaluation: Objective
    batch: Batch
    partition: Partition = EVERYTHING
    scored: float = 1.0
    ranked: bool = False
    attentions: tuple[tuple[str, TransformerConfig], ...] | None = None


class BatchShapes(NamedTuple):
    """The shapes of a batch.

    Attributes:
        rows: Number of rows.
        length: Number of tokens per row.
        sharding: How rows are divided over devices.
    """

    rows: int
    length: int
    sharding: Any

    def images(self, config: TransformerConfig) -> jax.ShapeDtypeStruct:
        """Returns the shape of the images of an encoder."""
        image = config.image
        return self.array(image.image_size, image.image_size, image.num_channels, dtype=jnp.float32)

    def array(self, *shape: int, dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
        """Returns the shape of an array of the batch, from the axes after its rows."""
        return jax.ShapeDtypeStruct((self.rows, *shape), dtype, sharding=self.sharding)


def pair_inputs(run: Trained, batch: BatchShapes, smoothing: float = 0.0) -> PlanInputs:
    """Returns the parts of the run of an encoder-decoder on pairs of texts."""
    array, length = batch.array, batch.length
    shapes: Batch = {
        "inputs": {"source": array(length), "source_lengths": array()},
        "target": array(length),
        "lengths": array(),
    }
    smoothed = objectives.sequence_to_sequence(BOS, smoothing)
    plain = objectives.sequence_to_sequence(BOS)
    return PlanInputs(fresh_model("encoder-decoder", run.model), smoothed, plain, shapes)


def row_inputs(run: Trained, batch: BatchShapes, *, packed: bool) -> PlanInputs:
    """Returns the parts of the run of a decoder on rows of tokens."""
    names = ["tokens", "targets"]
    names += ["segments", "positions"] * packed
    shapes = {name: batch.array(batch.length) for name in names}
    shapes["weights"] = batch.array(batch.length, dtype=jnp.float32)
    objective = objectives.language_model()
    return PlanInputs(fresh_model("decoder", run.model), objective, objective, shapes)


def fresh_model(kind: Kind, config: ModelConfig, **heads: Any) -> Callable[[], nnx.Module]:
    """Returns a function that creates a model."""
    return lambda: make_model(kind, config, rngs=nnx.Rngs(0), **heads)

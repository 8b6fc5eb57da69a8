"""Vectors of tokens and frames, and the output head."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer_jax.core.errors import ArgumentError, DataError
from transformer_jax.functional.losses import OutputTable
from transformer_jax.functional.partitioning import take_rows
from transformer_jax.functional.positions import sinusoidal, sinusoidal_2d
from transformer_jax.functional.sparse_table_gradient import replace_taken
from transformer_jax.models.config import FeatureConfig, TransformerConfig
from transformer_jax.models.layers.basic import Linear, initial_key
from transformer_jax.models.layers.parameters import at_depth, logical_axes
from transformer_jax.models.layers.summary import Summarized

__all__ = [
    "Embed",
    "FeatureProjection",
    "Head",
    "TrainedRows",
    "check_indices",
    "check_tokens",
    "output_table",
    "sinusoids",
    "token_embedding",
]

Axes = tuple[str | None, str | None]


def sinusoids(
    config: TransformerConfig, length: int | None = None
) -> Float[Array, "length {config.embedding_size}"]:
    """Returns sinusoidal position vectors, from the first position on.

    For a grid, embeddings before the patches have zeros.

    Args:
        config: Configuration with the kind, offset and number of positions.
        length: Number of positions, if it differs from the configuration's.

    Example:
        >>> from transformer_jax.models.config import AttentionConfig, PositionConfig
        >>> config = TransformerConfig(
        ...     d_model=4,
        ...     attention=AttentionConfig(num_heads=1),
        ...     positions=PositionConfig("sinusoidal_fairseq", offset=2),
        ... )
        >>> np.asarray(sinusoids(config, 1)).round(3)
        array([[ 0.909,  0.   , -0.416,  1.   ]], dtype=float32)
    """
    places, image, width = config.positions, config.image, config.embedding_size
    length = places.max_length if length is None else length
    if places.kind == "sinusoidal_2d":
        side = image.image_size // image.patch_size
        grid = sinusoidal_2d(side, side, width)
        return jnp.pad(grid, ((image.num_prefixes, 0), (0, 0)))[:length]
    layouts: dict[str, Any] = {"sinusoidal_halves": "halves"}
    layouts |= dict.fromkeys(("sinusoidal", "concatenated"), "interleaved")
    layout = layouts.get(places.kind, "fairseq")
    first = places.offset if layout == "fairseq" else 0
    return sinusoidal(length, width, layout, first)


class Embed(Summarized):
    """A lookup table: of tokens, positions, segments or distance buckets.

    Attributes:
        table: ``[rows width]``.
        trained: The trained rows if the table is a constant; None if it is trained or frozen as
            one.
    """

    def __init__(
        self,
        rows: int,
        width: int,
        axes: Axes = ("vocab", "embed"),
        *,
        scale: float,
        dtype: str = "float32",
        rngs: nnx.Rngs,
    ):
        self.dtype = dtype  # rows are rounded to it
        init = jax.nn.initializers.normal(scale)
        table = init(initial_key(rngs), (rows, width), jnp.float32)
        self.table = nnx.Param(table, axes=axes)
        self.trained: TrainedRows | None = None

    def __call__(self, indices: Int[Array, "*where"]) -> Float[Array, "*where D"]:
        """Returns the rows at ``indices``.

        Within ``jax.jit``, where indices are unknown, an index beyond the table returns the last
        row.

        Raises:
            DataError: A known index is below 0 or beyond the table.
        """
        check_indices(indices, self.table.shape[0])
        found = take_rows(self.table[...], indices, logical_axes(self.table), self.dtype)
        if self.trained is None:
            return found
        return self.trained.replace(found, indices, self.table.shape[0], self.dtype)


def token_embedding(config: TransformerConfig, rngs: nnx.Rngs) -> "Embed | FeatureProjection":
    """A new table of tokens; for frames of features, a linear map."""
    width, dtype = config.embedding_size, config.compute.dtype
    made: Embed | FeatureProjection
    if config.features.num_features:
        made = FeatureProjection(config.features, width, dtype=dtype, rngs=rngs)
    else:
        # Scaled embeddings start at unit size, whatever the scale.
        spread = width**-0.5 if config.embedding.scale is None else 0.02
        made = Embed(config.vocab_size, width, scale=spread, dtype=dtype, rngs=rngs)
    at_depth(made, 0)
    return made


class FeatureProjection(Summarized):
    """``x W + b`` at each position, whose frames are stacked: see ``stack_frames``."""

    def __init__(self, config: FeatureConfig, width: int, *, dtype: str, rngs: nnx.Rngs):
        self.config = config
        self.dtype = dtype  # features are rounded to it
        self.projection = Linear(config.width, width, (None, "embed"), rngs=rngs)

    def __call__(self, features: Float[Array, "B S W"]) -> Float[Array, "B S D"]:
        """Returns a vector for each position.

        Raises:
            DataError: The positions do not have the width that the model reads.
        """
        if features.shape[-1] != self.config.width:
            raise DataError(
                f"positions of width {features.shape[-1]}: this model reads {self.config.width}, "
                f"{self.config.stacked_frames} frames of {self.config.num_features} each"
            )
        return self.projection(features.astype(self.dtype))


class Head(Summarized):
    """The parameters of the output: a table unless tied, and optionally a bias."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        self.config = config.head
        V, D = config.vocab_size, config.embedding_size
        init = jax.nn.initializers.normal(D**-0.5)
        tied = config.head.tie_word_embeddings
        self.table = (
            None
            if tied
            else nnx.Param(init(rngs.params(), (V, D), jnp.float32), axes=("vocab", "embed"))
        )
        self.trained: TrainedRows | None = None  # trained rows, if the table is a constant
        self.bias = nnx.Param(jnp.zeros(V), axes=("vocab",)) if config.head.bias else None

    def output_table(self, embedding: Embed) -> OutputTable:
        """Returns the map to logits; a tied head uses the table of ``embedding``."""
        source = embedding if self.table is None else self
        bias = None if self.bias is None else self.bias[...]
        return output_table(source, bias, self.config.scale, self.config.final_logit_softcapping)


def output_table(
    source: Any, bias: Any = None, scale: float = 1.0, softcap: float | None = None
) -> OutputTable:
    """Returns the map to logits for a module's table, of which only some rows may be trained.

    Args:
        source: A module with a ``table`` and ``trained``, its :class:`TrainedRows` or None.
        bias: See :class:`OutputTable`.
        scale: See :class:`OutputTable`.
        softcap: See :class:`OutputTable`.
    """
    trained = source.trained
    rows, ids = (None, ()) if trained is None else (trained.rows[...], trained.ids)
    return OutputTable(source.table[...], bias, scale, softcap, rows, ids)


class TrainedRows(Summarized):
    """Trained rows of a table that is otherwise a constant.

    Attributes:
        rows: ``[A D]``.
        ids: The tokens of the rows.
    """

    def __init__(self, rows: nnx.Param, ids: tuple[int, ...]):
        self.rows, self.ids = rows, ids

    def replace(
        self, found: Float[Array, "*where D"], indices: Int[Array, "*where"], size: int, dtype: Any
    ) -> Float[Array, "*where D"]:
        """Replaces rows looked up in a table of ``size`` rows if their index is a trained token."""
        return replace_taken(found, self.rows[...], indices, self.ids, size, dtype)


def check_indices(indices: Any, rows: int, what: str = "index") -> None:
    """Refuses indices that are out of range for a table of ``rows`` rows, if they are known.

    They are unknown within ``jax.jit``, or if other processes hold some of them.

    Raises:
        DataError: Names the first such index.

    Example:
        >>> check_indices(np.array([0, 5, 9]), 10)
        >>> check_indices(np.array([[3, 10]]), 10, "token")
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.DataError: token 10: allowed are 0 to 9
    """
    if isinstance(indices, jax.core.Tracer) or not getattr(indices, "is_fully_addressable", True):
        return
    known = np.asarray(indices)
    strange = known[(known < 0) | (known >= rows)]
    if strange.size:
        raise DataError(f"{what} {strange[0]}: allowed are 0 to {rows - 1}")


def check_tokens(tokens: Any, name: str = "tokens") -> None:
    """Refuses tokens that are not a batch of texts.

    Raises:
        ArgumentError: They are no array, no whole numbers, or the number of axes is not two.

    Example:
        >>> check_tokens(jnp.ones((3,), int))
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ArgumentError: tokens have shape (3,): [B T] is needed
    """
    if not hasattr(tokens, "ndim") or not jnp.issubdtype(tokens.dtype, jnp.integer):
        found = getattr(tokens, "dtype", type(tokens).__name__)
        raise ArgumentError(f"{name} are {found}: an array of whole numbers [B T] is needed")
    if tokens.ndim != 2:
        raise ArgumentError(f"{name} have shape {tokens.shape}: [B T] is needed")

"""Modules with the parameters of one map each: linear, norm, table."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from transformer_jax.core.errors import ArgumentError, DataError
from transformer_jax.functional.kernels.products import side_by_side
from transformer_jax.functional.layers import layer_norm, linear, linear_transposed, rms_norm
from transformer_jax.functional.partitioning import take_rows
from transformer_jax.functional.sparse_table_gradient import replace_taken
from transformer_jax.models.config import NormConfig
from transformer_jax.models.layers.module import Module
from transformer_jax.models.layers.parameters import initial, logical_axes

__all__ = [
    "Embed",
    "Linear",
    "LinearTransposed",
    "Norm",
    "TrainedRows",
    "check_indices",
    "check_tokens",
    "fused",
]

Axes = tuple[str | None, str | None]


class Linear(Module):
    """``x W + b``, where ``W`` is initialized as Glorot-uniform and ``b`` as zeros.

    ``axes`` are the logical axes of the kernel; the last is the axis of the bias.
    """

    def __init__(self, inputs: int, outputs: int, axes: Axes, *, bias: bool = True, rngs: nnx.Rngs):
        kernel = initial(jax.nn.initializers.glorot_uniform(), rngs, (inputs, outputs))
        self.kernel: nnx.Variable[Array] = nnx.Param(kernel, axes=axes)
        made = nnx.Param(jnp.zeros(outputs), axes=axes[1:]) if bias else None
        self.bias: nnx.Variable[Array] | None = made

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows F"]:
        """Maps each row of ``x``."""
        bias = None if self.bias is None else self.bias[...]
        return linear(x, self.kernel[...], bias, logical_axes(self.kernel))

    @property
    def plain(self) -> "Linear | None":
        """The map below any adapter, if it may be fused with others; None for a subclass."""
        return self if type(self) is Linear else None

    def adapted(
        self, x: Float[Array, "*rows D"], y: Float[Array, "*rows F"]
    ) -> Float[Array, "*rows F"]:
        """Adds an adapter's change for ``x`` to the output ``y``: nothing, without an adapter."""
        return y


class LinearTransposed(Module):
    """The map of a ``Linear`` with its kernel as ``[F D]``: see :func:`linear_transposed`."""

    def __init__(self, linear: Linear):
        axes = linear.kernel.get_metadata("axes")
        self.kernel = linear.kernel.replace(linear.kernel[...].T, axes=axes[::-1])
        self.bias = linear.bias

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows F"]:
        """Maps each row of ``x``."""
        bias = None if self.bias is None else self.bias[...]
        return linear_transposed(x, self.kernel[...], bias, logical_axes(self.kernel))


class Norm(Module):
    """The norm selected by ``config``, over the last axis."""

    def __init__(self, config: NormConfig, size: int, axis: str = "embed"):
        self.config = config
        # The gain is the offset plus the parameter, and starts at one.
        self.gain = nnx.Param(jnp.full(size, 1.0 - config.gain_offset), axes=(axis,))
        has_bias = config.kind == "layer" and config.bias
        self.bias = nnx.Param(jnp.zeros(size), axes=(axis,)) if has_bias else None

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        """Normalizes ``x``, multiplies by the gain and adds the bias, if there is one."""
        gain = self.gain[...]
        if self.config.gain_offset:
            gain = gain + self.config.gain_offset
        if self.config.kind == "rms":
            return rms_norm(x, gain, self.config.eps)
        return layer_norm(x, gain, None if self.bias is None else self.bias[...], self.config.eps)


class Embed(Module):
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
        table = initial(jax.nn.initializers.normal(scale), rngs, (rows, width))
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


class TrainedRows(Module):
    """Trained rows of a table that is otherwise a constant.

    Attributes:
        rows: ``[A D]``.
        ids: The tokens of the rows.
    """

    def __init__(self, rows: nnx.Param[Array], ids: tuple[int, ...]):
        self.rows, self.ids = rows, ids

    def replace(
        self,
        found: Float[Array, "*where D"],
        indices: Int[Array, "*where"],
        size: int,
        dtype: DTypeLike,
    ) -> Float[Array, "*where D"]:
        """Replaces rows looked up in a table of ``size`` rows if their index is a trained token."""
        return replace_taken(found, self.rows[...], indices, self.ids, size, dtype)


def fused(maps: Sequence[Linear], groups: int = 1) -> tuple[Array, Array | None]:
    """Kernel and bias of several linear maps of the same inputs, with outputs side by side."""
    biases = [part.bias[...] for part in maps if part.bias is not None]
    kernel = side_by_side([part.kernel[...] for part in maps], groups)
    return kernel, side_by_side(biases, groups) if biases else None


def check_indices(indices: object, rows: int, what: str = "index") -> None:
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


def check_tokens(tokens: object, name: str = "tokens") -> None:
    """Refuses tokens that are not a batch of texts.

    Raises:
        ArgumentError: They are no array, no whole numbers, or the number of axes is not two.

    Example:
        >>> check_tokens(jnp.ones((3,), int))
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ArgumentError: tokens have shape (3,): [B T] is needed
    """
    shape, dtype = getattr(tokens, "shape", None), getattr(tokens, "dtype", object)
    if shape is None or not jnp.issubdtype(dtype, jnp.integer):
        found = type(tokens).__name__ if dtype is object else dtype
        raise ArgumentError(f"{name} are {found}: an array of whole numbers [B T] is needed")
    if len(shape) != 2:
        raise ArgumentError(f"{name} have shape {shape}: [B T] is needed")

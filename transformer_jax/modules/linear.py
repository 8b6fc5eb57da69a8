"""Linear maps that hold their kernel, and a table of vectors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer_jax.errors import ArgumentError, DataError
from transformer_jax.functional.linear import linear, linear_transposed
from transformer_jax.functional.partitioning import take_rows
from transformer_jax.modules.parameters import logical_axes
from transformer_jax.modules.trained_rows import TrainedRows

__all__ = ["Embed", "Linear", "LinearTransposed", "check_indices", "check_tokens", "initial_key"]


Axes = tuple[str | None, str | None]


class Linear(nnx.Module):
    """``x W + b``, with Glorot-uniform ``W`` and ``b`` of zeros.

    ``axes`` are the logical axes of the kernel; the bias has the last of them.
    """

    def __init__(self, inputs: int, outputs: int, axes: Axes, *, bias: bool = True, rngs: nnx.Rngs):
        init = jax.nn.initializers.glorot_uniform()
        kernel = init(initial_key(rngs), (inputs, outputs), jnp.float32)
        self.kernel = nnx.Param(kernel, axes=axes)
        self.bias = nnx.Param(jnp.zeros(outputs), axes=axes[1:]) if bias else None

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows F"]:
        """The map of each row of ``x``."""
        bias = None if self.bias is None else self.bias[...]
        return linear(x, self.kernel[...], bias, logical_axes(self.kernel))

    @classmethod
    def of(cls, kernel: Any, bias: Any) -> "Linear":
        """The map with these ``nnx.Param``; ``bias`` may be None."""
        make = lambda: cls(1, 1, (None, None), bias=bias is not None, rngs=nnx.Rngs(0))
        made: Any = nnx.eval_shape(make)
        made.kernel, made.bias = kernel, bias
        return made


class LinearTransposed(nnx.Module):
    """The map of ``linear`` with its kernel as ``[F D]``: see :func:`linear_transposed`."""

    def __init__(self, linear: Linear):
        axes = linear.kernel.get_metadata("axes")
        self.kernel: Any = linear.kernel.replace(linear.kernel[...].T, axes=axes[::-1])
        self.bias = linear.bias

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows F"]:
        """The map of each row of ``x``."""
        bias = None if self.bias is None else self.bias[...]
        return linear_transposed(x, self.kernel[...], bias, logical_axes(self.kernel))


def check_indices(indices: Any, rows: int, what: str = "index") -> None:
    """Refuses indices that a table of so many rows does not have, where they are known.

    Within ``jax.jit`` they are not, nor where other processes hold some of them.

    Raises:
        DataError: The first of them.

    Example:
        >>> check_indices(np.array([0, 5, 9]), 10)
        >>> check_indices(np.array([[3, 10]]), 10, "token")
        Traceback (most recent call last):
        ...
        transformer_jax.errors.DataError: token 10: allowed are 0 to 9
    """
    if isinstance(indices, jax.core.Tracer) or not getattr(indices, "is_fully_addressable", True):
        return
    known = np.asarray(indices)
    strange = known[(known < 0) | (known >= rows)]
    if strange.size:
        raise DataError(f"{what} {strange[0]}: allowed are 0 to {rows - 1}")


class Embed(nnx.Module):
    """A row for each index: tokens, positions, segments or distance buckets.

    Attributes:
        table: ``[rows width]``.
        trained: The rows that are trained where the table is a constant; None is all or none.
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
        """The rows at ``indices``.

        Within ``jax.jit``, where no index is known, one beyond the table gives the last.

        Raises:
            DataError: An index, known here, is below 0 or beyond the table.
        """
        check_indices(indices, self.table.shape[0])
        found = take_rows(self.table[...], indices, logical_axes(self.table), self.dtype)
        if self.trained is None:
            return found
        return self.trained.replace(found, indices, self.table.shape[0], self.dtype)


def initial_key(rngs: Any) -> Any:
    """Returns the random key of a fresh parameter.

    Raises:
        ArgumentError: ``rngs`` are no random streams, such as a seed.

    Example:
        >>> initial_key(0)
        Traceback (most recent call last):
        ...
        transformer_jax.errors.ArgumentError: rngs is 0: random streams are needed, flax.nnx.Rngs(0)
    """
    if not isinstance(rngs, nnx.Rngs | nnx.RngStream):
        seed = rngs if isinstance(rngs, int) else 0
        raise ArgumentError(f"rngs is {rngs!r}: random streams are needed, flax.nnx.Rngs({seed})")
    return rngs.params() if isinstance(rngs, nnx.Rngs) else rngs()


def check_tokens(tokens: Any, name: str = "tokens") -> None:
    """Refuses tokens that are not rows of texts.

    Raises:
        ArgumentError: They have another number of axes than two.

    Example:
        >>> check_tokens(jnp.ones((3,), int))
        Traceback (most recent call last):
        ...
        transformer_jax.errors.ArgumentError: tokens have shape (3,): [B T] is needed
    """
    if tokens.ndim != 2:
        raise ArgumentError(f"{name} have shape {tokens.shape}: [B T] is needed")

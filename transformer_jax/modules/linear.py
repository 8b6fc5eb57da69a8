"""Linear maps that hold their kernel, and a table of vectors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer_jax.errors import DataError
from transformer_jax.functional.linear import linear, linear_transposed

__all__ = ["Embed", "Linear", "check_indices"]


Axes = tuple[str | None, str | None]


class Linear(nnx.Module):
    """``x W + b``, with Glorot-uniform ``W`` and ``b`` of zeros.

    ``axes`` are the logical axes of the kernel; the bias has the last of them.
    """

    def __init__(self, inputs: int, outputs: int, axes: Axes, *, bias: bool = True, rngs: nnx.Rngs):
        self.turned = False
        init = jax.nn.initializers.glorot_uniform()
        kernel = init(rngs.params(), (inputs, outputs), jnp.float32)
        self.kernel = nnx.Param(kernel, axes=axes)
        self.bias = nnx.Param(jnp.zeros(outputs), axes=axes[1:]) if bias else None

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows F"]:
        """The map of each row of ``x``."""
        kernel, bias = self.weights()
        return linear_transposed(x, kernel, bias) if self.turned else linear(x, kernel, bias)

    def weights(self) -> tuple[Float[Array, "_ _"], Float[Array, " F"] | None]:
        """The kernel, ``[D F]`` unless it is turned, and the bias, if there is one."""
        return self.kernel[...], None if self.bias is None else self.bias[...]

    def turn(self) -> None:
        """Keeps the kernel as ``[F D]`` from now on: see :func:`linear_transposed`."""
        if not self.turned:
            self.kernel = nnx.Param(self.kernel[...].T)
            self.turned = True

    @classmethod
    def of(cls, kernel: Float[Array, "D F"], bias: Float[Array, " F"] | None) -> "Linear":
        """The map with these weights."""
        made: Any = nnx.eval_shape(
            lambda: cls(1, 1, ("embed", "heads"), bias=bias is not None, rngs=nnx.Rngs(0))
        )
        made.kernel.set_value(kernel)
        if bias is not None:
            made.bias.set_value(bias)
        return made


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
    """A row for each index: tokens, positions, segments or distance buckets."""

    def __init__(
        self,
        rows: int,
        width: int,
        axes: Axes = ("vocab", "embed"),
        *,
        scale: float,
        rngs: nnx.Rngs,
    ):
        init = jax.nn.initializers.normal(scale)
        table = init(rngs.params(), (rows, width), jnp.float32)
        self.table = nnx.Param(table, axes=axes)

    def __call__(self, indices: Int[Array, "*where"]) -> Float[Array, "*where D"]:
        """The rows at ``indices``.

        Within ``jax.jit``, where no index is known, one beyond the table gives the last.

        Raises:
            DataError: An index, known here, is below 0 or beyond the table.
        """
        check_indices(indices, self.table.shape[0])
        return jnp.take(self.table[...], indices, axis=0, mode="clip")

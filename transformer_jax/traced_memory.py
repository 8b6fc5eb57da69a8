"""Bytes that reverse-mode differentiation keeps of a forward pass, counted by tracing it.

A recurrence keeps arrays of all positions, which no compiler fuses away: what JAX saves is what
lies in memory. Nothing is computed or compiled.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend.core import Literal

from transformer_jax.config import CellName
from transformer_jax.functional.recurrent import CELLS, recur
from transformer_jax.models.recurrent_translator import RecurrentEncoderDecoder
from transformer_jax.recurrent_config import RecurrentConfig

__all__ = ["recurrence_bytes", "residual_bytes", "translator_bytes"]


def residual_bytes(function: Callable[..., Any], *arguments: Any) -> int:
    """Bytes that the backward pass of ``function`` needs besides its arguments and constants.

    Args:
        function: Of arrays, to arrays.
        arguments: Shapes, all of which are differentiated by.

    Example:
        >>> x = jax.ShapeDtypeStruct((100,), jnp.float32)
        >>> residual_bytes(lambda x: 3 * x, x), residual_bytes(lambda x: jnp.exp(x), x)
        (0, 400)
    """
    kept = lambda *given: jax.tree.leaves(jax.vjp(function, *given)[1])
    traced = jax.make_jaxpr(kept)(*arguments).jaxpr
    known = {*traced.invars, *traced.constvars}
    found = {one for one in traced.outvars if not isinstance(one, Literal)} - known
    # Random keys, which have no item size, are few.
    numeric = lambda dtype: not jnp.issubdtype(dtype, jax.dtypes.extended)
    shapes: list[Any] = [one.aval for one in found]
    return sum(math.prod(a.shape) * a.dtype.itemsize for a in shapes if numeric(a.dtype))


@functools.lru_cache
def recurrence_bytes(cell: CellName, dtype: str) -> int:
    """Bytes that a cell keeps of each position for each number of its state.

    Args:
        cell: One of :data:`.functional.recurrent.CELLS`.
        dtype: Of computation; states and gates are in float32.

    Example:
        >>> recurrence_bytes("lstm", "float32"), recurrence_bytes("lstm", "bfloat16")
        (51, 49)
    """
    kind = CELLS[cell]
    shape = lambda *sizes, dtype=dtype: jax.ShapeDtypeStruct(sizes, dtype)

    def of(length: int) -> int:
        state = tuple(shape(1, 2, dtype="float32") for _ in range(kind.states))
        kernel = shape(2, 2 * kind.products)
        run = lambda projected, kernel, state: recur(kind, projected, kernel, state)
        return residual_bytes(run, shape(1, length, 2 * kind.inputs), kernel, state)

    return (of(3) - of(2)) // 2  # without what is kept once, of one of two numbers


def translator_bytes(config: RecurrentConfig, rows: float, length: int) -> float:
    """Bytes that a recurrent translator keeps up to its hidden states, with dropout.

    Args:
        config: Of the model.
        rows: Of a batch, on one device.
        length: Tokens of sources, and of targets.

    Example:
        >>> config = RecurrentConfig(vocab_size=50, d_model=64)
        >>> translator_bytes(config, 8.0, 32) > translator_bytes(config, 4.0, 32)
        True
    """
    one, two = (_translator_bytes(config, n, length) for n in (1, 2))
    return (two - one) * rows + (2 * one - two)


@functools.lru_cache
def _translator_bytes(config: RecurrentConfig, rows: int, length: int) -> int:
    make = lambda: RecurrentEncoderDecoder(config, rngs=nnx.Rngs(0))
    graph, params = nnx.split(nnx.eval_shape(make))
    tokens = jnp.zeros((rows, length), jnp.int32)
    inputs = {"source": tokens, "source_lengths": jnp.zeros(rows, jnp.int32)}

    def hidden(params: Any) -> Any:
        key = jax.random.key(0) if config.dropout else None
        return nnx.merge(graph, params).hidden(inputs, tokens, key=key)

    return residual_bytes(hidden, params)

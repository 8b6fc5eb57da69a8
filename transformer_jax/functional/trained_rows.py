"""Tables of tokens of which a few rows are trained, at a cost of these rows alone.

The rows ``[A D]`` are arrays of their own beside the table ``[V D]``, which is a constant. Values
are those of the table with the rows in it, bit for bit.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Shaped

from transformer_jax.functional.partitioning import constrain
from transformer_jax.functional.real_arguments import real_arguments

__all__ = ["put_rows", "replace_taken", "with_gradient_of_rows"]


def put_rows(
    table: Shaped[Array, "V ..."], rows: Shaped[Array, "A ..."], ids: tuple[int, ...]
) -> Shaped[Array, "V ..."]:
    """The table, or bias, with ``rows`` in place of those at ``ids``, in the dtype of the table.

    It is made by selection: a table that is spread over devices stays where it is.

    Args:
        table: One row a token.
        rows: One for each of ``ids``.
        ids: Tokens, each once.

    Example:
        >>> put_rows(jnp.zeros((3, 2)), jnp.ones((1, 2)), (1,)).tolist()
        [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    """
    places = _places(len(table), ids)
    own = _rows_at(_whole(rows), places).astype(table.dtype)
    return jnp.where((places < len(ids)).reshape(-1, *(1,) * (table.ndim - 1)), own, table)


@real_arguments
def replace_taken(
    found: Float[Array, "*where D"],
    rows: Float[Array, "A D"],
    indices: Int[Array, "*where"],
    ids: tuple[int, ...],
    size: int,
    dtype: Any = None,
) -> Float[Array, "*where D"]:
    """Puts ``rows`` in place of table rows whose index is one of ``ids``.

    Only ``rows`` have a gradient.

    Args:
        found: The rows of the table; they count as constants.
        rows: One for each of ``ids``.
        indices: Where in the table they were found.
        ids: Tokens, each once.
        size: Rows of the table.
        dtype: That rows are rounded to, as those of the table are; None is that of ``found``.

    Example:
        >>> found = replace_taken(jnp.zeros((2, 1)), jnp.ones((1, 1)), jnp.array([4, 2]), (2,), 5)
        >>> found.tolist()
        [[0.0], [1.0]]
    """
    places = jnp.take(_places(size, ids), indices, mode="clip")
    own = _rows_at(_whole(rows).astype(found.dtype), places)
    own = own.astype(found.dtype if dtype is None else dtype).astype(found.dtype)
    return jnp.where((places < len(ids))[..., None], own, lax.stop_gradient(found))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def with_gradient_of_rows(
    ids: tuple[int, ...],
    z: Float[Array, "*rows V"],
    hidden: Float[Array, "*rows D"],
    rows: Float[Array, "A D"],
) -> Float[Array, "*rows V"]:
    """``z``, products of ``hidden`` and a constant table that has ``rows`` at ``ids``.

    Differentiated, ``rows`` get the gradient of these columns: ``Σ g_id hidden``.

    Example:
        >>> hidden, table = jnp.ones((1, 2)), jnp.ones((3, 2))
        >>> loss = lambda rows: with_gradient_of_rows((2,), hidden @ table.T, hidden, rows).sum()
        >>> jax.grad(loss)(table[2:]).tolist()
        [[1.0, 1.0]]
    """
    del ids, hidden, rows
    return z


def _forward(ids, z, hidden, rows):
    return z, (hidden, rows)


def _backward(ids, saved, g):
    hidden, rows = saved
    own = jnp.take(g, jnp.asarray(ids, jnp.int32), axis=-1)
    flat = lambda a: a.reshape(-1, a.shape[-1]).astype(g.dtype)
    return g, None, (flat(own).T @ flat(hidden)).astype(rows.dtype)


with_gradient_of_rows.defvjp(_forward, _backward)


def _places(size: int, ids: tuple[int, ...]) -> Int[Array, " V"]:
    """For each token its place in ``ids``, or their number where it is none of them."""
    places = jnp.full(size, len(ids), jnp.int32)
    return places.at[jnp.asarray(ids, jnp.int32)].set(jnp.arange(len(ids), dtype=jnp.int32))


def _rows_at(rows: Array, places: Array) -> Array:
    # Beyond the rows there is nothing to add up in the backward pass.
    return jnp.take(rows, places, axis=0, mode="fill", fill_value=0)


def _whole(rows: Array) -> Array:
    """The rows on every device: there are few of them."""
    return constrain(rows, (None,) * rows.ndim)

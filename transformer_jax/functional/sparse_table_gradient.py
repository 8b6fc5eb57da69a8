"""Tables of tokens in which only a few rows are trained, at the cost of these rows alone.

The trained rows ``[A D]`` are kept separately from the table ``[V D]``, which is a constant. The
values equal those of the table with the rows put in, bit for bit.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Shaped

from transformer_jax.functional.array_arguments import real_arguments
from transformer_jax.functional.partitioning import constrain

__all__ = ["put_rows", "replace_taken", "with_gradient_of_rows"]


def put_rows(
    table: Shaped[Array, "V ..."], rows: Shaped[Array, "A ..."], ids: tuple[int, ...]
) -> Shaped[Array, "V ..."]:
    """Returns the table, or bias, with ``rows`` at ``ids``, in the dtype of the table.

    It selects instead of scattering: a table that is spread over devices stays where it is.

    Args:
        table: One row per token.
        rows: One row per entry of ``ids``.
        ids: Tokens, without repetition.

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
    dtype: DTypeLike | None = None,
) -> Float[Array, "*where D"]:
    """Replaces looked-up rows of a table by ``rows`` where the index is one of ``ids``.

    Only ``rows`` receive a gradient.

    Args:
        found: Rows looked up in the table; they count as constants.
        rows: One row per entry of ``ids``.
        indices: Table indices of ``found``.
        ids: Tokens, without repetition.
        size: Number of rows in the table.
        dtype: Dtype that rows are rounded to, as in the table; None is the dtype of ``found``.

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
    """Returns ``z``, the products of ``hidden`` and a constant table with ``rows`` at ``ids``.

    In reverse mode, ``rows`` get the gradient of these columns: ``Σ g_id hidden``.

    Example:
        >>> hidden, table = jnp.ones((1, 2)), jnp.ones((3, 2))
        >>> loss = lambda rows: with_gradient_of_rows((2,), hidden @ table.T, hidden, rows).sum()
        >>> jax.grad(loss)(table[2:]).tolist()
        [[1.0, 1.0]]
    """
    del ids, hidden, rows
    return z


def _forward(
    ids: tuple[int, ...], z: Array, hidden: Array, rows: Array
) -> tuple[Array, tuple[Array, Array]]:
    return z, (hidden, rows)


def _backward(
    ids: tuple[int, ...], saved: tuple[Array, Array], g: Array
) -> tuple[Array, None, Array]:
    hidden, rows = saved
    own = jnp.take(g, jnp.asarray(ids, jnp.int32), axis=-1)
    flat = lambda a: a.reshape(-1, a.shape[-1]).astype(g.dtype)
    return g, None, (flat(own).T @ flat(hidden)).astype(rows.dtype)


with_gradient_of_rows.defvjp(_forward, _backward)


def _places(size: int, ids: tuple[int, ...]) -> Int[Array, " V"]:
    """Returns each token's index in ``ids``, or their number for any other token."""
    places = jnp.full(size, len(ids), jnp.int32)
    return places.at[jnp.asarray(ids, jnp.int32)].set(jnp.arange(len(ids), dtype=jnp.int32))


def _rows_at(rows: Array, places: Array) -> Array:
    # Tokens beyond the rows need no sum in the backward pass.
    return jnp.take(rows, places, axis=0, mode="fill", fill_value=0)


def _whole(rows: Array) -> Array:
    """Replicates the rows on every device: there are few of them."""
    return constrain(rows, (None,) * rows.ndim)

"""Changed inputs of the same kind, which show what an output depends on."""

import jax
import numpy as np
from jaxtyping import Array, Bool, PyTree, Shaped

from transformer_jax.core.errors import ArgumentError

__all__ = ["other_values", "replace_where", "with_padding", "with_padding_behind"]


def other_values(
    pool: Shaped[np.ndarray, "..."], old: Shaped[np.ndarray, "..."]
) -> Shaped[np.ndarray, "..."]:
    """Returns random values of ``pool``, each different from the one in ``old``.

    Values that occur are valid, whatever they represent: token ids, types, features.

    Raises:
        ArgumentError: ``pool`` has only one value.

    Example:
        >>> other_values(np.array([3, 8]), np.array([3, 3, 8])).tolist()
        [8, 8, 3]
    """
    values = np.unique(pool)
    if len(values) < 2:
        raise ArgumentError(
            f"laws: every value of the input is {values[0]}, and changes need another one: "
            "give an input with two values or more"
        )
    steps = np.random.default_rng(0).integers(1, len(values), old.shape)
    return np.asarray(values[(np.searchsorted(values, old) + steps) % len(values)])


def replace_where(inputs: PyTree, places: Bool[np.ndarray, "..."]) -> PyTree:
    """Returns inputs with other values where ``places``, a mask over the leading axes, is True.

    Example:
        >>> replace_where({"tokens": np.array([[3, 8]])}, np.array([[False, True]]))
        {'tokens': array([[3, 3]])}
    """

    def replaced(leaf: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        leaf = np.asarray(leaf)
        if leaf.shape[: places.ndim] != places.shape:
            raise ArgumentError(
                f"laws: the mask has shape {list(places.shape)}, an input {list(leaf.shape)}: the "
                f"leading axes must be equal"
            )
        where = places.reshape(places.shape + (1,) * (leaf.ndim - places.ndim))
        return np.where(where, other_values(leaf, leaf), leaf)

    return jax.tree.map(replaced, inputs)


def with_padding(real: Bool[Array | np.ndarray, "B T"]) -> Bool[np.ndarray, "B T"]:
    """Returns the mask of real positions as a NumPy array.

    Raises:
        ArgumentError: There is no padding, so a law about it would be vacuous.

    Example:
        >>> with_padding(np.array([[True, False]]))
        array([[ True, False]])
    """
    mask = np.asarray(real)
    if mask.all():
        raise ArgumentError("laws: real is True everywhere: give a batch with padding")
    return mask


def with_padding_behind(real: Bool[Array | np.ndarray, "B T"]) -> Bool[np.ndarray, "B T"]:
    """Returns the mask of real positions, all of which precede the padding of their row.

    Raises:
        ArgumentError: There is no padding, padding precedes a real position, or a row is only
            padding.

    Example:
        >>> with_padding_behind(np.array([[True, False]]))
        array([[ True, False]])
    """
    mask = with_padding(real)
    for row in np.flatnonzero(~mask[:, 0] | (mask[:, 1:] & ~mask[:, :-1]).any(1)).tolist():
        raise ArgumentError(
            f"laws: row {row} does not begin with its real positions: padding has to follow them"
        )
    return mask

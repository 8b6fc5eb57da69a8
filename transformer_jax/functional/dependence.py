"""Which outputs of a layer depend on which inputs, measured: path lengths of row H14."""

from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

__all__ = ["dependence", "path_length"]


def dependence(layer: Callable[[Array], Array], x: Float[Array, "n d"]) -> Bool[np.ndarray, "n n"]:
    """Whether output ``t`` changes with input ``s``: where blocks of the Jacobian are not zero.

    Args:
        layer: Function of vectors ``[n d]`` to vectors of as many positions.
        x: Where it is differentiated; random numbers, for others may hide what is there.

    Example:
        >>> dependence(lambda x: jnp.cumsum(x, axis=0), jnp.ones((3, 1))).astype(int)
        array([[1, 0, 0],
               [1, 1, 0],
               [1, 1, 1]])
    """
    blocks = jax.jacobian(layer)(x)  # [n e n d]
    return np.asarray(jnp.abs(blocks).max(axis=(1, 3)) > 0)


def path_length(layers: Iterable[Bool[np.ndarray, "n n"]]) -> int | None:
    """How many layers it takes until every output depends on every input; None is never.

    Vaswani et al. 2017, table 1: the longest path between two positions.

    Args:
        layers: The :func:`dependence` of each layer, the first first.

    Example:
        >>> neighbours = np.abs(np.subtract.outer(np.arange(5), np.arange(5))) <= 1
        >>> path_length([neighbours] * 9), path_length([np.eye(5, dtype=bool)] * 9)
        (4, None)
    """
    reached = None
    for number, layer in enumerate(layers, 1):
        reached = layer if reached is None else layer @ reached
        if reached.all():
            return number
    return None

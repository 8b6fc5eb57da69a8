"""Layer-wise learning-rate decay."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from transformer_jax.modules.parameters import Parameters, layer_depths

__all__ = ["scale_by_layer"]


def scale_by_layer(decay: float, params: Parameters) -> optax.GradientTransformation:
    """Updates times ``decay ** n`` for ``n`` layers above (Howard and Ruder 2018).

    Args:
        decay: The factor from one layer to the layer below.
        params: The parameters with the depths that they declare.
    """
    depths = layer_depths(params)
    top = max(np.max(depth) for depth in jax.tree.leaves(depths))

    def scaled(depth: Any, update: Any) -> Any:
        if isinstance(update, optax.MaskedNode):
            return update
        return update * jnp.asarray(decay ** (top - depth), update.dtype)

    def update(updates: PyTree, state: optax.EmptyState, params: PyTree = None):
        return jax.tree.map(scaled, depths, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)

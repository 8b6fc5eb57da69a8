"""Parameters that are trained less than others, layer by layer, or not at all."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from transformer_jax.modules.parameters import Parameters, layer_depths
from transformer_jax.parallel.sharding import path_name

__all__ = ["mask_frozen", "scale_by_layer"]


def scale_by_layer(decay: float, params: Parameters) -> optax.GradientTransformation:
    """Updates times ``decay`` to the power of how many layers are above (Howard and Ruder 2018).

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


def mask_frozen(
    tx: optax.GradientTransformation, frozen: Callable[[str], bool]
) -> optax.GradientTransformationExtraArgs:
    """``tx`` for all but frozen parameters, which have no state and never change by a bit."""
    is_frozen = lambda tree: jax.tree_util.tree_map_with_path(
        lambda path, _: frozen(path_name(path)), tree
    )
    inner = optax.masked(tx, lambda tree: jax.tree.map(lambda f: not f, is_frozen(tree)))

    def update(updates: PyTree, state: Any, params: PyTree = None, **extra: Any):
        updates, state = inner.update(updates, state, params, **extra)
        # x + -0.0 is x for every x, where x + 0.0 would make 0.0 of -0.0.
        still = lambda u, f: jnp.full_like(u, -0.0) if f else u
        return jax.tree.map(still, updates, is_frozen(updates)), state

    return optax.GradientTransformationExtraArgs(inner.init, update)

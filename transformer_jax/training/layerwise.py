"""Parameters that are trained less than others, layer by layer, or not at all."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from transformer_jax.parallel.sharding import path_name

__all__ = ["layer_depths", "only_free", "scale_by_layer"]


def layer_depths(params: PyTree) -> PyTree:
    """How far from the input each parameter is: 0 embeddings, then block by block, at last heads.

    The blocks of a decoder stand above those of an encoder. The parameters of a scanned stack have
    one number for each layer, along their first axis.

    Example:
        >>> block = {"norm": {"gain": np.zeros(2)}}
        >>> depths = layer_depths({"embedding": 0, "encoder": {"blocks": {0: block, 1: block}}})
        >>> depths["embedding"], depths["encoder"]["blocks"][1]
        (0, {'norm': {'gain': 2}})
    """
    leaves = jax.tree_util.tree_leaves_with_path(params)
    found = {path_name(path): leaf for path, leaf in leaves}

    def blocks(side: str) -> int:
        own = [n.split("/")[2] for n in found if n.startswith(f"{side}/blocks/")]
        if own and not own[0].isdecimal():
            return int(next(x.shape[0] for n, x in found.items() if n.startswith(f"{side}/blocks")))
        return 1 + max(map(int, own), default=-1)

    below = {"encoder": 1, "decoder": 1 + blocks("encoder")}
    top = below["decoder"] + blocks("decoder")
    tables = ("positions", "segments", "relative", "embedding_norm", "projection")

    def depth(path: Any, leaf: Any) -> Any:
        part, *rest = path_name(path).split("/")
        if part in below and rest[0] == "blocks":
            if rest[1].isdecimal():
                return below[part] + int(rest[1])
            numbers = below[part] + np.arange(leaf.shape[0])
            return numbers.reshape(-1, *(1,) * (leaf.ndim - 1))
        return 0 if part.endswith("embedding") or (rest and rest[0] in tables) else top

    return jax.tree_util.tree_map_with_path(depth, params)


def scale_by_layer(decay: float) -> optax.GradientTransformation:
    """Updates times ``decay`` to the power of how many layers are above (Howard and Ruder 2018)."""

    def update(updates: PyTree, state: optax.EmptyState, params: PyTree = None):
        depths = layer_depths(updates)
        top = max(np.max(depth) for depth in jax.tree.leaves(depths))
        factor = lambda u, depth: u * jnp.asarray(decay ** (top - depth), u.dtype)
        return jax.tree.map(factor, updates, depths), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def only_free(
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

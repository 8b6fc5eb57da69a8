"""Pooling: vectors of layers and tokens to one vector per text."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from transformer_jax.functional.array_arguments import real_arguments
from transformer_jax.functional.pools import Layers, Pool, Pools

__all__ = ["combine_layers", "pool_hidden_states"]


def combine_layers(
    every: Sequence[Num[Array, "B T D"]], layers: Layers
) -> Float[Array, "B T *rest"]:
    """Selects or combines layers, in float32; layer 0 is the embedding layer.

    Example:
        >>> every = [jnp.full((1, 1, 1), 10.0**i) for i in range(6)]
        >>> combine_layers(every, "sum4").item(), combine_layers(every, "concat4").shape
        (111100.0, (1, 1, 4))
    """
    every = [layer.astype(jnp.float32) for layer in every]
    last = every[1:][-4:]
    if layers == "all":
        return jnp.stack(every, axis=2)
    if layers == "sum4":
        return sum(last[1:], last[0])
    if layers == "concat4":
        return jnp.concatenate(last, axis=-1)
    return every[-1 if layers == "last" else layers]


@real_arguments
def pool_hidden_states(
    hidden: Float[Array, "B T *layers D"],
    batch: dict[str, Any],
    pool: Pools,
    skip: int | Int[Array, "B S"] = 0,
) -> Float[Array, "B _ *layers F"]:
    """Returns one vector per text of each row, or with ``none`` per token.

    Args:
        hidden: Vectors of each token.
        batch: With ``segments``, ``starts`` and ``lengths``: see :func:`make_packed_inputs`.
        pool: The pooling, see :meth:`Embedder.embed`; vectors of several poolings are concatenated.
        skip: Number of tokens at the start of each text to exclude, for all or for each.

    Example:
        >>> hidden = jnp.array([[[1.0], [3.0], [9.0]]])
        >>> batch = {"segments": jnp.array([[1, 1, 2]]), "lengths": jnp.array([[2, 1]])}
        >>> batch["starts"] = jnp.array([[0, 2]])
        >>> pool_hidden_states(hidden, batch, "mean")[0, :, 0]
        Array([2., 9.], dtype=float32)
        >>> pool_hidden_states(hidden, batch, "cls")[0, :, 0]
        Array([1., 9.], dtype=float32)
    """
    if pool == "none":
        return hidden
    flat = hidden.reshape(*hidden.shape[:2], -1)
    modes = pool if isinstance(pool, tuple) else (pool,)
    shape = (*batch["lengths"].shape, *hidden.shape[2:])
    return jnp.concatenate([_pooled(flat, batch, m, skip).reshape(shape) for m in modes], axis=-1)


def _pooled(
    flat: Float[Array, "B T D"], batch: dict[str, Any], mode: Pool, skip: int | Int[Array, "B S"]
) -> Float[Array, "B S D"]:
    """Returns the vector of each text of each row by one pooling."""
    starts, lengths, segments = batch["starts"], batch["lengths"], batch["segments"]
    place = jnp.arange(flat.shape[1])[None, None] - starts[..., None]  # [B S T]
    numbers = jnp.arange(1, lengths.shape[1] + 1)
    pooled = place >= (skip if isinstance(skip, int) else skip[..., None])
    own = (segments[:, None] == numbers[None, :, None]) & pooled
    if mode in ("cls", "lasttoken"):
        first = jnp.where(skip < lengths, skip, 0)
        at = starts + (first if mode == "cls" else jnp.maximum(lengths - 1, 0))
        return jnp.take_along_axis(flat, at[..., None], axis=1, mode="clip")
    if mode == "max":
        # The segment of each pooled token; 0 for other tokens.
        kept = jnp.where(own.any(1), segments, 0)
        most = lambda x, ids: jax.ops.segment_max(x, ids, num_segments=lengths.shape[1] + 1)
        return jax.vmap(most)(flat, kept)[:, 1:]
    weights = own * (place + 1) if mode == "weightedmean" else own
    weights = weights.astype(flat.dtype)
    size = weights.sum(-1, keepdims=True)
    total = jnp.einsum("bst,btd->bsd", weights, flat, precision="highest")
    return total / jnp.maximum(jnp.sqrt(size) if mode == "mean_sqrt_len_tokens" else size, 1e-9)

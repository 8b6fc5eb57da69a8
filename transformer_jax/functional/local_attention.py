"""Restricted self-attention: each position sees only its neighbours, in blocks."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.array_arguments import real_arguments
from transformer_jax.functional.masks import Mask
from transformer_jax.functional.scores import masked_softmax, mix, scaled_dot

__all__ = ["local_attention", "local_blocks"]

# Fewest queries in a block: in smaller blocks the products cost more than the skipped keys save.
LEAST_QUERIES = 16


def local_blocks(length: int, reach: int) -> tuple[int, int, int]:
    """Returns the blocks of :func:`local_attention`: their number, and queries and keys per block.

    Everything is one block if a block would have at least as many keys as the text.

    Args:
        length: Positions in the text.
        reach: How far a position sees on either side.

    Raises:
        ArgumentError: ``length`` is below 1, or ``reach`` below 0.

    Example:
        >>> local_blocks(1024, 32), local_blocks(100, 4), local_blocks(20, 4)
        ((32, 32, 96), (7, 16, 24), (1, 20, 20))
    """
    if length < 1 or reach < 0:
        raise ArgumentError(
            f"local_blocks: length is {length} and reach {reach}: at least 1 and at least 0"
        )
    queries = max(reach, LEAST_QUERIES)
    keys = queries + 2 * reach
    return (1, length, length) if keys >= length else (-(-length // queries), queries, keys)


@real_arguments
def local_attention(
    q: Float[Array, "B T N H"], k: Float[Array, "B T N H"], v: Float[Array, "B T N U"], reach: int
) -> Float[Array, "B T N U"]:
    """Attention of each position to the positions at most ``reach`` away, itself included.

    The same as ``attend`` with ``Mask(window=reach + 1)``. The cost is linear in the length: each
    block of queries is multiplied by its own keys and ``reach`` more on either side.

    Vaswani et al. 2017, section 4, restricted to a neighbourhood of ``r = 2 reach + 1``.

    Args:
        q: Queries.
        k: Keys.
        v: Values, of any size.
        reach: How far a position sees on either side.

    Raises:
        ArgumentError: ``reach`` is below 0.

    Example:
        >>> x = jnp.eye(3)[None, :, None]
        >>> local_attention(x, x, x, 0)[0, :, 0]
        Array([[1., 0., 0.],
               [0., 1., 0.],
               [0., 0., 1.]], dtype=float32)
    """
    B, T, N, _ = q.shape
    blocks, queries, keys = local_blocks(T, reach)
    if blocks == 1:
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        allowed = Mask(window=reach + 1).array(T, T)
        return mix(_weights(q, k, allowed, v), v).astype(q.dtype).swapaxes(1, 2)

    def divided(x: Array, aside: int) -> Array:
        """Blocks ``[B * blocks, N, queries + 2 * aside, _]``, with neighbours on either side."""
        end = (blocks + 1) * queries - T
        x = jnp.pad(x, ((0, 0), (queries, end), (0, 0), (0, 0)))
        x = x.reshape(B, blocks + 2, queries, *x.shape[2:])
        parts = x[:, :-2, queries - aside :], x[:, 1:-1], x[:, 2:, :aside]
        x = jnp.concatenate(parts, 2).swapaxes(2, 3)
        return x.reshape(B * blocks, *x.shape[2:])

    ahead = jnp.arange(keys)[None] - reach - jnp.arange(queries)[:, None]
    sees = jnp.arange(blocks)[:, None] * queries + jnp.arange(keys)[None] - reach
    inside = (sees >= 0) & (sees < T)
    allowed = inside[:, None] & (jnp.abs(ahead) <= reach)[None]
    allowed = jnp.tile(allowed[:, None], (B, 1, 1, 1))
    k, v = divided(k, reach), divided(v, reach)
    y = mix(_weights(divided(q, 0), k, allowed, v), v).astype(q.dtype)
    y = y.reshape(B, blocks, N, queries, -1).swapaxes(2, 3)
    return y.reshape(B, blocks * queries, N, -1)[:, :T]


def _weights(q: Array, k: Array, allowed: Array | None, v: Array) -> Array:
    return masked_softmax(scaled_dot(q, k), allowed).astype(v.dtype)

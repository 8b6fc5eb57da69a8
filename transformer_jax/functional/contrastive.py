"""Contrastive losses over the pairs of a batch, such as images and their captions.

``similarities[i, j]`` compares the first item of pair ``i`` with the second of pair ``j``, so the
diagonal holds the pairs. Items of different pairs may match as well, such as two captions of one
image: :func:`matching_pairs`. Each loss is a sum over the valid pairs, to be divided by their
number.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.functional.array_arguments import real_arguments

__all__ = ["matching_pairs", "sigmoid_contrast", "softmax_contrast"]

_FAR = -1e30  # finite, so that the gradient of an invalid row is zero


def matching_pairs(partners: Int[Array, "B K"]) -> Bool[Array, "B B"]:
    """Returns whether the second item of pair ``j`` matches the first item of pair ``i``.

    Args:
        partners: Numbers of all second items that match the first item of a pair, the second item
            of this pair first; -1 is none.

    Example:
        >>> captions = jnp.array([[0, 1], [1, 0], [2, -1]])  # the first two are of one image
        >>> matching_pairs(captions).astype(int).tolist()
        [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    """
    own = partners[:, 0]
    return (partners[:, :, None] == own[None, None]).any(1) & (own >= 0)[None]


@real_arguments
def softmax_contrast(
    similarities: Float[Array, "B B"],
    counts: Bool[Array, " B"],
    matches: Bool[Array, "B B"] | None = None,
) -> Float[Array, ""]:
    """Cross-entropy of finding each partner, averaged over both directions and summed.

    ``Σ_i −(log softmax_j(s_ij)_i + log softmax_j(s_ji)_i) / 2``. Pairs that do not count are no
    candidates; neither are matching items of other pairs, which would be false negatives.

    Source: Radford et al. 2021, https://arxiv.org/abs/2103.00020, figure 3.

    Args:
        similarities: Similarity of every first item to every second.
        counts: Which pairs count.
        matches: Whether first item ``i`` and second item ``j`` match; None is the pairs alone.

    Example:
        >>> softmax_contrast(jnp.zeros((2, 2)), jnp.array([True, True])).round(4)
        Array(1.3863, dtype=float32)
        >>> softmax_contrast(jnp.zeros((2, 2)), jnp.array([True, True]), jnp.ones((2, 2), bool))
        Array(0., dtype=float32)
    """
    own = jnp.diagonal(similarities)
    pairs = jnp.eye(len(similarities), dtype=bool)
    candidates = jnp.ones_like(pairs) if matches is None else pairs | ~matches
    firsts = jnp.where(candidates & counts[None], similarities, _FAR)
    seconds = jnp.where(candidates & counts[:, None], similarities, _FAR)
    totals = jax.nn.logsumexp(firsts, axis=1) + jax.nn.logsumexp(seconds, axis=0)
    return jnp.where(counts, totals / 2 - own, 0.0).sum()


@real_arguments
def sigmoid_contrast(
    similarities: Float[Array, "B B"],
    counts: Bool[Array, " B"],
    matches: Bool[Array, "B B"] | None = None,
) -> Float[Array, ""]:
    """Binary cross-entropies of matching and non-matching items, summed.

    ``Σ_ij −log σ(z_ij s_ij)`` with ``z`` 1 for matching items and −1 elsewhere; divided by the
    number of pairs, not by its square.

    Source: Zhai et al. 2023, https://arxiv.org/abs/2303.15343, equation (1).

    Args:
        similarities: Similarity of every first item to every second.
        counts: Which pairs count.
        matches: Whether first item ``i`` and second item ``j`` match; None is the pairs alone.

    Example:
        >>> sigmoid_contrast(jnp.zeros((2, 2)), jnp.array([True, True])).round(4)
        Array(2.7726, dtype=float32)
    """
    pairs = jnp.eye(len(similarities), dtype=bool)
    signs = jnp.where(pairs if matches is None else pairs | matches, 1, -1)
    losses = jax.nn.softplus(-signs * similarities)
    return jnp.where(counts[None] & counts[:, None], losses, 0.0).sum()

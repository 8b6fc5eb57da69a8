"""Contrastive losses over the pairs of a batch, such as images and their captions.

``similarities[i, j]`` compares the first item of pair ``i`` with the second of pair ``j``, so the
diagonal holds the matching pairs. Each loss is a sum over the valid pairs, to be divided by their
number.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_jax.functional.real_arguments import real_arguments

__all__ = ["sigmoid_contrast", "softmax_contrast"]

_FAR = -1e30  # finite, so that the gradient of an invalid row is zero


@real_arguments
def softmax_contrast(
    similarities: Float[Array, "B B"], counts: Bool[Array, " B"]
) -> Float[Array, ""]:
    """Cross-entropy of finding each partner, averaged over both directions and summed.

    ``Σ_i −(log softmax_j(s_ij)_i + log softmax_j(s_ji)_i) / 2``. Pairs that do not count are no
    candidates either.

    Source: Radford et al. 2021, https://arxiv.org/abs/2103.00020, figure 3.

    Args:
        similarities: Similarity of every first item to every second.
        counts: Which pairs count.

    Example:
        >>> softmax_contrast(jnp.zeros((2, 2)), jnp.array([True, True])).round(4)
        Array(1.3863, dtype=float32)
    """
    own = jnp.diagonal(similarities)
    firsts = jax.nn.logsumexp(jnp.where(counts[None], similarities, _FAR), axis=1)
    seconds = jax.nn.logsumexp(jnp.where(counts[:, None], similarities, _FAR), axis=0)
    return jnp.where(counts, (firsts + seconds) / 2 - own, 0.0).sum()


@real_arguments
def sigmoid_contrast(
    similarities: Float[Array, "B B"], counts: Bool[Array, " B"]
) -> Float[Array, ""]:
    """Binary cross-entropies of matching and non-matching pairs, summed.

    ``Σ_ij −log σ(z_ij s_ij)`` with ``z`` 1 for matching pairs and −1 elsewhere; divided by the
    number of pairs, not by its square.

    Source: Zhai et al. 2023, https://arxiv.org/abs/2303.15343, equation (1).

    Args:
        similarities: Similarity of every first item to every second.
        counts: Which pairs count.

    Example:
        >>> sigmoid_contrast(jnp.zeros((2, 2)), jnp.array([True, True])).round(4)
        Array(2.7726, dtype=float32)
    """
    signs = 2 * jnp.eye(len(similarities)) - 1
    losses = jax.nn.softplus(-signs * similarities)
    return jnp.where(counts[None] & counts[:, None], losses, 0.0).sum()

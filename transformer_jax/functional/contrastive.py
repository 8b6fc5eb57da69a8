"""Contrastive losses over the pairs of a batch, such as images and captions, or texts.

``similarities[i, j]`` compares the first item of pair ``i`` with the second of pair ``j``, so the
diagonal holds the pairs. Items of different pairs may match as well, such as two captions of one
image: :func:`matching_pairs`. Each loss is a sum over the valid pairs, to be divided by their
number.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.functional.array_arguments import real_arguments

__all__ = [
    "cosent",
    "matching_pairs",
    "ranking_loss",
    "sigmoid_contrast",
    "softmax_contrast",
    "unit_vectors",
]

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


@real_arguments
def cosent(
    similarities: Float[Array, " B"],
    labels: Float[Array, " B"],
    counts: Bool[Array, " B"],
    scale: float = 20.0,
) -> Float[Array, ""]:
    """Loss of pairs in the wrong order: similarities should rise with the labels.

    ``log(1 + Σ exp(scale (s_i − s_j)))``, over all ``i`` and ``j`` with ``label_i < label_j``, for
    the batch as a whole. Only the order of the labels counts, not their range.

    Source: Huang et al. 2024, https://doi.org/10.1109/TASLP.2024.3402087; Su 2022.

    Args:
        similarities: Similarity of the two items of each pair.
        labels: How similar they should be.
        counts: Which pairs count.
        scale: Factor of differences of similarities.

    Example:
        >>> both = jnp.array([True, True])
        >>> cosent(jnp.array([0.5, 0.5]), jnp.array([0.0, 1.0]), both).round(4)
        Array(0.6931, dtype=float32)
        >>> cosent(jnp.array([0.5, 0.5]), jnp.array([1.0, 1.0]), both)
        Array(0., dtype=float32)
    """
    ordered = (labels[:, None] < labels[None]) & counts[:, None] & counts[None]
    apart = scale * (similarities[:, None] - similarities[None])
    terms = jnp.where(ordered, apart, _FAR).reshape(-1)
    return jax.nn.logsumexp(jnp.append(terms, 0.0))


@real_arguments
def ranking_loss(
    similarities: Float[Array, "B C"],
    counts: Bool[Array, " B"],
    candidates: Bool[Array, "B C"],
    *,
    symmetric: bool = False,
) -> Float[Array, ""]:
    """Cross-entropy of finding the positive of each anchor among the candidates, summed.

    ``Σ_i −log softmax_c(s_ic)_i``: the first ``B`` candidates are the positives in the order of
    their anchors, and further ones are hard negatives.

    Source: Henderson et al. 2017, https://arxiv.org/abs/1705.00652, section 4.4; multiple negatives
    ranking loss of Reimers and Gurevych 2019.

    Args:
        similarities: Similarity of every anchor to every candidate, times a scale.
        counts: Which anchors and positives count.
        candidates: Whether a candidate competes with the anchor's positive, which always does.
        symmetric: Whether to average with the loss of finding each anchor by its positive, among
            the anchors that compete in the same way.

    Example:
        >>> s, every = jnp.zeros((2, 3)), jnp.ones((2, 3), bool)
        >>> counts = jnp.array([True, True])
        >>> print(f"{ranking_loss(s, counts, every):.4f}")  # 2 log 3
        2.1972
        >>> print(f"{ranking_loss(s, counts, every, symmetric=True):.4f}")
        1.7918
    """
    B = len(similarities)
    own = jnp.eye(B, similarities.shape[1], dtype=bool)
    compete = own | candidates
    losses = jax.nn.logsumexp(jnp.where(compete, similarities, _FAR), axis=1)
    if symmetric:
        rows = compete[:, :B] & counts[:, None]
        back = jax.nn.logsumexp(jnp.where(rows, similarities[:, :B], _FAR), axis=0)
        losses = (losses + back) / 2
    return jnp.where(counts, losses - jnp.diagonal(similarities[:, :B]), 0.0).sum()


@real_arguments
def unit_vectors(vectors: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
    """Returns each vector divided by its length, which counts as at least 1e-12.

    Example:
        >>> unit_vectors(jnp.array([[3.0, 4.0], [0.0, 0.0]]))
        Array([[0.6, 0.8],
               [0. , 0. ]], dtype=float32)
    """
    squares = jnp.square(vectors).sum(-1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))

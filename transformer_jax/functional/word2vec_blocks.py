"""word2vec over blocks of consecutive words, as training computes it.

All pairs of a block share their negatives, so losses and gradients are matrix products (Ji et al.
2016, https://arxiv.org/abs/1604.04661). The losses of single pairs are in
:mod:`~transformer_jax.functional.word2vec`.

Letters in addition to the package's: T center words in a block, S words in the block and its
windows at both ends, X negatives.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.functional.array_arguments import real_arguments
from transformer_jax.functional.losses import token_cross_entropy
from transformer_jax.functional.word2vec import row_means

__all__ = [
    "BlockGradients",
    "cbow_block_gradients",
    "cbow_block_loss",
    "cbow_block_softmax_loss",
    "skip_gram_block_gradients",
    "skip_gram_block_loss",
    "skip_gram_block_softmax_loss",
    "window_mask",
]


class BlockGradients(NamedTuple):
    """Gradients of the loss of a block, only for the rows of its words.

    The gradient of a table is ``zeros.at[words].add(rows)``: zero elsewhere, and the sum of both
    rows for a word that occurs twice.

    Attributes:
        inputs: [S D], for the words of the block.
        outputs: [T+X D], for the center words and then the negatives.
    """

    inputs: Float[Array, "S D"]
    outputs: Float[Array, "O D"]


def window_mask(
    windows: Int[Array, " T"], sentences: Int[Array, " S"], reach: int
) -> Bool[Array, "T S"]:
    """Marks the words of a block in the window of each center word.

    Center word ``t`` is word ``t + reach`` of the block. Its context consists of the words of its
    sentence at a distance of 1 to ``windows[t]``.

    Args:
        windows: Window size of each center word, 0 to ``reach``; 0 is no context.
        sentences: Sentence number of each word; ``S = T + 2 reach``.
        reach: The largest window.

    Example:
        >>> window_mask(jnp.array([1, 1]), jnp.array([7, 7, 7, 8]), reach=1).astype(int)
        Array([[1, 0, 1, 0],
               [0, 1, 0, 0]], dtype=int32)
    """
    T, S = windows.shape[0], sentences.shape[0]
    distance = jnp.abs(jnp.arange(S)[None, :] - reach - jnp.arange(T)[:, None])
    near = (distance > 0) & (distance <= windows[:, None])
    return near & (sentences[None, :] == sentences[reach : reach + T, None])


@real_arguments
def skip_gram_block_loss(
    inputs: Float[Array, "S D"],
    outputs: Float[Array, "O D"],
    mask: Bool[Array, "T S"],
    negative: float,
) -> Float[Array, ""]:
    """The skip-gram loss of a block whose pairs share their negatives.

    The mask selects the pairs: each center word is predicted from each word of its context. The
    negatives of a pair are all X of the block, each with the weight ``negative / X``, so the
    expected loss is that of ``negative`` negatives per pair.

    Args:
        inputs: Rows of the input table for the words of the block.
        outputs: Rows of the output table: first the center words, then the negatives.
        mask: :func:`window_mask`.
        negative: Number of negatives per pair.

    Example:
        >>> mask = jnp.array([[True, False, True]])
        >>> one = skip_gram_block_loss(jnp.zeros((3, 2)), jnp.ones((5, 2)), mask, 5.0)
        >>> f"{one / jnp.log(2.0):.4f}"
        '12.0000'
    """
    T = mask.shape[0]
    scores = inputs @ outputs.T  # [S T+X]
    weights = _noise_weights(mask, outputs.shape[0] - T, negative)
    positive = jnp.where(mask.T, jax.nn.softplus(-scores[:, :T]), 0.0)
    return positive.sum() + (weights * jax.nn.softplus(scores[:, T:])).sum()


@real_arguments
def skip_gram_block_gradients(
    inputs: Float[Array, "S D"],
    outputs: Float[Array, "O D"],
    mask: Bool[Array, "T S"],
    negative: float,
) -> BlockGradients:
    """The exact gradients of :func:`skip_gram_block_loss`, by three matrix products.

    With scores ``Z = U Oᵀ``, the derivative by a score is ``G = σ(Z) − 1`` for a pair,
    ``G = n_s (negative / X) σ(Z)`` for a negative of a word that is in ``n_s`` windows, and 0
    elsewhere. So the gradients are ``G O`` and ``Gᵀ U``.

    Example:
        >>> U, O, mask = jnp.ones((3, 2)), jnp.ones((5, 2)), jnp.array([[True, False, True]])
        >>> exact = skip_gram_block_gradients(U, O, mask, 5.0)
        >>> other = jax.grad(skip_gram_block_loss)(U, O, mask, 5.0)
        >>> bool(jnp.allclose(exact.inputs, other))
        True
    """
    T = mask.shape[0]
    sigmoid = jax.nn.sigmoid(inputs @ outputs.T)  # [S T+X]
    weights = _noise_weights(mask, outputs.shape[0] - T, negative)
    positive = jnp.where(mask.T, sigmoid[:, :T] - 1.0, 0.0)
    slopes = jnp.concatenate([positive, weights * sigmoid[:, T:]], axis=1)
    return BlockGradients(slopes @ outputs, slopes.T @ inputs)


@real_arguments
def cbow_block_loss(
    inputs: Float[Array, "S D"],
    outputs: Float[Array, "O D"],
    mask: Bool[Array, "T S"],
    negative: float,
) -> Float[Array, ""]:
    """The CBOW loss of a block whose center words share their negatives.

    Each center word is predicted from the mean of its context. Arguments and weights are those of
    :func:`skip_gram_block_loss`; a center word without context adds nothing.

    Example:
        >>> mask = jnp.array([[True, False, True]])
        >>> one = cbow_block_loss(jnp.zeros((3, 2)), jnp.ones((5, 2)), mask, 5.0)
        >>> f"{one / jnp.log(2.0):.4f}"
        '6.0000'
    """
    T = mask.shape[0]
    hidden = row_means(mask) @ inputs
    positive = jax.nn.softplus(-(hidden * outputs[:T]).sum(-1))
    weight = negative / (outputs.shape[0] - T)
    sampled = weight * jax.nn.softplus(hidden @ outputs[T:].T).sum(-1)
    return jnp.where(mask.any(-1), positive + sampled, 0.0).sum()


@real_arguments
def cbow_block_gradients(
    inputs: Float[Array, "S D"],
    outputs: Float[Array, "O D"],
    mask: Bool[Array, "T S"],
    negative: float,
) -> BlockGradients:
    """The exact gradients of :func:`cbow_block_loss`.

    With means ``H = A U``, where ``A`` is the mask with rows that sum to 1, the gradient ``G`` of
    ``H`` reaches the words of a context as ``Aᵀ G``, each scaled by its share of the mean.
    ``word2vec.c`` and gensim omit that share: their step for a word is larger by the size of its
    context (İrsoy et al. 2021, https://arxiv.org/abs/2012.15332); a larger learning rate makes up
    for it.

    Example:
        >>> U, O, mask = jnp.ones((3, 2)), jnp.ones((5, 2)), jnp.array([[True, False, True]])
        >>> exact = cbow_block_gradients(U, O, mask, 5.0)
        >>> other = jax.grad(cbow_block_loss)(U, O, mask, 5.0)
        >>> bool(jnp.allclose(exact.inputs, other))
        True
    """
    T = mask.shape[0]
    means, some = row_means(mask), mask.any(-1)[:, None]
    centers, negatives = outputs[:T], outputs[T:]
    hidden = means @ inputs
    positive = jax.nn.sigmoid((hidden * centers).sum(-1, keepdims=True)) - 1.0
    positive = jnp.where(some, positive, 0.0)
    sampled = (negative / negatives.shape[0]) * jax.nn.sigmoid(hidden @ negatives.T)
    sampled = jnp.where(some, sampled, 0.0)
    of_hidden = positive * centers + sampled @ negatives
    of_outputs = jnp.concatenate([positive * hidden, sampled.T @ hidden])
    return BlockGradients(means.T @ of_hidden, of_outputs)


@real_arguments
def skip_gram_block_softmax_loss(
    inputs: Float[Array, "S D"],
    table: Float[Array, "V D"],
    centers: Int[Array, " T"],
    mask: Bool[Array, "T S"],
) -> Float[Array, ""]:
    """The skip-gram loss of a block with the full softmax.

    It is :func:`~transformer_jax.functional.word2vec.skip_gram_loss` of its pairs.

    Args:
        inputs: Rows of the input table for the words of the block.
        table: The output table.
        centers: The center words.
        mask: :func:`window_mask`.

    Example:
        >>> mask, table = jnp.array([[True, False, True]]), jnp.ones((4, 2))
        >>> one = skip_gram_block_softmax_loss(jnp.zeros((3, 2)), table, jnp.array([1]), mask)
        >>> f"{one / jnp.log(4.0):.4f}"
        '2.0000'
    """
    log_p = jax.nn.log_softmax(inputs @ table.T, axis=-1)  # [S V]
    return -jnp.where(mask.T, log_p[:, centers], 0.0).sum()


@real_arguments
def cbow_block_softmax_loss(
    inputs: Float[Array, "S D"],
    table: Float[Array, "V D"],
    centers: Int[Array, " T"],
    mask: Bool[Array, "T S"],
) -> Float[Array, ""]:
    """The CBOW loss of a block with the full softmax.

    It is :func:`~transformer_jax.functional.word2vec.cbow_loss` of its center words.
    Arguments are those of :func:`skip_gram_block_softmax_loss`.

    Example:
        >>> mask, table = jnp.array([[True, False, True]]), jnp.ones((4, 2))
        >>> one = cbow_block_softmax_loss(jnp.zeros((3, 2)), table, jnp.array([1]), mask)
        >>> f"{one / jnp.log(4.0):.4f}"
        '1.0000'
    """
    losses = token_cross_entropy((row_means(mask) @ inputs) @ table.T, centers)
    return jnp.where(mask.any(-1), losses, 0.0).sum()


def _noise_weights(mask: Array, count: int, negative: float) -> Array:
    """[S 1]: the weight of each negative for each word of the block."""
    return (negative / count) * mask.sum(0).astype(jnp.float32)[:, None]

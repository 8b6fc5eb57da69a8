"""word2vec: continuous bag of words (CBOW) and skip-gram, rows B18 and B19.

Two tables of vectors: ``inputs`` holds the word vectors, ``outputs`` one vector for each word that
is predicted. Skip-gram predicts a word from each word near it, CBOW from the mean of the vectors
of all words near it. Losses are sums, in nats.

The losses of pairs are those of the papers, with the full softmax or with negative sampling. The
losses of a block of consecutive words draw the negatives once for all its words, so that both
they and their gradients are matrix products (Ji et al. 2016, https://arxiv.org/abs/1604.04661).

Letters beside those of the package: P pairs, C words of a context, X negatives; T center words of
a block, S words of the block and of the windows at both ends.

Sources: Mikolov et al. 2013a, https://arxiv.org/abs/1301.3781 (CBOW and skip-gram), and 2013b,
https://arxiv.org/abs/1310.4546 (negative sampling, subsampling, phrases).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Real

from transformer_jax.functional.losses import token_cross_entropy

__all__ = [
    "BlockGradients",
    "cbow_block_gradients",
    "cbow_block_loss",
    "cbow_block_softmax_loss",
    "cbow_loss",
    "cbow_sampled_loss",
    "context_mean",
    "keep_probability",
    "noise_distribution",
    "phrase_score",
    "skip_gram_block_gradients",
    "skip_gram_block_loss",
    "skip_gram_block_softmax_loss",
    "skip_gram_loss",
    "skip_gram_sampled_loss",
    "window_mask",
]


class BlockGradients(NamedTuple):
    """Gradients of the loss of a block, for the rows of its words alone.

    The gradient of a table is the sum of these rows at the places of their words, and zero
    elsewhere: ``zeros.at[words].add(rows)``, where a word that occurs twice gets both rows.

    Attributes:
        inputs: [S D], for the words of the block.
        outputs: [T+X D], for the center words and then the negatives.
    """

    inputs: Float[Array, "S D"]
    outputs: Float[Array, "O D"]


def noise_distribution(counts: Real[Array, " V"], exponent: float = 0.75) -> Float[Array, " V"]:
    """The probability of each word as a negative: ``n_w^0.75 / Σ_v n_v^0.75``.

    A word that never occurs has probability 0.

    Args:
        counts: How often each word occurs, at least one of them more than 0.
        exponent: 1 is the unigram distribution, 0 the uniform one.

    Source: Mikolov et al. 2013b, section 2.2.

    Example:
        >>> noise_distribution(jnp.array([16.0, 1.0])).round(4)
        Array([0.8889, 0.1111], dtype=float32)
    """
    counts = counts.astype(jnp.float32)
    powers = jnp.where(counts > 0, counts**exponent, 0.0)
    return powers / powers.sum()


def keep_probability(counts: Real[Array, " V"], sample: float = 1e-3) -> Float[Array, " V"]:
    """The probability that an occurrence of a word is kept: ``min(1, √(s / f) + s / f)``.

    ``f`` is the word's share of all words and ``s`` is ``sample``. This is what ``word2vec.c``
    computes, ``(√(f / s) + 1) s / f``; the paper prints ``√(s / f)`` alone.

    Args:
        counts: How often each word occurs; 0 gives 1.
        sample: Words of a larger share than about this are subsampled; 0 keeps all.

    Source: Mikolov et al. 2013b, section 2.3, and ``word2vec.c``.

    Example:
        >>> keep_probability(jnp.array([98.0, 1.0, 1.0]), sample=0.01).round(4)
        Array([0.1112, 1.    , 1.    ], dtype=float32)
    """
    if not sample:
        return jnp.ones(counts.shape, jnp.float32)
    counts = counts.astype(jnp.float32)
    ratio = sample / jnp.maximum(counts / counts.sum(), jnp.finfo(jnp.float32).tiny)
    return jnp.minimum(1.0, jnp.sqrt(ratio) + ratio)


def phrase_score(
    bigrams: Real[Array, "*n"],
    first: Real[Array, "*n"],
    second: Real[Array, "*n"],
    total: float,
    discount: float = 5.0,
) -> Float[Array, "*n"]:
    """How much two words belong together: ``(n_ab − δ) N / (n_a n_b)``.

    The paper's formula (6), times the number of words ``N`` as in ``word2phrase.c``, so that a
    threshold does not depend on the size of the text. Below 0 where a pair is rarer than ``δ``.

    Args:
        bigrams: How often the two words follow each other.
        first: How often the first word occurs, more than 0.
        second: How often the second word occurs, more than 0.
        total: All words.
        discount: ``δ``: pairs of rare words do not become phrases.

    Source: Mikolov et al. 2013b, section 4.

    Example:
        >>> phrase_score(jnp.array([25.0]), jnp.array([40.0]), jnp.array([50.0]), 1000.0)
        Array([10.], dtype=float32)
    """
    return (bigrams - discount) * (total / (first.astype(jnp.float32) * second))


def context_mean(
    vectors: Float[Array, "*n C D"], mask: Bool[Array, "*n C"]
) -> Float[Array, "*n D"]:
    """The mean of the vectors of a context, of those where the mask is True; 0 if nowhere.

    Example:
        >>> x = jnp.array([[[1.0], [3.0], [9.0]]])
        >>> context_mean(x, jnp.array([[True, True, False]]))
        Array([[2.]], dtype=float32)
    """
    weights = _row_means(mask)
    return jnp.einsum("...c,...cd->...d", weights, vectors)


def skip_gram_loss(
    inputs: Float[Array, "V D"],
    outputs: Float[Array, "V D"],
    words: Int[Array, " P"],
    targets: Int[Array, " P"],
) -> Float[Array, ""]:
    """Skip-gram with the full softmax: ``−Σ log softmax(outputs · inputs[word])[target]``.

    Source: Mikolov et al. 2013b, formula (2). Row B19.

    Example:
        >>> tables = jnp.zeros((4, 2)), jnp.ones((4, 2))
        >>> skip_gram_loss(*tables, jnp.array([0]), jnp.array([3])) == jnp.log(4.0)
        Array(True, dtype=bool)
    """
    return token_cross_entropy(inputs[words] @ outputs.T, targets).sum()


def cbow_loss(
    inputs: Float[Array, "V D"],
    outputs: Float[Array, "V D"],
    contexts: Int[Array, "P C"],
    mask: Bool[Array, "P C"],
    targets: Int[Array, " P"],
) -> Float[Array, ""]:
    """CBOW with the full softmax: ``−Σ log softmax(outputs · mean of inputs[context])[target]``.

    A context without a word adds nothing.

    Source: Mikolov et al. 2013a, section 3.1. Row B18.

    Example:
        >>> tables = jnp.zeros((4, 2)), jnp.ones((4, 2))
        >>> context, mask = jnp.array([[0, 1]]), jnp.array([[True, False]])
        >>> cbow_loss(*tables, context, mask, jnp.array([3])) == jnp.log(4.0)
        Array(True, dtype=bool)
    """
    hidden = context_mean(inputs[contexts], mask)
    losses = token_cross_entropy(hidden @ outputs.T, targets)
    return jnp.where(mask.any(-1), losses, 0.0).sum()


def skip_gram_sampled_loss(
    inputs: Float[Array, "V D"],
    outputs: Float[Array, "V D"],
    words: Int[Array, " P"],
    targets: Int[Array, " P"],
    negatives: Int[Array, "P X"],
) -> Float[Array, ""]:
    """Skip-gram with negative sampling: ``−Σ [log σ(v'_target v) + Σ_x log σ(−v'_x v)]``.

    ``v`` is the word's row of ``inputs``, ``v'`` are rows of ``outputs``. A negative that is the
    target counts like any other, as in the formula.

    Source: Mikolov et al. 2013b, formula (4). Row B19.

    Example:
        >>> tables = jnp.zeros((4, 2)), jnp.ones((4, 2))
        >>> one = skip_gram_sampled_loss(*tables, *jnp.array([[0], [3]]), jnp.array([[1, 2]]))
        >>> f"{one / jnp.log(2.0):.4f}"
        '3.0000'
    """
    return _sampled(inputs[words], outputs, targets, negatives).sum()


def cbow_sampled_loss(
    inputs: Float[Array, "V D"],
    outputs: Float[Array, "V D"],
    contexts: Int[Array, "P C"],
    mask: Bool[Array, "P C"],
    targets: Int[Array, " P"],
    negatives: Int[Array, "P X"],
) -> Float[Array, ""]:
    """CBOW with negative sampling: as skip-gram's loss, ``v`` is the mean of the context.

    A context without a word adds nothing.

    Source: Mikolov et al. 2013a and 2013b. Row B18.

    Example:
        >>> tables = jnp.zeros((4, 2)), jnp.ones((4, 2))
        >>> context, mask = jnp.array([[0, 1]]), jnp.array([[True, False]])
        >>> one = cbow_sampled_loss(*tables, context, mask, jnp.array([3]), jnp.array([[1, 2]]))
        >>> f"{one / jnp.log(2.0):.4f}"
        '3.0000'
    """
    losses = _sampled(context_mean(inputs[contexts], mask), outputs, targets, negatives)
    return jnp.where(mask.any(-1), losses, 0.0).sum()


def window_mask(
    windows: Int[Array, " T"], sentences: Int[Array, " S"], reach: int
) -> Bool[Array, "T S"]:
    """Which words of a block are in the window of each center word.

    Center word ``t`` is word ``t + reach`` of the block. Its context are the words of its sentence
    at a distance of 1 to ``windows[t]``.

    Args:
        windows: Size of the window of each center word, 0 to ``reach``; 0 is no context.
        sentences: Number of the sentence of each word; ``S = T + 2 reach``.
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


def skip_gram_block_loss(
    inputs: Float[Array, "S D"],
    outputs: Float[Array, "O D"],
    mask: Bool[Array, "T S"],
    negative: float,
) -> Float[Array, ""]:
    """The skip-gram loss of a block whose pairs share their negatives.

    The pairs are those of the mask: each center word is predicted from each word of its context.
    The negatives of a pair are all X of the block, each with the weight ``negative / X``, so that
    the expected loss is that of ``negative`` negatives for each pair.

    Args:
        inputs: Rows of the table of inputs for the words of the block.
        outputs: Rows of the table of outputs: those of the center words, then of the negatives.
        mask: :func:`window_mask`.
        negative: Negatives of a pair.

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


def skip_gram_block_gradients(
    inputs: Float[Array, "S D"],
    outputs: Float[Array, "O D"],
    mask: Bool[Array, "T S"],
    negative: float,
) -> BlockGradients:
    """The exact gradients of :func:`skip_gram_block_loss`, by three matrix products.

    With scores ``Z = U Oᵀ``, the loss changes with a score by ``G = σ(Z) − 1`` for a pair, by
    ``G = n_s (negative / X) σ(Z)`` for a negative of a word that is in ``n_s`` windows, and by 0
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
    hidden = _row_means(mask) @ inputs
    positive = jax.nn.softplus(-(hidden * outputs[:T]).sum(-1))
    weight = negative / (outputs.shape[0] - T)
    sampled = weight * jax.nn.softplus(hidden @ outputs[T:].T).sum(-1)
    return jnp.where(mask.any(-1), positive + sampled, 0.0).sum()


def cbow_block_gradients(
    inputs: Float[Array, "S D"],
    outputs: Float[Array, "O D"],
    mask: Bool[Array, "T S"],
    negative: float,
) -> BlockGradients:
    """The exact gradients of :func:`cbow_block_loss`.

    With means ``H = A U``, ``A`` the mask with rows that sum to 1, the gradient ``G`` of ``H``
    goes to the words of a context as ``Aᵀ G``, each by its share of the mean. ``word2vec.c`` leaves
    that share out, and so does gensim: their step for a word is larger by the size of its context
    (İrsoy et al. 2021, https://arxiv.org/abs/2012.15332), which a larger learning rate makes up.

    Example:
        >>> U, O, mask = jnp.ones((3, 2)), jnp.ones((5, 2)), jnp.array([[True, False, True]])
        >>> exact = cbow_block_gradients(U, O, mask, 5.0)
        >>> other = jax.grad(cbow_block_loss)(U, O, mask, 5.0)
        >>> bool(jnp.allclose(exact.inputs, other))
        True
    """
    T = mask.shape[0]
    means, some = _row_means(mask), mask.any(-1)[:, None]
    centers, negatives = outputs[:T], outputs[T:]
    hidden = means @ inputs
    positive = jax.nn.sigmoid((hidden * centers).sum(-1, keepdims=True)) - 1.0
    positive = jnp.where(some, positive, 0.0)
    sampled = (negative / negatives.shape[0]) * jax.nn.sigmoid(hidden @ negatives.T)
    sampled = jnp.where(some, sampled, 0.0)
    of_hidden = positive * centers + sampled @ negatives
    of_outputs = jnp.concatenate([positive * hidden, sampled.T @ hidden])
    return BlockGradients(means.T @ of_hidden, of_outputs)


def skip_gram_block_softmax_loss(
    inputs: Float[Array, "S D"],
    table: Float[Array, "V D"],
    centers: Int[Array, " T"],
    mask: Bool[Array, "T S"],
) -> Float[Array, ""]:
    """The skip-gram loss of a block with the full softmax: :func:`skip_gram_loss` of its pairs.

    Args:
        inputs: Rows of the table of inputs for the words of the block.
        table: The table of outputs.
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


def cbow_block_softmax_loss(
    inputs: Float[Array, "S D"],
    table: Float[Array, "V D"],
    centers: Int[Array, " T"],
    mask: Bool[Array, "T S"],
) -> Float[Array, ""]:
    """The CBOW loss of a block with the full softmax: :func:`cbow_loss` of its center words.

    Arguments are those of :func:`skip_gram_block_softmax_loss`.

    Example:
        >>> mask, table = jnp.array([[True, False, True]]), jnp.ones((4, 2))
        >>> one = cbow_block_softmax_loss(jnp.zeros((3, 2)), table, jnp.array([1]), mask)
        >>> f"{one / jnp.log(4.0):.4f}"
        '1.0000'
    """
    losses = token_cross_entropy((_row_means(mask) @ inputs) @ table.T, centers)
    return jnp.where(mask.any(-1), losses, 0.0).sum()


def _row_means(mask):
    """Weights of a mean over the last axis; a row without True is 0."""
    weights = mask.astype(jnp.float32)
    return weights / jnp.maximum(weights.sum(-1, keepdims=True), 1.0)


def _sampled(hidden, outputs, targets, negatives):
    positive = (hidden * outputs[targets]).sum(-1)
    sampled = jnp.einsum("pd,pxd->px", hidden, outputs[negatives])
    return jax.nn.softplus(-positive) + jax.nn.softplus(sampled).sum(-1)


def _noise_weights(mask, count, negative):
    """[S 1]: the weight of each negative for each word of the block."""
    return (negative / count) * mask.sum(0).astype(jnp.float32)[:, None]

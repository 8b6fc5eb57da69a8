"""word2vec: continuous bag of words (CBOW) and skip-gram: Mikolov et al. 2013.

It has two tables of vectors: ``inputs`` holds the word vectors, ``outputs`` one vector for each
predicted word. Skip-gram predicts a word from each word near it, CBOW from the mean of the vectors
of all words near it. Losses are sums, in nats.

The losses of single pairs follow the papers, with the full softmax or with negative sampling;
training uses :mod:`~transformer_jax.functional.word2vec_blocks`.

Letters in addition to the package's: P pairs, C words in a context, X negatives.

Sources: Mikolov et al. 2013a, https://arxiv.org/abs/1301.3781 (CBOW and skip-gram), and 2013b,
https://arxiv.org/abs/1310.4546 (negative sampling, subsampling, phrases).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Real

from transformer_jax.functional.array_arguments import real_arguments
from transformer_jax.functional.losses import token_cross_entropy

__all__ = [
    "cbow_loss",
    "cbow_sampled_loss",
    "context_mean",
    "keep_probability",
    "noise_distribution",
    "phrase_score",
    "skip_gram_loss",
    "skip_gram_sampled_loss",
]


def noise_distribution(counts: Real[Array, " V"], exponent: float = 0.75) -> Float[Array, " V"]:
    """The probability of each word as a negative: ``n_w^0.75 / Σ_v n_v^0.75``.

    A word that never occurs has probability 0.

    Args:
        counts: Number of occurrences of each word; at least one is above 0.
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
        counts: Number of occurrences of each word; 0 gives 1.
        sample: Words with a share above roughly this are subsampled; 0 keeps all.

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
    """Scores two words as a phrase: ``(n_ab − δ) N / (n_a n_b)``.

    Formula (6) of the paper times the number of words ``N``, as in ``word2phrase.c``, so that a
    threshold does not depend on the size of the text. Negative if a pair is rarer than ``δ``.

    Args:
        bigrams: Number of times that the two words follow each other.
        first: Occurrences of the first word, above 0.
        second: Occurrences of the second word, above 0.
        total: Number of words in all.
        discount: ``δ``, which keeps pairs of rare words from becoming phrases.

    Source: Mikolov et al. 2013b, section 4.

    Example:
        >>> phrase_score(jnp.array([25.0]), jnp.array([40.0]), jnp.array([50.0]), 1000.0)
        Array([10.], dtype=float32)
    """
    return (bigrams - discount) * (total / (first.astype(jnp.float32) * second))


@real_arguments
def context_mean(
    vectors: Float[Array, "*n C D"], mask: Bool[Array, "*n C"]
) -> Float[Array, "*n D"]:
    """The mean of the context vectors where the mask is True; 0 if it is True nowhere.

    Example:
        >>> x = jnp.array([[[1.0], [3.0], [9.0]]])
        >>> context_mean(x, jnp.array([[True, True, False]]))
        Array([[2.]], dtype=float32)
    """
    weights = row_means(mask)
    return jnp.einsum("...c,...cd->...d", weights, vectors)


@real_arguments
def skip_gram_loss(
    inputs: Float[Array, "V D"],
    outputs: Float[Array, "V D"],
    words: Int[Array, " P"],
    targets: Int[Array, " P"],
) -> Float[Array, ""]:
    """Skip-gram with the full softmax: ``−Σ log softmax(outputs · inputs[word])[target]``.

    Source: Mikolov et al. 2013b, formula (2).

    Example:
        >>> tables = jnp.zeros((4, 2)), jnp.ones((4, 2))
        >>> skip_gram_loss(*tables, jnp.array([0]), jnp.array([3])) == jnp.log(4.0)
        Array(True, dtype=bool)
    """
    return token_cross_entropy(inputs[words] @ outputs.T, targets).sum()


@real_arguments
def cbow_loss(
    inputs: Float[Array, "V D"],
    outputs: Float[Array, "V D"],
    contexts: Int[Array, "P C"],
    mask: Bool[Array, "P C"],
    targets: Int[Array, " P"],
) -> Float[Array, ""]:
    """CBOW with the full softmax: ``−Σ log softmax(outputs · mean of inputs[context])[target]``.

    An empty context adds nothing.

    Source: Mikolov et al. 2013a, section 3.1.

    Example:
        >>> tables = jnp.zeros((4, 2)), jnp.ones((4, 2))
        >>> context, mask = jnp.array([[0, 1]]), jnp.array([[True, False]])
        >>> cbow_loss(*tables, context, mask, jnp.array([3])) == jnp.log(4.0)
        Array(True, dtype=bool)
    """
    hidden = context_mean(inputs[contexts], mask)
    losses = token_cross_entropy(hidden @ outputs.T, targets)
    return jnp.where(mask.any(-1), losses, 0.0).sum()


@real_arguments
def skip_gram_sampled_loss(
    inputs: Float[Array, "V D"],
    outputs: Float[Array, "V D"],
    words: Int[Array, " P"],
    targets: Int[Array, " P"],
    negatives: Int[Array, "P X"],
) -> Float[Array, ""]:
    """Skip-gram with negative sampling: ``−Σ [log σ(v'_target v) + Σ_x log σ(−v'_x v)]``.

    ``v`` is the word's row of ``inputs``; ``v'`` are rows of ``outputs``. A negative that equals
    the target counts like any other, as in the formula.

    Source: Mikolov et al. 2013b, formula (4).

    Example:
        >>> tables = jnp.zeros((4, 2)), jnp.ones((4, 2))
        >>> one = skip_gram_sampled_loss(*tables, *jnp.array([[0], [3]]), jnp.array([[1, 2]]))
        >>> f"{one / jnp.log(2.0):.4f}"
        '3.0000'
    """
    return _sampled(inputs[words], outputs, targets, negatives).sum()


@real_arguments
def cbow_sampled_loss(
    inputs: Float[Array, "V D"],
    outputs: Float[Array, "V D"],
    contexts: Int[Array, "P C"],
    mask: Bool[Array, "P C"],
    targets: Int[Array, " P"],
    negatives: Int[Array, "P X"],
) -> Float[Array, ""]:
    """CBOW with negative sampling: skip-gram's loss, where ``v`` is the mean of the context.

    An empty context adds nothing.

    Source: Mikolov et al. 2013a and 2013b.

    Example:
        >>> tables = jnp.zeros((4, 2)), jnp.ones((4, 2))
        >>> context, mask = jnp.array([[0, 1]]), jnp.array([[True, False]])
        >>> one = cbow_sampled_loss(*tables, context, mask, jnp.array([3]), jnp.array([[1, 2]]))
        >>> f"{one / jnp.log(2.0):.4f}"
        '3.0000'
    """
    losses = _sampled(context_mean(inputs[contexts], mask), outputs, targets, negatives)
    return jnp.where(mask.any(-1), losses, 0.0).sum()


def row_means(mask: Array) -> Array:
    """Weights of a mean over the last axis; 0 in rows without True."""
    weights = mask.astype(jnp.float32)
    return weights / jnp.maximum(weights.sum(-1, keepdims=True), 1.0)


def _sampled(hidden: Array, outputs: Array, targets: Array, negatives: Array) -> Array:
    positive = (hidden * outputs[targets]).sum(-1)
    sampled = jnp.einsum("pd,pxd->px", hidden, outputs[negatives])
    return jax.nn.softplus(-positive) + jax.nn.softplus(sampled).sum(-1)

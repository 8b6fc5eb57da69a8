"""Attention scores with parameters, from the translators before the Transformer.

Arrays are heads-first; a translator with one recurrent state has one head. Like any score of
:func:`.attention.attend`, each is a closure over its parameters::

    attend(q, k, v, score=lambda q, k: general_scores(q, k, kernel))
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.array_arguments import real_arguments

__all__ = [
    "additive_scores",
    "concat_scores",
    "general_scores",
    "location_scores",
    "projected_additive_scores",
]


@real_arguments
def general_scores(
    q: Float[Array, "B N T H"], k: Float[Array, "B N S J"], kernel: Float[Array, "H J"]
) -> Float[Array, "B N T S"]:
    """``q W kᵀ``, in float32: queries and keys may have different sizes.

    Luong et al. 2015, section 3.1.

    Args:
        q: Queries: states of a decoder.
        k: Keys: states of an encoder.
        kernel: ``W``.

    Example:
        >>> q, k = jnp.array([[[[1.0, 2.0]]]]), jnp.array([[[[1.0, 0.0], [0.0, 1.0]]]])
        >>> general_scores(q, k, jnp.array([[0.0, 1.0], [1.0, 0.0]]))[0, 0]
        Array([[2., 1.]], dtype=float32)
    """
    mapped = jnp.matmul(q, kernel, preferred_element_type=jnp.float32).astype(k.dtype)
    return jnp.matmul(mapped, k.swapaxes(2, 3), preferred_element_type=jnp.float32)


@real_arguments
def additive_scores(
    q: Float[Array, "B N T H"],
    k: Float[Array, "B N S J"],
    query_kernel: Float[Array, "H A"],
    key_kernel: Float[Array, "J A"],
    vector: Float[Array, " A"],
) -> Float[Array, "B N T S"]:
    """``vᵀ tanh(W_q q + W_k k)``, in float32.

    The sum of the two products equals the product in :func:`concat_scores`, whose matrix stacks
    ``W_q`` on ``W_k``; here each is computed once, not once per pair. Holds ``T · S · A`` values.

    Bahdanau et al. 2015, appendix A.1.2.

    Args:
        q: Queries. Bahdanau's are the decoder's previous states, Luong's the current ones.
        k: Keys: states of an encoder.
        query_kernel: ``W_q``.
        key_kernel: ``W_k``.
        vector: ``v``.

    Example:
        >>> q = k = jnp.ones((1, 1, 1, 2))
        >>> scores = additive_scores(q, k, jnp.zeros((2, 3)), jnp.ones((2, 3)), jnp.ones(3))
        >>> f"{scores.item():.4f}"  # 3 tanh(2)
        '2.8921'
    """
    return projected_additive_scores(q @ query_kernel, k @ key_kernel, vector)


@real_arguments
def projected_additive_scores(
    q: Float[Array, "B N T A"], k: Float[Array, "B N S A"], vector: Float[Array, " A"]
) -> Float[Array, "B N T S"]:
    """``vᵀ tanh(q + k)``, in float32: :func:`additive_scores` of projected queries and keys.

    When queries come one after another, as in a recurrent decoder, keys are projected only once.

    Args:
        q: ``W_q q``.
        k: ``W_k k``.
        vector: ``v``.

    Example:
        >>> q, k = jnp.ones((1, 1, 1, 3)), jnp.ones((1, 1, 2, 3))
        >>> scores = projected_additive_scores(q, k, jnp.ones(3))
        >>> [f"{one:.4f}" for one in scores[0, 0, 0]]  # 3 tanh(2)
        ['2.8921', '2.8921']
    """
    summed = jnp.tanh(q[:, :, :, None] + k[:, :, None])
    return jnp.matmul(summed, vector, preferred_element_type=jnp.float32)


@real_arguments
def concat_scores(
    q: Float[Array, "B N T H"],
    k: Float[Array, "B N S J"],
    kernel: Float[Array, "HJ A"],
    vector: Float[Array, " A"],
) -> Float[Array, "B N T S"]:
    """``vᵀ tanh(W [q; k])``, in float32: :func:`additive_scores` with one matrix.

    Luong et al. 2015, section 3.1.

    Args:
        q: Queries: states of a decoder.
        k: Keys: states of an encoder.
        kernel: ``W``: one row per channel of a query, then one per channel of a key.
        vector: ``v``.

    Raises:
        ArgumentError: The kernel has a different number of rows.

    Example:
        >>> q, k = jnp.array([[[[1.0, 2.0]]]]), jnp.array([[[[1.0, 0.0], [0.0, 1.0]]]])
        >>> W = jnp.concatenate([jnp.eye(2), jnp.eye(2)])
        >>> concat_scores(q, k, W, jnp.ones(2))[0, 0].round(6)
        Array([[1.928055, 1.756649]], dtype=float32)
    """
    H, J = q.shape[3], k.shape[3]
    if kernel.shape[0] != H + J:
        raise ArgumentError(
            f"concat_scores: the kernel has {kernel.shape[0]} rows; queries of size {H} and keys "
            f"of size {J} need {H + J}"
        )
    return additive_scores(q, k, kernel[:H], kernel[H:], vector)


@real_arguments
def location_scores(
    q: Float[Array, "B N T H"], k: Float[Array, "B N S _"], kernel: Float[Array, "H M"]
) -> Float[Array, "B N T S"]:
    """``W q``, in float32: a score for each source position, whatever its content.

    For a source of length ``S``, the softmax runs over the first ``S`` scores.

    Luong et al. 2015, section 3.1.

    Args:
        q: Queries: states of a decoder.
        k: Keys; only their number matters.
        kernel: ``W``, with one column per source position.

    Raises:
        ArgumentError: There are more keys than columns.

    Example:
        >>> q, k = jnp.array([[[[1.0, 2.0]]]]), jnp.zeros((1, 1, 2, 5))
        >>> location_scores(q, k, jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))[0, 0]
        Array([[1., 2.]], dtype=float32)
    """
    S, places = k.shape[2], kernel.shape[1]
    if places < S:
        raise ArgumentError(
            f"location_scores: the source has {S} tokens, and there are scores for {places} "
            f"places: shorten the source, or train with more places"
        )
    return jnp.matmul(q, kernel[:, :S], preferred_element_type=jnp.float32)

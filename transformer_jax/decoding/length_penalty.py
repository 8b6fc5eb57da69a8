"""Length limits of texts, and length penalties of log-probabilities."""

import math

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.decoding.generation_config import LengthLimit, Normalization

__all__ = ["learn_length_limit", "learn_longest", "length_penalty"]

_QUANTILE = 0.99  # of training pairs: the remaining ratios may come from misaligned lines
_ROOM = 2.0  # the model may write this many times the length of such a text


def learn_length_limit(
    source_lengths: Int[np.ndarray, " count"], target_lengths: Int[np.ndarray, " count"]
) -> LengthLimit:
    """Returns a length limit estimated from training pairs.

    ``max_len_a`` is twice the 99 % quantile of target length / source length, rounded up to
    hundredths.

    Args:
        source_lengths: Number of tokens in each source, including its end token.
        target_lengths: Number of tokens in each target, including its end token.

    Example:
        >>> print(learn_length_limit(np.array([4, 5, 8]), np.array([10, 5, 8])))
        5 x source tokens + 10
    """
    ratios = target_lengths / np.maximum(source_lengths, 1)
    ratio = _ROOM * float(np.quantile(ratios, _QUANTILE, method="higher"))
    return LengthLimit(math.ceil(round(100 * ratio, 6)) / 100)


def learn_longest(target_lengths: Int[np.ndarray, " count"]) -> int:
    """Returns a length limit estimated from training targets, independent of sources.

    It is twice the 99 % quantile of their lengths.

    Example:
        >>> learn_longest(np.array([4, 30, 8]))
        60
    """
    return math.ceil(_ROOM * float(np.quantile(target_lengths, _QUANTILE, method="higher")))


def length_penalty(
    length: Int[np.ndarray, "..."] | int,
    normalization: Normalization = "gnmt",
    alpha: Float[np.ndarray, "..."] | float | int = 0.6,
) -> Float[np.ndarray, "..."]:
    """Returns the divisor for the log-probability of ``length`` tokens, including the end.

    ``1`` for ``none``, ``lengthᵅ`` for ``power``, ``((5 + length) / 6)ᵅ`` for ``gnmt``
    (Wu et al. 2016, equation 14). An empty hypothesis has penalty 1.

    Example:
        >>> round(float(-1.4 / length_penalty(4, "gnmt", 0.6)), 6)
        -1.097674
    """
    tokens = np.maximum(np.asarray(length, np.float64), 1)
    base = {"none": np.ones_like(tokens), "power": tokens, "gnmt": (5 + tokens) / 6}[normalization]
    return np.asarray(base ** np.asarray(alpha, np.float64))

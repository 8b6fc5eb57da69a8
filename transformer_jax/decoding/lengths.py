"""Lengths of texts: the most tokens of one, and what a sum of log-probabilities is divided by."""

import math
from typing import Literal, NamedTuple, get_args

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.errors import ConfigError

__all__ = [
    "LengthLimit",
    "Normalization",
    "best_possible_score",
    "check_normalization",
    "learn_length_limit",
    "learn_longest",
    "length_penalty",
]

Normalization = Literal["none", "power", "gnmt"]

_QUANTILE = 0.99  # of training pairs: the ratios of the others may be those of misaligned lines
_ROOM = 2.0  # times as long as such a text is what the model may write


class LengthLimit(NamedTuple):
    """The most tokens of a text: ``max_len_a * source length + max_len_b``, end tokens included."""

    max_len_a: float = 2.0
    max_len_b: int = 10

    def changed(
        self, max_len_a: float | None = None, max_len_b: int | None = None
    ) -> "LengthLimit":
        """The limit with the values that are not None.

        Example:
            >>> LengthLimit(3.5).changed(max_len_b=50)
            LengthLimit(max_len_a=3.5, max_len_b=50)
        """
        return LengthLimit(
            self.max_len_a if max_len_a is None else max_len_a,
            self.max_len_b if max_len_b is None else max_len_b,
        )

    def __str__(self) -> str:
        factor = f"{self.max_len_a:g} x source tokens + " if self.max_len_a else ""
        return f"{factor}{self.max_len_b}"


def learn_length_limit(
    source_lengths: Int[np.ndarray, " count"], target_lengths: Int[np.ndarray, " count"]
) -> LengthLimit:
    """The limit that follows from training pairs.

    ``max_len_a`` is twice the 99 % quantile of target length / source length, rounded up to
    hundredths.

    Args:
        source_lengths: Tokens of each source, its end token included.
        target_lengths: Tokens of each target, its end token included.

    Example:
        >>> print(learn_length_limit(np.array([4, 5, 8]), np.array([10, 5, 8])))
        5 x source tokens + 10
    """
    ratios = target_lengths / np.maximum(source_lengths, 1)
    ratio = _ROOM * float(np.quantile(ratios, _QUANTILE, method="higher"))
    return LengthLimit(math.ceil(round(100 * ratio, 6)) / 100)


def learn_longest(target_lengths: Int[np.ndarray, " count"]) -> int:
    """The most tokens of a text that follows from training targets, whatever their sources.

    It is twice the 99 % quantile of their lengths.

    Example:
        >>> learn_longest(np.array([4, 30, 8]))
        60
    """
    return math.ceil(_ROOM * float(np.quantile(target_lengths, _QUANTILE, method="higher")))


def length_penalty(
    length: Int[Array | np.ndarray, "..."] | int,
    normalization: Normalization = "gnmt",
    alpha: Float[Array, "..."] | float | int = 0.6,
) -> Float[Array, "..."]:
    """What the log-probability of ``length`` tokens, EOS among them, is divided by.

    ``1`` for ``none``, ``lengthᵅ`` for ``power``, ``((5 + length) / 6)ᵅ`` for ``gnmt``
    (Wu et al. 2016, equation 14; golden numbers A6; row B31). An empty hypothesis has penalty 1.

    Example:
        >>> score = -1.4 / length_penalty(4, "gnmt", 0.6)
        >>> round(float(score), 6)
        -1.097674
    """
    tokens = jnp.maximum(jnp.asarray(length, jnp.float32), 1.0)
    if normalization == "none":
        return jnp.ones_like(tokens)
    base = tokens if normalization == "power" else (5.0 + tokens) / 6.0
    return base**alpha


def best_possible_score(
    log_prob: Float[Array, "..."],
    limit: Int[Array, "..."] | int,
    normalization: Normalization = "gnmt",
    alpha: Float[Array, "..."] | float | int = 0.6,
) -> Float[Array, "..."]:
    """The highest normalised score a live hypothesis can still end with.

    A log-probability is negative and only falls, and the penalty only grows with the length, so
    nothing beats keeping today's log-probability all the way to ``limit`` tokens. Dividing by
    the present length instead, which is smaller, would call hypotheses hopeless that are not.

    Example:
        >>> best_possible_score(jnp.array(-2.0), 8, "power", 1.0)
        Array(-0.25, dtype=float32)
    """
    return log_prob / length_penalty(limit, normalization, alpha)


def check_normalization(normalization: str, alpha: float | int) -> None:
    """Refuses a normalisation that does not exist or prefers ever shorter hypotheses.

    Raises:
        ConfigError: An unknown name, or ``alpha`` below 0 or not finite.
    """
    if normalization not in get_args(Normalization):
        allowed = ", ".join(get_args(Normalization))
        raise ConfigError(f"normalization is {normalization!r}: must be one of {allowed}")
    if not (math.isfinite(alpha) and alpha >= 0):
        raise ConfigError(f"length_penalty is {alpha}: must be finite, at least 0 (none)")

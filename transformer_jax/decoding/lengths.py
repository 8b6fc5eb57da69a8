"""Length normalisation: what a sum of log-probabilities is divided by, and what it can still be."""

import math
from typing import Literal, get_args

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.errors import ConfigError

__all__ = ["Normalization", "best_possible_score", "check_normalization", "length_penalty"]

Normalization = Literal["none", "power", "gnmt"]


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

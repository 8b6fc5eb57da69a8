"""Calibration of probabilities: reliability tables and calibration error."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_jax.functional.array_arguments import real_arguments

__all__ = ["Reliability", "expected_calibration_error", "reliability"]


class Reliability(NamedTuple):
    """One row per bin of equal width: number of predictions, mean confidence and accuracy."""

    counts: Float[Array, " bins"]
    confidence: Float[Array, " bins"]  # the mean probability; 0 in an empty bin
    accuracy: Float[Array, " bins"]  # the fraction that is correct; 0 in an empty bin


@real_arguments
def reliability(
    probabilities: Float[Array, " n"], correct: Bool[Array, " n"], bins: int = 10
) -> Reliability:
    """Returns predictions binned by probability, in bins ``(i/bins, (i+1)/bins]``.

    Args:
        probabilities: Probability that each prediction is correct, from 0 to 1.
        correct: Whether each prediction is correct.
        bins: Number of bins.

    Source: Guo et al. 2017, https://arxiv.org/abs/1706.04599, section 2.

    Example:
        >>> table = reliability(jnp.array([0.4, 0.9, 0.8]), jnp.array([True, True, False]), bins=2)
        >>> table.counts, table.accuracy
        (Array([1., 2.], dtype=float32), Array([1. , 0.5], dtype=float32))
    """
    index = jnp.clip(jnp.ceil(probabilities * bins).astype(jnp.int32) - 1, 0, bins - 1)
    sums = lambda x: jax.ops.segment_sum(x.astype(jnp.float32), index, bins)
    counts = sums(jnp.ones_like(probabilities))
    least = jnp.maximum(counts, 1)
    return Reliability(counts, sums(probabilities) / least, sums(correct) / least)


def expected_calibration_error(table: Reliability) -> Float[Array, ""]:
    """The mean distance between accuracy and confidence (ECE): ``Σ_b n_b/n |acc_b − conf_b|``.

    Without predictions it is 0.

    Source: Guo et al. 2017, https://arxiv.org/abs/1706.04599, formula (3).

    Example:
        >>> table = reliability(jnp.full(4, 0.75), jnp.array([True, True, False, False]))
        >>> expected_calibration_error(table)
        Array(0.25, dtype=float32)
    """
    gaps = jnp.abs(table.accuracy - table.confidence)
    return (table.counts * gaps).sum() / jnp.maximum(table.counts.sum(), 1)

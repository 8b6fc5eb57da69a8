"""RoPE frequencies of a configuration."""

import numpy as np
from jaxtyping import Float

from transformer_jax.config import PositionConfig
from transformer_jax.functional.positions import (
    dynamic_base,
    rotary_frequencies,
    yarn_frequencies,
)

__all__ = ["frequencies_of"]


def frequencies_of(places: PositionConfig, head_dim: int) -> Float[np.ndarray, " pairs"]:
    """Angular frequency of each pair of rotary channels, in radians per position.

    The frequencies of dynamic NTK and LongRoPE (Ding et al. 2024, arXiv:2402.13753) depend on the
    length of the text. Here every text has those of length ``places.max_length``, so the vector of
    a token never depends on later tokens.

    Example:
        >>> import dataclasses
        >>> frequencies_of(PositionConfig(kind="rope", rope_dim=4), 8)
        array([1.  , 0.01])
        >>> places = PositionConfig(kind="rope", rope_theta=100.0, max_length=64)
        >>> dynamic = dataclasses.replace(places, rope_dynamic=(2.0, 32))
        >>> frequencies_of(dynamic, 8).round(3)
        array([1.   , 0.219, 0.048, 0.011])
    """
    size, base = places.rope_dim or head_dim, places.rope_theta
    if places.rope_yarn is not None:
        return yarn_frequencies(size, base, *places.rope_yarn) / places.rope_interpolation
    if places.rope_dynamic is not None:
        base = dynamic_base(size, base, *places.rope_dynamic, places.max_length)
    found = rotary_frequencies(size, base, places.rope_scaling, places.rope_interpolation)
    if places.rope_original_max_length is not None:
        short = places.max_length <= places.rope_original_max_length
        found = found / np.asarray(places.rope_short_factor if short else places.rope_long_factor)
    return found

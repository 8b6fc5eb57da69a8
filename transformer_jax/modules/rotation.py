"""How fast the pairs of a rotary head turn, as a configuration says it."""

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
    """Radians per position of each pair of a head that turns.

    Dynamic NTK and LongRoPE (Ding et al. 2024, arXiv:2402.13753) give texts of each length other
    angles. Here they are those of a text as long as ``places.max_length`` for every text, so that
    a token's vector never depends on what comes after it.

    Example:
        >>> import dataclasses
        >>> frequencies_of(PositionConfig(kind="rotary", rotary_dim=4), 8)
        array([1.  , 0.01])
        >>> places = PositionConfig(kind="rotary", rotary_base=100.0, max_length=64)
        >>> dynamic = dataclasses.replace(places, rotary_dynamic=(2.0, 32))
        >>> frequencies_of(dynamic, 8).round(3)
        array([1.   , 0.219, 0.048, 0.011])
    """
    size, base = places.rotary_dim or head_dim, places.rotary_base
    if places.rotary_yarn is not None:
        return yarn_frequencies(size, base, *places.rotary_yarn) / places.rotary_interpolation
    if places.rotary_dynamic is not None:
        base = dynamic_base(size, base, *places.rotary_dynamic, places.max_length)
    found = rotary_frequencies(size, base, places.rotary_scaling, places.rotary_interpolation)
    if places.rotary_short_length is not None:
        short = places.max_length <= places.rotary_short_length
        found = found / np.asarray(places.rotary_short if short else places.rotary_long)
    return found

"""Names of layers and poolings; does not need JAX."""

from typing import Literal

__all__ = ["Layers", "Pool", "Pools"]

Layers = Literal["last", "all", "sum4", "concat4"] | int
Pool = Literal["mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", "none"]
Pools = Pool | tuple[Pool, ...]

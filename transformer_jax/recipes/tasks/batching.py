"""The cache of token ids, and a test for dropout in a model."""

from pathlib import Path
from typing import NamedTuple

from transformer_jax.models.recurrent_config import ModelConfig, RecurrentConfig

__all__ = ["TokenCache", "has_dropout"]


class TokenCache(NamedTuple):
    """A folder of memory-mapped token ids."""

    cache: Path | None = None  # None keeps them in memory
    writes: bool = True  # whether to write missing files


def has_dropout(config: ModelConfig) -> bool:
    """Returns whether training a model uses dropout.

    Example:
        >>> has_dropout(RecurrentConfig(dropout=0.0)), has_dropout(RecurrentConfig(dropout=0.1))
        (False, True)
    """
    if isinstance(config, RecurrentConfig):
        return config.dropout > 0
    rates = config.embedding.dropout, config.attention.dropout
    return any((*rates, config.feed_forward.activation_dropout, config.norm.residual_dropout))

"""Where tokens of texts are kept, and whether a model has dropout."""

from pathlib import Path
from typing import NamedTuple

from transformer_jax.recurrent_config import ModelConfig, RecurrentConfig

__all__ = ["TokenCache", "has_dropout"]


class TokenCache(NamedTuple):
    """Where the ids of texts are kept, to be mapped into memory."""

    cache: Path | None = None  # None keeps them in memory
    writes: bool = True  # whether what is missing there is written


def has_dropout(config: ModelConfig) -> bool:
    """Whether training a model drops anything.

    Example:
        >>> has_dropout(RecurrentConfig(dropout=0.0)), has_dropout(RecurrentConfig(dropout=0.1))
        (False, True)
    """
    if isinstance(config, RecurrentConfig):
        return config.dropout > 0
    rates = config.embedding.dropout, config.attention.dropout
    return any((*rates, config.feed_forward.activation_dropout, config.norm.residual_dropout))

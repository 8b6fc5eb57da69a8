"""How examples are put into batches, and where their tokens are kept."""

import dataclasses
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from transformer_jax.config import TransformerConfig
from transformer_jax.data.plan import BucketPlan

__all__ = ["Batching", "TokenCache", "has_dropout"]


@dataclasses.dataclass(frozen=True)
class Batching:
    """Batches of like lengths under a budget of tokens."""

    tokens: int = 4096  # most tokens of a side of a batch, padding included, over all devices
    buckets: int = 6  # shapes of batches
    rows_multiple: int = 8  # rows of batches are a multiple of it
    seed: int = 1  # of the order

    def plan(
        self,
        source_lengths: Int[np.ndarray, " count"],
        target_lengths: Int[np.ndarray, " count"] | None = None,
        *,
        shuffle: bool = True,
    ) -> BucketPlan:
        """Batches of examples of these lengths.

        Example:
            >>> Batching(tokens=16, rows_multiple=1).plan(np.array([3, 5, 9])).steps_per_epoch
            2
        """
        target_lengths = source_lengths if target_lengths is None else target_lengths
        return BucketPlan(
            source_lengths, target_lengths, **dataclasses.asdict(self), shuffle=shuffle
        )


class TokenCache(NamedTuple):
    """Where the ids of texts are kept, to be mapped into memory."""

    cache: Path | None = None  # None keeps them in memory
    writes: bool = True  # whether what is missing there is written


def has_dropout(config: TransformerConfig) -> bool:
    """Whether training a model drops anything.

    Example:
        >>> has_dropout(TransformerConfig())
        True
    """
    rates = config.embedding.dropout, config.attention.dropout
    return any((*rates, config.feed_forward.activation_dropout, config.norm.residual_dropout))

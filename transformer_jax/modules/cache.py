"""What a decoder keeps between tokens."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

__all__ = ["Cache", "LayerCache"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LayerCache:
    """One block's keys and values, as the products want them: XLA:CPU copies any other layout.

    Sentences and heads are one axis. Step ``s`` of beam ``m`` has the slot ``s M + m`` of the
    ``J = S M`` slots.
    """

    keys: Any  # [B·K J H], of its own past
    values: Any  # [B·K J U]
    memory_keys: Any  # [B·K R H] or None, of what was encoded, computed once
    memory_values: Any  # [B·K R U] or None
    joint: tuple  # query, key and value projections side by side: kernel, bias or None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """The state of incremental decoding for ``B`` sentences of ``M`` beams each.

    Beams never move their keys and values. ``ancestry[b, m, s]`` tells which beam's slot holds
    what beam ``m`` read at step ``s``; reordering the beams reorders these small numbers alone.
    """

    layers: tuple[LayerCache, ...]
    length: Any  # [], tokens read so far
    memory_mask: Any  # [B 1 1 R] or None: which of the encoded positions are real
    ancestry: Any  # [B M S], or None for a single beam

    @property
    def size(self) -> int:
        """How many tokens there is room for."""
        return self.layers[0].keys.shape[1] // self.beams

    @property
    def beams(self) -> int:
        """M, the rows of each sentence."""
        return 1 if self.ancestry is None else self.ancestry.shape[1]

    def reorder(self, parents: Int[Array, "B M"]) -> "Cache":
        """The cache in which beam ``m`` goes on from what was beam ``parents[b, m]``."""
        if self.ancestry is None:
            return self
        ancestry = jnp.take_along_axis(self.ancestry, parents[:, :, None], axis=1)
        return dataclasses.replace(self, ancestry=ancestry)

    def claim(self) -> "Cache":
        """The cache in which each beam's own slot is its ancestor at the step about to be taken."""
        if self.ancestry is None:
            return self
        B, M, _ = self.ancestry.shape
        own = jnp.broadcast_to(jnp.arange(M)[None, :, None], (B, M, 1)).astype(self.ancestry.dtype)
        start = (jnp.int32(0), jnp.int32(0), self.length)
        ancestry = jax.lax.dynamic_update_slice(self.ancestry, own, start)
        return dataclasses.replace(self, ancestry=ancestry)

    def visible(self, window: int | None = None) -> Bool[Array, "#B 1 #M J"]:
        """Which of the slots each beam may look at, its own newest token included."""
        steps = jnp.arange(self.size)
        seen = steps <= self.length
        if window is not None:
            seen = seen & (self.length - steps < window)
        if self.ancestry is None:
            return seen[None, None, None, :]
        B, M, S = self.ancestry.shape
        beams = jnp.arange(M, dtype=self.ancestry.dtype)[None, None, None, :]
        mine = (self.ancestry[:, :, :, None] == beams) & seen[None, None, :, None]
        return mine.reshape(B, 1, M, S * M)

"""What a decoder keeps between tokens."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """The state of incremental decoding for ``B`` sentences of ``M`` beams each.

    Sentences that begin with prompts of different lengths end their prompts in the same slot;
    ``starts`` says where they begin, and what stands before is never looked at. Beams never move
    their keys and values. ``ancestry[b, m, s]`` tells which beam's slot holds what beam ``m`` read
    at step ``s``; reordering the beams reorders these small numbers alone.
    """

    layers: tuple[LayerCache, ...]
    length: Any  # [], tokens read so far
    memory_mask: Any  # [B 1 1 R] or None: which of the encoded positions are real
    ancestry: Any  # [B M S], or None for a single beam
    starts: Any = None  # [B], the step of each sentence's first token; None is 0

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

    def claim_slots(self) -> "Cache":
        """The cache in which each beam's own slot is its ancestor at the step about to be taken."""
        if self.ancestry is None:
            return self
        B, M, _ = self.ancestry.shape
        own = jnp.broadcast_to(jnp.arange(M)[None, :, None], (B, M, 1)).astype(self.ancestry.dtype)
        start = (jnp.int32(0), jnp.int32(0), self.length)
        ancestry = jax.lax.dynamic_update_slice(self.ancestry, own, start)
        return dataclasses.replace(self, ancestry=ancestry)

    def positions(self, tokens: int = 1) -> Int[Array, "#B T"]:
        """Where the next ``tokens`` of each sentence stand, counted from its own first."""
        steps = (self.length + jnp.arange(tokens))[None]
        return steps if self.starts is None else steps - self.starts[:, None]

    def visible(self, window: int | None = None, tokens: int = 1) -> Bool[Array, "#B 1 #M J"]:
        """Which of the slots each beam, or each of the next ``tokens``, may look at.

        Its own is among them.
        """
        steps = jnp.arange(self.size)[None, None]
        here = (self.length + jnp.arange(tokens))[None, :, None]
        seen = steps <= here
        if window is not None:
            seen = seen & (here - steps < window)
        if self.starts is not None:
            seen = seen & (steps >= self.starts[:, None, None])
        if self.ancestry is None:
            return seen[:, None]
        B, M, S = self.ancestry.shape
        beams = jnp.arange(M, dtype=self.ancestry.dtype)[None, None, None, :]
        mine = (self.ancestry[:, :, :, None] == beams) & seen[:, :, :, None]
        return mine.reshape(B, 1, M, S * M)

    def prefilled(
        self,
        past: list[tuple[Float[Array, "B K T H"], Float[Array, "B K T U"]]],
        starts: Int[Array, " B"] | None = None,
    ) -> "Cache":
        """The empty cache with each layer's keys and values of ``T`` tokens that were read at once.

        All beams of a sentence read them from the first beam's slots.
        """
        layers = []
        for layer, (keys, values) in zip(self.layers, past, strict=True):
            keys, values = (
                self._fill(*pair) for pair in ((layer.keys, keys), (layer.values, values))
            )
            layers.append(dataclasses.replace(layer, keys=keys, values=values))
        length = jnp.int32(past[0][0].shape[2])
        return dataclasses.replace(self, layers=tuple(layers), length=length, starts=starts)

    def _fill(self, slots: Float[Array, "BK J H"], new: Float[Array, "B K T H"]) -> Array:
        new = new.reshape(-1, *new.shape[2:]).astype(slots.dtype)
        rows, T, H = new.shape
        by_beam = slots.reshape(rows, self.size, self.beams, H)
        return by_beam.at[:, :T, 0].set(new).reshape(slots.shape)

    def truncate(self, length: Int[Array, ""]) -> "Cache":
        """The same after its first ``length`` tokens; later ones are written over."""
        return dataclasses.replace(self, length=jnp.asarray(length, jnp.int32))

    def resize(self, size: int) -> "Cache":
        """The same with room for ``size`` tokens, for a single beam."""
        more = size - self.size
        grow = lambda slots: jnp.pad(slots, ((0, 0), (0, more), (0, 0)))
        layers = tuple(
            dataclasses.replace(layer, keys=grow(layer.keys), values=grow(layer.values))
            for layer in self.layers
        )
        return dataclasses.replace(self, layers=layers)

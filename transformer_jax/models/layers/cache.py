"""Keys and values that a decoder keeps between tokens."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.functional.partitioning import constrain, current_mesh

__all__ = ["Cache", "KeysValues", "LayerCache"]


# Of each sequence, or of all sequences as one with B·K heads (see LayerCache).
KeysValues = tuple[Float[Array, "_ _ S H"], Float[Array, "_ _ S U"]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LayerCache:
    """Keys and values of one block: step ``s`` of beam ``m`` has the slot ``s M + m`` of ``J``.

    Heads of all sequences lie, and are read, as those of a single one: otherwise XLA:CPU copies
    the cache at every token. On a mesh sequences and heads keep axes of their own, ``[B K J H]``,
    which different axes of the mesh split.
    """

    keys: Any  # [B·K J H], of its own past
    values: Any  # [B·K J U]
    memory_keys: Any  # [B·K S H] or None, of what was encoded, computed once
    memory_values: Any  # [B·K S U] or None
    beams: int = dataclasses.field(default=1, metadata={"static": True})

    @classmethod
    def empty(
        cls, rows: tuple[int, int], slots: int, sizes: tuple[int, int], dtype: Any, beams: int = 1
    ) -> "LayerCache":
        """A cache without tokens or memory.

        Args:
            rows: Sequences ``B`` and key heads ``K``.
            slots: Room for tokens, of all beams together.
            sizes: Those of a key head and of a value head.
            dtype: Of keys and values.
            beams: M, the beams of each sequence.
        """
        lead = (rows[0] * rows[1],) if current_mesh() is None else rows
        keys, values = (_constrain(jnp.zeros((*lead, slots, size), dtype)) for size in sizes)
        return cls(keys, values, None, None, beams)

    def with_memory(self, memory: KeysValues) -> "LayerCache":
        """The cache with what cross-attention reads."""
        keys, values = (_constrain(self._merge_heads(x)) for x in memory)
        return dataclasses.replace(self, memory_keys=keys, memory_values=values)

    @property
    def memory(self) -> KeysValues | None:
        """Keys and values for cross-attention, ``[1 B·K S _]``, or None without any."""
        if self.memory_keys is None:
            return None
        return _as_sequences(self.memory_keys), _as_sequences(self.memory_values)

    def extend(
        self,
        keys: Float[Array, "B K T H"],
        values: Float[Array, "B K T U"],
        slots: int | Int[Array, ""],
    ) -> tuple["LayerCache", KeysValues]:
        """The cache with new keys and values, and all those that queries may attend to.

        The latter are ``[1 B·K J _]``, or for a prompt the new ones as they are.

        Args:
            keys: Of new tokens: one of each beam, or successive tokens of a single beam.
            values: Of the same.
            slots: The first slot; the others follow. The Python number 0 means a prompt: the cache
                is empty, new tokens attend to each other only, and all beams read the prompt from
                the slots of the first.
        """
        flat = self._merge_heads
        if isinstance(slots, int):
            assert slots == 0, slots
            made = self._fill(self.keys, flat(keys)), self._fill(self.values, flat(values))
            return dataclasses.replace(self, keys=made[0], values=made[1]), (keys, values)
        start = (*[jnp.int32(0)] * (self.keys.ndim - 2), slots, jnp.int32(0))
        write = lambda old, new: _constrain(
            jax.lax.dynamic_update_slice(old, new.astype(old.dtype), start)
        )
        made = write(self.keys, flat(keys)), write(self.values, flat(values))
        cache = dataclasses.replace(self, keys=made[0], values=made[1])
        return cache, (_as_sequences(made[0]), _as_sequences(made[1]))

    def _merge_heads(self, x: Float[Array, "B K T H"]) -> Array:
        """Heads of all sequences as the cache holds them."""
        # No -1: a mixer's cache has values of size 0.
        return x if self.keys.ndim == 4 else x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])

    def _fill(self, slots: Float[Array, "*BK J H"], new: Float[Array, "*BK T H"]) -> Array:
        *rows, T, H = new.shape
        by_beam = slots.reshape(*rows, slots.shape[-2] // self.beams, self.beams, H)
        filled = by_beam.at[..., :T, 0, :].set(new.astype(slots.dtype))
        return _constrain(filled.reshape(slots.shape))

    def take(self, rows: Int[Array, " N"], count: int) -> "LayerCache":
        """The cache of the sequences ``rows``, of ``count`` sequences."""

        def pick(x: Any) -> Any:
            if x is None:
                return None
            if x.ndim == 4:
                return _constrain(x[rows])
            heads = x.shape[0] // count
            taken = x.reshape(count, heads, *x.shape[1:])[rows]
            return taken.reshape(rows.shape[0] * heads, *x.shape[1:])

        keys, values = pick(self.keys), pick(self.values)
        memory = pick(self.memory_keys), pick(self.memory_values)
        return LayerCache(keys, values, *memory, self.beams)

    def resize(self, slots: int) -> "LayerCache":
        """The same with room for ``slots`` more."""
        pad = [(0, 0)] * (self.keys.ndim - 2) + [(0, slots), (0, 0)]
        keys, values = (_constrain(jnp.pad(x, pad)) for x in (self.keys, self.values))
        return dataclasses.replace(self, keys=keys, values=values)


def _constrain(x: Array) -> Array:
    """Keys or values of a mesh where their sequences and heads belong."""
    return constrain(x, ("batch", "heads", None, None)) if x.ndim == 4 else x


def _as_sequences(x: Array) -> Array:
    """``[B·K J H]`` as the heads of a single sequence."""
    return x if x.ndim == 4 else x[None]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """KV cache for ``B`` sequences of ``M`` beams each.

    Prompts of any lengths end in the same slot (left padding); slots before ``starts`` are masked.
    Keys and values never move: ``ancestry[b, m, s]`` names the beam whose slot holds step ``s`` of
    beam ``m``; reordering permutes only these indices.
    """

    layers: tuple[LayerCache, ...]
    length: Any  # [], tokens read so far
    memory_mask: Any  # [B 1 1 S] or None: the encoded positions that are not padding
    ancestry: Any  # [B M S], or None for a single beam
    starts: Any = None  # [B], the step of each sequence's first token; None is 0

    @property
    def size(self) -> int:
        """The number of tokens that fit."""
        return self.layers[0].keys.shape[-2] // self.beams

    def sequences(self, heads: int) -> int:
        """B, the number of sequences, each of which has so many key heads."""
        keys = self.layers[0].keys
        found: int = keys.shape[0] if keys.ndim == 4 else keys.shape[0] // heads
        return found

    @property
    def beams(self) -> int:
        """M, the beams of each sequence."""
        return 1 if self.ancestry is None else self.ancestry.shape[1]

    def reorder(self, parents: Int[Array, "B M"]) -> "Cache":
        """The cache in which beam ``m`` continues what was beam ``parents[b, m]``."""
        if self.ancestry is None:
            return self
        ancestry = jnp.take_along_axis(self.ancestry, parents[:, :, None], axis=1)
        return dataclasses.replace(self, ancestry=ancestry)

    def take(self, rows: Int[Array, " N"], heads: int) -> "Cache":
        """The cache of the sequences ``rows``, each of which has so many key heads."""
        count = self.sequences(heads)
        pick = lambda x: None if x is None else x[rows]
        return dataclasses.replace(
            self,
            layers=tuple(one.take(rows, count) for one in self.layers),
            memory_mask=pick(self.memory_mask),
            ancestry=pick(self.ancestry),
            starts=pick(self.starts),
        )

    def claim_slots(self) -> "Cache":
        """The cache in which each beam reads the next step from its own slot."""
        if self.ancestry is None:
            return self
        B, M, _ = self.ancestry.shape
        own = jnp.broadcast_to(jnp.arange(M)[None, :, None], (B, M, 1)).astype(self.ancestry.dtype)
        start = (jnp.int32(0), jnp.int32(0), self.length)
        ancestry = jax.lax.dynamic_update_slice(self.ancestry, own, start)
        return dataclasses.replace(self, ancestry=ancestry)

    def positions(self, tokens: int = 1) -> Int[Array, "#B T"]:
        """Positions of the next ``tokens`` of each sequence, counted from its own first."""
        steps = (self.length + jnp.arange(tokens))[None]
        return steps if self.starts is None else steps - self.starts[:, None]

    def visible(self, window: int | None = None, tokens: int = 1) -> Bool[Array, "#B 1 #M J"]:
        """Slots that each beam, or each of the next ``tokens``, sees, its own included."""
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

    def truncate(self, length: Int[Array, ""]) -> "Cache":
        """The cache after its first ``length`` tokens; later ones are overwritten."""
        return dataclasses.replace(self, length=jnp.asarray(length, jnp.int32))

    def resize(self, size: int) -> "Cache":
        """The cache with room for ``size`` tokens, for a single beam."""
        more = size - self.size
        return dataclasses.replace(self, layers=tuple(one.resize(more) for one in self.layers))

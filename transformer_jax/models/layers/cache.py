"""Keys and values that a decoder keeps between tokens (KV cache)."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.core.trees import Child
from transformer_jax.functional.partitioning import constrain, current_mesh

__all__ = ["Cache", "KeysValues", "LayerCache"]


# Per sequence, or of all sequences as one with B·K heads (see LayerCache).
KeysValues = tuple[Float[Array, "_ _ S H"], Float[Array, "_ _ S U"]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LayerCache:
    """Keys and values of one block: step ``s`` of beam ``m`` uses slot ``s M + m`` of ``J``.

    Heads of all sequences are stored and read as the heads of a single one: otherwise XLA:CPU
    copies the cache at every token. On GPUs, which would repeat the mask for each head, and on a
    mesh, sequences and heads keep separate axes, ``[B K J H]``, which different mesh axes split.
    """

    keys: Child[Array]  # [B·K J H], of the past tokens
    values: Child[Array]  # [B·K J U]
    memory_keys: Child[Array] | None  # [B·K S H]: of the encoded states, computed once
    memory_values: Child[Array] | None  # [B·K S U]
    beams: int = dataclasses.field(default=1, metadata={"static": True})

    @classmethod
    def empty(
        cls,
        rows: tuple[int, int],
        slots: int,
        sizes: tuple[int, int],
        dtype: DTypeLike,
        beams: int = 1,
        *,
        merged: bool = True,
    ) -> "LayerCache":
        """A cache without tokens or memory.

        Args:
            rows: Sequences ``B`` and key heads ``K``.
            slots: Room for tokens, of all beams together.
            sizes: Sizes of a key head and of a value head.
            dtype: Dtype of keys and values.
            beams: M, the number of beams per sequence.
            merged: Whether to store the heads of all sequences on one axis; not on a mesh.
        """
        lead = (rows[0] * rows[1],) if merged and current_mesh() is None else rows
        keys, values = (_constrain(jnp.zeros((*lead, slots, size), dtype)) for size in sizes)
        return cls(keys, values, None, None, beams)

    def with_memory(self, memory: KeysValues) -> "LayerCache":
        """Returns the cache with the keys and values for cross-attention."""
        keys, values = (_constrain(self._merge_heads(x)) for x in memory)
        return dataclasses.replace(self, memory_keys=keys, memory_values=values)

    @property
    def memory(self) -> KeysValues | None:
        """Keys and values for cross-attention, ``[1 B·K S _]``, or None without any."""
        if self.memory_keys is None or self.memory_values is None:
            return None
        return _as_sequences(self.memory_keys), _as_sequences(self.memory_values)

    def extend(
        self,
        keys: Float[Array, "B K T H"],
        values: Float[Array, "B K T U"],
        slots: int | Int[Array, ""],
    ) -> tuple["LayerCache", KeysValues]:
        """Adds keys and values; returns the cache, and all keys and values that queries may see.

        The latter are ``[1 B·K J _]``, or for a prompt the new ones, unchanged.

        Args:
            keys: Keys of new tokens: one per beam, or successive tokens of a single beam.
            values: Values of the same tokens.
            slots: The first slot; more follow it. The Python number 0 means a prompt: the cache is
                empty, new tokens attend only to each other, and all beams read the prompt from the
                slots of the first.
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
        """Reshapes heads of all sequences to the layout of the cache."""
        # No -1: the cache of other mixers has values of size 0.
        return x if self.keys.ndim == 4 else x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])

    def _fill(self, slots: Float[Array, "*BK J H"], new: Float[Array, "*BK T H"]) -> Array:
        *rows, T, H = new.shape
        by_beam = slots.reshape(*rows, slots.shape[-2] // self.beams, self.beams, H)
        filled = by_beam.at[..., :T, 0, :].set(new.astype(slots.dtype))
        return _constrain(filled.reshape(slots.shape))

    def take(self, rows: Int[Array, " N"], count: int) -> "LayerCache":
        """Returns the cache of the sequences ``rows``, out of ``count`` sequences."""

        def pick(x: Array) -> Array:
            if x.ndim == 4:
                return _constrain(x[rows])
            heads = x.shape[0] // count
            taken = x.reshape(count, heads, *x.shape[1:])[rows]
            return taken.reshape(rows.shape[0] * heads, *x.shape[1:])

        keys, values = pick(self.keys), pick(self.values)
        memory = (self.memory_keys, self.memory_values)
        memory_keys, memory_values = (None if x is None else pick(x) for x in memory)
        return LayerCache(keys, values, memory_keys, memory_values, self.beams)

    def resize(self, slots: int) -> "LayerCache":
        """Returns the cache with room for ``slots`` more."""
        pad = [(0, 0)] * (self.keys.ndim - 2) + [(0, slots), (0, 0)]
        keys, values = (_constrain(jnp.pad(x, pad)) for x in (self.keys, self.values))
        return dataclasses.replace(self, keys=keys, values=values)


def _constrain(x: Array) -> Array:
    """Lays out keys or values on the mesh by sequences and heads."""
    return constrain(x, ("batch", "heads", None, None)) if x.ndim == 4 else x


def _as_sequences(x: Array) -> Array:
    """Reshapes ``[B·K J H]`` to the heads of a single sequence."""
    return x if x.ndim == 4 else x[None]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """KV cache for ``B`` sequences of ``M`` beams each.

    Prompts of different lengths end in the same slot (left padding); slots before ``starts`` are
    masked. Keys and values never move: ``ancestry[b, m, s]`` is the beam whose slot holds step
    ``s`` of beam ``m``, and reordering permutes only these indices.
    """

    layers: tuple[LayerCache, ...]
    length: Child[Array]  # [], tokens read so far
    memory_mask: Child[Array] | None  # [B 1 1 S]: the encoded positions that are not padding
    ancestry: Child[Array] | None  # [B M S]; None for a single beam
    starts: Child[Array] | None = None  # [B], the step of each sequence's first token; None is 0

    @property
    def size(self) -> int:
        """The capacity in tokens."""
        return self.layers[0].keys.shape[-2] // self.beams

    def sequences(self, heads: int) -> int:
        """B, the number of sequences, given the number of key heads per sequence."""
        keys = self.layers[0].keys
        return keys.shape[0] if keys.ndim == 4 else keys.shape[0] // heads

    @property
    def beams(self) -> int:
        """M, the number of beams per sequence."""
        return 1 if self.ancestry is None else self.ancestry.shape[1]

    def reorder(self, parents: Int[Array, "B M"]) -> "Cache":
        """Returns the cache in which beam ``m`` continues the former beam ``parents[b, m]``."""
        if self.ancestry is None:
            return self
        ancestry = jnp.take_along_axis(self.ancestry, parents[:, :, None], axis=1)
        return dataclasses.replace(self, ancestry=ancestry)

    def take(self, rows: Int[Array, " N"], heads: int) -> "Cache":
        """Returns the cache of the sequences ``rows``, given the number of key heads of each."""
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
        """Returns the cache in which each beam reads the next step from its own slot."""
        if self.ancestry is None:
            return self
        _, M, S = self.ancestry.shape
        own = jnp.arange(M, dtype=self.ancestry.dtype)[None, :, None]
        # A selection, which XLA puts into the kernel that reorders; an update in place would copy.
        here = jnp.arange(S)[None, None] == self.length
        return dataclasses.replace(self, ancestry=jnp.where(here, own, self.ancestry))

    def positions(self, tokens: int = 1) -> Int[Array, "#B T"]:
        """Positions of the next ``tokens`` tokens of each sequence, from its first token."""
        steps = (self.length + jnp.arange(tokens))[None]
        return steps if self.starts is None else steps - self.starts[:, None]

    def visible(self, window: int | None = None, tokens: int = 1) -> Bool[Array, "#B 1 #M J"]:
        """Slots that each beam, or each of the next ``tokens``, sees, including its own."""
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
        """Returns the cache after its first ``length`` tokens; later ones will be overwritten."""
        return dataclasses.replace(self, length=jnp.asarray(length, jnp.int32))

    def resize(self, size: int) -> "Cache":
        """Returns the cache with room for ``size`` tokens, for a single beam."""
        more = size - self.size
        return dataclasses.replace(self, layers=tuple(one.resize(more) for one in self.layers))

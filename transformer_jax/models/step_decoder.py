"""The common part of recurrent decoders, which read one target token at a time."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int, Key

from transformer_jax.core.errors import ConfigError
from transformer_jax.functional.attention import attend, attention_weights
from transformer_jax.functional.kernels.cross_entropy import STORAGE
from transformer_jax.functional.layers import dropout
from transformer_jax.functional.losses import OutputTable
from transformer_jax.functional.masks import Mask, padding_mask
from transformer_jax.functional.recurrent import CELLS, State, stop_at_multiples
from transformer_jax.functional.scores import Score
from transformer_jax.models.layers.basic import Embed, Linear
from transformer_jax.models.layers.module import Module
from transformer_jax.models.layers.recurrent_attention import projected_keys, score_of_projected
from transformer_jax.models.layers.recurrent_layers import Recurrent
from transformer_jax.models.protocol import Encoded
from transformer_jax.models.transformer.models import output_table

__all__ = ["WIDTH", "RecurrentCache", "RecurrentMemory", "StepDecoder", "join_directions"]

WIDTH = (None, "embed")  # axes of maps between vectors


Carry = tuple[tuple[State, ...], Array]  # states of the layers, and the hidden state


class RecurrentMemory(NamedTuple):
    """The source in the form that a recurrent decoder reads.

    Attributes:
        states: The encoded states.
        keys: The part of the score that depends only on them; None without attention.
        mask: Number of non-padding states in each row, or a mask of them; None is all.
        summary: The last state of the encoder's last layer, in all its directions.
    """

    states: Float[Array, "B S E"]
    keys: Float[Array, "B S K"] | None
    mask: Int[Array, " B"] | Bool[Array, "B S"] | None
    summary: Float[Array, "B E"]


class RecurrentCache(NamedTuple):
    """A decoder's past: one state, independent of the number of tokens.

    Attributes:
        states: The state of every layer, ``[B M D]``.
        hidden: The last hidden state, ``[B M D]``.
        memory: The source.
    """

    states: tuple[State, ...]
    hidden: Float[Array, "B M D"]
    memory: RecurrentMemory


class StepDecoder(Module):
    """Recurrent layers over target tokens: a ``Scorer`` and ``Decodable``.

    Its inputs are :class:`.Encoded` states. It starts from the encoder's last states: copied from a
    unidirectional encoder of the same sizes, otherwise mapped by ``tanh(W s + b)``.

    A subclass defines what the layers read in addition to a token, :meth:`beside`, and how their
    output becomes a hidden state, :meth:`output`.

    Attributes:
        width_beside: Width of the layers' input in addition to an embedding; if it is 0, all tokens
            are read at once.
        feeds: Whether hidden states are fed to the layers, so that :meth:`output` runs in the loop.
        logits_storage: How the loss stores logits.
    """

    logits_storage = STORAGE

    feeds = False

    def __init__(
        self,
        embedding: Embed,
        layers: Recurrent,
        encoder: Recurrent,
        score: Score | None,
        *,
        beside: int,
        table: Embed | None,
        dropout: float,
        rngs: nnx.Rngs,
    ):
        """Takes the layers, which read an embedding and ``beside`` more values.

        Raises:
            ConfigError: Sizes that do not fit.
        """
        wanted = embedding.table.shape[1] + beside
        states = [CELLS[one.cell].states for one in (layers, encoder)]
        for wrong, problem in (
            (layers.backward is not None, "a decoder is unidirectional"),
            (layers.depth != encoder.depth, f"{layers.depth} layers, not as many as the encoder"),
            (
                states[0] != states[1],
                f"{layers.cell} cells have a different number of states than {encoder.cell}",
            ),
            (layers.width != wanted, f"its layers read width {layers.width}, not {wanted}"),
        ):
            if wrong:
                raise ConfigError(f"{type(self).__name__}: {problem}")
        self.embedding, self.layers, self.dropout, self.table = embedding, layers, dropout, table
        self.width_beside = beside
        copies = encoder.backward is None and encoder.size == layers.size
        linear = lambda: Linear(encoder.outputs, layers.size, WIDTH, rngs=rngs)
        self.bridge = None if copies else nnx.List([linear() for _ in range(layers.depth)])
        self.score = score

    def beside(
        self, states: tuple[State, ...], hidden: Array, memory: RecurrentMemory
    ) -> Array | None:
        """Returns the layers' input in addition to the token, ``[B M C]``, or None.

        Args:
            states: The state of every layer, ``[B M D]``.
            hidden: The previous hidden state, ``[B M D]``.
            memory: The source.
        """
        raise NotImplementedError

    def output(self, s: Array, beside: Array | None, x: Array, memory: RecurrentMemory) -> Array:
        """The hidden state at each token.

        Args:
            s: Outputs of the last layer, ``[B T D]``.
            beside: The layers' input in addition to the tokens.
            x: Embedded tokens.
            memory: The source.
        """
        raise NotImplementedError

    def hidden(
        self, inputs: Encoded, tokens: Int[Array, "B T"], *, key: Key[Array, ""] | None = None
    ) -> Float[Array, "B T D"]:
        """The hidden state at each token, from the tokens up to it and the encoded states.

        Args:
            inputs: Encoded states.
            tokens: Target tokens, shifted right.
            key: Random key of dropout; None is no dropout.
        """
        keys: Sequence[None] | Array = [None] * 3 if key is None else jax.random.split(key, 3)
        x = dropout(self.embedding(tokens), self.dropout, keys[0])
        found = self._outputs(x, inputs, keys[1])[1]
        return dropout(found, self.dropout, keys[2])

    def _outputs(
        self, x: Array, inputs: Encoded, key: Key[Array, ""] | None
    ) -> tuple[Array, Array]:
        """Outputs of the last layer, and hidden states, for all embedded tokens."""
        memory, states = self.memory(inputs), self.first_states(inputs)
        if not self.width_beside:
            s, _ = self.layers(x, None, states, key=key)
            return s, self.output(s, None, x, memory)
        apart = lambda tree: jax.tree.map(lambda one: one[:, None], tree)
        keys = None if key is None else jax.random.split(key, x.shape[1])
        projected = self.layers.forward[0].projected(x)

        def body(
            carry: Carry, now: tuple[Array, Array, Array, Array | None]
        ) -> tuple[Carry, tuple[Array, Array, Array]]:
            place, token, projected, key = now
            states, hidden = stop_at_multiples(carry, place, self.layers.truncate)
            beside = self.beside(apart(states), hidden, memory)
            assert beside is not None
            s, states = self._read(projected, beside[:, 0], states, key)
            if self.feeds:
                hidden = self.output(s[:, None], beside, token[:, None], memory)
            return (states, hidden), (s, beside[:, 0], hidden[:, 0])

        steps = (jnp.arange(x.shape[1]), x.swapaxes(0, 1), projected.swapaxes(0, 1), keys)
        _, found = lax.scan(body, (states, self._no_hidden(memory, 1)), steps)
        s, beside, fed = (one.swapaxes(0, 1) for one in found)
        return s, fed if self.feeds else self.output(s, beside, x, memory)

    def _read(
        self,
        projected: Array,
        beside: Array | None,
        states: tuple[State, ...],
        key: Key[Array, ""] | None = None,
    ) -> tuple[Array, tuple[State, ...]]:
        """Returns the output of the last layer after one token per row, and the layers' states."""
        if beside is not None:
            first = self.embedding.table.shape[1]
            beside = beside.astype(projected.dtype)[:, None]
            projected = projected + self.layers.forward[0].projected(beside, first)[:, 0]
        return self.layers.next_states(projected, states, key)

    def attention_maps(self, inputs: Encoded, tokens: Int[Array, "B T"]) -> Float32[Array, "B T S"]:
        """The weights with which each token's state attends to the encoded states.

        Raises:
            ConfigError: The decoder has no attention.
        """
        if self.score is None:
            raise ConfigError("attention_maps: this decoder has no attention")
        s, _ = self._outputs(self.embedding(tokens), inputs, None)
        q, k, mask, score = self._attended(self.queries(s, inputs), self.memory(inputs))
        return attention_weights(q, k, mask, score=score)[:, 0]

    def queries(self, s: Float[Array, "B T D"], inputs: Encoded) -> Float[Array, "B T D"]:
        """Returns the state of each token that attends, from the outputs of the last layer."""
        del inputs
        return s

    def attended(self, q: Float[Array, "B T D"], memory: RecurrentMemory) -> Float[Array, "B T E"]:
        """Returns the attended source for each state."""
        q, k, mask, score = self._attended(q, memory)
        return attend(q, k, memory.states[:, :, None], mask, score=score)[:, :, 0]

    def _attended(
        self, q: Array, memory: RecurrentMemory
    ) -> tuple[Array, Array, Mask | None, Score]:
        assert memory.keys is not None, "a decoder without a score"
        assert self.score is not None, "a decoder without a score"
        mask = None if memory.mask is None else padding_mask(memory.mask)
        return q[:, :, None], memory.keys[:, :, None], mask, score_of_projected(self.score)

    def memory(self, inputs: Encoded) -> RecurrentMemory:
        """Computes the keys and values of the encoded states, once for all tokens.

        Raises:
            ConfigError: The encoder does not return its last states.
        """
        states, keys = inputs.states, None
        if self.score is not None:
            keys = projected_keys(self.score, states[:, None])[:, 0]
        last = join_directions(_last(inputs), self.layers.depth)[-1][0].astype(states.dtype)
        return RecurrentMemory(states, keys, inputs.mask, last)

    def first_states(self, inputs: Encoded) -> tuple[State, ...]:
        """The states before the first token: the encoder's last states, mapped.

        Raises:
            ConfigError: The encoder does not return its last states.
        """
        joined = join_directions(_last(inputs), self.layers.depth)
        if self.bridge is None:
            return joined
        pairs = zip(self.bridge, joined, strict=True)
        return tuple(tuple(jnp.tanh(map_(one)) for one in layer) for map_, layer in pairs)

    def output_table(self) -> OutputTable:
        """The output projection: a separate table, or the embeddings'."""
        source = self.table or self.embedding
        return output_table(source.table[...], source.trained, storage=self.logits_storage)

    def _no_hidden(self, memory: RecurrentMemory, beams: int) -> Array:
        width = (self.table or self.embedding).table.shape[1]
        return jnp.zeros((len(memory.states), beams, width), memory.states.dtype)

    def init_cache(
        self, inputs: Encoded, rows: int, size: int, *, beams: int = 1
    ) -> RecurrentCache:
        """An empty past.

        Args:
            inputs: Encoded states.
            rows: B, the number of sequences.
            size: Largest number of target tokens; the cache does not depend on it.
            beams: M, the beams of each sequence.
        """
        del size
        spread = lambda x: jnp.broadcast_to(x[:, None], (rows, beams, x.shape[-1]))
        memory = self.memory(inputs)
        states = jax.tree.map(spread, self.first_states(inputs))
        return RecurrentCache(states, self._no_hidden(memory, beams), memory)

    def prefill(
        self,
        tokens: Int[Array, "B T"],
        cache: RecurrentCache,
        starts: Int[Array, " B"] | None = None,
    ) -> tuple[Float32[Array, "B V"], RecurrentCache]:
        """Returns logits of the token after each prefix, and the cache filled with the prefixes.

        Args:
            tokens: Prefixes, left-padded.
            cache: Empty cache from :meth:`init_cache`.
            starts: Index of the first token of each prefix; earlier ones are padding.
        """
        beams = cache.hidden.shape[1]
        starts = jnp.zeros(len(tokens), jnp.int32) if starts is None else starts

        def body(past: Carry, now: tuple[Array, Array]) -> tuple[Carry, None]:
            place, token = now
            every = jnp.repeat(token[:, None], beams, axis=1)
            new = self._after(every, RecurrentCache(past[0], past[1], cache.memory))
            begun = (place >= starts)[:, None, None]
            kept = lambda a, b: jnp.where(begun, a, b)
            return jax.tree.map(kept, (new.states, new.hidden), past), None

        steps = jnp.arange(tokens.shape[1]), tokens.T
        (states, hidden), _ = lax.scan(body, (cache.states, cache.hidden), steps)
        logits = self.output_table().logits(hidden[:, 0])
        return logits, RecurrentCache(states, hidden, cache.memory)

    def step(
        self, tokens: Int[Array, " R"], cache: RecurrentCache
    ) -> tuple[Float32[Array, "R V"], RecurrentCache]:
        """Returns logits of the token after ``tokens``, one per row, and the extended cache."""
        cache = self._after(tokens.reshape(cache.hidden.shape[:2]), cache)
        return self.output_table().logits(cache.hidden.reshape(len(tokens), -1)), cache

    def _after(self, tokens: Array, cache: RecurrentCache) -> RecurrentCache:
        """Extends the cache with tokens ``[B M]``; beams attend as queries of their sequence."""
        B, M, _ = cache.hidden.shape
        rows = lambda one: one.reshape(B * M, one.shape[-1])
        apart = lambda one: one.reshape(B, M, one.shape[-1])
        x = self.embedding(tokens.reshape(-1))
        beside = self.beside(cache.states, cache.hidden, cache.memory)
        projected = self.layers.forward[0].projected(x[:, None])[:, 0]
        beside_rows = None if beside is None else rows(beside)
        s, states = self._read(projected, beside_rows, jax.tree.map(rows, cache.states))
        hidden = self.output(apart(s), beside, apart(x), cache.memory)
        return RecurrentCache(jax.tree.map(apart, states), hidden, cache.memory)

    def reorder(self, cache: RecurrentCache, parents: Int[Array, "B M"]) -> RecurrentCache:
        """Returns the cache in which beam ``m`` of sequence ``b`` continues ``parents[b, m]``."""
        pick = lambda x: jnp.take_along_axis(x, parents[:, :, None], axis=1)
        return cache._replace(states=jax.tree.map(pick, cache.states), hidden=pick(cache.hidden))

    def take(self, cache: RecurrentCache, rows: Int[Array, " N"]) -> RecurrentCache:
        """Returns the cache of the sequences ``rows``, with all their beams."""
        taken: RecurrentCache = jax.tree.map(lambda x: x[rows], cache)
        return taken


def join_directions(last: Sequence[State], depth: int) -> tuple[State, ...]:
    """The last states of each layer, with both directions side by side.

    Example:
        >>> forward, backward = (jnp.ones((1, 2)),), (jnp.zeros((1, 2)),)
        >>> join_directions([forward, backward], 1)
        ((Array([[1., 1., 0., 0.]], dtype=float32),),)
    """
    of_layer, found = len(last) // depth, []
    for i in range(depth):
        directions = last[i * of_layer : (i + 1) * of_layer]
        joined = zip(*directions, strict=True)
        found.append(tuple(jnp.concatenate(one, axis=-1) for one in joined))
    return tuple(found)


def _last(inputs: Encoded) -> Sequence[State]:
    if inputs.last is None:
        raise ConfigError("a recurrent decoder: the encoder returns no last states: see Encoded")
    last: Sequence[State] = inputs.last
    return last

"""Translators of recurrent layers: an encoder, and a decoder with or without attention.

Rows U2, T1 and T8. They compose: ``EncoderDecoder(RecurrentEncoder(...), RecurrentDecoder(...))``.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Float32, Int, Key

from transformer_jax.errors import ConfigError
from transformer_jax.functional.attention import attend, attention_weights
from transformer_jax.functional.dropout import dropout
from transformer_jax.functional.losses import OutputTable
from transformer_jax.functional.masks import padding_mask
from transformer_jax.functional.recurrent import State
from transformer_jax.models.protocol import Encoded
from transformer_jax.modules.linear import Embed, Linear
from transformer_jax.modules.recurrent import Recurrent

__all__ = ["RecurrentCache", "RecurrentDecoder", "RecurrentEncoder"]

_WIDTH = (None, "embed")


class RecurrentEncoder(nnx.Module):
    """Token embeddings and recurrent layers.

    What it encodes has the last state of every layer, with which a decoder may begin.
    """

    def __init__(self, embedding: Embed, layers: Recurrent, *, dropout: float = 0.0):
        self.embedding, self.layers, self.dropout = embedding, layers, dropout

    def __call__(
        self,
        source: Int[Array, "B S"],
        source_lengths: Int[Array, " B"],
        *,
        key: Key[Array, ""] | None = None,
    ) -> Encoded:
        """A vector for each source token, from what is before it, or also from what is after it.

        Args:
            source: Source tokens.
            source_lengths: How many tokens of each row are real; the others are padding.
            key: Dropout of embeddings and between layers, if given.
        """
        keys = (None, None) if key is None else jax.random.split(key)
        x = dropout(self.embedding(source), self.dropout, keys[0])
        states, last = self.layers(x, source_lengths, key=keys[1])
        return Encoded(states, source_lengths, last)


class RecurrentCache(NamedTuple):
    """A decoder's past: one state, whatever the number of tokens.

    Attributes:
        states: Of every layer, ``[B M D]``.
        fed: The last hidden state, ``[B M D]``.
        memory: The encoded states.
    """

    states: tuple[State, ...]
    fed: Float[Array, "B M D"]
    memory: Encoded


class RecurrentDecoder(nnx.Module):
    """Recurrent layers over target tokens, with attention over the encoded states (row T8).

    ``s_t`` is the state of the last layer after token t, ``a_t`` what it attends to, and the hidden
    state ``tanh(W_c [a_t; s_t] + b_c)``; without a score it is ``s_t``, and the encoded states
    count by the last of them alone. With input feeding the layers read the last hidden state beside
    the token (Luong et al. 2015, 3.3), one step after the other; without it, all steps attend at
    once. It begins with the last states of the encoder, mapped to its size.

    It is a ``Scorer`` and ``Decodable`` whose inputs are :class:`.Encoded` states.
    """

    def __init__(
        self,
        embedding: Embed,
        layers: Recurrent,
        encoder: Recurrent,
        score: Any = None,
        *,
        feeds: bool = False,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        """Makes the decoder.

        Args:
            embedding: Of target tokens; its table is that of the output too.
            layers: In one direction. They read an embedding, and the hidden state if it ``feeds``.
            encoder: The encoder's layers, as many as ``layers``.
            score: Of :func:`.make_score`; None is no attention.
            feeds: Whether the last hidden state is fed to the layers.
            dropout: Of embeddings and hidden states.
            rngs: For the parameters.

        Raises:
            ConfigError: Sizes that do not fit.
        """
        size, width = layers.size, embedding.table.shape[1]
        wanted = width + size * feeds
        for wrong, problem in (
            (layers.backward is not None, "a decoder reads in one direction"),
            (layers.depth != encoder.depth, f"{layers.depth} layers on an encoder of as many"),
            (layers.width != wanted, f"its layers read {layers.width} numbers, not {wanted}"),
            (size != width, f"states have {size} numbers, and the output table {width}"),
        ):
            if wrong:
                raise ConfigError(f"RecurrentDecoder: {problem}")
        self.embedding, self.layers, self.score = embedding, layers, score
        self.feeds, self.dropout = feeds, dropout
        linear = lambda inputs: Linear(inputs, size, _WIDTH, rngs=rngs)
        self.bridge = nnx.List([linear(encoder.outputs) for _ in range(layers.depth)])
        self.mixed = None if score is None else linear(encoder.outputs + size)

    def hidden(
        self,
        inputs: Encoded,
        tokens: Int[Array, "B T"],
        *,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "B T D"]:
        """The hidden state at each token, from the tokens up to it and the encoded states.

        Args:
            inputs: Encoded states.
            tokens: Target tokens, shifted right.
            key: Dropout, if given.
        """
        keys: Any = [None] * 3 if key is None else jax.random.split(key, 3)
        x = dropout(self.embedding(tokens), self.dropout, keys[0])
        found = self._states(x, inputs, keys[1])[1]
        return dropout(found, self.dropout, keys[2])

    def attention_maps(self, inputs: Encoded, tokens: Int[Array, "B T"]) -> Float32[Array, "B T S"]:
        """The weights with which each token's state attends to the encoded states (row U13).

        Raises:
            ConfigError: The decoder has no attention.
        """
        if self.score is None:
            raise ConfigError("attention_maps: this decoder has no attention")
        states = self._states(self.embedding(tokens), inputs, None)[0]
        q, k, mask = self._attended(states, inputs)
        return attention_weights(q, k, mask, score=self.score)[:, 0]

    def _states(self, x: Array, inputs: Encoded, key: Any) -> tuple[Array, Array]:
        """``s_t`` and the hidden states of all embedded tokens."""
        begin = self.first_states(inputs)
        if not self.feeds:
            states, _ = self.layers(x, None, begin, key=key)
            return states, self._hidden(states, inputs)
        fed = jnp.zeros((len(x), self.layers.size), x.dtype)
        keys = None if key is None else jax.random.split(key, x.shape[1])

        def body(carry, now):
            (token, key), (states, fed) = now, carry
            s, states = self._read(token, states, fed, key)
            fed = self._hidden(s, inputs)[:, 0]
            return (states, fed), (s[:, 0], fed)

        _, (s, found) = lax.scan(body, (begin, fed), (x.swapaxes(0, 1), keys))
        return s.swapaxes(0, 1), found.swapaxes(0, 1)

    def _read(self, x: Array, states: Any, fed: Array, key: Any = None) -> tuple[Array, Any]:
        """``s_t`` after one embedded token of each row, ``[B 1 D]``, and the layers' states."""
        x = jnp.concatenate([x, fed.astype(x.dtype)], axis=-1) if self.feeds else x
        found: tuple[Array, Any] = self.layers(x[:, None], None, states, key=key)
        return found

    def first_states(self, inputs: Encoded) -> tuple[State, ...]:
        """The states before the first token: those after the last of the source, mapped.

        Raises:
            ConfigError: The encoder does not say its last states.
        """
        if inputs.last is None:
            raise ConfigError("RecurrentDecoder: the encoder gives no last states: see Encoded")
        each, found = len(inputs.last) // self.layers.depth, []
        for i, bridge in enumerate(self.bridge):
            directions = inputs.last[i * each : (i + 1) * each]
            joined = (jnp.concatenate(one, axis=-1) for one in zip(*directions, strict=True))
            found.append(tuple(jnp.tanh(bridge(one)) for one in joined))
        return tuple(found)

    def _hidden(self, states: Array, inputs: Encoded) -> Array:
        """The hidden states of states ``[B T D]``, which attend to the encoded ones."""
        if self.mixed is None:
            return states
        q, k, mask = self._attended(states, inputs)
        read = attend(q, k, k, mask, score=self.score)[:, :, 0]
        return jnp.tanh(self.mixed(jnp.concatenate([read.astype(states.dtype), states], axis=-1)))

    @staticmethod
    def _attended(states: Array, inputs: Encoded) -> tuple[Array, Array, Any]:
        mask = None if inputs.mask is None else padding_mask(inputs.mask)
        return states[:, :, None], inputs.states[:, :, None], mask

    def output_table(self) -> OutputTable:
        """The output projection: the table of the embeddings."""
        return OutputTable(self.embedding.table[...])

    def init_cache(
        self, inputs: Encoded, rows: int, size: int, *, beams: int = 1
    ) -> RecurrentCache:
        """The past of no token.

        Args:
            inputs: Encoded states.
            rows: B, the number of sequences.
            size: Most target tokens, which the cache does not depend on.
            beams: M, hypotheses of each sequence.
        """
        del size
        spread = lambda x: jnp.broadcast_to(x[:, None], (rows, beams, x.shape[-1]))
        states = jax.tree.map(spread, self.first_states(inputs))
        fed = jnp.zeros((rows, beams, self.layers.size), inputs.states.dtype)
        return RecurrentCache(states, fed, inputs)

    def prefill(
        self,
        tokens: Int[Array, "B T"],
        cache: RecurrentCache,
        starts: Int[Array, " B"] | None = None,
    ) -> tuple[Float32[Array, "B V"], RecurrentCache]:
        """Logits of the token after each prefix, and the empty cache with the prefixes in it.

        Args:
            tokens: Prefixes, left-padded.
            cache: Made by :meth:`init_cache`.
            starts: Index of the first token of each prefix; earlier ones are padding.
        """
        beams = cache.fed.shape[1]
        starts = jnp.zeros(len(tokens), jnp.int32) if starts is None else starts

        def body(past, now):
            place, token = now
            every = jnp.repeat(token[:, None], beams, axis=1)
            _, new = self._after(every, RecurrentCache(past[0], past[1], cache.memory))
            begun = (place >= starts)[:, None, None]
            return jax.tree.map(lambda a, b: jnp.where(begun, a, b), new[:2], past), None

        steps = jnp.arange(tokens.shape[1]), tokens.T
        (states, fed), _ = lax.scan(body, (cache.states, cache.fed), steps)
        return self.output_table().logits(fed[:, 0]), RecurrentCache(states, fed, cache.memory)

    def step(
        self, tokens: Int[Array, " R"], cache: RecurrentCache
    ) -> tuple[Float32[Array, "R V"], RecurrentCache]:
        """Logits of the token after ``tokens``, one of each row, and the cache with them."""
        hidden, cache = self._after(tokens.reshape(cache.fed.shape[:2]), cache)
        return self.output_table().logits(hidden.reshape(len(tokens), -1)), cache

    def _after(self, tokens: Array, cache: RecurrentCache) -> tuple[Array, RecurrentCache]:
        """The hidden states after tokens ``[B M]``, and the cache with them."""
        B, M, _ = cache.fed.shape
        rows = lambda x: x.reshape(B * M, x.shape[-1])
        apart = lambda x: x.reshape(B, M, x.shape[-1])
        s, states = self._read(
            self.embedding(tokens.reshape(-1)), jax.tree.map(rows, cache.states), rows(cache.fed)
        )
        # The beams of a sequence attend to its encoded states as so many queries.
        hidden = self._hidden(apart(s[:, 0]), cache.memory)
        return hidden, RecurrentCache(jax.tree.map(apart, states), hidden, cache.memory)

    def reorder(self, cache: RecurrentCache, parents: Int[Array, "B M"]) -> RecurrentCache:
        """The cache in which beam ``m`` of sequence ``b`` continues beam ``parents[b, m]``."""
        pick = lambda x: jnp.take_along_axis(x, parents[:, :, None], axis=1)
        return cache._replace(states=jax.tree.map(pick, cache.states), fed=pick(cache.fed))

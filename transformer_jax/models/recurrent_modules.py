"""Recurrent translators: an encoder, and decoders with or without attention.

They compose: ``EncoderDecoder(RecurrentEncoder(...), RecurrentDecoder(...))``.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from transformer_jax.core.errors import ConfigError
from transformer_jax.functional.layers import dropout
from transformer_jax.functional.recurrent import State, reverse_texts
from transformer_jax.functional.scores import Score
from transformer_jax.models.layers.basic import Embed, Linear
from transformer_jax.models.layers.module import Module
from transformer_jax.models.layers.recurrent_layers import Recurrent
from transformer_jax.models.protocol import Encoded
from transformer_jax.models.step_decoder import WIDTH, RecurrentMemory, StepDecoder
from transformer_jax.models.transformer.models import FeatureProjection

__all__ = ["ContextDecoder", "RecurrentDecoder", "RecurrentEncoder"]


class RecurrentEncoder(Module):
    """Token embeddings and recurrent layers.

    With a :class:`.FeatureProjection` as embedding, sources are frames of features. The result
    includes the last state of every layer, with which a decoder may start. ``reverse`` reads
    each source from its last token to its first (Sutskever et al. 2014, section 3.3).
    """

    def __init__(
        self,
        embedding: Embed | FeatureProjection,
        layers: Recurrent,
        *,
        reverse: bool = False,
        dropout: float = 0.0,
    ):
        self.embedding, self.layers = embedding, layers
        self.reverse, self.dropout = reverse, dropout

    def __call__(
        self,
        source: Int[Array, "B S"] | Float[Array, "B S W"],
        source_lengths: Int[Array, " B"],
        *,
        key: Key[Array, ""] | None = None,
    ) -> Encoded:
        """Returns a vector for each source token, from the tokens before it, or on both sides.

        Args:
            source: Source tokens, or stacked frames of features.
            source_lengths: Number of tokens in each row; the rest is padding.
            key: Random key of dropout, of embeddings and between layers; None is no dropout.
        """
        keys = (None, None) if key is None else jax.random.split(key)
        x = dropout(self.embedding(source), self.dropout, keys[0])
        if self.reverse:
            x = reverse_texts(x, source_lengths)
        states, last = self.layers(x, source_lengths, key=keys[1])
        if self.reverse:
            states = reverse_texts(states, source_lengths)
        return Encoded(states, source_lengths, last)


class RecurrentDecoder(StepDecoder):
    """Recurrent layers over target tokens, with attention over the encoded states.

    ``s_t`` is the state of the last layer after token t, ``a_t`` the attended source, and the
    hidden state is ``tanh(W_c [a_t; s_t] + b_c)``. Without a score it is ``s_t``, and only the last
    encoded state is used. With input feeding, the layers read the previous hidden state in addition
    to the token (Luong et al. 2015, section 3.3), step by step; without it, all steps attend at
    once.
    """

    def __init__(
        self,
        embedding: Embed,
        layers: Recurrent,
        encoder: Recurrent,
        score: Score | None = None,
        *,
        feeds: bool = False,
        table: Embed | None = None,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        """Makes the decoder.

        Args:
            embedding: Embeddings of target tokens.
            layers: Unidirectional layers that read an embedding, and the hidden state if it
                ``feeds``.
            encoder: The encoder's layers, as many as ``layers``.
            score: A score from :func:`.make_score`; None is no attention.
            feeds: Whether the previous hidden state is fed to the layers.
            table: The output table; None shares the embedding's.
            dropout: Dropout rate of embeddings and hidden states.
            rngs: Random streams of the parameters.

        Raises:
            ConfigError: Sizes that do not fit.
        """
        size, width = layers.size, (table or embedding).table.shape[1]
        super().__init__(
            embedding,
            layers,
            encoder,
            score,
            beside=size * feeds,
            table=table,
            dropout=dropout,
            rngs=rngs,
        )
        if size != width:
            raise ConfigError(
                f"RecurrentDecoder: states have size {size}, the output table {width}"
            )
        self.feeds = feeds
        linear = lambda: Linear(encoder.outputs + size, size, WIDTH, rngs=rngs)
        self.mixed = None if score is None else linear()

    def beside(
        self, states: tuple[State, ...], hidden: Array, memory: RecurrentMemory
    ) -> Array | None:
        """Returns the previous hidden state, if it is fed."""
        return hidden if self.feeds else None

    def output(self, s: Array, beside: Array | None, x: Array, memory: RecurrentMemory) -> Array:
        """``tanh(W_c [a_t; s_t] + b_c)``."""
        if self.mixed is None:
            return s
        read = self.attended(s, memory).astype(s.dtype)
        return jnp.tanh(self.mixed(jnp.concatenate([read, s], axis=-1)))


class ContextDecoder(StepDecoder):
    """Recurrent layers that read a context along with each token, and a maxout output layer.

    With a score, the context ``c_t`` is what the state before token t attends to: Bahdanau et al.
    2015, A.1.2 and A.2.2. Without one, it is the encoder's last state at every token: Cho et al.
    2014. The hidden state is ``max(W_1 z, W_2 z)`` of ``z = [s_t; c_t; x_t]``, where ``s_t`` is the
    state after token t and ``x_t`` its embedding (Goodfellow et al. 2013, with two pieces).
    """

    def __init__(
        self,
        embedding: Embed,
        layers: Recurrent,
        encoder: Recurrent,
        score: Score | None = None,
        *,
        table: Embed | None = None,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        """Makes the decoder.

        Args:
            embedding: Embeddings of target tokens.
            layers: Unidirectional layers that read an embedding and an encoded state.
            encoder: The encoder's layers, as many as ``layers``.
            score: A score from :func:`.make_score`; None is no attention.
            table: The output table; None shares the embedding's. It sets the width of hidden
                states.
            dropout: Dropout rate of embeddings and hidden states.
            rngs: Random streams of the parameters.

        Raises:
            ConfigError: Sizes that do not fit.
        """
        super().__init__(
            embedding,
            layers,
            encoder,
            score,
            beside=encoder.outputs,
            table=table,
            dropout=dropout,
            rngs=rngs,
        )
        width = (table or embedding).table.shape[1]
        inputs = layers.size + encoder.outputs + embedding.table.shape[1]
        self.maxout = Linear(inputs, 2 * width, WIDTH, rngs=rngs)

    def beside(
        self, states: tuple[State, ...], hidden: Array, memory: RecurrentMemory
    ) -> Array | None:
        """Returns the context ``c_t``."""
        top = states[-1][0]
        if self.score is not None:
            return self.attended(top.astype(memory.states.dtype), memory)
        shape = (*top.shape[:2], memory.summary.shape[-1])
        return jnp.broadcast_to(memory.summary[:, None], shape)

    def output(self, s: Array, beside: Array | None, x: Array, memory: RecurrentMemory) -> Array:
        """``max(W_1 z, W_2 z)``."""
        assert beside is not None
        z = self.maxout(jnp.concatenate([s, beside.astype(s.dtype), x.astype(s.dtype)], axis=-1))
        return jnp.maximum(*jnp.split(z, 2, axis=-1))

    def queries(self, s: Float[Array, "B T D"], inputs: Encoded) -> Float[Array, "B T D"]:
        """Returns the state before each token."""
        first = self.first_states(inputs)[-1][0][:, None].astype(s.dtype)
        return jnp.concatenate([first, s[:, :-1]], axis=1)

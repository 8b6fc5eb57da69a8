"""Encoders: of texts in both directions, and of the sources of an encoder-decoder."""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Float32, Int, Key

from transformer_jax.core.arguments import check_values
from transformer_jax.core.errors import ConfigError
from transformer_jax.functional.layers import ACTIVATIONS
from transformer_jax.functional.masks import padding_mask
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.layers.attention import OnWeights, stack_weights
from transformer_jax.models.layers.basic import Linear
from transformer_jax.models.layers.embedding import (
    Embed,
    FeatureProjection,
    check_tokens,
    token_embedding,
)
from transformer_jax.models.layers.stack import OnHidden, Stack
from transformer_jax.models.layers.summary import Summarized
from transformer_jax.models.protocol import Encoded

__all__ = ["Encoder", "TransformerEncoder", "encode"]


def encode(
    embedding: Embed | FeatureProjection,
    stack: Stack,
    tokens: Int[Array, "B T"] | Float[Array, "B T W"],
    lengths: Int[Array, " B"] | Bool[Array, "B T"],
    segments: Int[Array, "B T"] | None = None,
    **watch: Any,
) -> Float[Array, "B T D"]:
    """Returns a contextual vector for each token, from all tokens around it; none sees padding.

    Args:
        embedding: The table of the tokens.
        stack: The encoder's blocks.
        tokens: Texts, or stacked frames of features.
        lengths: Number of non-padding tokens in each row, or a mask of them, wherever they are.
        segments: Part of the pair that each token belongs to, 0 or 1; None is 0.
        watch: ``key``, ``on_weights`` and ``on_hidden`` of :class:`.Stack`.
    """
    x = embedding(tokens) * stack.config.embedding_scale
    positions = stack.position_ids(tokens.shape[1], lengths)
    return stack(x, padding_mask(lengths), positions=positions, segments=segments, **watch)


class Encoder(Summarized):
    """Computes a contextual vector for each token, from all tokens around it.

    BERT without its heads: Devlin et al. 2019. Texts begin with [CLS], and every part ends with
    [SEP]; tokens beyond the length of a row are padding, which no token sees. Models with heads
    are subclasses, so that shared parameters have the same names in all of them.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        check_values("Encoder: ", {"config": TransformerConfig}, {"config": config})
        if config.encoder_layers < 1 or config.decoder_layers:
            raise ConfigError(
                f"encoder_layers is {config.encoder_layers} and decoder_layers "
                f"{config.decoder_layers}: an encoder-only model has at least 1 and 0"
            )
        if config.image.image_size:
            raise ConfigError(
                f"image.image_size is {config.image.image_size}: an encoder of words has 0"
            )
        self.config, D = config, config.d_model
        self.embedding = token_embedding(config, rngs)
        self.encoder = Stack(config, config.encoder_layers, decoder=False, cross=False, rngs=rngs)
        self.pooler = Linear(D, D, ("embed", None), rngs=rngs) if config.head.pooler else None

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        lengths: Int[Array, " B"] | Bool[Array, "B T"],
        token_type_ids: Int[Array, "B T"] | None = None,
        *,
        key: Key[Array, ""] | None = None,
        on_weights: tuple[OnWeights, OnWeights] | None = None,
        on_hidden: OnHidden | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns a contextual vector for each of ``tokens``.

        Args:
            tokens: The texts.
            lengths: Number of non-padding tokens in each row, or a mask of them, wherever they are.
            token_type_ids: Part of the pair that each token belongs to, 0 or 1 (rows of the segment
                table); None is 0.
            key: Random key of dropout; None is no dropout.
            on_weights: Called with the weights of each block's self-attention.
            on_hidden: Called with the first block's input and each block's output.
        """
        check_tokens(tokens)
        watch = {"key": key, "on_weights": on_weights, "on_hidden": on_hidden}
        return encode(self.embedding, self.encoder, tokens, lengths, token_type_ids, **watch)

    def pooled(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B D"]:
        """Returns a vector for each text: ``act(W h₁ + b)``, or ``h₁`` without a pooler."""
        first = hidden[:, 0]
        if self.pooler is None:
            return first
        return ACTIVATIONS[self.config.head.pooler_activation](self.pooler(first))

    def hidden_states(
        self,
        tokens: Int[Array, "B T"],
        lengths: Int[Array, " B"] | Bool[Array, "B T"],
        token_type_ids: Int[Array, "B T"] | None = None,
    ) -> Float[Array, "{self.config.encoder_layers}+1 B T D"]:
        """Returns the output of every layer for each token; layer 0 is the embeddings."""
        found: list[Array] = []
        Encoder.__call__(self, tokens, lengths, token_type_ids, on_hidden=found.append)
        return jnp.stack(found)

    def attention_maps(
        self,
        tokens: Int[Array, "B T"],
        lengths: Int[Array, " B"] | Bool[Array, "B T"],
        token_type_ids: Int[Array, "B T"] | None = None,
    ) -> Float32[Array, "L B N T T"]:
        """The attention weights of every layer and head, exact with any kernel."""
        maps: list[Array] = []
        see = lambda weights: maps.append(weights)
        Encoder.__call__(self, tokens, lengths, token_type_ids, on_weights=(see, see))
        return stack_weights(maps)


class TransformerEncoder(Summarized):
    """The encoder of Vaswani et al. 2017, section 3.1: embeddings and a stack of blocks.

    With a :class:`.FeatureProjection` as embedding, sources are frames of features.
    """

    def __init__(self, embedding: Embed | FeatureProjection, stack: Stack):
        self.embedding, self.stack = embedding, stack

    @classmethod
    def from_config(
        cls, config: TransformerConfig, *, embedding: Embed | None = None, rngs: nnx.Rngs
    ) -> "TransformerEncoder":
        """An encoder with new parameters; ``embedding`` is a table to share."""
        embedding = token_embedding(config, rngs) if embedding is None else embedding
        stack = Stack(config, config.encoder_layers, decoder=False, cross=False, rngs=rngs)
        return cls(embedding, stack)

    def __call__(
        self,
        source: Int[Array, "B S"] | Float[Array, "B S W"],
        source_lengths: Int[Array, " B"] | Bool[Array, "B S"],
        *,
        key: Key[Array, ""] | None = None,
        on_weights: tuple[OnWeights, OnWeights] | None = None,
        on_hidden: OnHidden | None = None,
    ) -> Encoded:
        """Returns a contextual vector for each source token.

        Args:
            source: Source tokens, or stacked frames of features.
            source_lengths: Number of non-padding tokens in each row, or a mask of them; no token
                attends to padding.
            key: Random key of dropout; None is no dropout.
            on_weights: Called with the weights of each block's self-attention.
            on_hidden: Called with the first block's input and each block's output.
        """
        if isinstance(self.embedding, Embed):
            check_tokens(source, "source tokens")
        watch = {"key": key, "on_weights": on_weights, "on_hidden": on_hidden}
        states = encode(self.embedding, self.stack, source, source_lengths, **watch)
        return Encoded(states, source_lengths)

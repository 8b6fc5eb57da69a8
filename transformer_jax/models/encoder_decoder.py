"""Encoder-decoders: any encoder with any decoder, and the Transformer of Vaswani et al. 2017."""

from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float, Float32, Int, Key

from transformer_jax.core.arguments import check_values
from transformer_jax.core.errors import ConfigError
from transformer_jax.functional.losses import OutputTable
from transformer_jax.functional.masks import padding_mask
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.layers.attention import stack_weights
from transformer_jax.models.layers.block import Memory
from transformer_jax.models.layers.cache import Cache
from transformer_jax.models.layers.embedding import Embed, FeatureProjection, Head, check_tokens
from transformer_jax.models.layers.parameters import at_depth, raise_depth
from transformer_jax.models.layers.stack import OnHidden, Stack
from transformer_jax.models.layers.summary import Summarized
from transformer_jax.models.protocol import Encoded

__all__ = [
    "EncoderDecoder",
    "TransformerDecoder",
    "TransformerEncoder",
    "TransformerEncoderDecoder",
]


class EncoderDecoder(Summarized):
    """A model composed of an encoder and a decoder; it is a ``Scorer`` and ``Decodable``.

    ``encoder(**inputs, key=key)`` may encode anything. It returns :class:`Encoded`, or an array of
    states if none of them is padding, as a ``VisionEncoder`` does. The decoder is a ``Scorer`` and
    ``Decodable`` whose ``inputs`` are the encoded states. A table that both use belongs to the
    decoder: pass the same module to the encoder.

    Args:
        encoder: Module that maps inputs by name to encoded states.
        decoder: Module that maps encoded states and tokens to hidden states.
        bridge: Map from the encoder's width to the decoder's, if they differ.
    """

    def __init__(self, encoder: Any, decoder: Any, bridge: Any = None):
        self.encoder, self.decoder, self.bridge = encoder, decoder, bridge
        raise_depth(decoder, encoder)

    def encoded(self, inputs: Mapping[str, Any], key: Key[Array, ""] | None = None) -> Encoded:
        """Returns the encoder's states in the form that the decoder reads."""
        output = self.encoder(**inputs, key=key)
        encoded = output if isinstance(output, Encoded) else Encoded(output, None)
        if self.bridge is None:
            return encoded
        return encoded._replace(states=self.bridge(encoded.states))

    def as_decoder(self) -> Any:
        """Returns the decoder as a separate module."""
        return self.decoder

    def hidden(
        self,
        inputs: Mapping[str, Any],
        tokens: Int[Array, "B T"],
        *,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "B T D"]:
        """The hidden state at each of ``tokens``, which are already shifted right.

        Args:
            inputs: Arguments of the encoder by name.
            tokens: Decoder inputs.
            key: Random key of dropout; None is no dropout.
        """
        keys = (None, None) if key is None else jax.random.split(key)
        encoded = self.encoded(inputs, keys[0])
        hidden: Array = self.as_decoder().hidden(encoded, tokens, key=keys[1])
        return hidden

    def logits(self, hidden: Float[Array, "*rows D"]) -> Float32[Array, "*rows V"]:
        """Logits over the vocabulary, in float32."""
        return self.output_table().logits(hidden)

    def output_table(self) -> OutputTable:
        """The output projection, for losses that never hold all logits at once."""
        table: OutputTable = self.as_decoder().output_table()
        return table

    def init_cache(self, inputs: Mapping[str, Any], rows: int, size: int, *, beams: int = 1) -> Any:
        """An empty cache for up to ``size`` tokens of ``rows`` sequences with ``beams`` beams each.

        The inputs are encoded once, here.
        """
        return self.as_decoder().init_cache(self.encoded(inputs), rows, size, beams=beams)

    def prefill(
        self, tokens: Int[Array, "B T"], cache: Any, starts: Int[Array, " B"] | None = None
    ) -> tuple[Float32[Array, "B V"], Any]:
        """Returns logits of the token after each prefix, and the cache filled with the prefixes.

        Args:
            tokens: Prefixes, left-padded.
            cache: Empty cache from :meth:`init_cache`.
            starts: Index of the first token of each prefix; earlier ones are padding.
        """
        found: tuple[Array, Any] = self.as_decoder().prefill(tokens, cache, starts)
        return found

    def step(self, tokens: Int[Array, " R"], cache: Any) -> tuple[Float32[Array, "R V"], Any]:
        """Returns logits of the token after ``tokens``, one per row, and the extended cache."""
        found: tuple[Array, Any] = self.as_decoder().step(tokens, cache)
        return found

    def reorder(self, cache: Any, parents: Int[Array, "B M"]) -> Any:
        """Returns the cache in which beam ``m`` of sequence ``b`` continues ``parents[b, m]``."""
        return self.as_decoder().reorder(cache, parents)

    def take(self, cache: Any, rows: Int[Array, " N"]) -> Any:
        """Returns the cache of the sequences ``rows``, with all their beams."""
        return self.as_decoder().take(cache, rows)


class TransformerEncoder(Summarized):
    """Token embeddings and a stack of self-attention blocks: the encoder of Vaswani et al. 2017.

    With a :class:`.FeatureProjection` as embedding, sources are frames of features.
    """

    def __init__(self, embedding: Embed | FeatureProjection, stack: Stack):
        self.embedding, self.stack = embedding, stack

    @classmethod
    def from_config(
        cls, config: TransformerConfig, *, embedding: Embed | None = None, rngs: nnx.Rngs
    ) -> "TransformerEncoder":
        """An encoder with new parameters; ``embedding`` is a table to share."""
        embedding = _embedding(config, rngs) if embedding is None else embedding
        stack = Stack(config, config.encoder_layers, decoder=False, cross=False, rngs=rngs)
        return cls(embedding, stack)

    def __call__(
        self,
        source: Int[Array, "B S"] | Float[Array, "B S W"],
        source_lengths: Int[Array, " B"] | Bool[Array, "B S"],
        *,
        key: Key[Array, ""] | None = None,
        on_weights=None,
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
        states = self.stack(
            _embedded(self.embedding, source, self.stack),
            padding_mask(source_lengths),
            positions=self.stack.position_ids(source.shape[1], source_lengths),
            key=key,
            on_weights=on_weights,
            on_hidden=on_hidden,
        )
        return Encoded(states, source_lengths)


class TransformerDecoder(Summarized):
    """A decoder with cross-attention to encoded states: Vaswani et al. 2017, section 3.1.

    It is a ``Scorer`` and ``Decodable`` whose inputs are :class:`Encoded` states of its width.
    """

    def __init__(self, embedding: Embed, stack: Stack, head: Head):
        self.embedding, self.stack, self.head = embedding, stack, head

    @classmethod
    def from_config(cls, config: TransformerConfig, *, rngs: nnx.Rngs) -> "TransformerDecoder":
        """A decoder with new parameters."""
        config = config.decoder()
        embedding = _embedding(config, rngs)
        stack = Stack(config, config.decoder_layers, decoder=True, cross=True, rngs=rngs)
        return cls(embedding, stack, Head(config, rngs=rngs))

    def hidden(
        self,
        inputs: Encoded,
        tokens: Int[Array, "B T"],
        *,
        lengths: Int[Array, " B"] | Bool[Array, "B T"] | None = None,
        key: Key[Array, ""] | None = None,
        on_weights=None,
        on_hidden: OnHidden | None = None,
    ) -> Float[Array, "B T D"]:
        """The hidden state at each token, from the tokens up to it and the encoded states.

        Args:
            inputs: Encoded states.
            tokens: Target tokens, shifted right.
            lengths: Number of non-padding tokens in each row, or a mask of them; None is all.
                Padding after the last token needs no lengths: no earlier token attends to it.
            key: Random key of dropout; None is no dropout.
            on_weights: Called with the weights of each block's self- and cross-attention.
            on_hidden: Called with the first block's input and each block's output.

        Raises:
            ConfigError: The encoded states have a different width.
        """
        self._check_width(inputs)
        return self.stack(
            self.embed(tokens),
            None if lengths is None else padding_mask(lengths),
            memory=Memory(
                inputs.states, None if inputs.mask is None else padding_mask(inputs.mask)
            ),
            key=key,
            on_weights=on_weights,
            on_hidden=on_hidden,
        )

    def _check_width(self, inputs: Encoded) -> None:
        found, wanted = inputs.states.shape[-1], self.stack.config.d_model
        if found != wanted:
            raise ConfigError(
                f"encoded states have width {found}, the decoder {wanted}: give EncoderDecoder a "
                f'bridge, such as Linear({found}, {wanted}, (None, "embed"), rngs=rngs)'
            )

    def embed(self, tokens: Int[Array, "*where"]) -> Float[Array, "*where D"]:
        """Scaled token vectors, without positions."""
        return _embedded(self.embedding, tokens, self.stack)

    def output_table(self) -> OutputTable:
        """The output projection."""
        return self.head.output_table(self.embedding)

    def init_cache(self, inputs: Encoded, rows: int, size: int, *, beams: int = 1) -> Cache:
        """An empty cache; each block's keys and values of the encoded states are computed once.

        Args:
            inputs: Encoded states.
            rows: B, the number of sequences.
            size: Largest number of target tokens.
            beams: M, the beams of each sequence.

        Raises:
            ConfigError: The encoded states have a different width.
        """
        self._check_width(inputs)
        memory, mask = inputs.states, inputs.mask
        visible = None if mask is None else padding_mask(mask).array(1, memory.shape[1])
        return self.stack.init_cache(rows, size, beams=beams, memory=memory, memory_mask=visible)

    def prefill(
        self, tokens: Int[Array, "B T"], cache: Cache, starts: Int[Array, " B"] | None = None
    ) -> tuple[Float32[Array, "B V"], Cache]:
        """Returns logits of the token after each prefix, and the cache filled with the prefixes."""
        hidden, cache = self.stack.prefill(self.embed(tokens), cache, starts)
        return self.output_table().logits(hidden), cache

    def step(self, tokens: Int[Array, " R"], cache: Cache) -> tuple[Float32[Array, "R V"], Cache]:
        """Returns logits of the token after ``tokens``, one per row, and the extended cache."""
        hidden, cache = self.stack.step(self.embed(tokens), cache)
        return self.output_table().logits(hidden), cache

    def reorder(self, cache: Cache, parents: Int[Array, "B M"]) -> Cache:
        """Returns the cache in which beam ``m`` of sequence ``b`` continues ``parents[b, m]``."""
        return cache.reorder(parents)

    def take(self, cache: Cache, rows: Int[Array, " N"]) -> Cache:
        """Returns the cache of the sequences ``rows``, with all their beams."""
        return cache.take(rows, self.stack.cache_heads)


class TransformerEncoderDecoder(EncoderDecoder):
    """The Transformer of Vaswani et al. 2017, figure 1.

    The fields are the parts of that figure: tables of tokens, a stack of blocks on each side, and
    the output head. So a parameter has the same path here, in a separate encoder or decoder, and
    in every stored checkpoint; :meth:`as_encoder` and :meth:`as_decoder` assemble the parts.
    Inputs are ``source`` and ``source_lengths``; with ``config.features``, sources are stacked
    frames of features.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        check_values(
            "TransformerEncoderDecoder: ", {"config": TransformerConfig}, {"config": config}
        )
        for side in ("encoder_layers", "decoder_layers"):
            if getattr(config, side) < 1:
                raise ConfigError(f"{side} is 0: an encoder-decoder needs at least 1 layer a side")
        self.config, decoder = config, config.decoder()
        self.embedding = _embedding(config, rngs)
        self.decoder_embedding = (
            None if config.embedding.share_encoder_decoder_embeddings else _embedding(decoder, rngs)
        )
        self.encoder = Stack(config, config.encoder_layers, decoder=False, cross=False, rngs=rngs)
        self.decoder = Stack(decoder, config.decoder_layers, decoder=True, cross=True, rngs=rngs)
        self.head = Head(decoder, rngs=rngs)
        raise_depth(self.decoder, self.encoder)

    def as_encoder(self) -> TransformerEncoder:
        """Returns the encoder as a separate module, which shares these parameters."""
        return TransformerEncoder(self.embedding, self.encoder)

    def as_decoder(self) -> TransformerDecoder:
        """Returns the decoder as a separate module, which shares these parameters."""
        own = self.decoder_embedding
        return TransformerDecoder(self.embedding if own is None else own, self.decoder, self.head)

    def encoded(self, inputs: Mapping[str, Any], key: Key[Array, ""] | None = None) -> Encoded:
        """Returns the encoder's states in the form that the decoder reads."""
        return self.as_encoder()(**inputs, key=key)

    def encode(
        self,
        source: Int[Array, "B S"] | Float[Array, "B S W"],
        source_lengths: Int[Array, " B"] | Bool[Array, "B S"],
        *,
        key: Key[Array, ""] | None = None,
        on_weights=None,
    ) -> Float[Array, "B S D"]:
        """Returns a contextual vector for each source token: see :class:`TransformerEncoder`."""
        return self.as_encoder()(source, source_lengths, key=key, on_weights=on_weights).states

    def __call__(
        self,
        source: Int[Array, "B S"] | Float[Array, "B S W"],
        target: Int[Array, "B T"],
        source_lengths: Int[Array, " B"] | Bool[Array, "B S"],
        target_lengths: Int[Array, " B"] | Bool[Array, "B T"] | None = None,
        *,
        key: Key[Array, ""] | None = None,
    ) -> Float32[Array, "B T V"]:
        """Returns logits of the token after each of ``target``, which is already shifted right.

        Args:
            source: Source tokens, or stacked frames of features.
            target: Target tokens, shifted right.
            source_lengths: Number of non-padding source tokens in each row, or a mask of them.
            target_lengths: The same for ``target``; None is all, or padding at the end.
            key: Random key of dropout; None is no dropout.
        """
        keys = (None, None) if key is None else jax.random.split(key)
        encoded = self.as_encoder()(source, source_lengths, key=keys[0])
        hidden = self.as_decoder().hidden(encoded, target, lengths=target_lengths, key=keys[1])
        return self.logits(hidden)

    def attention_maps(
        self,
        source: Int[Array, "B S"] | Float[Array, "B S W"],
        target: Int[Array, "B T"],
        source_lengths: Int[Array, " B"] | Bool[Array, "B S"],
        target_lengths: Int[Array, " B"] | Bool[Array, "B T"] | None = None,
    ) -> dict[str, Float32[Array, "L B N _ _"]]:
        """The attention weights of every layer and head: ``encoder``, ``decoder`` and ``cross``.

        They are exact whichever kernel the forward pass uses. Blocks with another mixer have only
        cross-attention.
        """
        maps: dict[str, list] = {"encoder": [], "decoder": [], "cross": []}
        to = lambda name: lambda weights: maps[name].append(weights)
        encoder = self.as_encoder()
        encoded = encoder(source, source_lengths, on_weights=(to("encoder"), to("encoder")))
        self.as_decoder().hidden(
            encoded, target, lengths=target_lengths, on_weights=(to("decoder"), to("cross"))
        )
        return {name: stack_weights(layers) for name, layers in maps.items() if layers}


def _embedding(config: TransformerConfig, rngs: nnx.Rngs) -> Any:
    """A table of tokens; scaled embeddings start at unit size, whatever the scale.

    For features it is a linear map.
    """
    if config.features.num_features:
        dtype, width = config.compute.dtype, config.d_model
        projection = FeatureProjection(config.features, width, dtype=dtype, rngs=rngs)
        at_depth(projection, 0)
        return projection
    spread = config.d_model**-0.5 if config.embedding.scale is None else 0.02
    sizes = config.vocab_size, config.d_model
    table = Embed(*sizes, scale=spread, dtype=config.compute.dtype, rngs=rngs)
    at_depth(table, 0)
    return table


def _embedded(embedding: Embed | FeatureProjection, tokens: Array, stack: Stack) -> Array:
    return embedding(tokens) * stack.config.embedding_scale

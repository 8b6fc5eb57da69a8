"""The Transformer of Vaswani et al. 2017: an encoder, and a decoder that attends to it."""

from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float, Float32, Int, Key

from transformer_jax.core.arguments import check_values
from transformer_jax.core.errors import ConfigError
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.decoder import TransformerDecoder
from transformer_jax.models.encoder import TransformerEncoder
from transformer_jax.models.layers.attention import OnWeights, stack_weights
from transformer_jax.models.layers.cache import Cache
from transformer_jax.models.layers.embedding import Embed, Head, token_embedding
from transformer_jax.models.layers.parameters import raise_depth
from transformer_jax.models.layers.stack import Stack
from transformer_jax.models.protocol import Encoded

__all__ = ["TransformerEncoderDecoder"]


class TransformerEncoderDecoder(TransformerDecoder):
    """The Transformer of Vaswani et al. 2017, figure 1: a decoder that first encodes its inputs.

    The fields are the parts of that figure: tables of tokens, a stack of blocks on each side, and
    the output head. So a parameter has the same path here, in a separate encoder or decoder, and
    in every stored checkpoint; :meth:`as_encoder` and :meth:`as_decoder` assemble the parts.
    Inputs are ``source`` and ``source_lengths``; with ``config.features``, sources are stacked
    frames of features. Any other encoder or decoder: :class:`.EncoderDecoder`.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        check_values(
            "TransformerEncoderDecoder: ", {"config": TransformerConfig}, {"config": config}
        )
        for side in ("encoder_layers", "decoder_layers"):
            if getattr(config, side) < 1:
                raise ConfigError(f"{side} is 0: an encoder-decoder needs at least 1 layer a side")
        self.config, decoder = config, config.decoder()
        self.embedding = token_embedding(config, rngs)
        shared = config.embedding.share_encoder_decoder_embeddings
        self.decoder_embedding = None if shared else token_embedding(decoder, rngs)
        self.encoder = Stack(config, config.encoder_layers, decoder=False, cross=False, rngs=rngs)
        self.decoder = Stack(decoder, config.decoder_layers, decoder=True, cross=True, rngs=rngs)
        self.head = Head(decoder, rngs=rngs)
        raise_depth(self.decoder, self.encoder)

    @classmethod
    def from_config(
        cls, config: TransformerConfig, *, rngs: nnx.Rngs
    ) -> "TransformerEncoderDecoder":
        """The model with new parameters."""
        return cls(config, rngs=rngs)

    def as_encoder(self) -> TransformerEncoder:
        """Returns the encoder as a separate module, which shares these parameters."""
        return TransformerEncoder(self.embedding, self.encoder)

    def as_decoder(self) -> TransformerDecoder:
        """Returns the decoder as a separate module, which shares these parameters."""
        return TransformerDecoder(*self.parts())

    def parts(self) -> tuple[Embed, Stack, Head]:
        """The table of the target tokens, the decoder's stack and the head."""
        own = self.decoder_embedding
        return (self.embedding if own is None else own), self.decoder, self.head

    def encode(
        self,
        source: Int[Array, "B S"] | Float[Array, "B S W"],
        source_lengths: Int[Array, " B"] | Bool[Array, "B S"],
        *,
        key: Key[Array, ""] | None = None,
        on_weights: tuple[OnWeights, OnWeights] | None = None,
    ) -> Float[Array, "B S D"]:
        """Returns a contextual vector for each source token: see :class:`TransformerEncoder`."""
        return self.as_encoder()(source, source_lengths, key=key, on_weights=on_weights).states

    def encoded(self, inputs: Mapping[str, Any], key: Key[Array, ""] | None = None) -> Encoded:
        """Returns the encoder's states in the form that the decoder reads."""
        return self.as_encoder()(**inputs, key=key)

    def hidden(  # type: ignore[override]
        self,
        inputs: Mapping[str, Any],
        tokens: Int[Array, "B T"],
        *,
        key: Key[Array, ""] | None = None,
        **watch: Any,
    ) -> Float[Array, "B T D"]:
        """The hidden state at each of ``tokens``, which are already shifted right.

        Args:
            inputs: Arguments of the encoder by name.
            tokens: Decoder inputs.
            key: Random key of dropout; None is no dropout.
            watch: ``lengths``, ``on_weights`` and ``on_hidden`` of
                :meth:`TransformerDecoder.hidden`.
        """
        keys = (None, None) if key is None else jax.random.split(key)
        encoded = self.encoded(inputs, keys[0])
        return super().hidden(encoded, tokens, key=keys[1], **watch)

    def init_cache(  # type: ignore[override]
        self, inputs: Mapping[str, Any], rows: int, size: int, *, beams: int = 1
    ) -> Cache:
        """An empty cache for up to ``size`` tokens of ``rows`` sequences with ``beams`` beams each.

        The inputs are encoded once, here.
        """
        return super().init_cache(self.encoded(inputs), rows, size, beams=beams)

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
        inputs = {"source": source, "source_lengths": source_lengths}
        return self.logits(self.hidden(inputs, target, key=key, lengths=target_lengths))

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
        inputs: dict[str, Any] = {"source": source, "source_lengths": source_lengths}
        inputs["on_weights"] = to("encoder"), to("encoder")
        self.hidden(inputs, target, lengths=target_lengths, on_weights=(to("decoder"), to("cross")))
        return {name: stack_weights(layers) for name, layers in maps.items() if layers}

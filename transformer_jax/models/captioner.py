"""Image captioning: a Vision Transformer, and a decoder that attends to its output."""

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float, Float32, Int, Key

from transformer_jax.core.errors import ConfigError
from transformer_jax.models.composed import EncoderDecoder
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.layers.basic import Linear
from transformer_jax.models.transformer.layers import Stack, stack_weights
from transformer_jax.models.transformer.models import TransformerDecoder
from transformer_jax.models.vision import VisionEncoder

__all__ = ["Captioner"]


class Captioner(EncoderDecoder):
    """An :class:`.EncoderDecoder` whose inputs are ``images`` and whose targets are texts.

    The decoder attends to the class embedding and to every patch. If the widths differ, a linear
    map, ``bridge``, projects the encoder's width to the decoder's. The parts of the decoder are
    fields, as in a :class:`.Decoder`, and their parameters have the same paths;
    :meth:`as_decoder` assembles them.

    Args:
        encoder: Configuration of the Vision Transformer.
        config: Configuration of the decoder; its ``encoder_layers`` are 0.
        rngs: Random streams of the parameters.

    Raises:
        ConfigError: The decoder has no layers, or has encoder layers.
    """

    encoder: VisionEncoder
    decoder: Stack

    def __init__(self, encoder: TransformerConfig, config: TransformerConfig, *, rngs: nnx.Rngs):
        if config.decoder_layers < 1 or config.encoder_layers:
            raise ConfigError(
                f"model.encoder_layers is {config.encoder_layers} and model.decoder_layers "
                f"{config.decoder_layers}: the decoder of a captioner has 0 and at least 1; the "
                f"encoder has its own settings"
            )
        decoder = TransformerDecoder.from_config(config, rngs=rngs)
        bridge = None
        if encoder.d_model != config.d_model:
            bridge = Linear(encoder.d_model, config.d_model, (None, "embed"), rngs=rngs)
        super().__init__(VisionEncoder(encoder, rngs=rngs), decoder.stack, bridge)
        self.embedding, self.head, self.config = decoder.embedding, decoder.head, config

    def as_decoder(self) -> TransformerDecoder:
        """Returns the decoder as a separate module, which shares these parameters."""
        return TransformerDecoder(self.embedding, self.decoder, self.head)

    def __call__(
        self,
        images: Float[Array, "B height width channels"],
        target: Int[Array, "B T"],
        source_lengths: Int[Array, " B"] | None = None,
        target_lengths: Int[Array, " B"] | Bool[Array, "B T"] | None = None,
        *,
        key: Key[Array, ""] | None = None,
    ) -> Float32[Array, "B T V"]:
        """Returns logits of the token after each of ``target``, which is already shifted right.

        Args:
            images: Pixels, normalized as in training; channels last.
            target: Target tokens, shifted right.
            source_lengths: Ignored: text encoders take it, and no patch is padding.
            target_lengths: Number of non-padding tokens in each row, or a mask of them; None is
                all.
            key: Random key of dropout; None is no dropout.
        """
        del source_lengths
        keys = (None, None) if key is None else jax.random.split(key)
        encoded = self.encoded({"images": images}, keys[0])
        hidden = self.as_decoder().hidden(encoded, target, lengths=target_lengths, key=keys[1])
        return self.logits(hidden)

    def attention_maps(
        self,
        images: Float[Array, "B height width channels"],
        target: Int[Array, "B T"],
        source_lengths: Int[Array, " B"] | None = None,
    ) -> dict[str, Float32[Array, "L B N _ _"]]:
        """The attention weights of every layer and head: ``encoder``, ``decoder`` and ``cross``.

        The columns of ``cross`` are the class embedding and the patches in line order.
        """
        del source_lengths
        maps: dict[str, list[Array]] = {"encoder": [], "decoder": [], "cross": []}
        to = lambda name: lambda weights: maps[name].append(weights)
        seen = (to("encoder"), to("encoder"))
        encoded = self.encoded({"images": images, "on_weights": seen})
        self.as_decoder().hidden(encoded, target, on_weights=(to("decoder"), to("cross")))
        return {name: stack_weights(layers) for name, layers in maps.items() if layers}

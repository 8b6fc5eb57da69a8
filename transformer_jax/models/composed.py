"""Any encoder with any decoder, such as recurrent ones or an encoder of pictures."""

from collections.abc import Mapping
from typing import Any

import jax
from jaxtyping import Array, Float, Float32, Int, Key

from transformer_jax.functional.losses import OutputTable
from transformer_jax.models.layers.module import Module
from transformer_jax.models.layers.parameters import raise_depth
from transformer_jax.models.protocol import Encoded

__all__ = ["EncoderDecoder"]


class EncoderDecoder(Module):
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

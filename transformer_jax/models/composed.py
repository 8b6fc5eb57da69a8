"""Any encoder with any decoder, such as recurrent ones or an encoder of pictures."""

from collections.abc import Mapping
from typing import cast

import jax
from flax import nnx
from jaxtyping import Array, Float, Float32, Int, Key, PyTree

from transformer_jax.functional.losses import OutputTable
from transformer_jax.models.layers.module import Module
from transformer_jax.models.layers.parameters import raise_depth
from transformer_jax.models.protocol import AnyDecoder, Encoded

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

    def __init__(self, encoder: nnx.Module, decoder: nnx.Module, bridge: nnx.Module | None = None):
        self.encoder, self.decoder, self.bridge = encoder, decoder, bridge
        raise_depth(decoder, encoder)

    def encoded(self, inputs: Mapping[str, PyTree], key: Key[Array, ""] | None = None) -> Encoded:
        """Returns the encoder's states in the form that the decoder reads."""
        output = self.encoder(**inputs, key=key)
        encoded = output if isinstance(output, Encoded) else Encoded(output, None)
        if self.bridge is None:
            return encoded
        return encoded._replace(states=self.bridge(encoded.states))

    def as_decoder(self) -> AnyDecoder:
        """Returns the decoder as a separate module."""
        return cast(AnyDecoder, self.decoder)

    def hidden(
        self,
        inputs: Mapping[str, PyTree],
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
        return self.as_decoder().hidden(encoded, tokens, key=keys[1])

    def logits(self, hidden: Float[Array, "*rows D"]) -> Float32[Array, "*rows V"]:
        """Logits over the vocabulary, in float32."""
        return self.output_table().logits(hidden)

    def output_table(self) -> OutputTable:
        """The output projection, for losses that never hold all logits at once."""
        return self.as_decoder().output_table()

    def init_cache(
        self, inputs: Mapping[str, PyTree], rows: int, size: int, *, beams: int = 1
    ) -> PyTree:
        """An empty cache for up to ``size`` tokens of ``rows`` sequences with ``beams`` beams each.

        The inputs are encoded once, here.
        """
        return self.as_decoder().init_cache(self.encoded(inputs), rows, size, beams=beams)

    def prefill(
        self, tokens: Int[Array, "B T"], cache: PyTree, starts: Int[Array, " B"] | None = None
    ) -> tuple[Float32[Array, "B V"], PyTree]:
        """Returns logits of the token after each prefix, and the cache filled with the prefixes.

        Args:
            tokens: Prefixes, left-padded.
            cache: Empty cache from :meth:`init_cache`.
            starts: Index of the first token of each prefix; earlier ones are padding.
        """
        return self.as_decoder().prefill(tokens, cache, starts)

    def step(self, tokens: Int[Array, " R"], cache: PyTree) -> tuple[Float32[Array, "R V"], PyTree]:
        """Returns logits of the token after ``tokens``, one per row, and the extended cache."""
        return self.as_decoder().step(tokens, cache)

    def reorder(self, cache: PyTree, parents: Int[Array, "B M"]) -> PyTree:
        """Returns the cache in which beam ``m`` of sequence ``b`` continues ``parents[b, m]``."""
        return self.as_decoder().reorder(cache, parents)

    def take(self, cache: PyTree, rows: Int[Array, " N"]) -> PyTree:
        """Returns the cache of the sequences ``rows``, with all their beams."""
        return self.as_decoder().take(cache, rows)

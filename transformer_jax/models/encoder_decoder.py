"""The encoder-decoder Transformer: reads one sequence, writes another."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Float32, Int, Key

from transformer_jax.config import TransformerConfig
from transformer_jax.errors import ConfigError
from transformer_jax.functional.masks import padding_mask
from transformer_jax.modules.cache import Cache
from transformer_jax.modules.head import Head, OutputTable
from transformer_jax.modules.linear import Embed
from transformer_jax.modules.parameters import at_depth, raise_depth
from transformer_jax.modules.stack import Stack

__all__ = ["EncoderDecoder"]


class EncoderDecoder(nnx.Module):
    """Scores a target sequence, token by token, given a source sequence.

    Vaswani et al. 2017, figure 1; rows L11-L16, U7-U12, B37, H9. Lengths say how many tokens of a
    row are real, or which, wherever padding stands; the others are never looked at.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        for side in ("encoder_layers", "decoder_layers"):
            if getattr(config, side) < 1:
                raise ConfigError(f"{side} is 0: an encoder-decoder needs at least 1 layer a side")
        self.config = config
        decoder, D = config.decoder(), config.d_model
        # Scaled embeddings start at unit size whatever the scale.
        spread = D**-0.5 if config.embedding.scale is None else 0.02
        self.embedding = Embed(config.vocab_size, D, scale=spread, rngs=rngs)
        shared = config.embedding.share_encoder_decoder_embeddings
        self.decoder_embedding = (
            None if shared else Embed(decoder.vocab_size, D, scale=spread, rngs=rngs)
        )
        self.encoder = Stack(config, config.encoder_layers, decoder=False, cross=False, rngs=rngs)
        self.decoder = Stack(decoder, config.decoder_layers, decoder=True, cross=True, rngs=rngs)
        self.head = Head(decoder, rngs=rngs)
        at_depth(self.embedding, 0)
        if self.decoder_embedding is not None:
            at_depth(self.decoder_embedding, 0)
        raise_depth(self.decoder, self.encoder)

    def __call__(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        source_lengths: Int[Array, " B"] | Bool[Array, "B S"],
        target_lengths: Int[Array, " B"] | Bool[Array, "B T"] | None = None,
        *,
        key: Key[Array, ""] | None = None,
    ) -> Float32[Array, "B T V"]:
        """Logits of the token that follows each of ``target``, which is already shifted right."""
        return self.logits(self.hidden(source, target, source_lengths, target_lengths, key=key))

    def hidden(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        source_lengths: Int[Array, " B"] | Bool[Array, "B S"],
        target_lengths: Int[Array, " B"] | Bool[Array, "B T"] | None = None,
        *,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "B T D"]:
        """What the head reads: the decoder's output for each of ``target``."""
        keys = (None, None) if key is None else jax.random.split(key)
        memory = self.encode(source, source_lengths, key=keys[0])
        return self.decode(
            target, memory, source_lengths, target_lengths=target_lengths, key=keys[1]
        )

    def encode(
        self,
        source: Int[Array, "B S"],
        source_lengths: Int[Array, " B"] | Bool[Array, "B S"],
        *,
        key: Key[Array, ""] | None = None,
        on_weights=None,
    ) -> Float[Array, "B S D"]:
        """A contextual vector for each source token."""
        return self.encoder(
            self.embed(source, self.embedding),
            padding_mask(source_lengths),
            positions=self.encoder.position_ids(source.shape[1], source_lengths),
            key=key,
            on_weights=on_weights,
        )

    def decode(
        self,
        target: Int[Array, "B T"],
        memory: Float[Array, "B S D"],
        source_lengths: Int[Array, " B"] | Bool[Array, "B S"],
        *,
        target_lengths: Int[Array, " B"] | Bool[Array, "B T"] | None = None,
        key: Key[Array, ""] | None = None,
        on_weights=None,
    ) -> Float[Array, "B T D"]:
        """A vector for each target token, from what stands before it and from ``memory``."""
        mask = None if target_lengths is None else padding_mask(target_lengths)
        return self.decoder(
            self.embed(target, self.target_embedding),
            mask,
            memory=memory,
            memory_mask=padding_mask(source_lengths),
            key=key,
            on_weights=on_weights,
        )

    def logits(self, hidden: Float[Array, "*rows D"]) -> Float32[Array, "*rows V"]:
        """Scores over the vocabulary, in float32."""
        return self.output_table().logits(hidden)

    def output_table(self) -> OutputTable:
        """What :meth:`logits` multiplies by, for losses that never hold all logits at once."""
        return self.head.output_table(self.target_embedding)

    def init_cache(
        self, inputs: Mapping[str, Array], rows: int, size: int, *, beams: int = 1
    ) -> Cache:
        """An empty cache for up to ``size`` tokens of ``rows`` sentences, ``beams`` of each.

        The source is encoded here, and each block's cross-attention keys and values computed,
        once.

        Args:
            inputs: ``source`` and ``source_lengths``, as in :meth:`encode`.
            rows: B, the number of sentences in ``source``.
            size: Most target tokens.
            beams: M, hypotheses of each sentence.
        """
        source = inputs["source"]
        memory = self.encode(**inputs)
        visible = padding_mask(inputs["source_lengths"]).array(1, source.shape[1])
        return self.decoder.init_cache(rows, size, beams=beams, memory=memory, memory_mask=visible)

    def prefill(
        self,
        tokens: Int[Array, "B T"],
        cache: Cache,
        starts: Int[Array, " B"] | None = None,
    ) -> tuple[Float32[Array, "B V"], Cache]:
        """Logits of the token after each target prefix, and the empty cache with the prefixes.

        Args:
            tokens: Prefixes of targets, left-padded.
            cache: Made by :meth:`init_cache`.
            starts: Index of the first token of each prefix; earlier ones are padding.
        """

        def body(cache: Cache, token: Array) -> tuple[Cache, Array]:
            hidden, cache = self.decoder.step(self.embed(token, self.target_embedding), cache)
            return cache, hidden

        rows = jnp.repeat(tokens, cache.beams, axis=0)
        cache, hidden = jax.lax.scan(body, dataclasses.replace(cache, starts=starts), rows.T)
        return self.logits(hidden[-1, :: cache.beams]), cache

    def step(self, tokens: Int[Array, " R"], cache: Cache) -> tuple[Float32[Array, "R V"], Cache]:
        """Logits of the token after ``tokens``, one of each row, and the cache with them."""
        x = self.embed(tokens, self.target_embedding)
        hidden, cache = self.decoder.step(x, cache)
        return self.logits(hidden), cache

    def reorder(self, cache: Cache, parents: Int[Array, "B M"]) -> Cache:
        """The cache in which beam ``m`` of sentence ``b`` continues beam ``parents[b, m]``."""
        return cache.reorder(parents)

    def attention_maps(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        source_lengths: Int[Array, " B"] | Bool[Array, "B S"],
        target_lengths: Int[Array, " B"] | Bool[Array, "B T"] | None = None,
    ) -> dict[str, Float32[Array, "L B N _ _"]]:
        """The weights of every layer and head: ``encoder``, ``decoder`` and ``cross`` (row U13).

        They are exact whichever kernel the forward pass runs.
        """
        maps: dict[str, list] = {"encoder": [], "decoder": [], "cross": []}
        see = lambda name: lambda weights: maps[name].append(weights)
        memory = self.encode(source, source_lengths, on_weights=(see("encoder"), see("encoder")))
        self.decode(
            target,
            memory,
            source_lengths,
            target_lengths=target_lengths,
            on_weights=(see("decoder"), see("cross")),
        )
        return {name: jnp.stack(layers) for name, layers in maps.items()}

    @property
    def target_embedding(self) -> Embed:
        """The decoder's table of token vectors."""
        return self.embedding if self.decoder_embedding is None else self.decoder_embedding

    def embed(self, tokens: Int[Array, "*where"], table: Embed) -> Float[Array, "*where D"]:
        """Scaled token vectors, without positions (rows L5, L6)."""
        return table(tokens) * self.config.embedding_scale

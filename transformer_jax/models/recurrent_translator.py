"""Recurrent translators from their configuration."""

import functools
from collections.abc import Callable

from flax import nnx
from jaxtyping import Array, Float, Float32, Int

from transformer_jax.functional.kernels.cross_entropy import LogitsStorage
from transformer_jax.models.composed import EncoderDecoder
from transformer_jax.models.layers.basic import Embed
from transformer_jax.models.layers.parameters import at_depth
from transformer_jax.models.layers.recurrent_attention import make_score
from transformer_jax.models.layers.recurrent_layers import Recurrent
from transformer_jax.models.recurrent_config import RecurrentConfig
from transformer_jax.models.recurrent_modules import (
    ContextDecoder,
    RecurrentDecoder,
    RecurrentEncoder,
)
from transformer_jax.models.transformer.models import FeatureProjection

__all__ = ["RecurrentEncoderDecoder"]

_SPREAD = 0.1  # standard deviation of embeddings; keeps the initial logits of tied tables small


class RecurrentEncoderDecoder(EncoderDecoder):
    """A translator of recurrent layers; see :class:`.RecurrentConfig`.

    With ``attention.query`` current, the decoder is a :class:`.RecurrentDecoder` (Sutskever et al.
    2014 without a score, Luong et al. 2015 with one); with previous, a :class:`.ContextDecoder`
    (Cho et al. 2014, Bahdanau et al. 2015). Inputs are ``source`` and ``source_lengths``; with
    ``config.features``, sources are stacked frames of features.
    """

    decoder: ContextDecoder | RecurrentDecoder

    def __init__(self, config: RecurrentConfig, *, rngs: nnx.Rngs):
        self.config = config
        encoder = _encoder(config, rngs)
        decoder = _decoder(config, encoder, rngs)
        if config.embedding.share_encoder_decoder_embeddings:
            encoder.embedding = decoder.embedding
        super().__init__(encoder, decoder)

    def __call__(
        self,
        source: Int[Array, "B S"] | Float[Array, "B S W"],
        target: Int[Array, "B T"],
        source_lengths: Int[Array, " B"],
    ) -> Float32[Array, "B T V"]:
        """Returns logits of the token after each of ``target``, which is already shifted right."""
        inputs = {"source": source, "source_lengths": source_lengths}
        return self.logits(self.hidden(inputs, target))

    def attention_maps(
        self,
        source: Int[Array, "B S"] | Float[Array, "B S W"],
        target: Int[Array, "B T"],
        source_lengths: Int[Array, " B"],
    ) -> dict[str, Float32[Array, "L B N _ _"]]:
        """The attention weights of the only layer and head: ``cross``.

        Raises:
            ConfigError: The decoder has no attention.
        """
        encoded = self.encoded({"source": source, "source_lengths": source_lengths})
        return {"cross": self.decoder.attention_maps(encoded, target)[None, :, None]}


def _table(rows: int, width: int, config: RecurrentConfig, rngs: nnx.Rngs) -> Embed:
    table = Embed(rows, width, scale=_SPREAD, dtype=config.compute.dtype, rngs=rngs)
    at_depth(table, 0)
    return table


def _layers(config: RecurrentConfig, inputs: int, *, both: bool, rngs: nnx.Rngs) -> Recurrent:
    return Recurrent(
        inputs,
        config.d_model,
        config.cell,
        layers=config.num_layers,
        bidirectional=both,
        dropout=config.dropout,
        truncate=config.bptt_length,
        rngs=rngs,
    )


def _encoder(config: RecurrentConfig, rngs: nnx.Rngs) -> RecurrentEncoder:
    E, features = config.embedding_size, config.features
    layers = _layers(config, E, both=config.bidirectional, rngs=rngs)
    embedding: Embed | FeatureProjection
    if features.num_features:
        embedding = FeatureProjection(features, E, dtype=config.compute.dtype, rngs=rngs)
        at_depth(embedding, 0)
    else:
        embedding = _table(config.vocab_size, E, config, rngs)
    return RecurrentEncoder(
        embedding, layers, reverse=config.reverse_source, dropout=config.dropout
    )


def _decoder(
    config: RecurrentConfig, encoder: RecurrentEncoder, rngs: nnx.Rngs
) -> ContextDecoder | RecurrentDecoder:
    V, E = config.decoder().vocab_size, config.embedding_size
    tied, name = config.head.tie_word_embeddings, config.attention.score
    layers = _layers(config, E + config.width_beside, both=False, rngs=rngs)
    score = None
    if name != "none":
        sizes = config.d_model, config.encoded_size
        score = make_score(name, *sizes, places=config.places, rngs=rngs)
    table = None if tied else _table(V, config.hidden_size, config, rngs)
    make: Callable[..., ContextDecoder | RecurrentDecoder] = ContextDecoder
    if config.attention.query != "previous":
        make = functools.partial(RecurrentDecoder, feeds=config.attention.input_feeding)
    embedding, dropout = _table(V, E, config, rngs), config.dropout
    decoder = make(
        embedding, layers, encoder.layers, score, table=table, dropout=dropout, rngs=rngs
    )
    compute = config.compute
    decoder.logits_storage = LogitsStorage(compute.logits_dtype, compute.logits_chunk)
    return decoder

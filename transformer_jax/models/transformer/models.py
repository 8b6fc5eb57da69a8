"""The Transformers of all families: encoders, decoders, and the encoder-decoder of figure 1.

Embeddings and the output head (Vaswani et al. 2017, section 3.4), encoders (BERT), decoders (GPT),
and the encoder-decoder, which is a decoder that first encodes its inputs. Their blocks are in
:mod:`.layers`. Models of other parts are in :mod:`transformer_jax.models.composed`, models with
other heads in :mod:`transformer_jax.models.heads`.

Fields are named for the checkpoints: a parameter has the same path, such as
``decoder/blocks/0/self_attention/query/kernel``, in every model that has it.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Float32, Int, Key, PyTree

from transformer_jax.core.arguments import check_values
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.functional.kernels.cross_entropy import STORAGE, LogitsStorage
from transformer_jax.functional.layers import ACTIVATIONS
from transformer_jax.functional.losses import OutputTable
from transformer_jax.functional.masks import Mask, padding_mask, segment_mask
from transformer_jax.models.config import FeatureConfig, TransformerConfig
from transformer_jax.models.layers.basic import Embed, Linear, TrainedRows, check_tokens
from transformer_jax.models.layers.cache import Cache
from transformer_jax.models.layers.module import Module
from transformer_jax.models.layers.parameters import at_depth, initial, raise_depth
from transformer_jax.models.protocol import Encoded
from transformer_jax.models.transformer.layers import (
    Memory,
    OnHidden,
    OnWeights,
    Stack,
    stack_weights,
)

__all__ = [
    "Autoregressive",
    "Decoder",
    "Encoder",
    "FeatureProjection",
    "Head",
    "RowsOfTexts",
    "TransformerDecoder",
    "TransformerEncoder",
    "TransformerEncoderDecoder",
    "check_width",
    "encode",
    "output_table",
    "source_embedding",
    "token_table",
]


# --- embeddings and the output head: section 3.4 --------------------------------------------------


class FeatureProjection(Module):
    """``x W + b`` at each position, whose frames are stacked: see ``stack_frames``."""

    def __init__(self, config: FeatureConfig, width: int, *, dtype: str, rngs: nnx.Rngs):
        self.config = config
        self.dtype = dtype  # features are rounded to it
        self.projection = Linear(config.width, width, (None, "embed"), rngs=rngs)

    def __call__(self, features: Float[Array, "B S W"]) -> Float[Array, "B S D"]:
        """Returns a vector for each position.

        Raises:
            DataError: The positions do not have the width that the model reads.
        """
        if features.shape[-1] != self.config.width:
            raise DataError(
                f"positions of width {features.shape[-1]}: this model reads {self.config.width}, "
                f"{self.config.stacked_frames} frames of {self.config.num_features} each"
            )
        return self.projection(features.astype(self.dtype))


def token_table(config: TransformerConfig, rngs: nnx.Rngs) -> Embed:
    """A new table of tokens; scaled embeddings start at unit size, whatever the scale."""
    width = config.embedding_size
    spread = width**-0.5 if config.embedding.scale is None else 0.02
    dtype = config.compute.dtype
    table = Embed(config.vocab_size, width, scale=spread, dtype=dtype, rngs=rngs)
    at_depth(table, 0)
    return table


def source_embedding(config: TransformerConfig, rngs: nnx.Rngs) -> Embed | FeatureProjection:
    """The vectors of an encoder-decoder's sources: a table of tokens, or a map of features."""
    if not config.features.num_features:
        return token_table(config, rngs)
    dtype = config.compute.dtype
    projection = FeatureProjection(config.features, config.d_model, dtype=dtype, rngs=rngs)
    at_depth(projection, 0)
    return projection


class Head(Module):
    """The parameters of the output: a table unless tied, and optionally a bias."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        compute = config.compute
        self.config = config.head
        self.logits_storage = LogitsStorage(compute.logits_dtype, compute.logits_chunk)
        V, D = config.vocab_size, config.embedding_size
        self.table: nnx.Param[Array] | None
        if config.head.tie_word_embeddings:
            self.table = None
        else:
            table = initial(jax.nn.initializers.normal(D**-0.5), rngs, (V, D))
            self.table = nnx.Param(table, axes=("vocab", "embed"))
        self.trained: TrainedRows | None = None  # trained rows, if the table is a constant
        self.bias = nnx.Param(jnp.zeros(V), axes=("vocab",)) if config.head.bias else None

    def output_table(self, embedding: Embed) -> OutputTable:
        """Returns the map to logits; a tied head uses the table of ``embedding``."""
        table, trained = self.table, self.trained
        if table is None:
            table, trained = embedding.table, embedding.trained
        bias = None if self.bias is None else self.bias[...]
        scale, softcap = self.config.scale, self.config.final_logit_softcapping
        return output_table(table[...], trained, bias, scale, softcap, self.logits_storage)


def output_table(
    table: Float[Array, "V D"],
    trained: TrainedRows | None = None,
    bias: Float[Array, " V"] | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    storage: LogitsStorage = STORAGE,
) -> OutputTable:
    """Returns the map to logits for a table, of which only some rows may be trained.

    Args:
        table: See :class:`OutputTable`.
        trained: The rows that are trained; None is all.
        bias: See :class:`OutputTable`.
        scale: See :class:`OutputTable`.
        softcap: See :class:`OutputTable`.
        storage: See :class:`OutputTable`.
    """
    rows, ids = (None, ()) if trained is None else (trained.rows[...], trained.ids)
    return OutputTable(table, bias, scale, softcap, rows, ids, storage)


# --- encoders: section 3.1 ------------------------------------------------------------------------


class RowsOfTexts(NamedTuple):
    """Rows of several texts, one after the other, which do not attend to each other."""

    segments: Int[Array, "B T"]  # the text of each token, from 1 on; 0 is padding
    positions: Int[Array, "B T"]  # its place in the text, from 0


def encode(
    embedding: Embed | FeatureProjection,
    stack: Stack,
    tokens: Int[Array, "B T"] | Float[Array, "B T W"],
    lengths: Int[Array, " B"] | Bool[Array, "B T"] | RowsOfTexts,
    segments: Int[Array, "B T"] | None = None,
    *,
    key: Key[Array, ""] | None = None,
    on_weights: tuple[OnWeights, OnWeights] | None = None,
    on_hidden: OnHidden | None = None,
) -> Float[Array, "B T D"]:
    """Returns a contextual vector for each token, from all tokens around it; none sees padding.

    Args:
        embedding: The table of the tokens.
        stack: The encoder's blocks.
        tokens: Texts, or stacked frames of features.
        lengths: Number of non-padding tokens in each row, or a mask of them, wherever they are; or
            the texts of rows that hold several.
        segments: Part of the pair that each token belongs to, 0 or 1; None is 0.
        key: Random key of dropout; None is no dropout.
        on_weights: Called with the weights of each block's self-attention.
        on_hidden: Called with the first block's input and each block's output.
    """
    x = embedding(tokens) * stack.config.embedding_scale
    positions: Int[Array, "#B T"] | None
    if isinstance(lengths, RowsOfTexts):
        mask, positions = segment_mask(lengths.segments, lengths.segments), lengths.positions
    else:
        mask, positions = padding_mask(lengths), stack.position_ids(tokens.shape[1], lengths)
    return stack(
        x,
        mask,
        positions=positions,
        segments=segments,
        key=key,
        on_weights=on_weights,
        on_hidden=on_hidden,
    )


class Encoder(Module):
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
        self.embedding = token_table(config, rngs)
        self.encoder = Stack(config, config.encoder_layers, decoder=False, cross=False, rngs=rngs)
        self.pooler = Linear(D, D, ("embed", None), rngs=rngs) if config.head.pooler else None

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        lengths: Int[Array, " B"] | Bool[Array, "B T"] | RowsOfTexts,
        token_type_ids: Int[Array, "B T"] | None = None,
        *,
        key: Key[Array, ""] | None = None,
        on_weights: tuple[OnWeights, OnWeights] | None = None,
        on_hidden: OnHidden | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns a contextual vector for each of ``tokens``.

        Args:
            tokens: The texts.
            lengths: Number of non-padding tokens in each row, or a mask of them, wherever they are;
                or the texts of rows that hold several.
            token_type_ids: Part of the pair that each token belongs to, 0 or 1 (rows of the segment
                table); None is 0.
            key: Random key of dropout; None is no dropout.
            on_weights: Called with the weights of each block's self-attention.
            on_hidden: Called with the first block's input and each block's output.
        """
        check_tokens(tokens)
        return encode(
            self.embedding,
            self.encoder,
            tokens,
            lengths,
            token_type_ids,
            key=key,
            on_weights=on_weights,
            on_hidden=on_hidden,
        )

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


class TransformerEncoder(Module):
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
        table = source_embedding(config, rngs) if embedding is None else embedding
        stack = Stack(config, config.encoder_layers, decoder=False, cross=False, rngs=rngs)
        return cls(table, stack)

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
        states = encode(
            self.embedding,
            self.stack,
            source,
            source_lengths,
            key=key,
            on_weights=on_weights,
            on_hidden=on_hidden,
        )
        return Encoded(states, source_lengths)


# --- decoders: section 3.1 ------------------------------------------------------------------------


class Autoregressive(Module):
    """The common part of decoders: a table of tokens, a stack of blocks, a head, and a cache.

    It is ``Decodable`` with ``init_cache``, and a ``Scorer`` with ``hidden``, which subclasses
    have. They keep the :meth:`parts` under the names of their checkpoints.
    """

    def parts(self) -> tuple[Embed, Stack, Head]:
        """The table of the tokens, the stack and the head."""
        raise NotImplementedError

    def embed(self, tokens: Int[Array, "*where"]) -> Float[Array, "*where D"]:
        """Scaled token vectors, without positions: section 3.4."""
        table, stack, _ = self.parts()
        return table(tokens) * stack.config.embedding_scale

    def output_table(self) -> OutputTable:
        """The output projection, for losses that never hold all logits at once."""
        table, _, head = self.parts()
        return head.output_table(table)

    def logits(self, hidden: Float[Array, "*rows D"]) -> Float32[Array, "*rows V"]:
        """Scores over the vocabulary, in float32."""
        return self.output_table().logits(hidden)

    def prefill(
        self, tokens: Int[Array, "B T"], cache: Cache, starts: Int[Array, " B"] | None = None
    ) -> tuple[Float32[Array, "B V"], Cache]:
        """Returns logits of the token after each prompt, and the cache filled with the prompts.

        Args:
            tokens: Prompts, left-padded.
            cache: Empty cache from ``init_cache``.
            starts: Index of the first token of each prompt; earlier ones are padding.
        """
        _, stack, _ = self.parts()
        hidden, cache = stack.prefill(self.embed(tokens), cache, starts)
        return self.logits(hidden), cache

    def step(self, tokens: Int[Array, " R"], cache: Cache) -> tuple[Float32[Array, "R V"], Cache]:
        """Returns logits of the token after ``tokens``, one per row, and the extended cache."""
        _, stack, _ = self.parts()
        hidden, cache = stack.step(self.embed(tokens), cache)
        return self.logits(hidden), cache

    def reorder(self, cache: Cache, parents: Int[Array, "B M"]) -> Cache:
        """Returns the cache in which beam ``m`` of text ``b`` continues beam ``parents[b, m]``."""
        return cache.reorder(parents)

    def take(self, cache: Cache, rows: Int[Array, " N"]) -> Cache:
        """Returns the cache of the texts ``rows``, with all their beams."""
        _, stack, _ = self.parts()
        return cache.take(rows, stack.cache_heads)


class Decoder(Autoregressive):
    """A language model: scores each token of a text, given the tokens before it.

    ``Y = softmax(X̃ W^(p))`` at every position, each of which sees only earlier ones. The last
    tokens of a row may be padding: no token before them sees them. Radford et al. 2018.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        check_values("Decoder: ", {"config": TransformerConfig}, {"config": config})
        if config.decoder_layers < 1 or config.encoder_layers:
            raise ConfigError(
                f"encoder_layers is {config.encoder_layers} and decoder_layers "
                f"{config.decoder_layers}: a decoder-only model has 0 and at least 1"
            )
        self.config = config = config.decoder()
        self.embedding = token_table(config, rngs)
        self.decoder = Stack(config, config.decoder_layers, decoder=True, cross=False, rngs=rngs)
        self.head = Head(config, rngs=rngs)

    def parts(self) -> tuple[Embed, Stack, Head]:
        """The table of the tokens, the stack and the head."""
        return self.embedding, self.decoder, self.head

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        segment_ids: Int[Array, "B T"] | None = None,
        positions: Int[Array, "B T"] | None = None,
        *,
        key: Key[Array, ""] | None = None,
    ) -> Float32[Array, "B T V"]:
        """Returns logits of the token after each of ``tokens``."""
        inputs = {"segment_ids": segment_ids, "positions": positions}
        return self.logits(self.hidden(inputs, tokens, key=key))

    def hidden(
        self,
        inputs: Mapping[str, Int[Array, "B T"] | None] | None,
        tokens: Int[Array, "B T"],
        *,
        key: Key[Array, ""] | None = None,
        on_weights: tuple[OnWeights, OnWeights] | None = None,
        on_hidden: OnHidden | None = None,
    ) -> Float[Array, "B T D"]:
        """The hidden state at each of ``tokens``.

        Args:
            inputs: For rows that hold several texts: ``segment_ids``, the text that each token
                belongs to (0 is padding), and ``positions`` within each text. Texts do not attend
                to each other. Without ``inputs``, or without either of them, each row is one text.
            tokens: The text.
            key: Random key of dropout; None is no dropout.
            on_weights: Called with the weights of each block's self-attention.
            on_hidden: Called with the first block's input and each block's output.
        """
        check_tokens(tokens)
        given = inputs or {}
        ids, positions = given.get("segment_ids"), given.get("positions")
        mask = None if ids is None else Mask(q_segments=ids, kv_segments=ids)
        return self.decoder(
            self.embed(tokens),
            mask,
            positions=positions,
            key=key,
            on_weights=on_weights,
            on_hidden=on_hidden,
        )

    def init_cache(self, inputs: None, rows: int, size: int, *, beams: int = 1) -> Cache:
        """An empty cache for up to ``size`` tokens of ``rows`` texts with ``beams`` beams each."""
        del inputs  # a language model has no condition
        return self.decoder.init_cache(rows, size, beams=beams)

    def prefill_more(
        self, tokens: Int[Array, "B T"], count: Int[Array, ""], cache: Cache
    ) -> tuple[Float32[Array, "B V"], Cache]:
        """Returns logits of the token after ``count`` more tokens per row, and the extended cache.

        Args:
            tokens: The next tokens of each row; from ``count`` on they are padding.
            count: Number of non-padding tokens in each row, at least 1.
            cache: With room for ``T`` tokens; for a single beam and attention only.
        """
        B, T = tokens.shape
        before = cache.length
        hidden, cache = self.decoder.step(self.embed(tokens.reshape(-1)), cache)
        last = hidden.reshape(B, T, -1)[:, count - 1]
        return self.logits(last), cache.truncate(before + count)

    def extend(
        self, tokens: Int[Array, "B T"], cache: Cache
    ) -> tuple[Float32[Array, "B T V"], Cache]:
        """Returns logits after each of ``T`` more tokens per row, and the extended cache.

        Equivalent to ``T`` steps with a cache without beams.
        """
        B, T = tokens.shape
        hidden, cache = self.decoder.step(self.embed(tokens.reshape(-1)), cache)
        return self.logits(hidden.reshape(B, T, -1)), cache

    def attention_maps(
        self,
        tokens: Int[Array, "B T"],
        segment_ids: Int[Array, "B T"] | None = None,
        positions: Int[Array, "B T"] | None = None,
    ) -> Float32[Array, "L B N T T"]:
        """The attention weights of every layer and head, exact with any kernel."""
        maps: list[Array] = []
        see = lambda weights: maps.append(weights)
        inputs = {"segment_ids": segment_ids, "positions": positions}
        self.hidden(inputs, tokens, on_weights=(see, see))
        return stack_weights(maps)


class TransformerDecoder(Autoregressive):
    """A decoder with cross-attention to encoded states: Vaswani et al. 2017, section 3.1.

    It is a ``Scorer`` and ``Decodable`` whose inputs are :class:`Encoded` states of its width.
    """

    def __init__(self, embedding: Embed, stack: Stack, head: Head):
        self.embedding, self.stack, self.head = embedding, stack, head

    @classmethod
    def from_config(cls, config: TransformerConfig, *, rngs: nnx.Rngs) -> "TransformerDecoder":
        """A decoder with new parameters."""
        config = config.decoder()
        embedding = token_table(config, rngs)
        stack = Stack(config, config.decoder_layers, decoder=True, cross=True, rngs=rngs)
        return cls(embedding, stack, Head(config, rngs=rngs))

    def parts(self) -> tuple[Embed, Stack, Head]:
        """The table of the tokens, the stack and the head."""
        return self.embedding, self.stack, self.head

    def hidden(
        self,
        inputs: Encoded,
        tokens: Int[Array, "B T"],
        *,
        lengths: Int[Array, " B"] | Bool[Array, "B T"] | None = None,
        key: Key[Array, ""] | None = None,
        on_weights: tuple[OnWeights, OnWeights] | None = None,
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
        _, stack, _ = self.parts()
        check_width(inputs, stack)
        padding = lambda lengths: None if lengths is None else padding_mask(lengths)
        return stack(
            self.embed(tokens),
            padding(lengths),
            memory=Memory(inputs.states, padding(inputs.mask)),
            key=key,
            on_weights=on_weights,
            on_hidden=on_hidden,
        )

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
        _, stack, _ = self.parts()
        check_width(inputs, stack)
        memory, mask = inputs.states, inputs.mask
        visible = None if mask is None else padding_mask(mask).array(1, memory.shape[1])
        return stack.init_cache(rows, size, beams=beams, memory=memory, memory_mask=visible)


def check_width(inputs: Encoded, stack: Stack) -> None:
    """Refuses encoded states of another width than the decoder's."""
    given, needed = inputs.states.shape[-1], stack.config.d_model
    if given != needed:
        raise ConfigError(
            f"encoded states have width {given}, the decoder {needed}: give EncoderDecoder a "
            f'bridge, such as Linear({given}, {needed}, (None, "embed"), rngs=rngs)'
        )


# --- the encoder-decoder: figure 1 ----------------------------------------------------------------


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
        self.embedding = source_embedding(config, rngs)  # type: ignore[assignment]
        shared = config.embedding.share_encoder_decoder_embeddings
        self.decoder_embedding = None if shared else token_table(decoder, rngs)
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
        table = self.embedding if self.decoder_embedding is None else self.decoder_embedding
        assert isinstance(table, Embed), "features are not embedded like target tokens"
        return table, self.decoder, self.head

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

    def encoded(self, inputs: Mapping[str, PyTree], key: Key[Array, ""] | None = None) -> Encoded:
        """Returns the encoder's states in the form that the decoder reads."""
        return self.as_encoder()(**inputs, key=key)

    def hidden(  # type: ignore[override]
        self,
        inputs: Mapping[str, PyTree],
        tokens: Int[Array, "B T"],
        *,
        key: Key[Array, ""] | None = None,
        lengths: Int[Array, " B"] | None = None,
        on_weights: tuple[OnWeights, OnWeights] | None = None,
        on_hidden: OnHidden | None = None,
    ) -> Float[Array, "B T D"]:
        """The hidden state at each of ``tokens``, which are already shifted right.

        Args:
            inputs: Arguments of the encoder by name.
            tokens: Decoder inputs.
            key: Random key of dropout; None is no dropout.
            lengths: See :meth:`TransformerDecoder.hidden`.
            on_weights: Called with the weights of each block.
            on_hidden: Called with the first block's input and each block's output.
        """
        keys = (None, None) if key is None else jax.random.split(key)
        encoded = self.encoded(inputs, keys[0])
        return super().hidden(
            encoded,
            tokens,
            lengths=lengths,
            key=keys[1],
            on_weights=on_weights,
            on_hidden=on_hidden,
        )

    def init_cache(  # type: ignore[override]
        self, inputs: Mapping[str, PyTree], rows: int, size: int, *, beams: int = 1
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
        maps: dict[str, list[Array]] = {"encoder": [], "decoder": [], "cross": []}
        to = lambda name: lambda weights: maps[name].append(weights)
        inputs: dict[str, PyTree] = {"source": source, "source_lengths": source_lengths}
        inputs["on_weights"] = to("encoder"), to("encoder")
        self.hidden(inputs, target, lengths=target_lengths, on_weights=(to("decoder"), to("cross")))
        return {name: stack_weights(layers) for name, layers in maps.items() if layers}

"""The configuration of a model: frozen dataclasses in small groups.

One set of fields covers Vaswani et al. 2017, BERT, RoBERTa, ELECTRA, DistilBERT, GPT-2, BART,
Marian, T5, ViT and Llama; model code depends on fields, never on a model's name.
"""

import dataclasses
import math
from typing import Literal

__all__ = [
    "AttentionConfig",
    "ComputeConfig",
    "EmbeddingConfig",
    "FeedForwardConfig",
    "HeadConfig",
    "ImageConfig",
    "NormConfig",
    "PositionConfig",
    "ScoreConfig",
    "TransformerConfig",
]

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "tanh"]


@dataclasses.dataclass(frozen=True)
class EmbeddingConfig:
    """Tokens to vectors."""

    scale: float | None = (
        None  # multiplies token embeddings; None is the square root of their width
    )
    layernorm_embedding: bool = False  # a norm after the sum of embeddings (BERT, BART)
    type_vocab_size: int = 0  # rows of a segment (token type) table; 0 is none
    share_encoder_decoder_embeddings: bool = True  # encoder and decoder read one table
    embedding_size: int | None = (
        None  # E, of all tables; a linear map leads to the model's (ELECTRA)
    )
    dropout: float = 0.1


@dataclasses.dataclass(frozen=True)
class PositionConfig:
    """How order is told."""

    kind: Literal[
        "none", "learned", "sinusoidal", "sinusoidal_halves", "rope", "alibi", "relative"
    ] = "sinusoidal"
    max_length: int = 1024  # longest sequence; rows of a learned table, less the offset
    offset: int = 0  # first row of the learned table in use (BART 2)
    skip_padding: bool = False  # positions count valid tokens only (RoBERTa)
    rope_theta: float = 10_000.0
    rope_dim: int | None = None  # the first dimensions of a head that turn; None is all
    rope_scaling: tuple[float, float, float, int] | None = None  # factor, low, high, old length
    rope_yarn: tuple[float, float, float, int, bool] | None = None  # see yarn_frequencies
    rope_dynamic: tuple[float, int] | None = None  # NTK factor, old length; see dynamic_base
    rope_short_factor: tuple[float, ...] = ()  # LongRoPE: divides the frequency of each pair
    rope_long_factor: tuple[
        float, ...
    ] = ()  # the same where max_length is above rope_original_max_length
    rope_original_max_length: int | None = None
    rope_attention_factor: float = 1.0  # of turned queries and keys (YaRN, LongRoPE)
    rope_interpolation: float = 1.0  # positions are divided by it, for texts longer by it
    num_buckets: int = 32  # of relative distances (T5)
    max_distance: int = 128  # beyond which all distances share a bucket (T5)

    @property
    def bounded(self) -> bool:
        """Whether max_length is part of what is computed, so that no text can be longer.

        A table has so many rows, be it learned or of sinusoids, and the angles of dynamic NTK and
        LongRoPE follow from the length of the context.
        """
        depends = self.rope_method in ("rope_dynamic", "rope_short_factor")
        table = self.kind == "learned" or self.kind.startswith("sinusoidal")
        return table or (self.kind == "rope" and depends)

    @property
    def rope_method(self) -> str | None:
        """Name of the field that changes the angles of plain RoPE, if there is one."""
        return next(iter(self.rope_methods), None)

    @property
    def rope_methods(self) -> tuple[str, ...]:
        """Names of all such fields that are set; a valid configuration has at most one."""
        return tuple(name for name in _ROPE_METHODS if getattr(self, name))


_ROPE_METHODS = ("rope_scaling", "rope_yarn", "rope_dynamic", "rope_short_factor")


@dataclasses.dataclass(frozen=True)
class AttentionConfig:
    """Projections to queries, keys and values, and back."""

    num_heads: int = 8  # N
    num_kv_heads: int | None = None  # K; None is as many as heads
    head_dim: int | None = None  # H; None is width / heads
    value_dim: int | None = None  # U; None is head_dim
    bias: bool = True  # on the query, key and value projections
    out_bias: bool = True
    qk_norm: bool = False  # a norm on each query and key head (Qwen 3)
    dropout: float = 0.0  # of attention weights
    implementation: Literal["auto", "xla", "chunked", "cudnn", "splash"] = "auto"


@dataclasses.dataclass(frozen=True)
class ScoreConfig:
    """How queries and keys make scores, and which keys are in reach."""

    scale: float | None = None  # None is head_dim ** -0.5 (T5: 1)
    attn_logit_softcapping: float | None = None  # scores become softcap * tanh(scores / softcap)
    sliding_window: int | None = None  # keys fewer than this many steps away are in reach
    sliding_window_every: int = 1  # layer i has the window if i is a multiple (Gemma 2: 2)
    sliding_window_layers: tuple[int, ...] | None = (
        None  # or: the layers that have it, from 0 (Qwen 2)
    )

    def window_of(self, layer: int) -> int | None:
        """How far layer ``layer`` looks; None is as far as there are keys.

        Example:
            >>> scores = ScoreConfig(sliding_window=8, sliding_window_layers=(1, 2))
            >>> [scores.window_of(i) for i in range(4)]
            [None, 8, 8, None]
        """
        layers = self.sliding_window_layers
        local = layer % self.sliding_window_every == 0 if layers is None else layer in layers
        return self.sliding_window if local else None


@dataclasses.dataclass(frozen=True)
class FeedForwardConfig:
    """Two linear maps with a non-linearity between, at every position alike."""

    d_ff: int = 2048  # F
    activation: Activation = "relu"
    gated: bool = False  # activation(x W) * (x V) instead of activation(x W)
    bias: bool = True
    activation_dropout: float = 0.0  # of the hidden layer


@dataclasses.dataclass(frozen=True)
class NormConfig:
    """Normalisation of the residual stream."""

    kind: Literal["layer", "rms"] = "layer"
    placement: Literal["post", "pre", "sandwich"] = "post"
    eps: float = 1e-5
    gain_offset: float = 0.0  # the gain is this plus the parameter (Gemma: 1)
    bias: bool = True  # of layer norm
    final: bool | None = None  # a norm after the last block; None is: wherever norms come before
    residual_dropout: float = 0.1  # of each sub-layer's output, before it joins the residual stream


@dataclasses.dataclass(frozen=True)
class HeadConfig:
    """Vectors to scores over the vocabulary."""

    tie_word_embeddings: bool = True  # the output matrix is the embedding table
    bias: bool = False
    scale: float = 1.0  # of the vectors, before the product (T5 1.0: width ** -0.5)
    final_logit_softcapping: float | None = None  # of the scores (Gemma 2)
    mlm_transform: bool = False  # a linear map, an activation and a norm come first (BERT);
    mlm_transform_activation: Activation | None = None  # None is that of the feed-forward
    pooler: bool = False  # a linear map of the first vector stands for a whole text (BERT),
    pooler_activation: Activation = "tanh"  # after this (DistilBERT: relu)


@dataclasses.dataclass(frozen=True)
class ImageConfig:
    """Images as sequences: a vector for the whole comes first, then one for each patch (ViT)."""

    image_size: int = 0  # pixels along each side; 0 is a model of words, not of images
    patch_size: int = 16  # pixels along each side of a patch
    num_channels: int = 3

    @property
    def sequence_length(self) -> int:
        """The length of the sequence."""
        return 1 + (self.image_size // self.patch_size) ** 2


@dataclasses.dataclass(frozen=True)
class ComputeConfig:
    """How it is computed, which changes no result beyond rounding."""

    dtype: Literal["float32", "bfloat16"] = "float32"  # of products; parameters stay float32
    scan_layers: bool = False  # one compiled block run L times: quick to compile, slower on CPU
    remat: bool = False  # recompute activations in the backward pass: less memory, more time


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """A Transformer; the defaults are Vaswani et al. 2017, base size."""

    vocab_size: int = (
        37_000  # V; training sets it to the size of the tokenizer; 0 if images are read
    )
    d_model: int = 512  # D
    encoder_layers: int = 6  # L
    decoder_layers: int = 6  # L
    decoder_vocab_size: int | None = None  # None is the encoder's
    decoder_attention_heads: int | None = None  # None is the encoder's
    decoder_ffn_dim: int | None = None  # None is the encoder's
    embedding: EmbeddingConfig = EmbeddingConfig()
    positions: PositionConfig = PositionConfig()
    attention: AttentionConfig = AttentionConfig()
    scores: ScoreConfig = ScoreConfig()
    feed_forward: FeedForwardConfig = FeedForwardConfig()
    norm: NormConfig = NormConfig()
    head: HeadConfig = HeadConfig()
    image: ImageConfig = ImageConfig()
    compute: ComputeConfig = ComputeConfig()

    def __post_init__(self) -> None:
        from transformer_jax.config_checks import check

        check(self)

    @property
    def embedding_scale(self) -> float:
        """What token embeddings are multiplied by."""
        scale = self.embedding.scale
        return math.sqrt(self.embedding_size) if scale is None else scale

    @property
    def embedding_size(self) -> int:
        """E, the size of the vectors in tables; the model's unless they are projected."""
        return self.embedding.embedding_size or self.d_model

    @property
    def head_dim(self) -> int:
        """H, the size of a query head."""
        return self.attention.head_dim or self.d_model // self.attention.num_heads

    @property
    def final_norm(self) -> bool:
        """Whether a norm follows the last block."""
        final = self.norm.final
        return self.norm.placement != "post" if final is None else final

    def decoder(self) -> "TransformerConfig":
        """The same, as the decoder's stack sees it: its own heads, feed-forward and vocabulary."""
        attention = dataclasses.replace(
            self.attention, num_heads=self.decoder_attention_heads or self.attention.num_heads
        )
        feed_forward = dataclasses.replace(
            self.feed_forward, d_ff=self.decoder_ffn_dim or self.feed_forward.d_ff
        )
        return dataclasses.replace(
            self,
            vocab_size=self.decoder_vocab_size or self.vocab_size,
            attention=attention,
            feed_forward=feed_forward,
            decoder_vocab_size=None,
            decoder_attention_heads=None,
            decoder_ffn_dim=None,
        )

"""The configuration of a model: frozen dataclasses in small groups.

One set of fields covers Vaswani et al. 2017, BERT, RoBERTa, ELECTRA, DistilBERT, GPT-2, BART,
Marian, T5, ViT and Llama; model code depends on fields, never on a model's name.
"""

import dataclasses
import math
from typing import Annotated, Literal

from transformer_jax.config_fields import Configuration, Count, NotNegative, Positive, Range, Rate

__all__ = [
    "AttentionConfig",
    "CellName",
    "ComputeConfig",
    "EmbeddingConfig",
    "FeatureConfig",
    "FeedForwardConfig",
    "HeadConfig",
    "ImageConfig",
    "MixerConfig",
    "NormConfig",
    "PositionConfig",
    "ScoreConfig",
    "TransformerConfig",
]

CellName = Literal["tanh", "relu", "lstm", "gru", "gru_reset_after"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "tanh"]


@dataclasses.dataclass(frozen=True)
class EmbeddingConfig(Configuration, group="embedding"):
    """Tokens to vectors."""

    # Factor of token embeddings; None is sqrt(embedding_size).
    scale: Annotated[float, Range()] | None = None
    layernorm_embedding: bool = False  # normalize the sum of embeddings (BERT, BART)
    type_vocab_size: Annotated[int, Range(0, 1 << 20)] = 0  # token types (segments); 0 is no table
    share_encoder_decoder_embeddings: bool = True  # one table for encoder and decoder
    # E; a linear map projects to d_model (ELECTRA).
    embedding_size: Annotated[int, Range(1, 1 << 20)] | None = None
    dropout: Rate = 0.1
    init: str | None = None  # word vectors that training begins with: a file of word2vec


@dataclasses.dataclass(frozen=True)
class PositionConfig(Configuration, group="positions"):
    """Position information: a table, RoPE, ALiBi or relative position biases."""

    kind: Literal[
        "none", "learned", "sinusoidal", "sinusoidal_halves", "rope", "alibi", "relative"
    ] = "sinusoidal"
    # Longest sequence; rows of a learned table minus the offset.
    max_length: Annotated[int, Range(1, 1 << 30)] = 1024
    offset: Annotated[int, Range(0, 1 << 20)] = 0  # first row of the learned table in use (BART 2)
    skip_padding: bool = False  # positions count non-padding tokens only (RoBERTa)
    rope_theta: Positive = 10_000.0
    rope_dim: Count | None = None  # rotary dimensions, the first of a head; None is all
    # Llama 3.1: factor, low and high frequency factors, original length.
    rope_scaling: tuple[float, float, float, int] | None = None
    rope_yarn: tuple[float, float, float, int, bool] | None = None  # yarn_frequencies
    rope_dynamic: tuple[float, int] | None = None  # NTK factor, length: dynamic_base
    # LongRoPE: divisors of the frequency of each pair, for contexts up to
    # rope_original_max_length and beyond it.
    rope_short_factor: tuple[float, ...] = ()
    rope_long_factor: tuple[float, ...] = ()
    rope_original_max_length: Count | None = None
    rope_attention_factor: Positive = 1.0  # factor of rotated queries and keys (YaRN, LongRoPE)
    rope_interpolation: Annotated[float, Range(1)] = (
        1.0  # positions are divided by it (position interpolation)
    )
    num_buckets: Annotated[int, Range(1, 1 << 20)] = 32  # of relative distances (T5)
    # Larger distances share the last bucket (T5).
    max_distance: Annotated[int, Range(1, 1 << 30)] = 128

    @property
    def bounded(self) -> bool:
        """Returns whether no sequence may exceed ``max_length``.

        A learned or sinusoidal table has that many rows, and the angles of dynamic NTK and
        LongRoPE depend on it.
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
class AttentionConfig(Configuration, group="attention"):
    """Multi-head attention."""

    num_heads: Annotated[int, Range(1, 1 << 14)] = 8  # N
    # K; None is num_heads, fewer is GQA.
    num_kv_heads: Annotated[int, Range(1, 1 << 14)] | None = None
    head_dim: Annotated[int, Range(1, 1 << 16)] | None = None  # H; None is d_model / num_heads
    value_dim: Annotated[int, Range(1, 1 << 16)] | None = None  # U; None is head_dim
    bias: bool = True  # of the query, key and value projections
    out_bias: bool = True
    qk_norm: bool = False  # normalize each query and key head (Qwen 3)
    dropout: Rate = 0.0  # of attention weights
    implementation: Literal["auto", "xla", "chunked", "cudnn", "splash", "ring"] = "auto"


@dataclasses.dataclass(frozen=True)
class ScoreConfig(Configuration, group="scores"):
    """Attention scores and sliding windows."""

    scale: Annotated[float, Range()] | None = None  # None is head_dim ** -0.5 (T5: 1)
    attn_logit_softcapping: Positive | None = None  # cap * tanh(scores / cap)
    sliding_window: Count | None = None  # visible keys are fewer than this many tokens away
    sliding_window_every: Count = 1  # layers i * every have the window (Gemma 2: 2)
    sliding_window_layers: tuple[int, ...] | None = None  # or these layers, from 0 (Qwen 2)

    def window_of(self, layer: int) -> int | None:
        """Sliding window of a layer; None is full attention.

        Example:
            >>> scores = ScoreConfig(sliding_window=8, sliding_window_layers=(1, 2))
            >>> [scores.window_of(i) for i in range(4)]
            [None, 8, 8, None]
        """
        layers = self.sliding_window_layers
        local = layer % self.sliding_window_every == 0 if layers is None else layer in layers
        return self.sliding_window if local else None


@dataclasses.dataclass(frozen=True)
class MixerConfig(Configuration, group="mixer"):
    """What mixes the positions of a block; restricted attention is ``scores.sliding_window``."""

    kind: Literal["attention", "recurrent", "convolution"] = "attention"
    cell: CellName = "lstm"  # of recurrent; an encoder's reads in both directions
    kernel_size: Annotated[int, Range(1, 1 << 16)] = 3  # of convolution, positions
    # Of convolution: those of the layers, over and over.
    dilations: tuple[Annotated[int, Range(1, 1 << 16)], ...] = (1,)


@dataclasses.dataclass(frozen=True)
class FeedForwardConfig(Configuration, group="feed_forward"):
    """Position-wise feed-forward network."""

    # F; 0 is no such sub-layer, where the mixer is not attention.
    d_ff: Annotated[int, Range(0, 1 << 22)] = 2048
    activation: Activation = "relu"
    gated: bool = False  # activation(x W) * (x V) instead of activation(x W)
    bias: bool = True
    activation_dropout: Rate = 0.0  # dropout of the hidden activations


@dataclasses.dataclass(frozen=True)
class NormConfig(Configuration, group="norm"):
    """Normalization of the residual stream."""

    kind: Literal["layer", "rms"] = "layer"
    placement: Literal["post", "pre", "sandwich"] = "post"
    eps: NotNegative = 1e-5
    gain_offset: Annotated[float, Range()] = 0.0  # the gain is this plus the parameter (Gemma: 1)
    bias: bool = True  # of layer norm
    final: bool | None = None  # a norm after the last block; None: unless post-norm
    residual_dropout: Rate = 0.1  # of each sub-layer's output, before the residual sum


@dataclasses.dataclass(frozen=True)
class HeadConfig(Configuration, group="head"):
    """Output head: hidden states to logits."""

    tie_word_embeddings: bool = True  # the output matrix is the embedding table
    bias: bool = False
    scale: Annotated[float, Range()] = 1.0  # factor of hidden states (T5 1.0: d_model ** -0.5)
    final_logit_softcapping: Positive | None = None  # cap * tanh(logits / cap) (Gemma 2)
    mlm_transform: bool = False  # dense, activation, norm before the logits (BERT)
    mlm_transform_activation: Activation | None = None  # None is feed_forward.activation
    pooler: bool = False  # dense layer on the first hidden state (BERT),
    pooler_activation: Activation = "tanh"  # followed by this (DistilBERT: relu)


@dataclasses.dataclass(frozen=True)
class ImageConfig(Configuration, group="image"):
    """Images as sequences of a class embedding and patch embeddings (ViT)."""

    image_size: Annotated[int, Range(0, 1 << 16)] = 0  # pixels along each side; 0 is a text model
    patch_size: Annotated[int, Range(1, 1 << 16)] = 16  # pixels along each side of a patch
    num_channels: Annotated[int, Range(1, 1 << 16)] = 3

    @property
    def sequence_length(self) -> int:
        """Length of the sequence: the class embedding and all patches."""
        return 1 + (self.image_size // self.patch_size) ** 2


@dataclasses.dataclass(frozen=True)
class FeatureConfig(Configuration, group="features"):
    """Frames of features in place of source tokens, such as log-mel frames of speech."""

    num_features: Annotated[int, Range(0, 1 << 16)] = 0  # numbers of a frame; 0 is a text model
    # Frames that make one position of the encoder.
    stacked_frames: Annotated[int, Range(1, 1 << 16)] = 4

    @property
    def width(self) -> int:
        """Numbers of a position."""
        return self.num_features * self.stacked_frames


@dataclasses.dataclass(frozen=True)
class ComputeConfig(Configuration, group="compute"):
    """Computation settings, which change no result beyond rounding."""

    # Of matrix products; parameters stay float32. A run with auto takes bfloat16 on GPUs and TPUs
    # and float32 on CPUs, which its config.json then says.
    dtype: Literal["auto", "float32", "bfloat16"] = "float32"
    scan_layers: bool = False  # one compiled block for all layers: compiles fast, slower on CPU
    remat: bool = False  # recompute activations in the backward pass


@dataclasses.dataclass(frozen=True)
class TransformerConfig(Configuration):
    """Model configuration; the defaults are Vaswani et al. 2017, base size."""

    # V; training sets it from the tokenizer; 0 for images.
    vocab_size: Annotated[int, Range(0, 1 << 26)] = 37_000
    d_model: Annotated[int, Range(1, 1 << 20)] = 512  # D
    encoder_layers: Annotated[int, Range(0, 1 << 12)] = 6  # L
    decoder_layers: Annotated[int, Range(0, 1 << 12)] = 6  # L
    decoder_vocab_size: Annotated[int, Range(1, 1 << 26)] | None = None  # None is the encoder's
    # None is the encoder's.
    decoder_attention_heads: Annotated[int, Range(1, 1 << 14)] | None = None
    decoder_ffn_dim: Annotated[int, Range(1, 1 << 22)] | None = None  # None is the encoder's
    embedding: EmbeddingConfig = EmbeddingConfig()
    positions: PositionConfig = PositionConfig()
    attention: AttentionConfig = AttentionConfig()
    scores: ScoreConfig = ScoreConfig()
    mixer: MixerConfig = MixerConfig()
    feed_forward: FeedForwardConfig = FeedForwardConfig()
    norm: NormConfig = NormConfig()
    head: HeadConfig = HeadConfig()
    image: ImageConfig = ImageConfig()
    features: FeatureConfig = FeatureConfig()
    compute: ComputeConfig = ComputeConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        from transformer_jax.config_checks import check

        check(self)

    @property
    def embedding_scale(self) -> float:
        """Factor of token embeddings; that of features is 1 where none is given."""
        scale = self.embedding.scale
        if scale is None and self.features.num_features:
            return 1.0
        return math.sqrt(self.embedding_size) if scale is None else scale

    @property
    def embedding_size(self) -> int:
        """E, the size of embeddings; ``d_model`` unless they are projected."""
        return self.embedding.embedding_size or self.d_model

    @property
    def max_length(self) -> int:
        """The longest sequence."""
        return self.positions.max_length

    @property
    def head_dim(self) -> int:
        """H, the size of a query head."""
        return self.attention.head_dim or self.d_model // self.attention.num_heads

    @property
    def final_norm(self) -> bool:
        """Returns whether a norm follows the last block."""
        final = self.norm.final
        return self.norm.placement != "post" if final is None else final

    def decoder(self) -> "TransformerConfig":
        """Configuration of the decoder: its own heads, feed-forward size and vocabulary.

        It reads tokens, whatever the encoder reads.
        """
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
            features=FeatureConfig(),
            decoder_vocab_size=None,
            decoder_attention_heads=None,
            decoder_ffn_dim=None,
        )

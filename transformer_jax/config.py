"""The configuration of a model: frozen dataclasses in small groups.

One set of fields covers Vaswani et al. 2017, BERT, RoBERTa, ELECTRA, DistilBERT, GPT-2, BART,
Marian, T5, ViT and Llama; model code depends on fields, never on a model's name.
"""

import dataclasses
import math
from typing import Literal

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
class EmbeddingConfig:
    """Tokens to vectors."""

    scale: float | None = None  # factor of token embeddings; None is sqrt(embedding_size)
    layernorm_embedding: bool = False  # normalize the sum of embeddings (BERT, BART)
    type_vocab_size: int = 0  # token types (segments); 0 is no table
    share_encoder_decoder_embeddings: bool = True  # one table for encoder and decoder
    embedding_size: int | None = None  # E; a linear map projects to d_model (ELECTRA)
    dropout: float = 0.1
    init: str | None = None  # word vectors that training begins with: a file of word2vec


@dataclasses.dataclass(frozen=True)
class PositionConfig:
    """Position information: a table, RoPE, ALiBi or relative position biases."""

    kind: Literal[
        "none", "learned", "sinusoidal", "sinusoidal_halves", "rope", "alibi", "relative"
    ] = "sinusoidal"
    max_length: int = 1024  # longest sequence; rows of a learned table minus the offset
    offset: int = 0  # first row of the learned table in use (BART 2)
    skip_padding: bool = False  # positions count non-padding tokens only (RoBERTa)
    rope_theta: float = 10_000.0
    rope_dim: int | None = None  # rotary dimensions, the first of a head; None is all
    # Llama 3.1: factor, low and high frequency factors, original length.
    rope_scaling: tuple[float, float, float, int] | None = None
    rope_yarn: tuple[float, float, float, int, bool] | None = None  # yarn_frequencies
    rope_dynamic: tuple[float, int] | None = None  # NTK factor, length: dynamic_base
    # LongRoPE: divisors of the frequency of each pair, for contexts up to
    # rope_original_max_length and beyond it.
    rope_short_factor: tuple[float, ...] = ()
    rope_long_factor: tuple[float, ...] = ()
    rope_original_max_length: int | None = None
    rope_attention_factor: float = 1.0  # factor of rotated queries and keys (YaRN, LongRoPE)
    rope_interpolation: float = 1.0  # positions are divided by it (position interpolation)
    num_buckets: int = 32  # of relative distances (T5)
    max_distance: int = 128  # larger distances share the last bucket (T5)

    @property
    def bounded(self) -> bool:
        """Whether no sequence may exceed ``max_length``.

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
class AttentionConfig:
    """Multi-head attention."""

    num_heads: int = 8  # N
    num_kv_heads: int | None = None  # K; None is num_heads, fewer is GQA
    head_dim: int | None = None  # H; None is d_model / num_heads
    value_dim: int | None = None  # U; None is head_dim
    bias: bool = True  # of the query, key and value projections
    out_bias: bool = True
    qk_norm: bool = False  # normalize each query and key head (Qwen 3)
    dropout: float = 0.0  # of attention weights
    implementation: Literal["auto", "xla", "chunked", "cudnn", "splash", "ring"] = "auto"


@dataclasses.dataclass(frozen=True)
class ScoreConfig:
    """Attention scores and sliding windows."""

    scale: float | None = None  # None is head_dim ** -0.5 (T5: 1)
    attn_logit_softcapping: float | None = None  # cap * tanh(scores / cap)
    sliding_window: int | None = None  # visible keys are fewer than this many tokens away
    sliding_window_every: int = 1  # layers i * every have the window (Gemma 2: 2)
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
class MixerConfig:
    """What mixes the positions of a block; restricted attention is ``scores.sliding_window``."""

    kind: Literal["attention", "recurrent", "convolution"] = "attention"
    cell: CellName = "lstm"  # of recurrent; an encoder's reads in both directions
    kernel_size: int = 3  # of convolution, positions
    dilations: tuple[int, ...] = (1,)  # of convolution: those of the layers, over and over


@dataclasses.dataclass(frozen=True)
class FeedForwardConfig:
    """Position-wise feed-forward network."""

    d_ff: int = 2048  # F; 0 is no such sub-layer, where the mixer is not attention
    activation: Activation = "relu"
    gated: bool = False  # activation(x W) * (x V) instead of activation(x W)
    bias: bool = True
    activation_dropout: float = 0.0  # dropout of the hidden activations


@dataclasses.dataclass(frozen=True)
class NormConfig:
    """Normalization of the residual stream."""

    kind: Literal["layer", "rms"] = "layer"
    placement: Literal["post", "pre", "sandwich"] = "post"
    eps: float = 1e-5
    gain_offset: float = 0.0  # the gain is this plus the parameter (Gemma: 1)
    bias: bool = True  # of layer norm
    final: bool | None = None  # a norm after the last block; None: unless post-norm
    residual_dropout: float = 0.1  # of each sub-layer's output, before the residual sum


@dataclasses.dataclass(frozen=True)
class HeadConfig:
    """Output head: hidden states to logits."""

    tie_word_embeddings: bool = True  # the output matrix is the embedding table
    bias: bool = False
    scale: float = 1.0  # factor of hidden states (T5 1.0: d_model ** -0.5)
    final_logit_softcapping: float | None = None  # cap * tanh(logits / cap) (Gemma 2)
    mlm_transform: bool = False  # dense, activation, norm before the logits (BERT)
    mlm_transform_activation: Activation | None = None  # None is feed_forward.activation
    pooler: bool = False  # dense layer on the first hidden state (BERT),
    pooler_activation: Activation = "tanh"  # followed by this (DistilBERT: relu)


@dataclasses.dataclass(frozen=True)
class ImageConfig:
    """Images as sequences of a class embedding and patch embeddings (ViT)."""

    image_size: int = 0  # pixels along each side; 0 is a text model
    patch_size: int = 16  # pixels along each side of a patch
    num_channels: int = 3

    @property
    def sequence_length(self) -> int:
        """Length of the sequence: the class embedding and all patches."""
        return 1 + (self.image_size // self.patch_size) ** 2


@dataclasses.dataclass(frozen=True)
class FeatureConfig:
    """Frames of features in place of source tokens, such as log-mel frames of speech."""

    num_features: int = 0  # numbers of a frame; 0 is a text model
    stacked_frames: int = 4  # frames that make one position of the encoder

    @property
    def width(self) -> int:
        """Numbers of a position."""
        return self.num_features * self.stacked_frames


@dataclasses.dataclass(frozen=True)
class ComputeConfig:
    """Computation settings, which change no result beyond rounding."""

    # Of matrix products; parameters stay float32. A run with auto takes bfloat16 on GPUs and TPUs
    # and float32 on CPUs, which its config.json then says.
    dtype: Literal["auto", "float32", "bfloat16"] = "float32"
    scan_layers: bool = False  # one compiled block for all layers: compiles fast, slower on CPU
    remat: bool = False  # recompute activations in the backward pass


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Model configuration; the defaults are Vaswani et al. 2017, base size."""

    vocab_size: int = 37_000  # V; training sets it from the tokenizer; 0 for images
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
    mixer: MixerConfig = MixerConfig()
    feed_forward: FeedForwardConfig = FeedForwardConfig()
    norm: NormConfig = NormConfig()
    head: HeadConfig = HeadConfig()
    image: ImageConfig = ImageConfig()
    features: FeatureConfig = FeatureConfig()
    compute: ComputeConfig = ComputeConfig()

    def __post_init__(self) -> None:
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
        """Whether a norm follows the last block."""
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

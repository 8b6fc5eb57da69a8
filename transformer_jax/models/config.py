"""The configuration of a model, as small groups of frozen dataclasses.

One set of fields covers Vaswani et al. 2017, BERT, RoBERTa, ELECTRA, DistilBERT, MPNet, GPT-2,
BART, Marian, T5, ViT, Llama and ModernBERT; model code depends on fields, never on a model's name.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Annotated, Literal

from transformer_jax.core.config_fields import (
    Amount,
    Configuration,
    Count,
    NotNegative,
    Positive,
    Range,
    Rate,
    Registered,
)
from transformer_jax.core.errors import ConfigError

__all__ = [
    "MIXER_KINDS",
    "TARGETS",
    "Activation",
    "AttentionConfig",
    "CellName",
    "ComputeConfig",
    "EmbeddingConfig",
    "FeatureConfig",
    "FeedForwardConfig",
    "HeadConfig",
    "ImageConfig",
    "Implementation",
    "LabelConfig",
    "LoRAConfig",
    "MixerConfig",
    "NormConfig",
    "PositionConfig",
    "ScoreConfig",
    "TransformerConfig",
]

CellName = Literal["tanh", "relu", "lstm", "gru", "gru_reset_after"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "tanh"]
Implementation = Literal["auto", "xla", "chunked", "cudnn", "splash", "ring"]


@dataclasses.dataclass(frozen=True)
class EmbeddingConfig(Configuration, group="embedding"):
    """Tokens to vectors."""

    # Factor of token embeddings; None is sqrt(embedding_size).
    scale: Annotated[float, Range()] | None = None
    layernorm_embedding: bool = False  # normalize the sum of embeddings (BERT, BART)
    type_vocab_size: Annotated[int, Range(0, 1 << 20)] = 0  # token types (segments); 0 is no table
    share_encoder_decoder_embeddings: bool = True  # one table for encoder and decoder
    # Embedding size, E; if it differs from d_model, a linear map projects it (ELECTRA).
    embedding_size: Annotated[int, Range(1, 1 << 20)] | None = None
    dropout: Rate = 0.1  # dropout of the sum of embeddings
    init: str | None = None  # initial word vectors: a word2vec file


@dataclasses.dataclass(frozen=True)
class PositionConfig(Configuration, group="positions"):
    """Position information: a table, RoPE, ALiBi or relative position biases."""

    # sinusoidal_halves: sines, then cosines (Marian); sinusoidal_fairseq: the same with other
    # frequencies (M2M100); sinusoidal_2d: these for the row and the column of a patch (images);
    # concatenated: sinusoids appended to each embedding instead of added, and projected to d_model
    # if the widths differ; relative: biases of T5; learned_relative: these and a table (MPNet).
    kind: Literal[
        "none",
        "learned",
        "sinusoidal",
        "sinusoidal_halves",
        "sinusoidal_fairseq",
        "sinusoidal_2d",
        "concatenated",
        "rope",
        "alibi",
        "relative",
        "learned_relative",
    ] = "sinusoidal"
    # Longest sequence: the rows of a learned table, less the offset.
    max_length: Annotated[int, Range(1, 1 << 30)] = 1024
    # First used row of a learned table (BART 2) or of sinusoidal_fairseq (M2M100 2).
    offset: Annotated[int, Range(0, 1 << 20)] = 0
    skip_padding: bool = False  # count only non-padding tokens as positions (RoBERTa)
    rope_theta: Positive = 10_000.0  # base of RoPE's angles
    # Base of plain RoPE in layers with a sliding window (ModernBERT); None is as in other layers.
    rope_local_theta: Positive | None = None
    rope_dim: Count | None = None  # rotary dimensions, the first of each head; None is all
    # Llama 3.1: factor, low and high frequency factors, original length.
    rope_scaling: tuple[Positive, Positive, Positive, Count] | None = None
    # YaRN: factor, turns above which a pair is kept and below which it is stretched, original
    # length, whether to round the blend to whole pairs.
    rope_yarn: tuple[Positive, Positive, Positive, Count, bool] | None = None
    rope_dynamic: tuple[Positive, Count] | None = None  # dynamic NTK: factor, original length
    # LongRoPE: divisor of each pair's frequency, up to rope_original_max_length.
    rope_short_factor: tuple[Positive, ...] = ()
    rope_long_factor: tuple[Positive, ...] = ()  # LongRoPE: divisors beyond that length
    rope_original_max_length: Count | None = None  # LongRoPE: length of the context in pre-training
    rope_attention_factor: Positive = 1.0  # factor of rotated queries and keys (YaRN, LongRoPE)
    rope_interpolation: Annotated[float, Range(1)] = (
        1.0  # divisor of positions (position interpolation)
    )
    num_buckets: Annotated[int, Range(1, 1 << 20)] = 32  # buckets of relative distances (T5)
    # Larger distances share the last bucket (T5).
    max_distance: Annotated[int, Range(1, 1 << 30)] = 128

    @property
    def learned(self) -> bool:
        """Returns whether a learned table is added to embeddings."""
        return self.kind in ("learned", "learned_relative")

    @property
    def relative(self) -> bool:
        """Returns whether learned biases of distances are added to scores."""
        return self.kind in ("relative", "learned_relative")

    @property
    def for_attention(self) -> bool:
        """Returns whether attention applies positions, to queries and keys or to scores."""
        return self.relative or self.kind in ("rope", "alibi")

    @property
    def bounded(self) -> bool:
        """Returns whether no sequence may exceed ``max_length``.

        A learned or sinusoidal table has that many rows, and the angles of dynamic NTK and LongRoPE
        depend on it.
        """
        depends = self.rope_method in ("rope_dynamic", "rope_short_factor")
        table = self.learned or self.kind.startswith(("concatenated", "sinusoidal"))
        return table or (self.kind == "rope" and depends)

    @property
    def local(self) -> "PositionConfig":
        """Positions of layers with a sliding window.

        Example:
            >>> PositionConfig("rope", rope_theta=160_000.0, rope_local_theta=1e4).local.rope_theta
            10000.0
        """
        if self.rope_local_theta is None:
            return self
        return PositionConfig(
            "rope", self.max_length, rope_theta=self.rope_local_theta, rope_dim=self.rope_dim
        )

    @property
    def rope_method(self) -> str | None:
        """Name of the field that changes the angles of plain RoPE, or None."""
        return next(iter(self.rope_methods), None)

    @property
    def rope_methods(self) -> tuple[str, ...]:
        """Names of all such fields that are set; a valid configuration sets at most one."""
        return tuple(name for name in _ROPE_METHODS if getattr(self, name))

    def check(self, head_dim: int, decodes: bool) -> None:
        """Refuses positions that do not fit the head size, or a decoder.

        Args:
            head_dim: H, the size of a query head.
            decodes: Whether there are decoder layers, whose distances have only one direction.

        Raises:
            ConfigError: Names the field, its value and what is allowed.
        """
        if self.kind == "rope":
            self._check_rope(head_dim)
        exact = self.num_buckets // (2 if decodes else 4)
        if self.relative and not (self.num_buckets >= 4 and self.max_distance > exact):
            raise ConfigError(
                f"positions.num_buckets is {self.num_buckets}: relative positions need at least 4, "
                f"of which {exact} hold one distance each: fewer than positions.max_distance, "
                f"{self.max_distance}"
            )

    def _check_rope(self, head_dim: int) -> None:
        """Refuses rotary embeddings that do not fit the heads or change their angles twice."""
        if self.rope_dim is None and head_dim % 2:
            raise ConfigError(f"rotary embeddings need an even head size, not {head_dim}")
        size = head_dim if self.rope_dim is None else self.rope_dim
        if size % 2 or size > head_dim:
            raise ConfigError(
                f"positions.rope_dim is {self.rope_dim}: an even number, at most the head size "
                f"{head_dim}"
            )
        if len(methods := self.rope_methods) > 1:
            raise ConfigError(
                f"positions.{' and positions.'.join(methods)} are set: only one of them is allowed"
            )
        if self.rope_dynamic and size < 4:
            raise ConfigError(
                f"positions.rope_dynamic needs at least 4 rotary dimensions, not {size}"
            )
        self._check_longrope(size)
        low, high = (self.rope_scaling or (1.0, 0.0, 1.0))[1:3]
        if not low < high:
            raise ConfigError(
                f"positions.rope_scaling is {self.rope_scaling}: the second number must be "
                f"below the third"
            )
        if self.rope_yarn is not None and self.rope_theta <= 1:
            raise ConfigError(
                f"positions.rope_theta is {self.rope_theta}: above 1 with positions.rope_yarn"
            )

    def _check_longrope(self, size: int) -> None:
        factors = {name: getattr(self, name) for name in ("rope_short_factor", "rope_long_factor")}
        any_factor = any(factors.values())
        if any_factor != (self.rope_original_max_length is not None):
            raise ConfigError(
                "positions.rope_short_factor, rope_long_factor and rope_original_max_length are "
                "given together"
            )
        for name, numbers in factors.items() if any_factor else ():
            if len(numbers) != size // 2:
                raise ConfigError(
                    f"positions.{name} has {len(numbers)} factors: {size // 2} are needed"
                )


_ROPE_METHODS = ("rope_scaling", "rope_yarn", "rope_dynamic", "rope_short_factor")


@dataclasses.dataclass(frozen=True)
class AttentionConfig(Configuration, group="attention"):
    """Multi-head attention."""

    num_heads: Annotated[int, Range(1, 1 << 14)] = 8  # number of attention heads, N
    # Number of key and value heads, K; None is num_heads, fewer is GQA.
    num_kv_heads: Annotated[int, Range(1, 1 << 14)] | None = None
    # Size of a query or key head, H; None is d_model / num_heads.
    head_dim: Annotated[int, Range(1, 1 << 16)] | None = None
    # Size of a value head, U; None is head_dim.
    value_dim: Annotated[int, Range(1, 1 << 16)] | None = None
    bias: bool = True  # biases in the query, key and value projections
    out_bias: bool = True  # bias in the output projection
    qk_norm: bool = False  # normalize queries and keys in each head (Qwen 3)
    dropout: Rate = 0.0  # dropout of attention weights
    # Attention kernel; auto is the fastest exact one on the device.
    implementation: Implementation = "auto"


@dataclasses.dataclass(frozen=True)
class ScoreConfig(Configuration, group="scores"):
    """Attention scores and sliding windows."""

    # Factor of the scores; None is head_dim ** -0.5 (T5: 1).
    scale: Annotated[float, Range()] | None = None
    # Soft cap of the scores: cap * tanh(scores / cap).
    attn_logit_softcapping: Positive | None = None
    sliding_window: Count | None = None  # each token sees keys fewer than this many tokens away
    sliding_window_every: Count = 1  # only every so many layers have the window (Gemma 2: 2)
    sliding_window_layers: tuple[Amount, ...] | None = None  # or only these layers have it, from 0
    # Or all layers but one of so many have it, of which the first sees all (ModernBERT: 3).
    full_attention_every: Annotated[int, Range(2, 1 << 12)] | None = None

    def window_of(self, layer: int) -> int | None:
        """Sliding window of a layer; None for full attention.

        Example:
            >>> scores = ScoreConfig(sliding_window=8, sliding_window_layers=(1, 2))
            >>> [scores.window_of(i) for i in range(4)]
            [None, 8, 8, None]
            >>> scores = ScoreConfig(sliding_window=8, full_attention_every=3)
            >>> [scores.window_of(i) for i in range(4)]
            [None, 8, 8, None]
        """
        layers, full = self.sliding_window_layers, self.full_attention_every
        local = layer % self.sliding_window_every == 0 if layers is None else layer in layers
        local = local if full is None else layer % full > 0
        return self.sliding_window if local else None

    def check(self, layers: int) -> None:
        """Refuses windows for layers that do not exist.

        Raises:
            ConfigError: Names the field, its value and what is allowed.
        """
        chosen, full = self.sliding_window_layers, self.full_attention_every
        others = chosen is not None or self.sliding_window_every != 1
        if full is not None and (self.sliding_window is None or others):
            raise ConfigError(
                f"scores.full_attention_every is {full}: it needs scores.sliding_window, and no "
                f"other choice of layers"
            )
        if chosen is None:
            return
        if self.sliding_window is None or self.sliding_window_every != 1:
            raise ConfigError(
                f"scores.sliding_window_layers is {chosen}: it needs scores.sliding_window, and "
                f"scores.sliding_window_every left at 1"
            )
        if list(chosen) != sorted({i for i in chosen if i < layers}):
            raise ConfigError(
                f"scores.sliding_window_layers is {chosen}: layers from 0 to {layers - 1} in "
                f"ascending order, each once"
            )


# The kinds of mixers, and whether each is attention; :func:`.register_mixer` adds to them.
MIXER_KINDS = {"attention": True, "recurrent": False, "convolution": False}
_ADVICE = "register any other first: tj.register_mixer, in a module that --import names"


@dataclasses.dataclass(frozen=True)
class MixerConfig(Configuration, group="mixer"):
    """The layer that mixes positions; restricted attention is ``scores.sliding_window``."""

    kind: Annotated[str, Registered(MIXER_KINDS, _ADVICE)] = "attention"  # mixer of every block
    cell: CellName = "lstm"  # cell of the recurrent mixer; an encoder's is bidirectional
    # Recurrent: gradients stop at every multiple of this many positions; None backpropagates to the
    # first position.
    bptt_length: Annotated[int, Range(1, 1 << 20)] | None = None
    kernel_size: Annotated[int, Range(1, 1 << 16)] = 3  # width of the convolution, in positions
    # Dilations of the convolution, repeated over the layers.
    dilations: tuple[Annotated[int, Range(1, 1 << 16)], ...] = (1,)

    def __post_init__(self) -> None:
        super().__post_init__()
        usual = {field.name: field.default for field in dataclasses.fields(self)}
        kinds = {
            "cell": "recurrent",
            "bptt_length": "recurrent",
            "kernel_size": "convolution",
            "dilations": "convolution",
        }
        for name, kind in kinds.items():
            if getattr(self, name) != usual[name] and self.kind != kind:
                raise ConfigError(f"mixer.{name} is for mixer.kind {kind}, but it is {self.kind}")
        if not self.dilations:
            raise ConfigError("mixer.dilations is empty: at least one number is needed")

    @property
    def attends(self) -> bool:
        """Returns whether the mixer is attention, of this library or registered."""
        return MIXER_KINDS[self.kind]


@dataclasses.dataclass(frozen=True)
class FeedForwardConfig(Configuration, group="feed_forward"):
    """Position-wise feed-forward network."""

    # Feed-forward size, F; 0 omits this sub-layer, unless the mixer is attention.
    d_ff: Annotated[int, Range(0, 1 << 22)] = 2048
    activation: Activation = "relu"  # activation between the two linear maps
    gated: bool = False  # activation(x W) * (x V) instead of activation(x W)
    bias: bool = True  # biases in its linear maps
    activation_dropout: Rate = 0.0  # dropout of the hidden activations


@dataclasses.dataclass(frozen=True)
class NormConfig(Configuration, group="norm"):
    """Normalization in the residual stream."""

    kind: Literal["layer", "rms"] = "layer"  # layer normalization or root mean square
    # post: after the sum; pre: before each sub-layer; sandwich: before and after it (Gemma 2).
    placement: Literal["post", "pre", "sandwich"] = "post"
    eps: NotNegative = 1e-5  # added to the variance
    gain_offset: Annotated[float, Range()] = 0.0  # the gain is this plus the parameter (Gemma: 1)
    bias: bool = True  # bias in layer normalization
    final: bool | None = None  # a norm after the last block; None: yes, unless placement is post
    first: bool = True  # norm before the first sub-layer of all (ModernBERT: False)
    residual_dropout: Rate = 0.1  # dropout of each sub-layer's output, before the residual sum


@dataclasses.dataclass(frozen=True)
class HeadConfig(Configuration, group="head"):
    """Output head: hidden states to logits."""

    tie_word_embeddings: bool = True  # the output matrix is the embedding table
    bias: bool = False  # bias of the logits
    scale: Annotated[float, Range()] = 1.0  # factor of the hidden states (T5 1.0: d_model ** -0.5)
    # Soft cap of the logits: cap * tanh(logits / cap) (Gemma 2).
    final_logit_softcapping: Positive | None = None
    mlm_transform: bool = False  # dense, activation, norm before the logits (BERT)
    # Activation of mlm_transform; None is feed_forward.activation.
    mlm_transform_activation: Activation | None = None
    mlm_transform_bias: bool = True  # bias of its dense layer
    pooler: bool = False  # dense layer on the first hidden state (BERT)
    pooler_activation: Activation = "tanh"  # activation of the pooler (DistilBERT: relu)


@dataclasses.dataclass(frozen=True)
class LabelConfig(Configuration, group="labels"):
    """The inputs of an encoder's labels of texts and tokens."""

    # Hidden states pass through the layers of head.mlm_transform (ModernBERT).
    transform: bool = False
    # Vector of a text: of its first token, or the mean of all.
    pooling: Literal["first", "mean"] = "first"

    def check(self, texts: bool, pooler: bool) -> None:
        """Refuses settings for models that do not read them.

        Args:
            texts: Whether the model is an encoder of texts.
            pooler: Whether it has a pooler, which reads the first token.

        Raises:
            ConfigError: Names the setting, its value and what is allowed.
        """
        if not texts and self != LabelConfig():
            name = "transform" if self.transform else "pooling"
            raise ConfigError(
                f"labels.{name} is {getattr(self, name)}: it is for encoders of texts alone"
            )
        if pooler and self.pooling != "first":
            raise ConfigError(
                f"labels.pooling is {self.pooling}: head.pooler reads the first token"
            )


@dataclasses.dataclass(frozen=True)
class FeatureConfig(Configuration, group="features"):
    """Frames of features instead of source tokens, such as log-mel frames of speech."""

    num_features: Annotated[int, Range(0, 1 << 16)] = 0  # values per frame; 0 is a text model
    # Frames stacked into one position of the encoder.
    stacked_frames: Annotated[int, Range(1, 1 << 16)] = 4

    @property
    def width(self) -> int:
        """Values per position."""
        return self.num_features * self.stacked_frames

    def check(self, shared: bool) -> None:
        """Refuses feature settings that no encoder can have.

        Args:
            shared: Whether encoder and decoder share a table.

        Raises:
            ConfigError: Names the setting, its value and what is allowed.
        """
        if self.num_features and shared:
            raise ConfigError(
                "embedding.share_encoder_decoder_embeddings: an encoder of features has no table "
                "to share: set it to False"
            )
        if not self.num_features and self != FeatureConfig():
            raise ConfigError(
                f"features.stacked_frames is {self.stacked_frames}: it is for feature models, "
                f"and features.num_features is 0"
            )


@dataclasses.dataclass(frozen=True)
class ComputeConfig(Configuration, group="compute"):
    """Computation settings, which change results only by rounding."""

    # Dtype of matrix products; parameters stay float32. auto is bfloat16 on GPUs and TPUs and
    # float32 on CPUs; the run's config.json stores the result.
    dtype: Literal["auto", "float32", "bfloat16"] = "float32"
    scan_layers: bool = False  # compile one block for all layers: compiles fast, runs slower on CPU
    remat: bool = False  # recompute activations in the backward pass
    # Dtype in which losses of tokens store logits; sums over them stay float32. bfloat16 halves
    # their memory, and is faster on GPUs with dtype bfloat16.
    logits_dtype: Literal["float32", "bfloat16"] = "float32"
    # Tokens of a batch, over all devices, whose logits the loss stores at a time; default: chunks
    # of at most 1 GiB per device, on an A100 or H100 of 80 GB and an H200 a 32nd of its memory.
    logits_chunk: Count | None = None


@dataclasses.dataclass(frozen=True)
class ImageConfig(Configuration, group="image"):
    """Images as sequences of a class embedding and patch embeddings (ViT)."""

    image_size: Annotated[int, Range(0, 1 << 16)] = 0  # pixels per side; 0 is a text model
    patch_size: Annotated[int, Range(1, 1 << 16)] = 16  # pixels per side of a patch
    num_channels: Annotated[int, Range(1, 1 << 16)] = 3  # channels of a pixel
    # Map from pixels to patch vectors: linear, or log2(patch_size) convolutions, each of which
    # halves the sides (Hassani et al. 2021).
    stem: Literal["linear", "convolutions"] = "linear"
    # Channels of all convolutions except the last.
    stem_channels: Annotated[int, Range(1, 1 << 16)] = 64
    patch_bias: bool = True  # bias in the linear map (CLIP: False); convolutions have none
    # Vector of the image: from a class embedding before the patches, a weighted sum of the patches
    # (Hassani et al. 2021), or a learned query that attends to them, followed by a feed-forward
    # layer (Zhai et al. 2022).
    pooling: Literal["class", "sequence", "attention"] = "class"
    # DeiT's second embedding before the patches: none, the embedding alone, or with a second
    # classification head, whose logits are averaged with the first's.
    distillation: Literal["none", "embedding", "head"] = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image_size % self.patch_size:
            raise ConfigError(
                f"image.patch_size {self.patch_size} does not divide image.image_size "
                f"{self.image_size}: choose a divisor"
            )
        if self.stem == "convolutions" and (self.patch_size < 2 or not _is_power(self.patch_size)):
            raise ConfigError(
                f"image.patch_size is {self.patch_size}: with image.stem convolutions it is 2, 4, "
                f"8 and so on, as each convolution halves the sides"
            )
        if self.pooling != "class" and self.distillation != "none":
            raise ConfigError(
                f"image.distillation {self.distillation} is for image.pooling class, but that is "
                f"{self.pooling}: leave one of them out"
            )

    @property
    def num_prefixes(self) -> int:
        """The number of embeddings before the patches."""
        return (self.pooling == "class") + (self.distillation != "none")

    @property
    def num_patches(self) -> int:
        """The number of patches."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def sequence_length(self) -> int:
        """Length of the sequence: the embeddings before the patches, and all patches."""
        return self.num_prefixes + self.num_patches

    @property
    def convolutions(self) -> tuple[tuple[int, int], ...]:
        """Input and output channels of each convolution but the last, whose output is the model's.

        Example:
            >>> ImageConfig(32, 4, stem="convolutions").convolutions
            ((3, 64), (64, 0))
        """
        widths = [self.num_channels, *[self.stem_channels] * (self.patch_size.bit_length() - 2), 0]
        return tuple(itertools.pairwise(widths)) if self.stem == "convolutions" else ()


def _is_power(number: int) -> bool:
    return number & (number - 1) == 0


@dataclasses.dataclass(frozen=True)
class TransformerConfig(Configuration):
    """Model configuration; the defaults are Vaswani et al. 2017, base size."""

    # Vocabulary size, V; training sets it from the tokenizer, and it is 0 for images.
    vocab_size: Annotated[int, Range(0, 1 << 26)] = 37_000
    d_model: Annotated[int, Range(1, 1 << 20)] = 512  # width of the model, D
    encoder_layers: Annotated[int, Range(0, 1 << 12)] = 6  # number of encoder layers, L
    decoder_layers: Annotated[int, Range(0, 1 << 12)] = 6  # number of decoder layers, L
    # Vocabulary size of the decoder; None is the encoder's.
    decoder_vocab_size: Annotated[int, Range(1, 1 << 26)] | None = None
    # Attention heads of the decoder; None is the encoder's.
    decoder_attention_heads: Annotated[int, Range(1, 1 << 14)] | None = None
    # Feed-forward size of the decoder; None is the encoder's.
    decoder_ffn_dim: Annotated[int, Range(1, 1 << 22)] | None = None
    embedding: EmbeddingConfig = EmbeddingConfig()
    positions: PositionConfig = PositionConfig()
    attention: AttentionConfig = AttentionConfig()
    scores: ScoreConfig = ScoreConfig()
    mixer: MixerConfig = MixerConfig()
    feed_forward: FeedForwardConfig = FeedForwardConfig()
    norm: NormConfig = NormConfig()
    head: HeadConfig = HeadConfig()
    labels: LabelConfig = LabelConfig()
    image: ImageConfig = ImageConfig()
    features: FeatureConfig = FeatureConfig()
    compute: ComputeConfig = ComputeConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image.image_size:  # the number of positions follows from the image
            length = self.image.sequence_length
            positions = dataclasses.replace(self.positions, max_length=length)
            object.__setattr__(self, "positions", positions)
        _check(self)

    @property
    def embedding_scale(self) -> float:
        """Factor of token embeddings; for features it is 1 unless given."""
        scale = self.embedding.scale
        if scale is None and self.features.num_features:
            return 1.0
        return math.sqrt(self.embedding_size) if scale is None else scale

    @property
    def input_size(self) -> int:
        """Width of an embedding plus anything concatenated to it; mapped to D if it differs."""
        return self.embedding_size * (1 + (self.positions.kind == "concatenated"))

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

    def at_layer(self, layer: int) -> "TransformerConfig":
        """Configuration of a layer, whose rotary positions may be those of sliding windows."""
        local = self.scores.window_of(layer) is not None
        return dataclasses.replace(self, positions=self.positions.local) if local else self

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


def _check(config: TransformerConfig) -> None:
    """Refuses groups of settings that do not fit together.

    Raises:
        ConfigError: Names the field, its value and what is allowed.
    """
    _check_heads(config)
    if not config.vocab_size and not config.image.image_size:
        raise ConfigError(
            "image.image_size and vocab_size are 0: a model of pictures needs the first, a model "
            "of texts the second"
        )
    config.scores.check(max(config.encoder_layers, config.decoder_layers))
    config.positions.check(config.head_dim, decodes=config.decoder_layers > 0)
    for name in ("mlm_transform", "pooler"):
        if getattr(config.head, name) and config.decoder_layers:
            raise ConfigError(f"head.{name} is for encoders, but there are decoder layers")
    texts = bool(config.vocab_size and not config.decoder_layers)
    config.labels.check(texts, config.head.pooler)
    _check_first_layers(config)
    _check_mixer(config, config.mixer)
    _check_embedding(config)
    _check_grid(config)
    if config.image.image_size:
        _check_image(config)
    config.features.check(config.embedding.share_encoder_decoder_embeddings)
    both = config.encoder_layers and config.decoder_layers
    if config.features.num_features and not both:
        raise ConfigError(
            f"features.num_features is {config.features.num_features}: it is for encoder-decoders, "
            f"and encoder_layers is {config.encoder_layers}, decoder_layers {config.decoder_layers}"
        )


def _check_first_layers(config: TransformerConfig) -> None:
    """Refuses layers that differ where they must not."""
    local, kind = config.positions.rope_local_theta, config.positions.kind
    if local is not None and (kind != "rope" or config.scores.sliding_window is None):
        raise ConfigError(
            f"positions.rope_local_theta is {local}: it needs positions.kind rope and "
            f"scores.sliding_window"
        )
    if not config.norm.first and config.norm.placement != "pre":
        raise ConfigError(
            f"norm.first is False: it needs norm.placement pre, not {config.norm.placement}"
        )
    if config.compute.scan_layers and (local is not None or not config.norm.first):
        name = "norm.first is False" if local is None else "positions.rope_local_theta is set"
        raise ConfigError(f"compute.scan_layers needs identical layers, but {name}")


def _check_mixer(config: TransformerConfig, mixer: MixerConfig) -> None:
    """Refuses settings that do not apply to ``mixer.kind``."""
    if mixer.attends:
        if config.feed_forward.d_ff < 1:
            raise ConfigError(f"feed_forward.d_ff is {config.feed_forward.d_ff}: at least 1")
        return
    if config.scores.sliding_window is not None:
        raise ConfigError(f"scores.sliding_window is for attention, and mixer.kind is {mixer.kind}")
    if config.positions.for_attention:
        raise ConfigError(
            f"positions.kind {config.positions.kind} is for attention, and mixer.kind is "
            f"{mixer.kind}: choose none, learned or sinusoidal"
        )
    if mixer.kind == "recurrent" and config.encoder_layers and config.d_model % 2:
        raise ConfigError(
            f"d_model is {config.d_model}: an encoder's recurrent mixer uses half of it per "
            f"direction: choose an even number"
        )
    if config.compute.scan_layers and len(set(mixer.dilations)) > 1:
        raise ConfigError("compute.scan_layers needs identical layers, but mixer.dilations differ")
    if config.image.image_size:
        raise ConfigError(f"mixer.kind {mixer.kind} is for texts, and image.image_size is set")


def _check_heads(config: TransformerConfig) -> None:
    for name, heads in (
        ("attention.num_heads", config.attention.num_heads),
        ("decoder_attention_heads", config.decoder_attention_heads),
    ):
        if heads is None:
            continue
        if config.attention.head_dim is None and config.d_model % heads:
            raise ConfigError(
                f"{name} {heads} does not divide d_model {config.d_model}: choose a divisor of "
                f"d_model, or set attention.head_dim"
            )
        kv_heads = config.attention.num_kv_heads or heads
        if heads % kv_heads:
            raise ConfigError(f"attention.num_kv_heads {kv_heads} does not divide {name} {heads}")


def _check_embedding(config: TransformerConfig) -> None:
    """Checks the shared table, and embeddings whose size differs from the model's."""
    embedding, target = config.embedding, config.decoder_vocab_size
    if target and target != config.vocab_size and embedding.share_encoder_decoder_embeddings:
        raise ConfigError(
            f"embedding.share_encoder_decoder_embeddings needs one vocabulary, but vocab_size is "
            f"{config.vocab_size} and decoder_vocab_size {target}: set it to False"
        )
    size = embedding.embedding_size
    if size in (None, config.d_model):
        return
    if config.decoder_layers or config.image.image_size:
        raise ConfigError(
            f"embedding.embedding_size is {size}: only a text encoder projects its embeddings"
        )


def _check_grid(config: TransformerConfig) -> None:
    """Refuses grid or concatenated positions for the wrong input or width.

    Concatenated positions are not available for image patches.
    """
    if config.positions.kind == "concatenated" and config.image.image_size:
        raise ConfigError("positions.kind concatenated is for texts: choose sinusoidal_2d")
    if config.positions.kind != "sinusoidal_2d":
        return
    if not config.image.image_size:
        raise ConfigError(
            "positions.kind sinusoidal_2d is for images, and image.image_size is 0: choose "
            "sinusoidal"
        )
    if config.d_model % 4:
        raise ConfigError(
            f"d_model is {config.d_model}: positions.kind sinusoidal_2d needs a multiple of 4"
        )


def _check_image(config: TransformerConfig) -> None:
    if config.decoder_layers:
        raise ConfigError(
            "image.image_size is for encoders, but there are decoder layers: give the encoder and "
            "the decoder a configuration each"
        )
    if config.vocab_size:
        raise ConfigError(
            f"vocab_size is {config.vocab_size}: an image model has no vocabulary: set it to 0"
        )


# --- Adapters -------------------------------------------------------------------------------------

_ATTENTION = tuple(
    f"{kind}_attention/{name}"
    for kind in ("self", "cross")
    for name in ("query", "key", "value", "out")
)
_MLP = ("feed_forward/up", "feed_forward/gate", "feed_forward/down")

# Sets of linear maps, by name.
TARGETS: Mapping[str, tuple[str, ...]] = {
    "attention": _ATTENTION,
    "mlp": _MLP,
    "all-linear": (*_ATTENTION, *_MLP),
}


@dataclasses.dataclass(frozen=True)
class LoRAConfig(Configuration, group="lora"):
    """LoRA adapters: the model is frozen, and low-rank changes of some maps are trained."""

    rank: Amount = 0  # rank of the adapters, such as 8; 0 trains the model itself
    # Adapters are multiplied by alpha / rank, or by alpha / sqrt(rank) with rslora.
    alpha: Positive = 16.0
    dropout: Rate = 0.0  # dropout rate of the adapters' inputs
    # attention, mlp, all-linear, or names of linear maps such as query or feed_forward/up
    targets: tuple[str, ...] = ("attention",)
    # rslora scales by 1 / sqrt(rank), dora trains magnitudes too
    variant: Literal["lora", "rslora", "dora"] = "lora"
    base_dtype: Literal["float32", "bfloat16"] = "float32"  # dtype of the frozen matrices

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.targets:
            raise ConfigError(f"lora.targets is empty: give {', '.join(TARGETS)} or names of maps")

    @property
    def narrows(self) -> bool:
        """Returns whether the base at step 0 has a different dtype than the given model."""
        return self.rank > 0 and self.base_dtype != "float32"

    @property
    def scale(self) -> float:
        """The factor of the adapters' products."""
        from transformer_jax.functional.low_rank import lora_scale  # imports JAX

        return lora_scale(self.rank, self.alpha, self.variant)

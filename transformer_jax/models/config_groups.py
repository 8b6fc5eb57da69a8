"""The groups of a model's configuration, with their ranges and the relations between fields."""

import dataclasses
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
    "Activation",
    "AttentionConfig",
    "CellName",
    "ComputeConfig",
    "EmbeddingConfig",
    "FeatureConfig",
    "FeedForwardConfig",
    "HeadConfig",
    "MixerConfig",
    "NormConfig",
    "PositionConfig",
    "ScoreConfig",
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
    # if the widths differ; relative: biases of T5.
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
    ] = "sinusoidal"
    # Longest sequence: the rows of a learned table, less the offset.
    max_length: Annotated[int, Range(1, 1 << 30)] = 1024
    # First used row of a learned table (BART 2) or of sinusoidal_fairseq (M2M100 2).
    offset: Annotated[int, Range(0, 1 << 20)] = 0
    skip_padding: bool = False  # count only non-padding tokens as positions (RoBERTa)
    rope_theta: Positive = 10_000.0  # base of RoPE's angles
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
    def bounded(self) -> bool:
        """Returns whether no sequence may exceed ``max_length``.

        A learned or sinusoidal table has that many rows, and the angles of dynamic NTK and LongRoPE
        depend on it.
        """
        depends = self.rope_method in ("rope_dynamic", "rope_short_factor")
        table = self.kind in ("learned", "concatenated") or self.kind.startswith("sinusoidal")
        return table or (self.kind == "rope" and depends)

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
        if self.kind == "relative" and not (self.num_buckets >= 4 and self.max_distance > exact):
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
    implementation: Literal["auto", "xla", "chunked", "cudnn", "splash", "ring"] = "auto"


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

    def window_of(self, layer: int) -> int | None:
        """Sliding window of a layer; None for full attention.

        Example:
            >>> scores = ScoreConfig(sliding_window=8, sliding_window_layers=(1, 2))
            >>> [scores.window_of(i) for i in range(4)]
            [None, 8, 8, None]
        """
        layers = self.sliding_window_layers
        local = layer % self.sliding_window_every == 0 if layers is None else layer in layers
        return self.sliding_window if local else None

    def check(self, layers: int) -> None:
        """Refuses windows for layers that do not exist.

        Raises:
            ConfigError: Names the field, its value and what is allowed.
        """
        chosen = self.sliding_window_layers
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
    pooler: bool = False  # dense layer on the first hidden state (BERT)
    pooler_activation: Activation = "tanh"  # activation of the pooler (DistilBERT: relu)


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

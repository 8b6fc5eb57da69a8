"""The configuration of a model, as small groups of frozen dataclasses.

One set of fields covers Vaswani et al. 2017, BERT, RoBERTa, ELECTRA, DistilBERT, GPT-2, BART,
Marian, T5, ViT and Llama; model code depends on fields, never on a model's name.
"""

import dataclasses
import math
from typing import Annotated

from transformer_jax.core.config_fields import Configuration, Range
from transformer_jax.core.errors import ConfigError
from transformer_jax.models.config_groups import (
    Activation,
    AttentionConfig,
    CellName,
    ComputeConfig,
    EmbeddingConfig,
    FeatureConfig,
    FeedForwardConfig,
    HeadConfig,
    MixerConfig,
    NormConfig,
    PositionConfig,
    ScoreConfig,
)
from transformer_jax.models.image_config import ImageConfig

__all__ = [
    "Activation",
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


def _check_mixer(config: TransformerConfig, mixer: MixerConfig) -> None:
    """Refuses settings that do not apply to ``mixer.kind``."""
    if mixer.attends:
        if config.feed_forward.d_ff < 1:
            raise ConfigError(f"feed_forward.d_ff is {config.feed_forward.d_ff}: at least 1")
        return
    if config.scores.sliding_window is not None:
        raise ConfigError(f"scores.sliding_window is for attention, and mixer.kind is {mixer.kind}")
    if config.positions.kind in ("rope", "alibi", "relative"):
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

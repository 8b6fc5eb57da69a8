"""Relations between the fields of a model's configuration; each field declares its own range."""

from transformer_jax.config import (
    FeatureConfig,
    ImageConfig,
    MixerConfig,
    PositionConfig,
    ScoreConfig,
    TransformerConfig,
)
from transformer_jax.errors import ConfigError

__all__ = ["check", "check_features"]


def check(config: TransformerConfig) -> None:
    """Refuse a configuration that no model can have.

    Raises:
        ConfigError: Names the field, its value and what is allowed.
    """
    _check_heads(config)
    if not config.vocab_size and not config.image.image_size:
        raise ConfigError("vocab_size is 0: it must be at least 1")
    _check_windows(config.scores, max(config.encoder_layers, config.decoder_layers))
    if config.positions.kind == "rope":
        _check_rope(config.positions, config.head_dim)
    _check_relative(config.positions, decodes=config.decoder_layers > 0)
    for name in ("mlm_transform", "pooler"):
        if getattr(config.head, name) and config.decoder_layers:
            raise ConfigError(f"head.{name} is for encoders, but there are decoder layers")
    _check_mixer(config, config.mixer)
    _check_embedding(config)
    if config.image.image_size:
        _check_image(config, config.image)
    check_features(config.features, config.embedding.share_encoder_decoder_embeddings)
    both = config.encoder_layers and config.decoder_layers
    if config.features.num_features and not both:
        raise ConfigError(
            f"features.num_features is {config.features.num_features}: it is for encoder-decoders, "
            f"and encoder_layers is {config.encoder_layers}, decoder_layers {config.decoder_layers}"
        )


def check_features(features: FeatureConfig, shared: bool) -> None:
    """Refuse settings of features that no encoder can have.

    Args:
        features: The settings.
        shared: Whether encoder and decoder share a table.

    Raises:
        ConfigError: Names the setting, its value and what is allowed.
    """
    if features.num_features and shared:
        raise ConfigError(
            "embedding.share_encoder_decoder_embeddings: an encoder of features has no table to "
            "share: set it to False"
        )
    if not features.num_features and features != FeatureConfig():
        raise ConfigError(
            f"features.stacked_frames is {features.stacked_frames}: it is for models of features, "
            f"and features.num_features is 0"
        )


def _check_mixer(config: TransformerConfig, mixer: MixerConfig) -> None:
    """What attention has and another mixer has not is refused, and the other way round."""
    usual = MixerConfig()
    theirs = {"cell": "recurrent", "kernel_size": "convolution", "dilations": "convolution"}
    for name, kind in theirs.items():
        if getattr(mixer, name) != getattr(usual, name) and mixer.kind != kind:
            raise ConfigError(f"mixer.{name} is for mixer.kind {kind}, and it is {mixer.kind}")
    if not mixer.dilations:
        raise ConfigError("mixer.dilations is empty: at least one number is needed")
    if mixer.kind == "attention":
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
            f"d_model is {config.d_model}: an encoder's recurrent mixer has half of it in each "
            f"direction: choose an even number"
        )
    if config.compute.scan_layers and len(set(mixer.dilations)) > 1:
        raise ConfigError("compute.scan_layers: its layers are alike, but mixer.dilations differ")
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


def _check_windows(scores: ScoreConfig, layers: int) -> None:
    """Sliding windows and the layers that have one."""
    size, every, chosen = (
        scores.sliding_window,
        scores.sliding_window_every,
        scores.sliding_window_layers,
    )
    if chosen is None:
        return
    if size is None or every != 1:
        raise ConfigError(
            f"scores.sliding_window_layers is {chosen}: it needs scores.sliding_window, and "
            f"scores.sliding_window_every left at 1"
        )
    if list(chosen) != sorted({i for i in chosen if 0 <= i < layers}):
        raise ConfigError(
            f"scores.sliding_window_layers is {chosen}: layers from 0 to {layers - 1} in ascending "
            f"order, each once"
        )


def _check_relative(positions: PositionConfig, decodes: bool) -> None:
    """The distances of relative positions; a decoder has all buckets for one direction."""
    buckets, distance = positions.num_buckets, positions.max_distance
    exact = buckets // (2 if decodes else 4)
    if positions.kind == "relative" and not (buckets >= 4 and distance > exact):
        raise ConfigError(
            f"positions.num_buckets is {buckets}: relative positions need at least 4, of which "
            f"{exact} hold one distance each: fewer than positions.max_distance, {distance}"
        )


def _check_rope(positions: PositionConfig, head_dim: int) -> None:
    """Rotary embeddings, and the one method that changes their angles."""
    if positions.rope_dim is None and head_dim % 2:
        raise ConfigError(f"rotary embeddings need an even head size, not {head_dim}")
    size = head_dim if positions.rope_dim is None else positions.rope_dim
    if size % 2 or not 0 < size <= head_dim:
        raise ConfigError(
            f"positions.rope_dim is {positions.rope_dim}: an even number, at most the head size "
            f"{head_dim}"
        )
    methods = positions.rope_methods
    if len(methods) > 1:
        raise ConfigError(
            f"positions.{' and positions.'.join(methods)} are given: only one of them is allowed"
        )
    if positions.rope_dynamic and size < 4:
        raise ConfigError(f"positions.rope_dynamic needs at least 4 rotary dimensions, not {size}")
    _check_longrope(positions, size)
    for name in ("rope_scaling", "rope_yarn", "rope_dynamic"):
        numbers = getattr(positions, name)
        if numbers is not None and not all(number > 0 for number in numbers[:4]):
            raise ConfigError(f"positions.{name} is {numbers}: each number has to be above 0")
    low, high = (positions.rope_scaling or (1.0, 0.0, 1.0))[1:3]
    if not low < high:
        raise ConfigError(
            f"positions.rope_scaling is {positions.rope_scaling}: the second number has to be "
            f"below the third"
        )
    theta = positions.rope_theta
    if positions.rope_yarn is not None and theta <= 1:
        raise ConfigError(f"positions.rope_theta is {theta}: above 1 with positions.rope_yarn")


def _check_longrope(positions: PositionConfig, size: int) -> None:
    factors = {name: getattr(positions, name) for name in ("rope_short_factor", "rope_long_factor")}
    given = any(factors.values())
    if given != (positions.rope_original_max_length is not None):
        raise ConfigError(
            "positions.rope_short_factor, rope_long_factor and rope_original_max_length are given "
            "together"
        )
    for name, numbers in factors.items() if given else ():
        if len(numbers) != size // 2 or not all(number > 0 for number in numbers):
            raise ConfigError(
                f"positions.{name} has {len(numbers)} factors: {size // 2} are needed, each above 0"
            )


def _check_embedding(config: TransformerConfig) -> None:
    """One table for both sides, and embeddings of another size than the model's."""
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


def _check_image(config: TransformerConfig, image: ImageConfig) -> None:
    size, patch = image.image_size, image.patch_size
    if size % patch:
        raise ConfigError(
            f"image.patch_size {patch} does not divide image.image_size {size}: choose a divisor"
        )
    if config.decoder_layers:
        raise ConfigError("image.image_size is for encoders, but there are decoder layers")
    if config.vocab_size:
        raise ConfigError(
            f"vocab_size is {config.vocab_size}: an image model has no vocabulary: set it to 0"
        )
    if config.positions.max_length != image.sequence_length:
        raise ConfigError(
            f"positions.max_length is {config.positions.max_length}: an image of {size} × {size} "
            f"in patches of {patch} × {patch} makes {image.sequence_length}"
        )

"""What a model is made of: frozen dataclasses in small groups, and presets by name.

One set of fields expresses Vaswani et al. 2017, BERT, RoBERTa, ELECTRA, DistilBERT, GPT-2, BART,
Marian, T5, ViT and Llama; the model code never asks for a model's name.
"""

import dataclasses
import json
import math
import sys
import types
import typing
from typing import Any, Literal

from transformer_jax.errors import ConfigError

__all__ = [
    "PRESETS",
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
    "bert",
    "from_dict",
    "vit",
]

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "tanh"]


@dataclasses.dataclass(frozen=True)
class EmbeddingConfig:
    """Tokens to vectors."""

    scale: float | None = (
        None  # multiplies token embeddings; None is the square root of their width
    )
    norm: bool = False  # a norm after the sum of embeddings (BERT, BART)
    segments: int = 0  # rows of a segment (token type) table; 0 is none
    shared: bool = True  # encoder and decoder read one table
    width: int | None = None  # E, of all tables; a linear map leads to the model's (ELECTRA)
    dropout: float = 0.1


@dataclasses.dataclass(frozen=True)
class PositionConfig:
    """How order is told."""

    kind: Literal[
        "none", "learned", "sinusoidal", "sinusoidal_halves", "rotary", "alibi", "relative"
    ] = "sinusoidal"
    max_length: int = 1024  # longest sequence; rows of a learned table, less the offset
    offset: int = 0  # first row of the learned table in use (BART 2)
    skip_padding: bool = False  # positions count valid tokens only (RoBERTa)
    rotary_base: float = 10_000.0
    rotary_dim: int | None = None  # the first dimensions of a head that turn; None is all
    rotary_scaling: tuple[float, float, float, int] | None = None  # factor, low, high, old length
    rotary_yarn: tuple[float, float, float, int, bool] | None = None  # see yarn_frequencies
    rotary_dynamic: tuple[float, int] | None = None  # NTK factor, old length; see dynamic_base
    rotary_short: tuple[float, ...] = ()  # LongRoPE: divides the frequency of each pair
    rotary_long: tuple[float, ...] = ()  # the same where max_length is above rotary_short_length
    rotary_short_length: int | None = None
    rotary_attention_factor: float = 1.0  # of turned queries and keys (YaRN, LongRoPE)
    rotary_interpolation: float = 1.0  # positions are divided by it, for texts longer by it
    buckets: int = 32  # of relative distances (T5)
    max_distance: int = 128  # beyond which all distances share a bucket (T5)

    @property
    def bounded(self) -> bool:
        """Whether max_length is part of what is computed, so that no text can be longer.

        A table has so many rows, be it learned or of sinusoids, and the angles of dynamic NTK and
        LongRoPE follow from the length of the context.
        """
        depends = self.rotary_method in ("rotary_dynamic", "rotary_short")
        table = self.kind == "learned" or self.kind.startswith("sinusoidal")
        return table or (self.kind == "rotary" and depends)

    @property
    def rotary_method(self) -> str | None:
        """The field that makes angles others than those of the base, if there is one."""
        return next((name for name in _ROTARY_METHODS if getattr(self, name)), None)


_ROTARY_METHODS = ("rotary_scaling", "rotary_yarn", "rotary_dynamic", "rotary_short")


@dataclasses.dataclass(frozen=True)
class AttentionConfig:
    """Projections to queries, keys and values, and back."""

    heads: int = 8  # N
    kv_heads: int | None = None  # K; None is as many as heads
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
    softcap: float | None = None  # scores become softcap * tanh(scores / softcap)
    window: int | None = None  # keys fewer than this many steps away are in reach
    window_every: int = 1  # layer i has the window if i is a multiple (Gemma 2: 2)
    window_layers: tuple[int, ...] | None = None  # or: the layers that have it, from 0 (Qwen 2)

    def window_of(self, layer: int) -> int | None:
        """How far layer ``layer`` looks; None is as far as there are keys.

        Example:
            >>> scores = ScoreConfig(window=8, window_layers=(1, 2))
            >>> [scores.window_of(i) for i in range(4)]
            [None, 8, 8, None]
        """
        layers = self.window_layers
        local = layer % self.window_every == 0 if layers is None else layer in layers
        return self.window if local else None


@dataclasses.dataclass(frozen=True)
class FeedForwardConfig:
    """Two linear maps with a non-linearity between, at every position alike."""

    width: int = 2048  # F
    activation: Activation = "relu"
    gated: bool = False  # activation(x W) * (x V) instead of activation(x W)
    bias: bool = True
    dropout: float = 0.0  # of the hidden layer


@dataclasses.dataclass(frozen=True)
class NormConfig:
    """Normalisation of the residual stream."""

    kind: Literal["layer", "rms"] = "layer"
    place: Literal["post", "pre", "sandwich"] = "post"
    eps: float = 1e-5
    gain_offset: float = 0.0  # the gain is this plus the parameter (Gemma: 1)
    bias: bool = True  # of layer norm
    final: bool | None = None  # a norm after the last block; None is: wherever norms come before
    dropout: float = 0.1  # of each sub-layer's output, before it joins the residual stream


@dataclasses.dataclass(frozen=True)
class HeadConfig:
    """Vectors to scores over the vocabulary."""

    tied: bool = True  # the output matrix is the embedding table
    bias: bool = False
    scale: float = 1.0  # of the vectors, before the product (T5 1.0: width ** -0.5)
    softcap: float | None = None  # of the scores (Gemma 2)
    transform: bool = False  # a linear map, an activation and a norm come first (BERT);
    transform_activation: Activation | None = None  # None is that of the feed-forward
    pooler: bool = False  # a linear map of the first vector stands for a whole text (BERT),
    pooler_activation: Activation = "tanh"  # after this (DistilBERT: relu)


@dataclasses.dataclass(frozen=True)
class ImageConfig:
    """Images as sequences: a vector for the whole comes first, then one for each patch (ViT)."""

    size: int = 0  # pixels along each side; 0 is a model of words, not of images
    patch: int = 16  # pixels along each side of a patch
    channels: int = 3

    @property
    def places(self) -> int:
        """The length of the sequence."""
        return 1 + (self.size // self.patch) ** 2


@dataclasses.dataclass(frozen=True)
class ComputeConfig:
    """How it is computed, which changes no result beyond rounding."""

    dtype: Literal["float32", "bfloat16"] = "float32"  # of products; parameters stay float32
    scan: bool = False  # one compiled block run L times: quick to compile, slower on CPU
    remat: bool = False  # recompute activations in the backward pass: less memory, more time


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """A Transformer; the defaults are Vaswani et al. 2017, base size."""

    vocab: int = 37_000  # V; training sets it to the size of the tokenizer; 0 if images are read
    width: int = 512  # D
    encoder_layers: int = 6  # L
    decoder_layers: int = 6  # L
    decoder_vocab: int | None = None  # None is the encoder's
    decoder_heads: int | None = None  # None is the encoder's
    decoder_feed_forward: int | None = None  # None is the encoder's
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
        check(self)

    @property
    def embedding_scale(self) -> float:
        """What token embeddings are multiplied by."""
        scale = self.embedding.scale
        return math.sqrt(self.embedding_width) if scale is None else scale

    @property
    def embedding_width(self) -> int:
        """E, the size of the vectors in tables; the model's unless they are projected."""
        return self.embedding.width or self.width

    @property
    def head_dim(self) -> int:
        """H, the size of a query head."""
        return self.attention.head_dim or self.width // self.attention.heads

    @property
    def final_norm(self) -> bool:
        """Whether a norm follows the last block."""
        final = self.norm.final
        return self.norm.place != "post" if final is None else final

    def decoder(self) -> "TransformerConfig":
        """The same, as the decoder's stack sees it: its own heads, feed-forward and vocabulary."""
        attention = dataclasses.replace(
            self.attention, heads=self.decoder_heads or self.attention.heads
        )
        feed_forward = dataclasses.replace(
            self.feed_forward, width=self.decoder_feed_forward or self.feed_forward.width
        )
        return dataclasses.replace(
            self,
            vocab=self.decoder_vocab or self.vocab,
            attention=attention,
            feed_forward=feed_forward,
            decoder_vocab=None,
            decoder_heads=None,
            decoder_feed_forward=None,
        )


# What no machine computes with is a slip of the keyboard, or worse, and is told before time and
# memory are spent on it. Each is at least ten times what was ever published.
_MOST = {
    "vocab": 1 << 26,
    "width": 1 << 20,
    "encoder_layers": 1 << 12,
    "decoder_layers": 1 << 12,
    "decoder_vocab": 1 << 26,
    "decoder_heads": 1 << 14,
    "decoder_feed_forward": 1 << 22,
    "embedding.segments": 1 << 20,
    "embedding.width": 1 << 20,
    "positions.max_length": 1 << 30,
    "positions.offset": 1 << 20,
    "positions.buckets": 1 << 20,
    "positions.max_distance": 1 << 30,
    "attention.heads": 1 << 14,
    "attention.kv_heads": 1 << 14,
    "attention.head_dim": 1 << 16,
    "attention.value_dim": 1 << 16,
    "feed_forward.width": 1 << 22,
    "image.size": 1 << 16,
    "image.patch": 1 << 16,
    "image.channels": 1 << 16,
}


_NONE_OR_MORE = ("decoder_vocab", "decoder_feed_forward", "attention.kv_heads",
                 "attention.head_dim", "attention.value_dim")  # fmt: skip
_ZERO_OR_MORE = ("encoder_layers", "decoder_layers", "embedding.segments", "positions.offset")


def _check_sizes(config: TransformerConfig) -> None:
    for name, most in _MOST.items():
        value: Any = config
        for part in name.split("."):
            value = getattr(value, part)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{name} is {value!r}: a whole number is needed")
        if value > most:
            raise ConfigError(f"{name} is {value}: at most {most}")
        if name in _NONE_OR_MORE and value < 1:
            raise ConfigError(f"{name} is {value}: at least 1, or None")
        if name in _ZERO_OR_MORE and value < 0:
            raise ConfigError(f"{name} is {value}: it must be 0 or more")


def check(config: TransformerConfig) -> None:
    """Refuses a configuration that no model can have, naming the field and what is allowed."""
    _check_sizes(config)
    for where, heads in (
        ("heads", config.attention.heads),
        ("decoder_heads", config.decoder_heads),
    ):
        if heads is None:
            continue
        if heads < 1:
            raise ConfigError(f"attention.{where} is {heads}: at least 1 head is needed")
        if config.attention.head_dim is None and config.width % heads:
            raise ConfigError(
                f"attention.{where} {heads} does not divide width {config.width}: choose heads "
                f"that divide it, or give attention.head_dim"
            )
        kv_heads = config.attention.kv_heads or heads
        if heads % kv_heads:
            raise ConfigError(
                f"attention.kv_heads {kv_heads} does not divide attention.{where} {heads}"
            )
    for name in ("width",) if config.image.size else ("vocab", "width"):
        if getattr(config, name) < 1:
            raise ConfigError(f"{name} is {getattr(config, name)}: it must be at least 1")
    if config.feed_forward.width < 1:
        raise ConfigError(f"feed_forward.width is {config.feed_forward.width}: at least 1")
    if config.positions.max_length < 1:
        raise ConfigError(f"positions.max_length is {config.positions.max_length}: at least 1")
    for group in ("embedding", "attention", "feed_forward", "norm"):
        rate = getattr(config, group).dropout
        if not 0.0 <= rate < 1.0:
            raise ConfigError(f"{group}.dropout is {rate}: allowed are 0 up to, not including, 1")
    if config.scores.window is not None and config.scores.window < 1:
        raise ConfigError(f"scores.window is {config.scores.window}: at least 1 (the token itself)")
    if config.scores.window_every < 1:
        raise ConfigError(f"scores.window_every is {config.scores.window_every}: at least 1")
    check_window_layers(config)
    check_rotary(config)
    places = config.positions
    if places.kind == "relative" and not 4 <= places.buckets < places.max_distance:
        raise ConfigError(
            f"positions.buckets is {places.buckets}: relative positions need at least 4, and fewer "
            f"than positions.max_distance, {places.max_distance}"
        )
    for name in ("transform", "pooler"):
        if getattr(config.head, name) and config.decoder_layers:
            raise ConfigError(f"head.{name} is for encoders, but there are decoder layers")
    if config.decoder_vocab and config.decoder_vocab != config.vocab and config.embedding.shared:
        raise ConfigError(
            f"embedding.shared needs one vocabulary, but vocab is {config.vocab} and decoder_vocab "
            f"{config.decoder_vocab}: set embedding.shared to False"
        )
    check_embedding(config)
    if config.image.size:
        check_image(config)


def check_embedding(config: TransformerConfig) -> None:
    """Refuses a width of embeddings that no model can have."""
    width = config.embedding.width
    if width in (None, config.width):
        return
    if width < 1:
        raise ConfigError(f"embedding.width is {width}: at least 1, or None, which is the model's")
    if config.decoder_layers or config.image.size:
        raise ConfigError(
            f"embedding.width is {width}: only an encoder of words projects its embeddings"
        )


def check_window_layers(config: TransformerConfig) -> None:
    """Refuses layers with a window that no model can have, or that are named in two ways."""
    scores, most = config.scores, max(config.encoder_layers, config.decoder_layers)
    layers = scores.window_layers
    if layers is None:
        return
    if scores.window is None or scores.window_every != 1:
        raise ConfigError(
            f"scores.window_layers is {layers}: it needs scores.window, and scores.window_every "
            f"left at 1"
        )
    if list(layers) != sorted({i for i in layers if 0 <= i < most}):
        raise ConfigError(
            f"scores.window_layers is {layers}: layers from 0 to {most - 1} in ascending order, "
            f"each once"
        )


def check_rotary(config: TransformerConfig) -> None:
    """Refuses rotary positions that no model can have."""
    places = config.positions
    if places.kind != "rotary":
        return
    if places.rotary_dim is None and config.head_dim % 2:
        raise ConfigError(f"rotary positions need an even head size, not {config.head_dim}")
    size = config.head_dim if places.rotary_dim is None else places.rotary_dim
    if size % 2 or not 0 < size <= config.head_dim:
        raise ConfigError(
            f"positions.rotary_dim is {places.rotary_dim}: an even number, at most the head size "
            f"{config.head_dim}"
        )
    given = [name for name in _ROTARY_METHODS if getattr(places, name)]
    if len(given) > 1:
        raise ConfigError(f"positions.{' and positions.'.join(given)} are given: only one of them")
    if places.rotary_dynamic and size < 4:
        raise ConfigError(f"positions.rotary_dynamic needs at least 4 dimensions that turn: {size}")
    longrope = places.rotary_short, places.rotary_long
    if any(longrope) != (places.rotary_short_length is not None):
        raise ConfigError(
            "positions.rotary_short, rotary_long and rotary_short_length are given together"
        )
    for name, factors in zip(("short", "long"), longrope if any(longrope) else (), strict=False):
        if len(factors) != size // 2 or not all(factor > 0 for factor in factors):
            raise ConfigError(
                f"positions.rotary_{name} has {len(factors)} factors: {size // 2} are needed, each "
                f"above 0"
            )
    for name in ("rotary_scaling", "rotary_yarn", "rotary_dynamic"):
        numbers = getattr(places, name)
        if numbers is not None and not all(number > 0 for number in numbers[:4]):
            raise ConfigError(f"positions.{name} is {numbers}: each number has to be above 0")
    low, high = (places.rotary_scaling or (1.0, 0.0, 1.0))[1:3]
    if not low < high:
        raise ConfigError(
            f"positions.rotary_scaling is {places.rotary_scaling}: the second number has to be "
            f"below the third"
        )
    if not places.rotary_base > 0:
        raise ConfigError(f"positions.rotary_base is {places.rotary_base}: above 0")
    if places.rotary_yarn is not None and places.rotary_base <= 1:
        raise ConfigError(
            f"positions.rotary_base is {places.rotary_base}: above 1 with positions.rotary_yarn"
        )
    if not places.rotary_attention_factor > 0:
        raise ConfigError(
            f"positions.rotary_attention_factor is {places.rotary_attention_factor}: above 0"
        )
    if places.rotary_interpolation < 1:
        raise ConfigError(
            f"positions.rotary_interpolation is {places.rotary_interpolation}: 1 (none) or more"
        )


def check_image(config: TransformerConfig) -> None:
    """Refuses a configuration for images that no model can have."""
    image = config.image
    for name in ("size", "patch", "channels"):
        if getattr(image, name) < 1:
            raise ConfigError(f"image.{name} is {getattr(image, name)}: at least 1")
    if image.size % image.patch:
        raise ConfigError(
            f"image.patch {image.patch} does not divide image.size {image.size}: choose a size of "
            f"patches that does"
        )
    if config.decoder_layers:
        raise ConfigError("image.size is for encoders, but there are decoder layers")
    if config.vocab:
        raise ConfigError(f"vocab is {config.vocab}: a model of images has no words: set it to 0")
    if config.positions.max_length != image.places:
        raise ConfigError(
            f"positions.max_length is {config.positions.max_length}: an image of {image.size} × "
            f"{image.size} in patches of {image.patch} × {image.patch} makes {image.places}"
        )


def from_dict(cls: type, values: dict[str, Any], where: str = "") -> Any:
    """A dataclass of type ``cls`` from what ``dataclasses.asdict`` made of one, via JSON or not.

    Nested dataclasses are rebuilt and lists become tuples.

    Raises:
        ConfigError: A key that ``cls`` does not have; it names the key and the nearest field. A
            value of another type than its field's.

    Example:
        >>> from_dict(ComputeConfig, {"scan": True})
        ComputeConfig(dtype='float32', scan=True, remat=False)
    """
    import difflib

    hints = typing.get_type_hints(cls)
    fields = {field.name for field in dataclasses.fields(cls)}
    out = {}
    for name, value in values.items():
        if name not in fields:
            near = difflib.get_close_matches(name, fields, 1)
            hint = f"; did you mean {where}{near[0]}?" if near else ""
            raise ConfigError(f"unknown setting {where}{name}{hint}")
        kind = hints[name]
        kinds = (kind, *typing.get_args(kind))
        nested = [k for k in kinds if isinstance(k, type) and dataclasses.is_dataclass(k)]
        if isinstance(value, dict) and nested:
            value = from_dict(nested[0], value, f"{where}{name}.")
        elif isinstance(value, list):
            value = tuple(value)
        if not _fits(value, kind):
            said = json.dumps(value, default=str)[:80]
            raise ConfigError(f"{where}{name} is {said}: {_needed(kind)} is needed")
        whole = type(value) is int and _exactly(float, kind) and not _exactly(int, kind)
        out[name] = float(value) if whole else value
    return cls(**out)


def _exactly(wanted: type, kind: Any) -> bool:
    """Whether a type is ``wanted``, or has it among others."""
    return wanted is kind or any(_exactly(wanted, part) for part in typing.get_args(kind))


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value read from JSON can be of a type; whole numbers are numbers too."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        each = parts[:1] * len(value) if parts[1:] == (...,) else parts
        return len(each) == len(value) and all(map(_fits, value, each))
    if dataclasses.is_dataclass(kind):
        return isinstance(value, typing.cast(type, kind))
    simple: dict[Any, Any] = {
        bool: bool,
        int: int,
        float: (int, float),
        str: str,
        type(None): type(None),
    }
    if kind not in simple:
        return True
    real = value == value  # NaN is no number
    if kind is float and isinstance(value, int):
        real = abs(value) <= sys.float_info.max  # JSON can hold what no float can
    return (
        isinstance(value, simple[kind])
        and real
        and (kind is bool or (value is not True and value is not False))
    )


def _needed(kind: Any) -> str:
    """A type as people say it."""
    named = {bool: "true or false", int: "a whole number", float: "a number", str: "text",
             type(None): "null"}  # fmt: skip
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(map(json.dumps, parts))
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(map(_needed, parts))
    return named.get(kind, "a list" if typing.get_origin(kind) is tuple else "an object")


def _vaswani(**sizes: Any) -> TransformerConfig:
    # The paper's projections have no biases, which is what its parameter counts say.
    heads = sizes.pop("heads")
    hidden = sizes.pop("hidden")
    dropout = sizes.pop("dropout")
    return TransformerConfig(
        embedding=EmbeddingConfig(dropout=dropout),
        attention=AttentionConfig(heads=heads, bias=False, out_bias=False),
        feed_forward=FeedForwardConfig(width=hidden),
        norm=NormConfig(dropout=dropout),
        **sizes,
    )


def _gpt2(
    width: int,
    layers: int,
    heads: int,
    context: int = 1024,
    dropout: float = 0.1,
    bias: bool = True,
) -> TransformerConfig:
    return TransformerConfig(
        vocab=50_257,
        width=width,
        encoder_layers=0,
        decoder_layers=layers,
        embedding=EmbeddingConfig(scale=1.0, dropout=dropout),
        positions=PositionConfig(kind="learned", max_length=context),
        attention=AttentionConfig(heads=heads, bias=bias, out_bias=bias, dropout=dropout),
        feed_forward=FeedForwardConfig(width=4 * width, activation="gelu_tanh", bias=bias),
        norm=NormConfig(place="pre", bias=bias, dropout=dropout),
    )


def bert(
    width: int,
    layers: int,
    *,
    vocab: int = 30_522,
    length: int = 512,
    dropout: float = 0.1,
) -> TransformerConfig:
    """BERT of any size: heads of 64, hidden layers four times as wide (Devlin et al. 2019).

    Example:
        >>> bert(128, 2) == PRESETS["bert_tiny"]
        True
    """
    return TransformerConfig(
        vocab=vocab,
        width=width,
        encoder_layers=layers,
        decoder_layers=0,
        embedding=EmbeddingConfig(scale=1.0, norm=True, segments=2, dropout=dropout),
        positions=PositionConfig(kind="learned", max_length=length),
        attention=AttentionConfig(heads=max(1, width // 64), dropout=dropout),
        feed_forward=FeedForwardConfig(width=4 * width, activation="gelu"),
        norm=NormConfig(eps=1e-12, dropout=dropout),
        head=HeadConfig(bias=True, transform=True, pooler=True),
    )


def vit(
    width: int,
    layers: int,
    *,
    size: int = 224,
    patch: int = 16,
    channels: int = 3,
    dropout: float = 0.0,
) -> TransformerConfig:
    """The Vision Transformer of any size: heads of 64, hidden layers four times as wide.

    Source: Dosovitskiy et al. 2021, table 1.

    Example:
        >>> vit(768, 12) == PRESETS["vit_base"]
        True
    """
    if patch < 1:
        raise ConfigError(f"patch is {patch}: at least 1")
    image = ImageConfig(size=size, patch=patch, channels=channels)
    return TransformerConfig(
        vocab=0,
        width=width,
        encoder_layers=layers,
        decoder_layers=0,
        embedding=EmbeddingConfig(scale=1.0, dropout=dropout),
        positions=PositionConfig(kind="learned", max_length=image.places),
        attention=AttentionConfig(heads=max(1, width // 64)),
        feed_forward=FeedForwardConfig(width=4 * width, activation="gelu", dropout=dropout),
        norm=NormConfig(place="pre", eps=1e-6, dropout=dropout),
        head=HeadConfig(bias=True),
        image=image,
    )


PRESETS: dict[str, TransformerConfig] = {
    # Vaswani et al. 2017, table 3: 63.05 M and 214.2 M parameters at V = 37,000 (row U15).
    "vaswani_base": _vaswani(width=512, heads=8, hidden=2048, dropout=0.1),
    "vaswani_big": _vaswani(width=1024, heads=16, hidden=4096, dropout=0.3),
    # The shape of the published Marian (OPUS-MT) translators.
    "marian": TransformerConfig(
        vocab=58_101,
        positions=PositionConfig(kind="sinusoidal_halves", max_length=512),
        feed_forward=FeedForwardConfig(activation="silu"),
        norm=NormConfig(),
        head=HeadConfig(bias=True),
    ),
    "bart_base": TransformerConfig(
        vocab=50_265,
        width=768,
        embedding=EmbeddingConfig(scale=1.0, norm=True),
        positions=PositionConfig(kind="learned", max_length=1024, offset=2),
        attention=AttentionConfig(heads=12, dropout=0.1),
        feed_forward=FeedForwardConfig(width=3072, activation="gelu", dropout=0.1),
        norm=NormConfig(),
        head=HeadConfig(bias=True),
    ),
    "t5_small": TransformerConfig(
        vocab=32_128,
        embedding=EmbeddingConfig(scale=1.0),
        positions=PositionConfig(kind="relative", max_length=512),
        attention=AttentionConfig(heads=8, head_dim=64, bias=False, out_bias=False, dropout=0.1),
        scores=ScoreConfig(scale=1.0),
        feed_forward=FeedForwardConfig(width=2048, bias=False, dropout=0.1),
        norm=NormConfig(kind="rms", place="pre", eps=1e-6),
        head=HeadConfig(scale=512**-0.5),
    ),
    # Devlin et al. 2019, and the small ones of Turc et al. 2019; with pooler 4.4, 11.2, 28.8, 41.4,
    # 109.5 and 335.1 M parameters (row H17).
    "bert_tiny": bert(width=128, layers=2),
    "bert_mini": bert(width=256, layers=4),
    "bert_small": bert(width=512, layers=4),
    "bert_medium": bert(width=512, layers=8),
    "bert_base": bert(width=768, layers=12),
    "bert_large": bert(width=1024, layers=24),
    # Dosovitskiy et al. 2021 and, tiny, Touvron et al. 2021; with 1,000 classes 5.7, 86.6 and
    # 304.3 M parameters.
    "vit_tiny": vit(width=192, layers=12),
    "vit_base": vit(width=768, layers=12),
    "vit_large": vit(width=1024, layers=24),
    # Radford et al. 2019: 124, 355, 774 and 1,558 M parameters.
    "gpt2": _gpt2(width=768, layers=12, heads=12),
    "gpt2_medium": _gpt2(width=1024, layers=24, heads=16),
    "gpt2_large": _gpt2(width=1280, layers=36, heads=20),
    "gpt2_xl": _gpt2(width=1600, layers=48, heads=25),
    # The character model of nanoGPT: no biases, a context of 256.
    "char": dataclasses.replace(
        _gpt2(width=384, layers=6, heads=6, context=256, dropout=0.2, bias=False), vocab=65
    ),
    # What decoders are made of since Llama: RMS norm, rotations, gates and shared key heads.
    "modern": TransformerConfig(
        vocab=32_000,
        width=768,
        encoder_layers=0,
        decoder_layers=12,
        embedding=EmbeddingConfig(scale=1.0, dropout=0.0),
        positions=PositionConfig(kind="rotary", max_length=2048),
        attention=AttentionConfig(heads=12, kv_heads=4, bias=False, out_bias=False),
        feed_forward=FeedForwardConfig(width=2048, activation="silu", gated=True, bias=False),
        norm=NormConfig(kind="rms", place="pre", eps=1e-6, dropout=0.0),
    ),
}

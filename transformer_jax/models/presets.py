"""Hugging Face model configurations by name."""

import dataclasses
from typing import Any, TypeVar

from transformer_jax.core.config_fields import nearest
from transformer_jax.core.errors import ArgumentError, ConfigError
from transformer_jax.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    ImageConfig,
    LabelConfig,
    NormConfig,
    PositionConfig,
    ScoreConfig,
    TransformerConfig,
)

__all__ = ["PRESETS", "Presets", "bert", "modernbert", "vit"]

Preset = TypeVar("Preset")


class Presets(dict[str, Preset]):
    """Configurations by name.

    Example:
        >>> Presets(base=1, big=2)["bas"]
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ArgumentError: no preset 'bas': there are base, big; did you ...
    """

    def __missing__(self, name: str) -> Preset:
        """Refuses an unknown name and suggests the nearest known one."""
        there = ", ".join(self)
        raise ArgumentError(f"no preset {name!r}: there are {there}{nearest(name, self)}")


def _vaswani(d_model: int, num_heads: int, d_ff: int, dropout: float) -> TransformerConfig:
    # The paper's parameter counts imply projections without biases.
    return TransformerConfig(
        d_model=d_model,
        embedding=EmbeddingConfig(dropout=dropout),
        attention=AttentionConfig(num_heads=num_heads, bias=False, out_bias=False),
        feed_forward=FeedForwardConfig(d_ff=d_ff),
        norm=NormConfig(residual_dropout=dropout),
    )


def _gpt2(
    d_model: int,
    num_layers: int,
    num_heads: int,
    context: int = 1024,
    dropout: float = 0.1,
    bias: bool = True,
) -> TransformerConfig:
    return TransformerConfig(
        vocab_size=50_257,
        d_model=d_model,
        encoder_layers=0,
        decoder_layers=num_layers,
        embedding=EmbeddingConfig(scale=1.0, dropout=dropout),
        positions=PositionConfig(kind="learned", max_length=context),
        attention=AttentionConfig(num_heads=num_heads, bias=bias, out_bias=bias, dropout=dropout),
        feed_forward=FeedForwardConfig(d_ff=4 * d_model, activation="gelu_tanh", bias=bias),
        norm=NormConfig(placement="pre", bias=bias, residual_dropout=dropout),
    )


def bert(
    d_model: int,
    num_layers: int,
    *,
    vocab_size: int = 30_522,
    max_length: int = 512,
    dropout: float = 0.1,
) -> TransformerConfig:
    """BERT of any size: head size 64, ``d_ff = 4 d_model`` (Devlin et al. 2019).

    Example:
        >>> bert(128, 2) == PRESETS["bert_tiny"]
        True
    """
    return TransformerConfig(
        vocab_size=vocab_size,
        d_model=d_model,
        encoder_layers=num_layers,
        decoder_layers=0,
        embedding=EmbeddingConfig(
            scale=1.0, layernorm_embedding=True, type_vocab_size=2, dropout=dropout
        ),
        positions=PositionConfig(kind="learned", max_length=max_length),
        attention=AttentionConfig(num_heads=max(1, d_model // 64), dropout=dropout),
        feed_forward=FeedForwardConfig(d_ff=4 * d_model, activation="gelu"),
        norm=NormConfig(eps=1e-12, residual_dropout=dropout),
        head=HeadConfig(bias=True, mlm_transform=True, pooler=True),
    )


def modernbert(
    d_model: int,
    num_layers: int,
    d_ff: int,
    *,
    vocab_size: int = 50_368,
    max_length: int = 8192,
    window: int = 128,
) -> TransformerConfig:
    """ModernBERT of any size: head size 64, global attention in the first of every three layers.

    Warner et al. 2024, table 4.

    Args:
        d_model: Width of the model.
        num_layers: Number of layers.
        d_ff: Feed-forward size; of units and gates each.
        vocab_size: Size of the vocabulary.
        max_length: Longest text.
        window: Tokens that local layers see, on both sides together.

    Example:
        >>> modernbert(768, 22, 1152) == PRESETS["modernbert_base"]
        True
    """
    return TransformerConfig(
        vocab_size=vocab_size,
        d_model=d_model,
        encoder_layers=num_layers,
        decoder_layers=0,
        embedding=EmbeddingConfig(scale=1.0, layernorm_embedding=True, dropout=0.0),
        positions=PositionConfig(
            kind="rope", max_length=max_length, rope_theta=160_000.0, rope_local_theta=10_000.0
        ),
        attention=AttentionConfig(num_heads=max(1, d_model // 64), bias=False, out_bias=False),
        scores=ScoreConfig(sliding_window=window // 2 + 1, full_attention_every=3),
        feed_forward=FeedForwardConfig(d_ff=d_ff, activation="gelu", gated=True, bias=False),
        norm=NormConfig(placement="pre", first=False, bias=False, residual_dropout=0.0),
        head=HeadConfig(bias=True, mlm_transform=True, mlm_transform_bias=False),
        labels=LabelConfig(transform=True),
    )


def vit(
    d_model: int,
    num_layers: int,
    *,
    image_size: int = 224,
    patch_size: int = 16,
    num_channels: int = 3,
    dropout: float = 0.0,
    **form: Any,
) -> TransformerConfig:
    """The Vision Transformer of any size: head size 64, ``d_ff = 4 d_model``.

    Further settings are fields of :class:`.ImageConfig`, such as ``pooling``.

    Source: Dosovitskiy et al. 2021, table 1.

    Example:
        >>> vit(768, 12) == PRESETS["vit_base"]
        True
    """
    if patch_size < 1:
        raise ConfigError(f"patch is {patch_size}: at least 1")
    image = ImageConfig(image_size, patch_size, num_channels, **form)
    return TransformerConfig(
        vocab_size=0,
        d_model=d_model,
        encoder_layers=num_layers,
        decoder_layers=0,
        embedding=EmbeddingConfig(scale=1.0, dropout=dropout),
        positions=PositionConfig(kind="learned"),
        attention=AttentionConfig(num_heads=max(1, d_model // 64)),
        feed_forward=FeedForwardConfig(
            d_ff=4 * d_model, activation="gelu", activation_dropout=dropout
        ),
        norm=NormConfig(placement="pre", eps=1e-6, residual_dropout=dropout),
        head=HeadConfig(bias=True),
        image=image,
    )


PRESETS: Presets[TransformerConfig] = Presets(
    {
        # Vaswani et al. 2017, table 3: 63.05 M and 214.2 M parameters at V = 37,000.
        "vaswani_base": _vaswani(d_model=512, num_heads=8, d_ff=2048, dropout=0.1),
        "vaswani_big": _vaswani(d_model=1024, num_heads=16, d_ff=4096, dropout=0.3),
        # The shape of the published Marian (OPUS-MT) translators.
        "marian": TransformerConfig(
            vocab_size=58_101,
            positions=PositionConfig(kind="sinusoidal_halves", max_length=512),
            feed_forward=FeedForwardConfig(activation="silu"),
            norm=NormConfig(),
            head=HeadConfig(bias=True),
        ),
        "bart_base": TransformerConfig(
            vocab_size=50_265,
            d_model=768,
            embedding=EmbeddingConfig(scale=1.0, layernorm_embedding=True),
            positions=PositionConfig(kind="learned", max_length=1024, offset=2),
            attention=AttentionConfig(num_heads=12, dropout=0.1),
            feed_forward=FeedForwardConfig(d_ff=3072, activation="gelu", activation_dropout=0.1),
            norm=NormConfig(),
            head=HeadConfig(bias=True),
        ),
        "t5_small": TransformerConfig(
            vocab_size=32_128,
            embedding=EmbeddingConfig(scale=1.0),
            positions=PositionConfig(kind="relative", max_length=512),
            attention=AttentionConfig(
                num_heads=8, head_dim=64, bias=False, out_bias=False, dropout=0.1
            ),
            scores=ScoreConfig(scale=1.0),
            feed_forward=FeedForwardConfig(d_ff=2048, bias=False, activation_dropout=0.1),
            norm=NormConfig(kind="rms", placement="pre", eps=1e-6),
            head=HeadConfig(scale=512**-0.5),
        ),
        # Devlin et al. 2019, and the small ones of Turc et al. 2019; with pooler 4.4, 11.2, 28.8,
        # 41.4, 109.5 and 335.1 M parameters.
        "bert_tiny": bert(d_model=128, num_layers=2),
        "bert_mini": bert(d_model=256, num_layers=4),
        "bert_small": bert(d_model=512, num_layers=4),
        "bert_medium": bert(d_model=512, num_layers=8),
        "bert_base": bert(d_model=768, num_layers=12),
        "bert_large": bert(d_model=1024, num_layers=24),
        # Warner et al. 2024: 149.0 and 394.8 M parameters.
        "modernbert_base": modernbert(d_model=768, num_layers=22, d_ff=1152),
        "modernbert_large": modernbert(d_model=1024, num_layers=28, d_ff=2624),
        # Dosovitskiy et al. 2021 and, tiny and small, Touvron et al. 2021; with 1,000 classes 5.7,
        # 22.1, 86.6 and 304.3 M parameters.
        "vit_tiny": vit(d_model=192, num_layers=12),
        "vit_small": vit(d_model=384, num_layers=12),
        "vit_base": vit(d_model=768, num_layers=12),
        "vit_large": vit(d_model=1024, num_layers=24),
        # Radford et al. 2019: 124, 355, 774 and 1,558 M parameters.
        "gpt2_small": _gpt2(d_model=768, num_layers=12, num_heads=12),
        "gpt2_medium": _gpt2(d_model=1024, num_layers=24, num_heads=16),
        "gpt2_large": _gpt2(d_model=1280, num_layers=36, num_heads=20),
        "gpt2_xl": _gpt2(d_model=1600, num_layers=48, num_heads=25),
        # The character model of nanoGPT: no biases, a context of 256.
        "nanogpt_char": dataclasses.replace(
            _gpt2(d_model=384, num_layers=6, num_heads=6, context=256, dropout=0.2, bias=False),
            vocab_size=65,
        ),
        # Decoders since Llama: RMS norm, rotary embeddings, gated feed-forward, GQA.
        "llama_style": TransformerConfig(
            vocab_size=32_000,
            d_model=768,
            encoder_layers=0,
            decoder_layers=12,
            embedding=EmbeddingConfig(scale=1.0, dropout=0.0),
            positions=PositionConfig(kind="rope", max_length=2048),
            attention=AttentionConfig(num_heads=12, num_kv_heads=4, bias=False, out_bias=False),
            feed_forward=FeedForwardConfig(d_ff=2048, activation="silu", gated=True, bias=False),
            norm=NormConfig(kind="rms", placement="pre", eps=1e-6, residual_dropout=0.0),
        ),
    }
)

"""BART, mBART, Marian and Pegasus: encoder-decoders of one layout.

Lewis et al. 2020; Liu et al. 2020; Junczys-Dowmunt et al. 2018; Zhang et al. 2020. BART puts norms
after sub-layers and after embeddings, mBART before and also at the end; Marian after and Pegasus
before, both with sinusoids for positions.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from transformer_jax.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.family import (
    ACTIVATIONS,
    Model,
    ModelFamily,
    TensorMapping,
    Tensors,
    attention_mappings,
    linear_mappings,
    norm_mappings,
)

__all__ = ["BART", "MARIAN", "MBART", "PEGASUS"]

_EPS = 1e-5  # the default of torch, and no key
_OFFSET = 2  # the first two rows of the tables of positions are never used


def _config(
    fields: ConfigReader,
    embedding: EmbeddingConfig,
    positions: PositionConfig,
    *,
    bias: bool,
    place: str = "post",
    decoder_vocab: int | None = None,
) -> TransformerConfig:
    fields.only(normalize_before=place == "pre", tie_word_embeddings=True)
    rate = fields.number("dropout", default=0.1)
    return TransformerConfig(
        vocab_size=fields.whole("vocab_size"),
        d_model=fields.whole("d_model"),
        encoder_layers=fields.whole("encoder_layers"),
        decoder_layers=fields.whole("decoder_layers"),
        decoder_vocab_size=decoder_vocab,
        decoder_attention_heads=fields.whole("decoder_attention_heads"),
        decoder_ffn_dim=fields.whole("decoder_ffn_dim"),
        embedding=embedding,
        positions=positions,
        attention=AttentionConfig(
            num_heads=fields.whole("encoder_attention_heads"),
            dropout=fields.number("attention_dropout", default=0.0),
        ),
        feed_forward=FeedForwardConfig(
            d_ff=fields.whole("encoder_ffn_dim"),
            activation=fields.choice(("activation_function",), ACTIVATIONS, "gelu"),
            activation_dropout=fields.number("activation_dropout", default=0.0),
        ),
        norm=NormConfig(
            placement="pre" if place == "pre" else "post", eps=_EPS, residual_dropout=rate
        ),
        head=HeadConfig(bias=bias),
    )


def _scale(fields: ConfigReader) -> float | None:
    """None is the square root of the width."""
    return None if fields.flag("scale_embedding", False) else 1.0


def _learned(fields: ConfigReader) -> PositionConfig:
    return PositionConfig(
        kind="learned", max_length=fields.whole("max_position_embeddings"), offset=_OFFSET
    )


def _embedding(fields: ConfigReader, **more: Any) -> EmbeddingConfig:
    rate = fields.number("dropout", default=0.1)
    return EmbeddingConfig(scale=_scale(fields), dropout=rate, **more)


def _prefix(tensors: Tensors) -> str:
    """What names begin with; those of a bare model with nothing."""
    bare = tensors.has("shared.weight") or tensors.has("encoder.embed_tokens.weight")
    return "" if bare else "model."


def _bias(tensors: Tensors) -> bool:
    """Whether scores have a bias; it is zeros where a file leaves it out."""
    return tensors.has("final_logits_bias")


def bart(fields: ConfigReader, tensors: Tensors) -> Model:
    """A BART."""
    fields.only(add_final_layer_norm=False)
    config = _config(
        fields, _embedding(fields, layernorm_embedding=True), _learned(fields), bias=_bias(tensors)
    )
    return Model("encoder-decoder", config, _prefix(tensors))


def mbart(fields: ConfigReader, tensors: Tensors) -> Model:
    """An mBART."""
    embedding = _embedding(fields, layernorm_embedding=True)
    config = _config(fields, embedding, _learned(fields), bias=_bias(tensors), place="pre")
    return Model("encoder-decoder", config, _prefix(tensors))


def marian(fields: ConfigReader, tensors: Tensors) -> Model:
    """A translator of OPUS-MT's kind."""
    shared = fields.flag("share_encoder_decoder_embeddings", True)
    positions = PositionConfig(
        kind="sinusoidal_halves", max_length=fields.whole("max_position_embeddings")
    )
    vocab = fields.whole("decoder_vocab_size", default=fields.whole("vocab_size"))
    embedding = _embedding(fields, share_encoder_decoder_embeddings=shared)
    config = _config(
        fields,
        embedding,
        positions,
        bias=_bias(tensors),
        decoder_vocab=None if shared else vocab,
    )
    return Model("encoder-decoder", config, _prefix(tensors))


def pegasus(fields: ConfigReader, tensors: Tensors) -> Model:
    """A Pegasus: Vaswani's model with norms before sub-layers, its sinusoids stored as a table."""
    prefix = _prefix(tensors)
    # Older files leave out what can be computed.
    stored = tensors.has(f"{prefix}encoder.embed_positions.weight")
    positions = PositionConfig(
        kind="learned" if stored else "sinusoidal_halves",
        max_length=fields.whole("max_position_embeddings"),
    )
    fields.only(add_final_layer_norm=True)
    config = _config(fields, _embedding(fields), positions, bias=_bias(tensors), place="pre")
    return Model("encoder-decoder", config, prefix)


def mappings(model: Model) -> list[TensorMapping]:
    """Embeddings, layers and the head's bias."""
    config = model.config
    if config.embedding.share_encoder_decoder_embeddings:
        found = [TensorMapping("embedding/table", f"{model.prefix}shared.weight")]
    else:
        found = [
            TensorMapping("embedding/table", f"{model.prefix}encoder.embed_tokens.weight"),
            TensorMapping("decoder_embedding/table", f"{model.prefix}decoder.embed_tokens.weight"),
        ]
    if config.head.bias:
        found.append(TensorMapping("head/bias", "final_logits_bias", "leading_axis"))
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        theirs = f"{model.prefix}{side}"
        if config.positions.kind == "learned":
            found.append(
                TensorMapping(f"{side}/positions/table", f"{theirs}.embed_positions.weight")
            )
        if config.embedding.layernorm_embedding:
            found += norm_mappings(f"{side}/embedding_norm", f"{theirs}.layernorm_embedding")
        if config.final_norm:
            found += norm_mappings(f"{side}/final_norm", f"{theirs}.layer_norm")
        for i in range(layers):
            found += _layer(f"{side}/blocks/{i}", f"{theirs}.layers.{i}", side == "decoder")
    return found


def _layer(ours: str, theirs: str, cross: bool) -> list[TensorMapping]:
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    found = [
        *attention_mappings(f"{ours}/self_attention", f"{theirs}.self_attn", names),
        *norm_mappings(f"{ours}/self_attention_norm", f"{theirs}.self_attn_layer_norm"),
        *linear_mappings(f"{ours}/feed_forward/up", f"{theirs}.fc1"),
        *linear_mappings(f"{ours}/feed_forward/down", f"{theirs}.fc2"),
        # Of the layer, whatever its name says.
        *norm_mappings(f"{ours}/feed_forward_norm", f"{theirs}.final_layer_norm"),
    ]
    if cross:
        found += [
            *attention_mappings(f"{ours}/cross_attention", f"{theirs}.encoder_attn", names),
            *norm_mappings(f"{ours}/cross_attention_norm", f"{theirs}.encoder_attn_layer_norm"),
        ]
    return found


def _fields(kind: str, name: str, model: Model) -> dict[str, Any]:
    config = model.config
    decoder = config.decoder()
    return {
        "model_type": kind,
        "architectures": [name],
        "is_encoder_decoder": True,
        "vocab_size": config.vocab_size,
        "d_model": config.d_model,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "encoder_attention_heads": config.attention.num_heads,
        "decoder_attention_heads": decoder.attention.num_heads,
        "encoder_ffn_dim": config.feed_forward.d_ff,
        "decoder_ffn_dim": decoder.feed_forward.d_ff,
        "activation_function": config.feed_forward.activation.replace("gelu_tanh", "gelu_new"),
        "max_position_embeddings": config.positions.max_length,
        "scale_embedding": config.embedding.scale is None,
        "dropout": config.norm.residual_dropout,
        "attention_dropout": config.attention.dropout,
        "activation_dropout": config.feed_forward.activation_dropout,
        "tie_word_embeddings": True,
    }


# Old files hold tables under every name that reads them, and sinusoids.
_OLD = (r"lm_head\.weight", r"(model\.)?(encoder|decoder)\.embed_tokens\.weight")
_VERSIONS = (r"(model\.)?(encoder|decoder)\.version",)
_STAND_INS = tuple(
    (f"{prefix}shared.weight", f"{prefix}{side}.embed_tokens.weight")
    for prefix in ("model.", "")
    for side in ("encoder", "decoder")
)


def _named(model: Model) -> Model:
    """A model of ours with the prefix that its names have once published."""
    return dataclasses.replace(model, prefix="model.")


def _family(kind: str, name: str, make: Callable[[ConfigReader, Tensors], Model]) -> ModelFamily:
    return ModelFamily(
        types=(kind,),
        model=make,
        mappings=mappings,
        fields=lambda model: _fields(kind, name, model),
        ignored=_VERSIONS,
        tied_names=lambda fields: _STAND_INS,
        copies=_OLD,
        named=_named,
    )


BART = _family("bart", "BartForConditionalGeneration", bart)
MBART = _family("mbart", "MBartForConditionalGeneration", mbart)
PEGASUS = _family("pegasus", "PegasusForConditionalGeneration", pegasus)
MARIAN = dataclasses.replace(
    _family("marian", "MarianMTModel", marian),
    fields=lambda model: (
        _fields("marian", "MarianMTModel", model)
        | {
            "decoder_vocab_size": model.config.decoder().vocab_size,
            "share_encoder_decoder_embeddings": (
                model.config.embedding.share_encoder_decoder_embeddings
            ),
        }
    ),
    ignored=(*_VERSIONS, r"(model\.)?(encoder|decoder)\.embed_positions\.weight"),
    tied_names=lambda fields: (),  # its two sides may have tables of their own
)

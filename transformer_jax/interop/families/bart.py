"""BART, mBART, Marian and Pegasus: encoder-decoders of one layout.

Lewis et al. 2020; Liu et al. 2020; Junczys-Dowmunt et al. 2018; Zhang et al. 2020. BART has norms
after sub-layers and after embeddings, mBART before sub-layers and also at the end; Marian has them
after and Pegasus before sub-layers, both with sinusoidal positions.
"""

import dataclasses
from collections.abc import Callable, Mapping

from transformer_jax.core.json_types import Json
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.family import (
    Model,
    ModelFamily,
    TensorMapping,
    Tensors,
    attention_mappings,
    linear_mappings,
    norm_mappings,
)
from transformer_jax.interop.key_table import KeyTable, activation, flag, number, size

__all__ = ["FAMILIES", "family", "model_of_layout", "published_fields"]

_EPS = 1e-5  # the default of torch, without a key
_LEARNED = {"positions.kind": "learned", "positions.offset": 2}  # two rows are unused
_TABLE = KeyTable(
    size("vocab_size", "vocab_size"),
    size("d_model", "d_model"),
    size("encoder_layers", "encoder_layers"),
    size("decoder_layers", "decoder_layers"),
    size("attention.num_heads", "encoder_attention_heads"),
    size(
        "decoder_attention_heads",
        "decoder_attention_heads",
        write=lambda config: config.decoder().attention.num_heads,
    ),
    size("feed_forward.d_ff", "encoder_ffn_dim"),
    size(
        "decoder_ffn_dim",
        "decoder_ffn_dim",
        write=lambda config: config.decoder().feed_forward.d_ff,
    ),
    activation("activation_function", "gelu"),
    size("positions.max_length", "max_position_embeddings"),
    flag("embedding.scale", "scale_embedding", False, values=(1.0, None)),  # None: sqrt(d_model)
    number("norm.residual_dropout embedding.dropout", "dropout", default=0.1),
    number("attention.dropout", "attention_dropout", default=0.0),
    number("feed_forward.activation_dropout", "activation_dropout", default=0.0),
)


def model_of_layout(
    fields: ConfigReader, tensors: Tensors, settings: Mapping[str, object], *, before: bool = False
) -> Model:
    """Returns a model with further settings; ``before`` means pre-norm."""
    fields.only(normalize_before=before, tie_word_embeddings=True)
    shared = {
        "norm.placement": "pre" if before else "post",
        "norm.eps": _EPS,
        "head.bias": tensors.has("final_logits_bias"),  # zeros if a file omits it
    }
    config = _TABLE.config(fields, shared | dict(settings))
    return Model("encoder-decoder", config, _prefix(tensors))


def _prefix(tensors: Tensors) -> str:
    """Returns the prefix of tensor names; empty without a head."""
    bare = tensors.has("shared.weight") or tensors.has("encoder.embed_tokens.weight")
    return "" if bare else "model."


def bart(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns a BART."""
    fields.only(add_final_layer_norm=False)
    return model_of_layout(fields, tensors, {"embedding.layernorm_embedding": True, **_LEARNED})


def mbart(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns an mBART."""
    settings = {"embedding.layernorm_embedding": True, **_LEARNED}
    return model_of_layout(fields, tensors, settings, before=True)


def marian(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns a Marian translator (OPUS-MT)."""
    shared = fields.flag("share_encoder_decoder_embeddings", True)
    vocab = fields.whole("decoder_vocab_size", default=fields.whole("vocab_size"))
    settings = {
        "positions.kind": "sinusoidal_halves",
        "embedding.share_encoder_decoder_embeddings": shared,
        "decoder_vocab_size": None if shared else vocab,
    }
    return model_of_layout(fields, tensors, settings)


def pegasus(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns a Pegasus: Vaswani's model with pre-norm, with sinusoids stored as a table."""
    # Older files omit computable tensors.
    stored = tensors.has(f"{_prefix(tensors)}encoder.embed_positions.weight")
    fields.only(add_final_layer_norm=True)
    settings = {"positions.kind": "learned" if stored else "sinusoidal_halves"}
    return model_of_layout(fields, tensors, settings, before=True)


def mappings(model: Model) -> list[TensorMapping]:
    """Returns the mappings of embeddings, layers and the head's bias."""
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
        # Of the layer, despite its name.
        *norm_mappings(f"{ours}/feed_forward_norm", f"{theirs}.final_layer_norm"),
    ]
    if cross:
        found += [
            *attention_mappings(f"{ours}/cross_attention", f"{theirs}.encoder_attn", names),
            *norm_mappings(f"{ours}/cross_attention_norm", f"{theirs}.encoder_attn_layer_norm"),
        ]
    return found


def published_fields(kind: str, name: str, model: Model) -> dict[str, Json]:
    """Returns the keys of a model by type and class."""
    return {
        "model_type": kind,
        "architectures": [name],
        "is_encoder_decoder": True,
        **_TABLE.fields(model.config),
        "tie_word_embeddings": True,
    }


# Old files have tables under every name that uses them, and sinusoids.
_OLD = (r"lm_head\.weight", r"(model\.)?(encoder|decoder)\.embed_tokens\.weight")
_VERSIONS = (r"(model\.)?(encoder|decoder)\.version",)
_STAND_INS = tuple(
    (f"{prefix}shared.weight", f"{prefix}{side}.embed_tokens.weight")
    for prefix in ("model.", "")
    for side in ("encoder", "decoder")
)


def _named(model: Model) -> Model:
    """Returns the model with the prefix of published names."""
    return dataclasses.replace(model, prefix="model.")


def family(kind: str, name: str, make: Callable[[ConfigReader, Tensors], Model]) -> ModelFamily:
    """Returns the family of a ``model_type`` and a class, with models by ``make``."""
    return ModelFamily(
        types=(kind,),
        model=make,
        mappings=mappings,
        fields=lambda model: published_fields(kind, name, model),
        ignored=_VERSIONS,
        tied_names=lambda fields: _STAND_INS,
        copies=_OLD,
        named=_named,
    )


_MARIAN = dataclasses.replace(
    family("marian", "MarianMTModel", marian),
    fields=lambda model: (
        published_fields("marian", "MarianMTModel", model)
        | {
            "decoder_vocab_size": model.config.decoder().vocab_size,
            "share_encoder_decoder_embeddings": (
                model.config.embedding.share_encoder_decoder_embeddings
            ),
        }
    ),
    ignored=(*_VERSIONS, r"(model\.)?(encoder|decoder)\.embed_positions\.weight"),
    tied_names=lambda fields: (),  # both sides may have separate tables
)
FAMILIES = (
    family("bart", "BartForConditionalGeneration", bart),
    family("mbart", "MBartForConditionalGeneration", mbart),
    _MARIAN,
    family("pegasus", "PegasusForConditionalGeneration", pegasus),
)

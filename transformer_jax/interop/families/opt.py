"""OPT: a decoder with BART's positions and names.

Zhang et al. 2022. Layout: https://huggingface.co/docs/transformers/model_doc/opt.
"""

import dataclasses

from transformer_jax.core.json_types import Json
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.families.hf_heads import classifying
from transformer_jax.interop.family import (
    Model,
    ModelFamily,
    TensorMapping,
    Tensors,
    attention_mappings,
    linear_mappings,
    norm_mappings,
    tied_names,
    ties_head,
)
from transformer_jax.interop.key_table import KeyTable, activation, flag, number, size, written
from transformer_jax.models.config import TransformerConfig

__all__ = ["FAMILIES"]

_EPS = 1e-5  # the default of torch, without a key
_OFFSET = 2  # the first two rows of the table of positions are unused
_TABLE = KeyTable(
    size("vocab_size", "vocab_size"),
    size("d_model", "hidden_size"),
    size("feed_forward.d_ff", "ffn_dim"),
    size("decoder_layers", "num_hidden_layers"),
    size("attention.num_heads", "num_attention_heads"),
    size("positions.max_length", "max_position_embeddings", default=2048),
    activation("activation_function", "relu"),
    flag("norm.placement", "do_layer_norm_before", True, values=("post", "pre")),
    flag("attention.bias attention.out_bias feed_forward.bias", "enable_bias", True),
    number("norm.residual_dropout", "dropout", default=0.1),
    number("attention.dropout", "attention_dropout", default=0.0),
    written("tie_word_embeddings", "head.tie_word_embeddings"),
)


def model(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns an OPT.

    Raises:
        CheckpointError: Embeddings and layers have different widths (OPT 350M), or norms have no
            parameters.
    """
    prefix = "" if tensors.has("decoder.embed_tokens.weight") else "model."
    width = fields.whole("hidden_size")
    fields.only(layer_norm_elementwise_affine=True)
    projected = fields.whole("word_embed_proj_dim", default=width)
    if projected != width:
        raise fields.refused(
            "word_embed_proj_dim", projected, f"only hidden_size, {width}, is supported"
        )
    before = fields.flag("do_layer_norm_before", True)
    table, own = f"{prefix}decoder.embed_tokens.weight", "lm_head.weight"
    settings = {
        "encoder_layers": 0,
        "embedding.scale": 1.0,
        "embedding.dropout": 0.0,
        "positions.kind": "learned",
        "positions.offset": _OFFSET,
        "norm.eps": _EPS,
        "norm.final": before and not fields.flag("_remove_final_layer_norm", False),
        "head.tie_word_embeddings": ties_head(fields, tensors, own, table),
    }
    config = _TABLE.config(fields, settings)
    return Model("decoder", config, prefix)


def mappings(model: Model) -> list[TensorMapping]:
    """Returns the mappings of embeddings, layers and an untied head."""
    config, theirs = model.config, f"{model.prefix}decoder"
    found = [
        TensorMapping("embedding/table", f"{theirs}.embed_tokens.weight"),
        TensorMapping("decoder/positions/table", f"{theirs}.embed_positions.weight"),
    ]
    if config.final_norm:
        found += norm_mappings("decoder/final_norm", f"{theirs}.final_layer_norm")
    if not config.head.tie_word_embeddings:
        found.append(TensorMapping("head/table", "lm_head.weight"))
    for i in range(config.decoder_layers):
        found += _layer(f"decoder/blocks/{i}", f"{theirs}.layers.{i}", config)
    return found


def _layer(ours: str, theirs: str, config: TransformerConfig) -> list[TensorMapping]:
    names, att = ("q_proj", "k_proj", "v_proj", "out_proj"), config.attention
    bias = config.feed_forward.bias
    return [
        *attention_mappings(
            f"{ours}/self_attention", f"{theirs}.self_attn", names,
            bias=att.bias, out_bias=att.out_bias,
        ),
        *norm_mappings(f"{ours}/self_attention_norm", f"{theirs}.self_attn_layer_norm"),
        *linear_mappings(f"{ours}/feed_forward/up", f"{theirs}.fc1", bias=bias),
        *linear_mappings(f"{ours}/feed_forward/down", f"{theirs}.fc2", bias=bias),
        # Of the layer, despite its name.
        *norm_mappings(f"{ours}/feed_forward_norm", f"{theirs}.final_layer_norm"),
    ]  # fmt: skip


def fields(model: Model) -> dict[str, Json]:
    """Returns the configuration of a decoder as OPT."""
    config = model.config
    before = config.norm.placement == "pre"
    return {
        "model_type": "opt",
        "architectures": ["OPTForCausalLM"],
        "word_embed_proj_dim": config.d_model,
        "_remove_final_layer_norm": before and not config.final_norm,
        **_TABLE.fields(config),
    }


FAMILIES = (
    classifying(
        ModelFamily(
            types=("opt",),
            model=model,
            mappings=mappings,
            fields=fields,
            copies=(r"lm_head\.weight",),
            tied_names=tied_names(("model.decoder.embed_tokens.weight", "lm_head.weight")),
            named=lambda model: dataclasses.replace(model, prefix="model."),
        )
    ),
)

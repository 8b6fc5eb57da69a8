"""OPT: a decoder with BART's positions and names.

Zhang et al. 2022. Layout: https://huggingface.co/docs/transformers/model_doc/opt.
"""

import dataclasses
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
    tied_names,
    ties_head,
)

__all__ = ["FAMILY"]

_EPS = 1e-5  # the default of torch, and no key
_OFFSET = 2  # the first two rows of the table of positions are never used


def model(fields: ConfigReader, tensors: Tensors) -> Model:
    """An OPT.

    Raises:
        CheckpointError: Embeddings of another width than the layers (OPT 350M), or norms without
            parameters.
    """
    prefix = "" if tensors.has("decoder.embed_tokens.weight") else "model."
    width, rate = fields.whole("hidden_size"), fields.number("dropout", default=0.1)
    fields.only(layer_norm_elementwise_affine=True)
    projected = fields.whole("word_embed_proj_dim", default=width)
    if projected != width:
        raise fields.refused(
            "word_embed_proj_dim", projected, f"only hidden_size, {width}, can be loaded"
        )
    before = fields.flag("do_layer_norm_before", True)
    bias = fields.flag("enable_bias", True)
    table, own = f"{prefix}decoder.embed_tokens.weight", "lm_head.weight"
    config = TransformerConfig(
        vocab_size=fields.whole("vocab_size"),
        d_model=width,
        encoder_layers=0,
        decoder_layers=fields.whole("num_hidden_layers"),
        embedding=EmbeddingConfig(scale=1.0, dropout=0.0),
        positions=PositionConfig(
            kind="learned",
            max_length=fields.whole("max_position_embeddings", default=2048),
            offset=_OFFSET,
        ),
        attention=AttentionConfig(
            num_heads=fields.whole("num_attention_heads"),
            bias=bias,
            out_bias=bias,
            dropout=fields.number("attention_dropout", default=0.0),
        ),
        feed_forward=FeedForwardConfig(
            d_ff=fields.whole("ffn_dim"),
            activation=fields.choice(("activation_function",), ACTIVATIONS, "relu"),
            bias=bias,
        ),
        norm=NormConfig(
            placement="pre" if before else "post",
            eps=_EPS,
            final=before and not fields.flag("_remove_final_layer_norm", False),
            residual_dropout=rate,
        ),
        head=HeadConfig(tie_word_embeddings=ties_head(fields, tensors, own, table)),
    )
    return Model("decoder", config, prefix)


def mappings(model: Model) -> list[TensorMapping]:
    """Embeddings, layers and a head that is not tied."""
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
        # Of the layer, whatever its name says.
        *norm_mappings(f"{ours}/feed_forward_norm", f"{theirs}.final_layer_norm"),
    ]  # fmt: skip


def fields(model: Model) -> dict[str, Any]:
    """The configuration of a decoder, as OPT's."""
    config = model.config
    before = config.norm.placement == "pre"
    return {
        "model_type": "opt",
        "architectures": ["OPTForCausalLM"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "word_embed_proj_dim": config.d_model,
        "ffn_dim": config.feed_forward.d_ff,
        "num_hidden_layers": config.decoder_layers,
        "num_attention_heads": config.attention.num_heads,
        "max_position_embeddings": config.positions.max_length,
        "activation_function": config.feed_forward.activation.replace("gelu_tanh", "gelu_new"),
        "do_layer_norm_before": before,
        "_remove_final_layer_norm": before and not config.final_norm,
        "enable_bias": config.feed_forward.bias,
        "dropout": config.norm.residual_dropout,
        "attention_dropout": config.attention.dropout,
        "tie_word_embeddings": config.head.tie_word_embeddings,
    }


FAMILY = ModelFamily(
    types=("opt",),
    model=model,
    mappings=mappings,
    fields=fields,
    copies=(r"lm_head\.weight",),
    tied_names=tied_names(("model.decoder.embed_tokens.weight", "lm_head.weight")),
    named=lambda model: dataclasses.replace(model, prefix="model."),
)

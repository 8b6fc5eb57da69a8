"""GPT-2: its linear maps lie [in, out] already, and queries, keys and values in one.

Radford et al. 2019. Layout: https://huggingface.co/docs/transformers/model_doc/gpt2.
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
    ScoreConfig,
    TransformerConfig,
)
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.family import (
    ACTIVATIONS,
    Model,
    ModelFamily,
    TensorMapping,
    Tensors,
    linear_mappings,
    norm_mappings,
    tied_names,
    ties_head,
)

__all__ = ["FAMILY"]


def model(fields: ConfigReader, tensors: Tensors) -> Model:
    """A decoder."""
    fields.only(scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    prefix = "transformer." if tensors.has("transformer.wte.weight") else ""
    width, rate = fields.whole("n_embd", "hidden_size"), fields.number("resid_pdrop", default=0.1)
    config = TransformerConfig(
        vocab_size=fields.whole("vocab_size"),
        d_model=width,
        encoder_layers=0,
        decoder_layers=fields.whole("n_layer", "num_hidden_layers"),
        embedding=EmbeddingConfig(scale=1.0, dropout=fields.number("embd_pdrop", default=0.1)),
        positions=PositionConfig(
            kind="learned", max_length=fields.whole("n_positions", "max_position_embeddings")
        ),
        attention=AttentionConfig(
            num_heads=fields.whole("n_head", "num_attention_heads"),
            dropout=fields.number("attn_pdrop", default=0.1),
        ),
        scores=ScoreConfig(scale=None if fields.flag("scale_attn_weights", True) else 1.0),
        feed_forward=FeedForwardConfig(
            d_ff=fields.whole("n_inner", default=4 * width),
            activation=fields.choice(("activation_function",), ACTIVATIONS, "gelu_new"),
        ),
        norm=NormConfig(
            placement="pre",
            eps=fields.number("layer_norm_epsilon", default=1e-5, above=0),
            residual_dropout=rate,
        ),
        head=HeadConfig(
            tie_word_embeddings=ties_head(fields, tensors, "lm_head.weight", f"{prefix}wte.weight")
        ),
    )
    return Model("decoder", config, prefix)


def mappings(model: Model) -> list[TensorMapping]:
    """Embeddings, layers and a head that is not tied."""
    found = [
        TensorMapping("embedding/table", f"{model.prefix}wte.weight"),
        TensorMapping("decoder/positions/table", f"{model.prefix}wpe.weight"),
        *norm_mappings("decoder/final_norm", f"{model.prefix}ln_f"),
    ]
    if not model.config.head.tie_word_embeddings:
        found.append(TensorMapping("head/table", "lm_head.weight"))
    for i in range(model.config.decoder_layers):
        ours, theirs = f"decoder/blocks/{i}", f"{model.prefix}h.{i}"
        for number, part in enumerate(("query", "key", "value")):
            joint = linear_mappings(
                f"{ours}/self_attention/{part}", f"{theirs}.attn.c_attn", layout="same"
            )
            found += [mapping._replace(part=(number, number + 1, 3)) for mapping in joint]
        found += [
            *linear_mappings(f"{ours}/self_attention/out", f"{theirs}.attn.c_proj", layout="same"),
            *norm_mappings(f"{ours}/self_attention_norm", f"{theirs}.ln_1"),
            *linear_mappings(f"{ours}/feed_forward/up", f"{theirs}.mlp.c_fc", layout="same"),
            *linear_mappings(f"{ours}/feed_forward/down", f"{theirs}.mlp.c_proj", layout="same"),
            *norm_mappings(f"{ours}/feed_forward_norm", f"{theirs}.ln_2"),
        ]
    return found


def fields(model: Model) -> dict[str, Any]:
    """The configuration of a decoder, as GPT-2's."""
    config = model.config
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": config.vocab_size,
        "n_embd": config.d_model,
        "n_layer": config.decoder_layers,
        "n_head": config.attention.num_heads,
        "n_inner": config.feed_forward.d_ff,
        "n_positions": config.positions.max_length,
        "activation_function": config.feed_forward.activation.replace("gelu_tanh", "gelu_new"),
        "layer_norm_epsilon": config.norm.eps,
        "scale_attn_weights": config.scores.scale is None,
        "embd_pdrop": config.embedding.dropout,
        "attn_pdrop": config.attention.dropout,
        "resid_pdrop": config.norm.residual_dropout,
        "tie_word_embeddings": config.head.tie_word_embeddings,
    }


FAMILY = ModelFamily(
    types=("gpt2",),
    model=model,
    mappings=mappings,
    fields=fields,
    # Causal masks, which old files hold as buffers.
    ignored=(r".*\.attn\.(bias|masked_bias)",),
    copies=(r"lm_head\.weight",),
    tied_names=tied_names(("transformer.wte.weight", "lm_head.weight")),
    named=lambda model: dataclasses.replace(model, prefix="transformer."),
)

"""GPT-2: linear maps are stored as [in, out], and queries, keys and values in one.

Radford et al. 2019. Layout: https://huggingface.co/docs/transformers/model_doc/gpt2.
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
    linear_mappings,
    norm_mappings,
    tied_names,
    ties_head,
)
from transformer_jax.interop.key_table import KeyTable, activation, flag, number, size, written

__all__ = ["FAMILIES"]

_TABLE = KeyTable(
    size("vocab_size", "vocab_size"),
    size("d_model", "n_embd", "hidden_size"),
    size("decoder_layers", "n_layer", "num_hidden_layers"),
    size("attention.num_heads", "n_head", "num_attention_heads"),
    size(
        "feed_forward.d_ff",
        "n_inner",
        default=lambda fields: 4 * fields.whole("n_embd", "hidden_size"),
    ),
    size("positions.max_length", "n_positions", "max_position_embeddings"),
    activation("activation_function", "gelu_new"),
    number("norm.eps", "layer_norm_epsilon", default=1e-5, above=0),
    flag("scores.scale", "scale_attn_weights", True, values=(1.0, None)),
    number("embedding.dropout", "embd_pdrop", default=0.1),
    number("attention.dropout", "attn_pdrop", default=0.1),
    number("norm.residual_dropout", "resid_pdrop", default=0.1),
    written("tie_word_embeddings", "head.tie_word_embeddings"),
)


def model(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns a decoder."""
    fields.only(scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    prefix = "transformer." if tensors.has("transformer.wte.weight") else ""
    tied = ties_head(fields, tensors, "lm_head.weight", f"{prefix}wte.weight")
    settings = {
        "encoder_layers": 0,
        "embedding.scale": 1.0,
        "positions.kind": "learned",
        "norm.placement": "pre",
        "head.tie_word_embeddings": tied,
    }
    config = _TABLE.config(fields, settings)
    return Model("decoder", config, prefix)


def mappings(model: Model) -> list[TensorMapping]:
    """Returns the mappings of embeddings, layers and an untied head."""
    found = [
        TensorMapping("embedding/table", f"{model.prefix}wte.weight"),
        TensorMapping("decoder/positions/table", f"{model.prefix}wpe.weight"),
        *norm_mappings("decoder/final_norm", f"{model.prefix}ln_f"),
    ]
    if not model.config.head.tie_word_embeddings:
        found.append(TensorMapping("head/table", "lm_head.weight"))
    for i in range(model.config.decoder_layers):
        ours, theirs = f"decoder/blocks/{i}", f"{model.prefix}h.{i}"
        for n, part in enumerate(("query", "key", "value")):
            joint = linear_mappings(
                f"{ours}/self_attention/{part}", f"{theirs}.attn.c_attn", layout="same"
            )
            found += [mapping._replace(part=(n, n + 1, 3)) for mapping in joint]
        found += [
            *linear_mappings(f"{ours}/self_attention/out", f"{theirs}.attn.c_proj", layout="same"),
            *norm_mappings(f"{ours}/self_attention_norm", f"{theirs}.ln_1"),
            *linear_mappings(f"{ours}/feed_forward/up", f"{theirs}.mlp.c_fc", layout="same"),
            *linear_mappings(f"{ours}/feed_forward/down", f"{theirs}.mlp.c_proj", layout="same"),
            *norm_mappings(f"{ours}/feed_forward_norm", f"{theirs}.ln_2"),
        ]
    return found


def cross_mappings(model: Model) -> list[TensorMapping]:
    """Returns the mappings of cross-attention and its norms."""
    found = []
    for i in range(model.config.decoder_layers):
        ours, theirs = f"decoder/blocks/{i}/cross_attention", f"{model.prefix}h.{i}"
        at = f"{theirs}.crossattention"
        for n, part in enumerate(("key", "value")):
            joint = linear_mappings(f"{ours}/{part}", f"{at}.c_attn", layout="same")
            found += [mapping._replace(part=(n, n + 1, 2)) for mapping in joint]
        found += [
            *linear_mappings(f"{ours}/query", f"{at}.q_attn", layout="same"),
            *linear_mappings(f"{ours}/out", f"{at}.c_proj", layout="same"),
            *norm_mappings(f"{ours}_norm", f"{theirs}.ln_cross_attn"),
        ]
    return found


def fields(model: Model) -> dict[str, Json]:
    """Returns the configuration of a decoder as GPT-2."""
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        **_TABLE.fields(model.config),
    }


FAMILIES = (
    classifying(
        ModelFamily(
            types=("gpt2",),
            model=model,
            mappings=mappings,
            fields=fields,
            # Causal masks, stored as buffers in old files.
            ignored=(r".*\.attn\.(bias|masked_bias)",),
            copies=(r"lm_head\.weight",),
            tied_names=tied_names(("transformer.wte.weight", "lm_head.weight")),
            named=lambda model: dataclasses.replace(model, prefix="transformer."),
        )
    ),
)

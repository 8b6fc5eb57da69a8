"""StableLM: a Llama with layer norms and a quarter of rotary dimensions.

Bellagente et al. 2024 (StableLM 2). Layout:
https://huggingface.co/docs/transformers/model_doc/stablelm.
"""

from typing import cast

from transformer_jax.core.json_types import Json
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.families import llama
from transformer_jax.interop.families.rope import rope_fields, rope_positions
from transformer_jax.interop.family import Model, Tensors, ties_head
from transformer_jax.interop.key_table import KeyTable, flag, number, size, written

__all__ = ["FAMILIES"]

_TABLE = KeyTable(
    size("vocab_size", "vocab_size"),
    size("d_model", "hidden_size"),
    size("feed_forward.d_ff", "intermediate_size"),
    size("decoder_layers", "num_hidden_layers"),
    size("attention.num_heads", "num_attention_heads"),
    llama.key_heads(32),
    number("norm.eps", "layer_norm_eps", default=1e-5, above=0),
    number("attention.dropout", "attention_dropout", default=0.0),
    flag("attention.bias", "use_qkv_bias", False),
    written("tie_word_embeddings", "head.tie_word_embeddings"),
    llama.SILU,
)


def model(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns a StableLM without parallel sub-layers."""
    fields.only(use_parallel_residual=False, qk_layernorm=False)
    fields = fields.filled(max_position_embeddings=4096, partial_rotary_factor=0.25)
    prefix = llama.prefix_of(tensors)
    head_dim = fields.whole("hidden_size") // fields.whole("num_attention_heads")
    settings = {
        "encoder_layers": 0,
        "embedding.scale": 1.0,
        "embedding.dropout": 0.0,
        "positions": rope_positions(fields, head_dim=head_dim),
        "attention.out_bias": False,
        "feed_forward.gated": True,
        "feed_forward.bias": False,
        "norm.placement": "pre",
        "norm.residual_dropout": 0.0,
        "head.tie_word_embeddings": ties_head(
            fields, tensors, "lm_head.weight", f"{prefix}embed_tokens.weight", default=False
        ),
    }
    return Model("decoder", _TABLE.config(fields, settings), prefix)


def fields(model: Model) -> dict[str, Json]:
    """Returns the configuration of a decoder as StableLM."""
    config = model.config
    rope = rope_fields(config.positions, config.head_dim)
    parameters = cast(dict[str, Json], rope["rope_parameters"])
    part = parameters.setdefault("partial_rotary_factor", 1.0)
    return {
        "model_type": "stablelm",
        "architectures": ["StableLmForCausalLM"],
        **_TABLE.fields(config),
        **rope,
        "partial_rotary_factor": part,  # read by versions before transformers 5
    }


FAMILIES = (llama.family("stablelm", model, fields),)

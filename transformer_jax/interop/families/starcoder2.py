"""StarCoder 2: a Llama with layer norms, biases and an ungated feed-forward network.

Lozhkov et al. 2024. Layout: https://huggingface.co/docs/transformers/model_doc/starcoder2.
"""

from transformer_jax.core.json_types import Json
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.families import llama
from transformer_jax.interop.families.layer_types import window_size
from transformer_jax.interop.families.rope import rope_fields, rope_positions
from transformer_jax.interop.family import (
    Model,
    TensorMapping,
    Tensors,
    attention_mappings,
    linear_mappings,
    norm_mappings,
    ties_head,
)
from transformer_jax.interop.key_table import KeyTable, activation, flag, number, size, written
from transformer_jax.models.config import TransformerConfig

__all__ = ["FAMILIES"]

_TABLE = KeyTable(
    size("vocab_size", "vocab_size"),
    size("d_model", "hidden_size"),
    size("feed_forward.d_ff", "intermediate_size"),
    size("decoder_layers", "num_hidden_layers"),
    size("attention.num_heads", "num_attention_heads"),
    llama.key_heads(2),
    llama.HEAD_DIM,
    activation("hidden_act", "gelu_pytorch_tanh", tanh="gelu_pytorch_tanh"),
    flag("attention.bias attention.out_bias feed_forward.bias", "use_bias", True),
    number("norm.eps", "norm_epsilon", default=1e-5, above=0),
    number("embedding.dropout", "embedding_dropout", default=0.0),
    number("attention.dropout", "attention_dropout", default=0.0),
    number("norm.residual_dropout", "residual_dropout", default=0.0),
    written("sliding_window", "scores.sliding_window"),
    written("tie_word_embeddings", "head.tie_word_embeddings"),
)


def model(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns a StarCoder 2, with a sliding window in all layers or in none."""
    fields = fields.filled(max_position_embeddings=4096)
    prefix = llama.prefix_of(tensors)
    settings = {
        "encoder_layers": 0,
        "embedding.scale": 1.0,
        "positions": rope_positions(fields),
        "scores.sliding_window": window_size(fields, default=None),
        "norm.placement": "pre",
        "head.tie_word_embeddings": ties_head(
            fields, tensors, "lm_head.weight", f"{prefix}embed_tokens.weight"
        ),
    }
    return Model("decoder", _TABLE.config(fields, settings), prefix)


def _layer(ours: str, theirs: str, config: TransformerConfig) -> list[TensorMapping]:
    att, names = config.attention, ("q_proj", "k_proj", "v_proj", "o_proj")
    bias = config.feed_forward.bias
    return [
        *attention_mappings(
            f"{ours}/self_attention", f"{theirs}.self_attn", names,
            bias=att.bias, out_bias=att.out_bias,
        ),
        *norm_mappings(f"{ours}/self_attention_norm", f"{theirs}.input_layernorm"),
        *linear_mappings(f"{ours}/feed_forward/up", f"{theirs}.mlp.c_fc", bias=bias),
        *linear_mappings(f"{ours}/feed_forward/down", f"{theirs}.mlp.c_proj", bias=bias),
        *norm_mappings(f"{ours}/feed_forward_norm", f"{theirs}.post_attention_layernorm"),
    ]  # fmt: skip


def fields(model: Model) -> dict[str, Json]:
    """Returns the configuration of a decoder as StarCoder 2."""
    config = model.config
    return {
        "model_type": "starcoder2",
        "architectures": ["Starcoder2ForCausalLM"],
        **_TABLE.fields(config),
        **rope_fields(config.positions, config.head_dim),
    }


FAMILIES = (llama.family("starcoder2", model, fields, layer=_layer, tied=True),)

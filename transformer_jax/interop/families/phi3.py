"""Phi-3: a Llama with fused projections and optionally partial rotary dimensions.

Abdin et al. 2024. Layout: https://huggingface.co/docs/transformers/model_doc/phi3.
"""

import dataclasses

from transformer_jax.core.json_types import Json
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.families import llama
from transformer_jax.interop.families.layer_types import window_size
from transformer_jax.interop.families.rope import rope_group, rope_positions
from transformer_jax.interop.family import (
    Model,
    TensorMapping,
    Tensors,
    linear_mappings,
    norm_mappings,
)
from transformer_jax.models.config import TransformerConfig

__all__ = ["FAMILIES"]

# "su" is LongRoPE's first name; "yarn" also means LongRoPE.
_KINDS = {"default": "default"} | dict.fromkeys(("longrope", "su", "yarn"), "longrope")


def model(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns a Phi-3."""
    fields = fields.filled(
        max_position_embeddings=4096, original_max_position_embeddings=4096, rms_norm_eps=1e-5
    )
    _refuse_factors_of_no_kind(fields)
    # Positions are set below; there are no biases.
    settings = {
        **llama.biases(False, False),
        "embedding.dropout": fields.number("embd_pdrop", default=0.0),
        "scores.sliding_window": window_size(fields, default=None),
        "norm.residual_dropout": fields.number("resid_pdrop", default=0.0),
    }
    base = llama.base_config(fields.replaced(**_PLAIN), tensors, settings)
    positions = rope_positions(fields, kinds=_KINDS, head_dim=base.head_dim)
    config = dataclasses.replace(base, positions=positions)
    return Model("decoder", config, llama.prefix_of(tensors))


def _refuse_factors_of_no_kind(fields: ConfigReader) -> None:
    """Refuses scaling factors of an unscaled RoPE, which would be ignored."""
    group = rope_group(fields)
    if "long_factor" in group.values and all(
        group.values.get(name) is None for name in ("rope_type", "type")
    ):
        raise group.refused("rope_type", None, 'factors are for "longrope"')


_PLAIN = dict.fromkeys(("rope_scaling", "rope_parameters", "partial_rotary_factor", "mlp_bias"))


def _layer(ours: str, theirs: str, config: TransformerConfig) -> list[TensorMapping]:
    heads = config.attention.num_heads
    kv_heads = config.attention.num_kv_heads or heads
    ends = (0, heads, heads + kv_heads, heads + 2 * kv_heads)
    linear = lambda part, name: linear_mappings(f"{ours}/{part}", f"{theirs}.{name}", bias=False)
    norm = lambda part, name: norm_mappings(f"{ours}/{part}", f"{theirs}.{name}", bias=False)
    found = [
        *linear("self_attention/out", "self_attn.o_proj"),
        *norm("self_attention_norm", "input_layernorm"),
        *linear("feed_forward/down", "mlp.down_proj"),
        *norm("feed_forward_norm", "post_attention_layernorm"),
    ]
    for n, part in enumerate(("query", "key", "value")):
        joint = linear(f"self_attention/{part}", "self_attn.qkv_proj")
        found += [mapping._replace(part=(ends[n], ends[n + 1], ends[3])) for mapping in joint]
    for n, part in enumerate(("up", "gate")):  # the activated half is first
        joint = linear(f"feed_forward/{part}", "mlp.gate_up_proj")
        found += [mapping._replace(part=(n, n + 1, 2)) for mapping in joint]
    return found


def fields(model: Model) -> dict[str, Json]:
    """Returns the configuration of a decoder as Phi-3."""
    config = model.config
    base = llama.base_fields("phi3", "Phi3ForCausalLM", model)
    own = {
        "original_max_position_embeddings": config.positions.max_length,
        "sliding_window": config.scores.sliding_window,
        "embd_pdrop": config.embedding.dropout,
        "resid_pdrop": config.norm.residual_dropout,
    }
    return own | {key: value for key, value in base.items() if not key.endswith("_bias")}


FAMILIES = (llama.family("phi3", model, fields, layer=_layer),)

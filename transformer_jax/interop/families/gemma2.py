"""Gemma 2: norms before and after sub-layers, capped scores, every other layer local.

Gemma team 2024. Layout: https://huggingface.co/docs/transformers/model_doc/gemma2.
"""

import dataclasses

from transformer_jax.core.json_types import Json
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.families import llama
from transformer_jax.interop.families.layer_types import layer_types, window_size, windows
from transformer_jax.interop.family import Model, Tensors
from transformer_jax.interop.key_table import activation
from transformer_jax.models.config import TransformerConfig

__all__ = ["FAMILIES"]

# Its other key, hidden_act, is in some files but unused.
_ACTIVATION = activation("hidden_activation", "gelu_pytorch_tanh", tanh="gelu_pytorch_tanh")


def model(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns a Gemma 2; gains are one more than the stored values."""
    bias = fields.flag("attention_bias", False)
    fields.only(use_bidirectional_attention=False)
    fields = fields.filled(
        max_position_embeddings=8192, num_key_value_heads=4, head_dim=256, tie_word_embeddings=True
    )
    cap = lambda name: (
        None if fields.is_null(name)
        else fields.number(name, default={"attn_logit_softcapping": 50.0}.get(name, 30.0), above=0)
    )  # fmt: skip
    scores = dataclasses.replace(
        windows(fields, window_size(fields), lambda layer: layer % 2 == 0),
        scale=fields.whole("query_pre_attn_scalar", default=256) ** -0.5,
        attn_logit_softcapping=cap("attn_logit_softcapping"),
    )
    settings = {
        **llama.biases(bias, bias),
        "embedding.scale": None,
        "scores": scores,
        "norm.placement": "sandwich",
        "norm.gain_offset": 1.0,
        "head.final_logit_softcapping": cap("final_logit_softcapping"),
    }
    config = llama.base_config(fields, tensors, settings, _ACTIVATION)
    return Model("decoder", config, llama.prefix_of(tensors))


def _scalar(config: TransformerConfig) -> int:
    """Returns the scale of scores for Gemma 2's key, which must be an integer."""
    return max(1, round((config.scores.scale or config.head_dim**-0.5) ** -2))


def fields(model: Model) -> dict[str, Json]:
    """Returns the configuration of a decoder as Gemma 2."""
    config = model.config
    return llama.base_fields("gemma2", "Gemma2ForCausalLM", model, _ACTIVATION) | {
        "query_pre_attn_scalar": _scalar(config),
        "attn_logit_softcapping": config.scores.attn_logit_softcapping,
        "final_logit_softcapping": config.head.final_logit_softcapping,
        # transformers needs a number even if no layer has a window.
        "sliding_window": config.scores.sliding_window or 4096,
        "layer_types": layer_types(config),
    }


FAMILIES = (llama.family("gemma2", model, fields, tied=True),)

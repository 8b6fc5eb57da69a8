"""Llama, Mistral, Qwen 2 and 3, Gemma 1: decoders with RMS norm, RoPE and gated feed-forward.

Touvron et al. 2023; Jiang et al. 2023; Qwen team 2024, 2025; Gemma team 2024. They differ in
biases, norms of query and key heads, windows and, for Gemma, the scale of embeddings and gains.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial

from transformer_jax.core.json_types import Json
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.families.hf_heads import classifying
from transformer_jax.interop.families.layer_types import (
    FULL,
    SLIDING,
    layer_types,
    window_size,
    windows,
)
from transformer_jax.interop.families.rope import rope_fields, rope_positions
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
from transformer_jax.interop.key_table import (
    ACTIVATIONS,
    Key,
    KeyTable,
    activation,
    flag,
    number,
    size,
    written,
)
from transformer_jax.models.config import ScoreConfig, TransformerConfig

__all__ = [
    "FAMILIES",
    "HEAD_DIM",
    "SILU",
    "base_config",
    "base_fields",
    "biases",
    "family",
    "key_heads",
    "prefix_of",
]

_heads = lambda fields: fields.whole("num_attention_heads")


def key_heads(default: int | Callable[[ConfigReader], int]) -> Key:
    """Returns the key of the number of key heads, all query heads where a setting is None."""
    return size(
        "attention.num_kv_heads",
        "num_key_value_heads",
        default=default,
        write=lambda config: config.attention.num_kv_heads or config.attention.num_heads,
    )


HEAD_DIM = size(
    "attention.head_dim",
    "head_dim",
    default=lambda fields: fields.whole("hidden_size") // _heads(fields),
    write=lambda config: config.head_dim,
)
_TABLE = KeyTable(
    size("vocab_size", "vocab_size"),
    size("d_model", "hidden_size"),
    size("feed_forward.d_ff", "intermediate_size"),
    size("decoder_layers", "num_hidden_layers"),
    size("attention.num_heads", "num_attention_heads"),
    key_heads(_heads),
    HEAD_DIM,
    number("norm.eps", "rms_norm_eps", above=0),
    number("attention.dropout", "attention_dropout", default=0.0),
    flag("feed_forward.bias", "mlp_bias", False),
    written("attention_bias", "attention.out_bias"),
    written("tie_word_embeddings", "head.tie_word_embeddings"),
)
_gelu_or = partial(activation, tanh="gelu_pytorch_tanh")
SILU = _gelu_or("hidden_act", "silu")
# The name "gelu" means the tanh approximation, as in the first releases of Gemma.
_GEMMA_GELU = _gelu_or(
    "hidden_act", "gelu_pytorch_tanh", known={**ACTIVATIONS, "gelu": "gelu_tanh"}
)

Layer = Callable[[str, str, TransformerConfig], list[TensorMapping]]


def prefix_of(tensors: Tensors) -> str:
    """Returns the prefix of tensor names; empty without a head."""
    return "" if tensors.has("embed_tokens.weight") else "model."


def base_config(
    fields: ConfigReader, tensors: Tensors, settings: Mapping[str, object], act: Key = SILU
) -> TransformerConfig:
    """Returns a configuration with the common settings.

    Args:
        fields: The keys, with the family's defaults.
        tensors: The tensors of the folder.
        settings: Settings of the family by dotted path.
        act: The key of the activation.

    Raises:
        CheckpointError: A value is invalid.
    """
    table, own = f"{prefix_of(tensors)}embed_tokens.weight", "lm_head.weight"
    fields = fields.filled(rms_norm_eps=1e-6, tie_word_embeddings=False)
    shared = {
        "encoder_layers": 0,
        "embedding.scale": 1.0,
        "embedding.dropout": 0.0,
        "positions": rope_positions(fields),
        "feed_forward.gated": True,
        "norm.kind": "rms",
        "norm.placement": "pre",
        "norm.residual_dropout": 0.0,
        "head.tie_word_embeddings": ties_head(fields, tensors, own, table),
    }
    return KeyTable(*_TABLE.keys, act).config(fields, shared | dict(settings))


def biases(inputs: bool, outputs: bool) -> dict[str, Json]:
    """Returns the settings of the biases of attention's projections."""
    return {"attention.bias": inputs, "attention.out_bias": outputs}


def llama(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns a Llama."""
    fields = fields.filled(max_position_embeddings=2048)
    bias = fields.flag("attention_bias", False)
    return Model("decoder", base_config(fields, tensors, biases(bias, bias)), prefix_of(tensors))


def mistral(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns a Mistral, with a sliding window in all layers."""
    fields = fields.filled(max_position_embeddings=2**17, num_key_value_heads=8)
    settings = {**biases(False, False), "scores.sliding_window": window_size(fields)}
    config = base_config(fields, tensors, settings)
    return Model("decoder", config, prefix_of(tensors))


def qwen2(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns a Qwen 2, with biases of queries, keys and values."""
    fields = fields.filled(max_position_embeddings=2**15, num_key_value_heads=32)
    settings = {**biases(True, False), "scores": _late_windows(fields)}
    config = base_config(fields, tensors, settings)
    return Model("decoder", config, prefix_of(tensors))


def qwen3(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns a Qwen 3, with norms of query and key heads."""
    fields = fields.filled(max_position_embeddings=2**15, num_key_value_heads=32, head_dim=128)
    bias = fields.flag("attention_bias", False)
    settings = {**biases(bias, bias), "attention.qk_norm": True, "scores": _late_windows(fields)}
    config = base_config(fields, tensors, settings)
    return Model("decoder", config, prefix_of(tensors))


def _late_windows(fields: ConfigReader) -> ScoreConfig:
    """Returns the windows of a Qwen, from a certain layer on unless ``layer_types`` is given."""
    window = window_size(fields) if fields.flag("use_sliding_window", False) else None
    first = fields.whole("max_window_layers", default=28, least=0)
    return windows(fields, window, lambda layer: window is not None and layer >= first)


def gemma(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns a Gemma 1; gains are one more than the stored values, and embeddings are scaled."""
    fields.only(use_bidirectional_attention=False)
    fields = fields.filled(
        max_position_embeddings=8192, num_key_value_heads=16, head_dim=256, tie_word_embeddings=True
    )
    bias = fields.flag("attention_bias", False)
    settings = {**biases(bias, bias), "embedding.scale": None, "norm.gain_offset": 1.0}
    config = base_config(fields, tensors, settings, _GEMMA_GELU)
    return Model("decoder", config, prefix_of(tensors))


def mappings(model: Model, layer: Layer | None = None) -> list[TensorMapping]:
    """Returns the mappings of embeddings, layers and an untied head.

    Args:
        model: The model.
        layer: Function to the mappings of a layer, from its names here and in the files; None is
            Llama's.
    """
    config, layer = model.config, layer or _layer
    found = [
        TensorMapping("embedding/table", f"{model.prefix}embed_tokens.weight"),
        *norm_mappings("decoder/final_norm", f"{model.prefix}norm", bias=_norm_bias(config)),
    ]
    if not config.head.tie_word_embeddings:
        found.append(TensorMapping("head/table", "lm_head.weight"))
    for i in range(config.decoder_layers):
        found += layer(f"decoder/blocks/{i}", f"{model.prefix}layers.{i}", config)
    return found


def _norm_bias(config: TransformerConfig) -> bool:
    return config.norm.kind == "layer" and config.norm.bias


def _layer(ours: str, theirs: str, config: TransformerConfig) -> list[TensorMapping]:
    sandwich, norm_bias = config.norm.placement == "sandwich", _norm_bias(config)
    att, names = config.attention, ("q_proj", "k_proj", "v_proj", "o_proj")
    norm = lambda part, name: norm_mappings(f"{ours}/{part}", f"{theirs}.{name}", bias=norm_bias)
    found = [
        *attention_mappings(
            f"{ours}/self_attention", f"{theirs}.self_attn", names,
            bias=att.bias, out_bias=att.out_bias,
        ),
        *norm("self_attention_norm", "input_layernorm"),
    ]  # fmt: skip
    if att.qk_norm:
        found += norm("self_attention/query_norm", "self_attn.q_norm")
        found += norm("self_attention/key_norm", "self_attn.k_norm")
    # One name of a norm has two meanings.
    after = "pre_feedforward_layernorm" if sandwich else "post_attention_layernorm"
    found += norm("feed_forward_norm", after)
    if sandwich:
        found += norm("self_attention_norm_after", "post_attention_layernorm")
        found += norm("feed_forward_norm_after", "post_feedforward_layernorm")
    for part, name in (("up", "gate_proj"), ("gate", "up_proj"), ("down", "down_proj")):
        bias = config.feed_forward.bias
        found += linear_mappings(f"{ours}/feed_forward/{part}", f"{theirs}.mlp.{name}", bias=bias)
    return found


def base_fields(kind: str, name: str, model: Model, act: Key = SILU) -> dict[str, Json]:
    """Returns the common keys."""
    config = model.config
    return {
        "model_type": kind,
        "architectures": [name],
        **KeyTable(*_TABLE.keys, act).fields(config),
        **rope_fields(config.positions, config.head_dim),
    }


def _mistral_fields(model: Model) -> dict[str, Json]:
    window = {"sliding_window": model.config.scores.sliding_window}
    return base_fields("mistral", "MistralForCausalLM", model) | window


def _qwen_fields(kind: str, name: str, model: Model) -> dict[str, Json]:
    kinds, window = layer_types(model.config), model.config.scores.sliding_window
    return base_fields(kind, name, model) | {
        "use_sliding_window": SLIDING in kinds,
        "sliding_window": window if SLIDING in kinds else None,
        "layer_types": kinds,
        # Read by versions before transformers 5, which knows no other order.
        "max_window_layers": kinds.count(FULL),
    }


def _gemma_fields(model: Model) -> dict[str, Json]:
    found = base_fields("gemma", "GemmaForCausalLM", model)
    if found["hidden_act"] == "gelu":
        found["hidden_act"] = "gelu_python"  # transformers reads "gelu" of a Gemma as tanh's
    return found


def family(
    kind: str,
    make: Callable[[ConfigReader, Tensors], Model],
    fields: Callable[[Model], dict[str, Json]],
    *,
    layer: Layer | None = None,
    tied: bool = False,
) -> ModelFamily:
    """Returns a family with Llama's tensor names.

    Args:
        kind: The ``model_type``.
        make: Function that reads a configuration.
        fields: Function that writes a configuration.
        layer: The mappings of a layer; see :func:`mappings`.
        tied: Whether the head is tied if ``tie_word_embeddings`` is missing.
    """
    found = ModelFamily(
        types=(kind,),
        model=make,
        mappings=partial(mappings, layer=layer),
        fields=fields,
        ignored=(r".*rotary_emb\.inv_freq",),
        copies=(r"lm_head\.weight",),
        tied_names=tied_names(("model.embed_tokens.weight", "lm_head.weight"), default=tied),
        named=lambda model: dataclasses.replace(model, prefix="model."),
    )
    return classifying(found)


FAMILIES = (
    family("llama", llama, partial(base_fields, "llama", "LlamaForCausalLM")),
    family("mistral", mistral, _mistral_fields),
    family("qwen2", qwen2, partial(_qwen_fields, "qwen2", "Qwen2ForCausalLM")),
    family("qwen3", qwen3, partial(_qwen_fields, "qwen3", "Qwen3ForCausalLM")),
    family("gemma", gemma, _gemma_fields, tied=True),
)

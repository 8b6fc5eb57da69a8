"""Llama, Mistral, Qwen 2 and 3, Gemma 1: decoders with RMS norm, RoPE and gated feed-forward.

Touvron et al. 2023; Jiang et al. 2023; Qwen team 2024, 2025; Gemma team 2024. They differ in
biases, norms of query and key heads, windows and, Gemma, in the scale of embeddings and gains.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from transformer_jax.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    NormConfig,
    ScoreConfig,
    TransformerConfig,
)
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.families.layer_types import (
    FULL,
    SLIDING,
    layer_types,
    window_size,
    windows,
)
from transformer_jax.interop.families.rope import rope_fields, rope_positions
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

__all__ = ["GEMMA", "LLAMA", "MISTRAL", "QWEN2", "QWEN3", "base_config", "base_fields", "mappings"]

Layer = Callable[[str, str, TransformerConfig], list[TensorMapping]]


def prefix_of(tensors: Tensors) -> str:
    """What names begin with; those of a bare model with nothing."""
    return "" if tensors.has("embed_tokens.weight") else "model."


def base_config(
    fields: ConfigReader,
    tensors: Tensors,
    attention: AttentionConfig,
    scores: ScoreConfig | None = None,
    activation: tuple[str, str] = ("hidden_act", "silu"),
) -> TransformerConfig:
    """What all of them have in common.

    Args:
        fields: The configuration, with what the family has where a key is missing.
        tensors: What is stored.
        attention: Which biases and norms there are.
        scores: Windows.
        activation: The key that names it, and the name where the key is missing.

    Raises:
        CheckpointError: A value that cannot be.
    """
    table, own = f"{prefix_of(tensors)}embed_tokens.weight", "lm_head.weight"
    heads = fields.whole("num_attention_heads")
    fields = fields.filled(rms_norm_eps=1e-6, tie_word_embeddings=False)
    return TransformerConfig(
        vocab_size=fields.whole("vocab_size"),
        d_model=fields.whole("hidden_size"),
        encoder_layers=0,
        decoder_layers=fields.whole("num_hidden_layers"),
        embedding=EmbeddingConfig(scale=1.0, dropout=0.0),
        positions=rope_positions(fields),
        attention=dataclasses.replace(
            attention,
            num_heads=heads,
            num_kv_heads=fields.whole("num_key_value_heads", default=heads),
            head_dim=fields.whole("head_dim", default=fields.whole("hidden_size") // heads),
            dropout=fields.number("attention_dropout", default=0.0),
        ),
        scores=scores or ScoreConfig(),
        feed_forward=FeedForwardConfig(
            d_ff=fields.whole("intermediate_size"),
            activation=fields.choice(activation[:1], ACTIVATIONS, activation[1]),
            gated=True,
            bias=fields.flag("mlp_bias", False),
        ),
        norm=NormConfig(
            kind="rms",
            placement="pre",
            eps=fields.number("rms_norm_eps", above=0),
            residual_dropout=0.0,
        ),
        head=HeadConfig(tie_word_embeddings=ties_head(fields, tensors, own, table)),
    )


def llama(fields: ConfigReader, tensors: Tensors) -> Model:
    """A Llama."""
    fields = fields.filled(max_position_embeddings=2048)
    bias = fields.flag("attention_bias", False)
    attention = AttentionConfig(bias=bias, out_bias=bias)
    return Model("decoder", base_config(fields, tensors, attention), prefix_of(tensors))


def mistral(fields: ConfigReader, tensors: Tensors) -> Model:
    """A Mistral, all of whose layers look no further than its window."""
    fields = fields.filled(max_position_embeddings=2**17, num_key_value_heads=8)
    attention = AttentionConfig(bias=False, out_bias=False)
    config = base_config(
        fields, tensors, attention, ScoreConfig(sliding_window=window_size(fields))
    )
    return Model("decoder", config, prefix_of(tensors))


def qwen2(fields: ConfigReader, tensors: Tensors) -> Model:
    """A Qwen 2: biases on queries, keys and values."""
    fields = fields.filled(max_position_embeddings=2**15, num_key_value_heads=32)
    attention = AttentionConfig(bias=True, out_bias=False)
    config = base_config(fields, tensors, attention, _late_windows(fields))
    return Model("decoder", config, prefix_of(tensors))


def qwen3(fields: ConfigReader, tensors: Tensors) -> Model:
    """A Qwen 3: norms on query and key heads."""
    fields = fields.filled(max_position_embeddings=2**15, num_key_value_heads=32, head_dim=128)
    bias = fields.flag("attention_bias", False)
    attention = AttentionConfig(bias=bias, out_bias=bias, qk_norm=True)
    config = base_config(fields, tensors, attention, _late_windows(fields))
    return Model("decoder", config, prefix_of(tensors))


def _late_windows(fields: ConfigReader) -> ScoreConfig:
    """The windows of a Qwen, which has them from one layer on unless each layer is named."""
    window = window_size(fields) if fields.flag("use_sliding_window", False) else None
    first = fields.whole("max_window_layers", default=28, least=0)
    return windows(fields, window, lambda layer: window is not None and layer >= first)


def gemma(fields: ConfigReader, tensors: Tensors) -> Model:
    """A Gemma 1; gains are one more than what is stored, and embeddings are scaled."""
    fields.only(use_bidirectional_attention=False)
    fields = fields.filled(
        max_position_embeddings=8192,
        num_key_value_heads=16,
        head_dim=256,
        tie_word_embeddings=True,
    )
    # Under the name of the exact GELU lies the one by tanh, as in the first releases.
    names = {**ACTIVATIONS, "gelu": "gelu_tanh"}
    usual = ("hidden_act", "gelu_pytorch_tanh")
    bias = fields.flag("attention_bias", False)
    attention = AttentionConfig(bias=bias, out_bias=bias)
    base = base_config(fields, tensors, attention, activation=usual)
    activation = fields.choice(usual[:1], names, usual[1])
    config = dataclasses.replace(
        base,
        embedding=EmbeddingConfig(scale=None, dropout=0.0),
        feed_forward=dataclasses.replace(base.feed_forward, activation=activation),
        norm=dataclasses.replace(base.norm, gain_offset=1.0),
    )
    return Model("decoder", config, prefix_of(tensors))


def mappings(model: Model, layer: Layer | None = None) -> list[TensorMapping]:
    """Embeddings, layers and a head that is not tied.

    Args:
        model: The model.
        layer: The mappings of a layer, of its names here and there; None are those of Llama.
    """
    config, layer = model.config, layer or _layer
    found = [
        TensorMapping("embedding/table", f"{model.prefix}embed_tokens.weight"),
        *norm_mappings("decoder/final_norm", f"{model.prefix}norm", bias=False),
    ]
    if not config.head.tie_word_embeddings:
        found.append(TensorMapping("head/table", "lm_head.weight"))
    for i in range(config.decoder_layers):
        found += layer(f"decoder/blocks/{i}", f"{model.prefix}layers.{i}", config)
    return found


def _layer(ours: str, theirs: str, config: TransformerConfig) -> list[TensorMapping]:
    sandwich = config.norm.placement == "sandwich"
    att, names = config.attention, ("q_proj", "k_proj", "v_proj", "o_proj")
    norm = lambda part, name: norm_mappings(f"{ours}/{part}", f"{theirs}.{name}", bias=False)
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
    # The name of one norm has two meanings.
    after = "pre_feedforward_layernorm" if sandwich else "post_attention_layernorm"
    found += norm("feed_forward_norm", after)
    if sandwich:
        found += norm("self_attention_norm_after", "post_attention_layernorm")
        found += norm("feed_forward_norm_after", "post_feedforward_layernorm")
    for part, name in (("up", "gate_proj"), ("gate", "up_proj"), ("down", "down_proj")):
        bias = config.feed_forward.bias
        found += linear_mappings(f"{ours}/feed_forward/{part}", f"{theirs}.mlp.{name}", bias=bias)
    return found


def base_fields(kind: str, name: str, model: Model) -> dict[str, Any]:
    """The keys that all of them have."""
    config, att = model.config, model.config.attention
    return {
        "model_type": kind,
        "architectures": [name],
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.feed_forward.d_ff,
        "num_hidden_layers": config.decoder_layers,
        "num_attention_heads": att.num_heads,
        "num_key_value_heads": att.num_kv_heads or att.num_heads,
        "head_dim": config.head_dim,
        "hidden_act": config.feed_forward.activation.replace("gelu_tanh", "gelu_pytorch_tanh"),
        **rope_fields(config.positions, config.head_dim),
        "rms_norm_eps": config.norm.eps,
        "attention_dropout": att.dropout,
        "attention_bias": att.out_bias,
        "mlp_bias": config.feed_forward.bias,
        "tie_word_embeddings": config.head.tie_word_embeddings,
    }


def named(model: Model) -> Model:
    """A model of ours with the prefix that its names have once published."""
    return dataclasses.replace(model, prefix="model.")


def _mistral_fields(model: Model) -> dict[str, Any]:
    window = {"sliding_window": model.config.scores.sliding_window}
    return base_fields("mistral", "MistralForCausalLM", model) | window


def _qwen_fields(kind: str, name: str, model: Model) -> dict[str, Any]:
    kinds, window = layer_types(model.config), model.config.scores.sliding_window
    return base_fields(kind, name, model) | {
        "use_sliding_window": SLIDING in kinds,
        "sliding_window": window if SLIDING in kinds else None,
        "layer_types": kinds,
        # Read by what came before transformers 5, which knows no other order.
        "max_window_layers": kinds.count(FULL),
    }


def _gemma_fields(model: Model) -> dict[str, Any]:
    found = base_fields("gemma", "GemmaForCausalLM", model)
    if found["hidden_act"] == "gelu":
        found["hidden_act"] = "gelu_python"  # transformers reads "gelu" of a Gemma as tanh's
    return found


COPIES = (r"lm_head\.weight",)
STAND_INS = ("model.embed_tokens.weight", "lm_head.weight")
IGNORED = (r".*rotary_emb\.inv_freq",)


def _family(
    kind: str, name: str, make: Any, fields: Any = None, *, tied: bool = False
) -> ModelFamily:
    return ModelFamily(
        types=(kind,),
        model=make,
        mappings=mappings,
        fields=fields or (lambda model: base_fields(kind, name, model)),
        ignored=IGNORED,
        copies=COPIES,
        tied_names=tied_names(STAND_INS, default=tied),
        named=named,
    )


LLAMA = _family("llama", "LlamaForCausalLM", llama)
MISTRAL = _family("mistral", "MistralForCausalLM", mistral, _mistral_fields)
GEMMA = _family("gemma", "GemmaForCausalLM", gemma, _gemma_fields, tied=True)
QWEN2 = _family(
    "qwen2", "Qwen2ForCausalLM", qwen2, partial(_qwen_fields, "qwen2", "Qwen2ForCausalLM")
)
QWEN3 = _family(
    "qwen3", "Qwen3ForCausalLM", qwen3, partial(_qwen_fields, "qwen3", "Qwen3ForCausalLM")
)

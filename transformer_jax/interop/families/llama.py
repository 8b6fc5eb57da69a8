"""Llama, Mistral, Qwen 2 and 3: decoders with RMS norm, rotations and gates.

Touvron et al. 2023; Jiang et al. 2023; Qwen team 2024, 2025. They differ in biases, norms of query
and key heads, and windows.
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
from transformer_jax.interop.family import (
    ACTIVATIONS,
    Family,
    Model,
    Row,
    Tensors,
    attention_rows,
    linear_rows,
    norm_rows,
)
from transformer_jax.interop.fields import Fields

__all__ = ["LLAMA", "MISTRAL", "QWEN2", "QWEN3", "base_config", "base_fields", "rows"]


def rotations(fields: Fields) -> PositionConfig:
    """How far positions turn, as files of transformers 5 say it or those before.

    Raises:
        CheckpointError: A kind of scaling that cannot be expressed.
    """
    # Where both are there, the older one goes before.
    group = fields.group("rope_scaling")
    if not group.values:
        group = fields.group("rope_parameters")
    base = fields.number("rope_theta", default=10_000.0, above=0)
    for where in (fields, group):
        where.only(partial_rotary_factor=1.0)
    kinds = {"default": None, "linear": "linear", "llama3": "llama3"}
    kind = group.choice(("rope_type", "type"), kinds, "default")
    scaling = None
    if kind == "llama3":
        scaling = (
            group.number("factor", above=0),
            group.number("low_freq_factor", above=0),
            group.number("high_freq_factor", above=0),
            group.whole("original_max_position_embeddings"),
        )
    return PositionConfig(
        kind="rotary",
        max_length=fields.whole("max_position_embeddings", default=2048),
        rotary_base=group.number("rope_theta", default=base, above=0),
        rotary_scaling=scaling,
        rotary_interpolation=group.number("factor", above=0) if kind == "linear" else 1.0,
    )


def prefix_of(tensors: Tensors) -> str:
    """What names begin with; those of a bare model with nothing."""
    return "" if tensors.has("embed_tokens.weight") else "model."


def base_config(
    fields: Fields,
    tensors: Tensors,
    attention: AttentionConfig,
    window: int | None = None,
    activation: tuple[str, str] = ("hidden_act", "silu"),
) -> TransformerConfig:
    """What all of them have in common.

    Args:
        fields: The configuration.
        tensors: What there is.
        attention: Which biases and norms there are.
        window: How far all layers look; None is without end.
        activation: The key that names it, and the name where the key is missing.
    """
    table, own = f"{prefix_of(tensors)}embed_tokens.weight", "lm_head.weight"
    heads = fields.whole("num_attention_heads")
    return TransformerConfig(
        vocab=fields.whole("vocab_size"),
        width=fields.whole("hidden_size"),
        encoder_layers=0,
        decoder_layers=fields.whole("num_hidden_layers"),
        embedding=EmbeddingConfig(scale=1.0, dropout=0.0),
        positions=rotations(fields),
        attention=dataclasses.replace(
            attention,
            heads=heads,
            kv_heads=fields.whole("num_key_value_heads", default=heads),
            head_dim=fields.whole("head_dim", default=fields.whole("hidden_size") // heads),
            dropout=fields.number("attention_dropout", default=0.0),
        ),
        scores=ScoreConfig(window=window),
        feed_forward=FeedForwardConfig(
            width=fields.whole("intermediate_size"),
            activation=fields.choice(activation[:1], ACTIVATIONS, activation[1]),
            gated=True,
            bias=fields.flag("mlp_bias", False),
        ),
        norm=NormConfig(
            kind="rms",
            place="pre",
            eps=fields.number("rms_norm_eps", default=1e-6, above=0),
            dropout=0.0,
        ),
        head=HeadConfig(tied=not tensors.has(own) or tensors.same(own, table)),
    )


def llama(fields: Fields, tensors: Tensors) -> Model:
    """A Llama."""
    bias = fields.flag("attention_bias", False)
    attention = AttentionConfig(bias=bias, out_bias=bias)
    return Model("decoder", base_config(fields, tensors, attention), prefix_of(tensors))


def mistral(fields: Fields, tensors: Tensors) -> Model:
    """A Mistral, all of whose layers look no further than its window."""
    window = None
    if fields.values.get("sliding_window", 0) is not None:  # null is none, and no key the default
        window = fields.whole("sliding_window", default=4096)
    attention = AttentionConfig(bias=False, out_bias=False)
    config = base_config(fields, tensors, attention, window)
    return Model("decoder", config, prefix_of(tensors))


def qwen2(fields: Fields, tensors: Tensors) -> Model:
    """A Qwen 2: biases on queries, keys and values."""
    _only_whole(fields)
    attention = AttentionConfig(bias=True, out_bias=False)
    return Model("decoder", base_config(fields, tensors, attention), prefix_of(tensors))


def qwen3(fields: Fields, tensors: Tensors) -> Model:
    """A Qwen 3: norms on query and key heads."""
    _only_whole(fields)
    bias = fields.flag("attention_bias", False)
    attention = AttentionConfig(bias=bias, out_bias=bias, qk_norm=True)
    return Model("decoder", base_config(fields, tensors, attention), prefix_of(tensors))


def _only_whole(fields: Fields) -> None:
    fields.only(use_sliding_window=False)
    kinds = fields.values.get("layer_types")
    whole = isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds)
    if kinds is not None and not whole:
        raise fields.refused("layer_types", kinds, 'only "full_attention" can be loaded')


def rows(model: Model) -> list[Row]:
    """Embeddings, layers and a head that is not tied."""
    config = model.config
    found = [
        Row("embedding/table", f"{model.prefix}embed_tokens.weight"),
        *norm_rows("decoder/final_norm", f"{model.prefix}norm", bias=False),
    ]
    if not config.head.tied:
        found.append(Row("head/table", "lm_head.weight"))
    sandwich = config.norm.place == "sandwich"
    for i in range(config.decoder_layers):
        found += _layer(f"decoder/blocks/{i}", f"{model.prefix}layers.{i}", config, sandwich)
    return found


def _layer(ours: str, theirs: str, config: TransformerConfig, sandwich: bool) -> list[Row]:
    att, names = config.attention, ("q_proj", "k_proj", "v_proj", "o_proj")
    norm = lambda part, name: norm_rows(f"{ours}/{part}", f"{theirs}.{name}", bias=False)
    found = [
        *attention_rows(
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
        found += linear_rows(f"{ours}/feed_forward/{part}", f"{theirs}.mlp.{name}", bias=bias)
    return found


def base_fields(kind: str, name: str, model: Model) -> dict[str, Any]:
    """The keys that all of them have."""
    config, att, places = model.config, model.config.attention, model.config.positions
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": places.rotary_base}
    if places.rotary_scaling is not None:
        factor, low, high, length = places.rotary_scaling
        rope |= {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": length,
        }
    elif places.rotary_interpolation != 1.0:
        rope |= {"rope_type": "linear", "factor": places.rotary_interpolation}
    return {
        "model_type": kind,
        "architectures": [name],
        "vocab_size": config.vocab,
        "hidden_size": config.width,
        "intermediate_size": config.feed_forward.width,
        "num_hidden_layers": config.decoder_layers,
        "num_attention_heads": att.heads,
        "num_key_value_heads": att.kv_heads or att.heads,
        "head_dim": config.head_dim,
        "hidden_act": config.feed_forward.activation.replace("gelu_tanh", "gelu_pytorch_tanh"),
        "max_position_embeddings": places.max_length,
        "rope_parameters": rope,
        # Read by what came before transformers 5.
        "rope_theta": places.rotary_base,
        **({"rope_scaling": rope} if rope["rope_type"] != "default" else {}),
        "rms_norm_eps": config.norm.eps,
        "attention_dropout": att.dropout,
        "attention_bias": att.out_bias,
        "mlp_bias": config.feed_forward.bias,
        "tie_word_embeddings": config.head.tied,
    }


def named(model: Model) -> Model:
    """A model of ours with the prefix that its names have once published."""
    return dataclasses.replace(model, prefix="model.")


def _mistral_fields(model: Model) -> dict[str, Any]:
    window = {"sliding_window": model.config.scores.window}
    return base_fields("mistral", "MistralForCausalLM", model) | window


COPIES = (r"lm_head\.weight",)
STAND_INS = (("model.embed_tokens.weight", "lm_head.weight"),)
IGNORED = (r".*rotary_emb\.inv_freq",)


def _family(kind: str, name: str, make: Any, fields: Any = None) -> Family:
    return Family(
        types=(kind,),
        model=make,
        rows=rows,
        fields=fields or (lambda model: base_fields(kind, name, model)),
        ignored=IGNORED,
        copies=COPIES,
        stand_ins=STAND_INS,
        named=named,
    )


LLAMA = _family("llama", "LlamaForCausalLM", llama)
MISTRAL = _family("mistral", "MistralForCausalLM", mistral, _mistral_fields)
QWEN2 = _family("qwen2", "Qwen2ForCausalLM", qwen2)
QWEN3 = _family("qwen3", "Qwen3ForCausalLM", qwen3)

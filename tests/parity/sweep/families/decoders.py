"""Decoders, as language models."""

from typing import Any

from tests.parity.sweep.drawing import Case, Draw, family


def _ids(draw: Draw) -> dict[str, Any]:
    return {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": draw.choice([0, 1, 5])}


@family("gpt2")
def gpt2(draw: Draw) -> Case:
    heads, size = draw.heads()
    config = {
        "vocab_size": draw.vocab(),
        "n_embd": heads * size,
        "n_layer": draw.layers(),
        "n_head": heads,
        "n_inner": draw.choice([None, draw.width()]),
        "n_positions": draw.positions,
        "activation_function": draw.activation(),
        "layer_norm_epsilon": draw.eps(),
        "scale_attn_weights": draw.maybe(0.8),
        "tie_word_embeddings": draw.maybe(0.7),
    }
    return Case("GPT2LMHeadModel", config | _ids(draw), positions=draw.positions)


def _windowed(cls: str, config: dict[str, Any], **more: Any) -> Case:
    """A case; with a window of 1, the cache of transformers keeps all keys instead of none."""
    return Case(cls, config, generates=config.get("sliding_window") != 1, **more)


def _options(draw: Draw, values: dict[str, list[Any]]) -> dict[str, Any]:
    """Some of these keys, each with one of its values."""
    return {name: draw.choice(some) for name, some in values.items() if draw.maybe()}


def _layer_types(draw: Draw, layers: int) -> dict[str, Any]:
    """Windows from one layer on, or of any layers."""
    if draw.maybe():
        return {}
    kinds = ("full_attention", "sliding_attention")
    return {"layer_types": [draw.choice(kinds) for _ in range(layers)]}


def _windows(draw: Draw, layers: int) -> dict[str, Any]:
    """The windows of a Qwen."""
    if draw.maybe(0.3):
        return {}
    found = {
        "use_sliding_window": True,
        "sliding_window": draw.choice([1, 3, 7, 20]),
        "max_window_layers": draw.randint(0, layers),
    }
    return found | _layer_types(draw, layers)


def _old_rope(fields: dict[str, Any]) -> dict[str, Any]:
    """The same configuration as transformers 4 wrote it."""
    rope = dict(fields.pop("rope_parameters"))
    fields["rope_theta"] = rope.pop("rope_theta")
    if rope["rope_type"] != "default":
        fields["rope_scaling"] = {"type": rope.pop("rope_type")} | rope
    return fields


def rope(draw: Draw, positions: int) -> dict[str, Any]:
    """Rotations of any kind that is known."""
    base = draw.choice([100.0, 10_000.0, 500_000.0])
    kind = draw.choice(["default", "linear", "llama3", "yarn", "dynamic"])
    found: dict[str, Any] = {"rope_type": kind, "rope_theta": base}
    if kind == "linear":
        found["factor"] = draw.choice([1.5, 2.0, 8.0])
    if kind == "dynamic":  # of texts that are no longer than the positions
        found["factor"] = draw.choice([1.5, 4.0])
    if kind == "yarn":
        found |= {
            "factor": draw.choice([1.0, 2.0, 8.0]),
            "original_max_position_embeddings": draw.choice([16, 40, 128]),
        } | _options(draw, {
            "beta_fast": [2.0, 4.0, 32], "beta_slow": [0.2, 1], "truncate": [True, False],
            "attention_factor": [0.6, 1.0], "mscale": [0.7, 2.0], "mscale_all_dim": [0.5, 1.0],
        })  # fmt: skip
    if kind == "llama3":
        found |= {
            "factor": draw.choice([2.0, 8.0]),
            "low_freq_factor": 1.0,
            "high_freq_factor": draw.choice([2.0, 4.0]),
            "original_max_position_embeddings": draw.choice([16, 32]),
        }
    return {"rope_parameters": found, "max_position_embeddings": positions}


def llama_body(draw: Draw) -> dict[str, Any]:
    """The keys of Llama and all its relatives."""
    heads, size = draw.heads(sizes=(4, 6, 8, 12))
    config = {
        "vocab_size": draw.vocab(),
        "hidden_size": heads * size,
        "intermediate_size": draw.width(),
        "num_hidden_layers": draw.layers(),
        "num_attention_heads": heads,
        "num_key_value_heads": draw.groups(heads),
        "hidden_act": draw.activation(),
        "rms_norm_eps": draw.eps(),
        "tie_word_embeddings": draw.maybe(),
    }
    return config | rope(draw, 128) | _ids(draw)


def _head_dim(draw: Draw) -> dict[str, Any]:
    return {"head_dim": draw.choice([4, 6, 10, 16])} if draw.maybe() else {}


@family("llama")
def llama(draw: Draw) -> Case:
    biases = {"attention_bias": draw.maybe(0.3), "mlp_bias": draw.maybe(0.3)}
    old = {"fields": _old_rope} if draw.maybe() else {}
    return Case("LlamaForCausalLM", llama_body(draw) | _head_dim(draw) | biases, **old)


@family("mistral")
def mistral(draw: Draw) -> Case:
    window = {"sliding_window": draw.choice([None, 1, 3, 7, 20, 4096])}
    return _windowed("MistralForCausalLM", llama_body(draw) | _head_dim(draw) | window)


@family("qwen2")
def qwen2(draw: Draw) -> Case:
    config = llama_body(draw)
    return _windowed("Qwen2ForCausalLM", config | _windows(draw, config["num_hidden_layers"]))


@family("qwen3")
def qwen3(draw: Draw) -> Case:
    bias = {"attention_bias": draw.maybe(0.3), "head_dim": draw.choice([4, 6, 10, 16])}
    config = llama_body(draw) | bias
    return _windowed("Qwen3ForCausalLM", config | _windows(draw, config["num_hidden_layers"]))


@family("gemma2")
def gemma2(draw: Draw) -> Case:
    config = llama_body(draw) | {"head_dim": draw.choice([4, 6, 10, 16])}
    config["hidden_activation"] = draw.activation()
    config |= {
        "sliding_window": draw.choice([1, 3, 7, 20]),
        "query_pre_attn_scalar": draw.choice([4, 20, 256]),
        "attn_logit_softcapping": draw.choice([None, 2.0, 50.0]),
        "final_logit_softcapping": draw.choice([None, 1.0, 30.0]),
        "attention_bias": draw.maybe(0.3),
    }
    return _windowed("Gemma2ForCausalLM", config | _layer_types(draw, config["num_hidden_layers"]))


@family("gemma")
def gemma(draw: Draw) -> Case:
    config = llama_body(draw) | {"head_dim": draw.choice([4, 6, 10, 16])}
    return Case("GemmaForCausalLM", config | {"attention_bias": draw.maybe(0.3)})


@family("phi3")
def phi3(draw: Draw) -> Case:
    heads, size = draw.heads(sizes=(4, 8, 12))
    rotary = draw.choice([1.0, 0.5]) if size % 4 == 0 else 1.0
    rope: dict[str, Any] = {"rope_theta": draw.choice([100.0, 10_000.0])}
    rope |= {"rope_type": "default", "partial_rotary_factor": rotary}
    if draw.maybe():
        factors = lambda: [
            draw.choice([0.8, 1.0, 1.5, 4.0]) for _ in range(int(size * rotary) // 2)
        ]
        rope |= {"rope_type": "longrope", "short_factor": factors(), "long_factor": factors()}
        rope |= _options(draw, {"attention_factor": [0.7, 1.3], "factor": [1.0, 4.0]})
    config = llama_body(draw) | {
        "hidden_size": heads * size,
        "num_attention_heads": heads,
        "num_key_value_heads": draw.groups(heads),
        "sliding_window": draw.choice([None, 1, 7, 20]),
        "rope_parameters": rope,
        "max_position_embeddings": draw.choice([90, 256]),
        "original_max_position_embeddings": 90,  # longer texts are not read
    }
    return _windowed("Phi3ForCausalLM", config)


@family("stablelm")
def stablelm(draw: Draw) -> Case:
    config = llama_body(draw) | {"use_qkv_bias": draw.maybe()}
    config["layer_norm_eps"] = config.pop("rms_norm_eps")
    heads, size = draw.heads(sizes=(16, 24))
    config |= {
        "hidden_size": heads * size,
        "num_attention_heads": heads,
        "num_key_value_heads": draw.groups(heads),
    }
    config["rope_parameters"]["partial_rotary_factor"] = draw.choice([0.25, 0.5, 1.0])
    old = {"fields": _old_rope} if draw.maybe() else {}
    return Case("StableLmForCausalLM", config, **old)


@family("starcoder2")
def starcoder2(draw: Draw) -> Case:
    config = llama_body(draw) | _head_dim(draw) | {
        "use_bias": draw.maybe(),
        "sliding_window": draw.choice([None, 1, 3, 7, 20, 4096]),
    }  # fmt: skip
    config["norm_epsilon"] = config.pop("rms_norm_eps")
    old = {"fields": _old_rope} if draw.maybe() else {}
    return _windowed("Starcoder2ForCausalLM", config, **old)


@family("opt")
def opt(draw: Draw) -> Case:
    heads, size = draw.heads()
    before = draw.maybe(0.6)
    config = {
        "vocab_size": draw.vocab(),
        "hidden_size": heads * size,
        "ffn_dim": draw.width(),
        "num_hidden_layers": draw.layers(),
        "num_attention_heads": heads,
        "max_position_embeddings": draw.positions,
        "activation_function": draw.activation(),
        "do_layer_norm_before": before,
        "_remove_final_layer_norm": before and draw.maybe(0.3),
        "enable_bias": draw.maybe(0.7),
        "tie_word_embeddings": draw.maybe(0.7),
    }
    return Case("OPTForCausalLM", config | _ids(draw), positions=draw.positions)

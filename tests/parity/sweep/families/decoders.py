"""Decoders: GPT-2, Llama, Mistral, Qwen 2 and 3, Gemma 2."""

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


def rope(draw: Draw, positions: int) -> dict[str, Any]:
    """Rotations of any kind that is known."""
    base = draw.choice([100.0, 10_000.0, 500_000.0])
    kind = draw.choice(["default", "linear", "llama3"])
    found: dict[str, Any] = {"rope_type": kind, "rope_theta": base}
    if kind == "linear":
        found["factor"] = draw.choice([1.5, 2.0, 8.0])
    if kind == "llama3":
        found |= {
            "factor": draw.choice([2.0, 8.0]),
            "low_freq_factor": 1.0,
            "high_freq_factor": draw.choice([2.0, 4.0]),
            "original_max_position_embeddings": draw.choice([16, 32]),
        }
    return {"rope_parameters": found, "max_position_embeddings": positions}


def llama_body(draw: Draw) -> dict[str, Any]:
    """What Llama and all its relatives have."""
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
    return Case("LlamaForCausalLM", llama_body(draw) | _head_dim(draw) | biases)


@family("mistral")
def mistral(draw: Draw) -> Case:
    window = {"sliding_window": draw.choice([None, 1, 3, 7, 20, 4096])}
    return Case("MistralForCausalLM", llama_body(draw) | _head_dim(draw) | window)


@family("qwen2")
def qwen2(draw: Draw) -> Case:
    return Case("Qwen2ForCausalLM", llama_body(draw))


@family("qwen3")
def qwen3(draw: Draw) -> Case:
    bias = {"attention_bias": draw.maybe(0.3), "head_dim": draw.choice([4, 6, 10, 16])}
    return Case("Qwen3ForCausalLM", llama_body(draw) | bias)


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
    return Case("Gemma2ForCausalLM", config)

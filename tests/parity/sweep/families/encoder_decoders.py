"""Encoder-decoders: BART, mBART, M2M100, Marian, Pegasus, T5 and mT5."""

from typing import Any

import numpy as np

from tests.parity.sweep.drawing import Case, Draw, family

# Names that T5 takes after "gated-" too.
T5_ACTIVATIONS = ("relu", "gelu", "gelu_new", "gelu_python", "silu")


def _bart(draw: Draw) -> dict[str, Any]:
    heads, size = draw.heads(sizes=(4, 6, 12))
    width = heads * size
    return {
        "vocab_size": draw.vocab(),
        "d_model": width,
        "encoder_layers": draw.layers(),
        "decoder_layers": draw.layers(),
        "encoder_attention_heads": heads,
        "decoder_attention_heads": draw.choice([n for n in (1, 2, heads) if width % n == 0]),
        "encoder_ffn_dim": draw.width(),
        "decoder_ffn_dim": draw.width(),
        "activation_function": draw.activation(),
        "scale_embedding": draw.maybe(),
        "max_position_embeddings": draw.positions,
        "decoder_start_token_id": draw.choice([0, 2, 7]),
        "pad_token_id": draw.choice([0, 1, 1, 5]),
    }


@family("bart")
def bart(draw: Draw) -> Case:
    return Case("BartForConditionalGeneration", _bart(draw), positions=draw.positions)


@family("mbart")
def mbart(draw: Draw) -> Case:
    return Case("MBartForConditionalGeneration", _bart(draw), positions=draw.positions)


@family("m2m_100", refused=("padding has no position",))
def m2m_100(draw: Draw) -> Case:
    return Case("M2M100ForConditionalGeneration", _bart(draw), positions=draw.positions)


@family("marian")
def marian(draw: Draw) -> Case:
    config = _bart(draw)
    if draw.turn([True, False]):
        config |= {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": draw.vocab()}
    return Case("MarianMTModel", config, positions=draw.positions)


@family("pegasus")
def pegasus(draw: Draw) -> Case:
    return Case("PegasusForConditionalGeneration", _bart(draw), positions=draw.positions)


def _t5(draw: Draw, name: str) -> Case:
    heads, size = draw.heads()
    buckets = draw.choice([8, 16, 32])
    act = draw.choice(T5_ACTIVATIONS)
    config = {
        "vocab_size": draw.vocab(),
        "d_model": draw.choice([16, 24, 33, 40]),
        "d_kv": size,
        "d_ff": draw.width(),
        "num_layers": draw.layers(),
        "num_decoder_layers": draw.layers(),
        "num_heads": heads,
        "relative_attention_num_buckets": buckets,
        "relative_attention_max_distance": draw.choice(
            [buckets // 2 + 1, buckets, buckets + 8, 2 * buckets, 128]
        ),
        "feed_forward_proj": f"gated-{act}" if draw.maybe() else act,
        "layer_norm_epsilon": draw.eps(),
        "decoder_start_token_id": 0,
    }
    own = draw.turn([False, True])  # a head of its own, as 1.1 and mT5 have
    table = np.random.RandomState(draw.getrandbits(32)).standard_normal(
        (config["vocab_size"], config["d_model"])
    )
    edit = lambda tensors: (
        {"lm_head.weight": (0.15 * table).astype(np.float32)} | tensors if own else tensors
    )
    if own and name == "T5":
        config["tie_word_embeddings"] = False
    return Case(f"{name}ForConditionalGeneration", config, edit=edit)


@family("t5")
def t5(draw: Draw) -> Case:
    return _t5(draw, "T5")


@family("mt5")
def mt5(draw: Draw) -> Case:
    return _t5(draw, "MT5")


@family("t5-encoder")
def t5_encoder(draw: Draw) -> Case:
    """The encoder alone, as sentence-T5 has it."""
    name = draw.turn(["T5", "MT5"])
    return Case(f"{name}EncoderModel", _t5(draw, name).config)

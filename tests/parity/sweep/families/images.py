"""The Vision Transformer and DeiT, with classifiers, without, and with a decoder of captions."""

from typing import Any

from tests.parity.sweep.drawing import Case, Draw, family


@family("vit")
def vit(draw: Draw) -> Case:
    heads, size = draw.heads()
    head = draw.turn(["ForImageClassification", "Model"])
    return Case(f"ViT{head}", images(draw, head, heads, size))


@family("deit")
def deit(draw: Draw) -> Case:
    heads, size = draw.heads()
    classifier = "ForImageClassification"
    head = draw.turn([f"{classifier}WithTeacher", classifier, "Model"])
    return Case(f"DeiT{head}", images(draw, head, heads, size))


@family("vision_encoder_decoder")
def vision_encoder_decoder(draw: Draw) -> Case:
    heads, size = draw.heads()
    decoder = {
        "model_type": "gpt2",
        "vocab_size": draw.vocab(),
        "n_embd": heads * size,
        "n_layer": draw.layers(),
        "n_head": heads,
        "n_positions": draw.positions,
        "n_inner": draw.choice([None, draw.width()]),
        "activation_function": draw.activation(),
        "layer_norm_epsilon": draw.eps(),
        "scale_attn_weights": draw.maybe(0.8),
        "tie_word_embeddings": draw.maybe(0.7),
        "is_decoder": True,
        "add_cross_attention": True,
    }
    if draw.maybe():  # else no map between the two
        heads, size = draw.heads()
    image = images(draw, "Model", heads, size) | {"model_type": draw.turn(["vit", "deit"])}
    ids = {"decoder_start_token_id": 1, "pad_token_id": 1, "eos_token_id": 2}
    config = {"encoder": image, "decoder": decoder, **ids}
    return Case("VisionEncoderDecoderModel", config, positions=draw.positions)


def images(draw: Draw, head: str, heads: int, size: int) -> dict[str, Any]:
    patch = draw.choice([3, 4, 8])
    config = {
        "hidden_size": heads * size,
        "num_hidden_layers": draw.layers(),
        "num_attention_heads": heads,
        "intermediate_size": draw.width(),
        "hidden_act": draw.activation(),
        "layer_norm_eps": draw.eps(),
        "qkv_bias": draw.maybe(),
        "image_size": patch * draw.choice([1, 3, 4]),
        "patch_size": patch,
        "num_channels": draw.choice([1, 3, 4]),
    }
    if head == "Model":
        config["pooler_act"] = draw.choice(["tanh", "relu", "gelu"])
    else:
        config["num_labels"] = draw.choice([2, 3, 7])
    return config

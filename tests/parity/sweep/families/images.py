"""The Vision Transformer and DeiT, with classifiers and without."""

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

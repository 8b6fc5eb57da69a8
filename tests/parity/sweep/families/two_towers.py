"""CLIP and SigLIP: a tower of images and a tower of texts."""

from typing import Any

from tests.parity.sweep.drawing import Case, Draw, family


@family("clip")
def clip(draw: Draw) -> Case:
    text, image = towers(draw)
    size = draw.choice([7, 12, 33])
    return Case("CLIPModel", {"text_config": text, "vision_config": image, "projection_dim": size})


@family("siglip")
def siglip(draw: Draw) -> Case:
    text, image = towers(draw)
    text["projection_size"] = image["hidden_size"]
    return Case("SiglipModel", {"text_config": text, "vision_config": image})


def towers(draw: Draw) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configurations of the tower of texts and of that of images."""
    vocab, patch = draw.vocab(), draw.choice([3, 4, 8])
    text = tower(draw) | {
        "vocab_size": vocab,
        "max_position_embeddings": draw.choice([14, 21, 40]),
        "eos_token_id": vocab - 1,
        "bos_token_id": 0,
        "pad_token_id": 1,
    }
    image = tower(draw) | {
        "image_size": patch * draw.choice([1, 3, 4]),
        "patch_size": patch,
        "num_channels": draw.choice([1, 3, 4]),
    }
    return text, image


def tower(draw: Draw) -> dict[str, Any]:
    """The keys of either tower, each with its own sizes."""
    heads, size = draw.heads()
    return {
        "hidden_size": heads * size,
        "num_hidden_layers": draw.layers(),
        "num_attention_heads": heads,
        "intermediate_size": draw.width(),
        "hidden_act": draw.activation(),
        "layer_norm_eps": draw.eps(),
    }

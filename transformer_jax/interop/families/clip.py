"""CLIP: a tower of images and a causal tower of texts.

Radford et al. 2021. Layout: https://huggingface.co/docs/transformers/model_doc/clip.
"""

import dataclasses
from collections.abc import Mapping

from transformer_jax.core.errors import ConfigError
from transformer_jax.core.json_types import Json
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.family import (
    Model,
    ModelFamily,
    TensorMapping,
    Tensors,
    attention_mappings,
    linear_mappings,
    norm_mappings,
)
from transformer_jax.interop.key_table import Key, KeyTable, activation, number, size
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.contrast_config import ContrastConfig

__all__ = [
    "FAMILIES",
    "TowerTables",
    "both_fields",
    "both_mappings",
    "contrast_of",
    "part_of",
    "tower_keys",
]

_ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj")


def tower_keys(act: str, eps: float, width: int, heads: int) -> tuple[Key, ...]:
    """Returns the keys of both towers, with defaults."""
    return (
        size("d_model", "hidden_size", default=width),
        size("attention.num_heads", "num_attention_heads", default=heads),
        size("feed_forward.d_ff", "intermediate_size", default=4 * width),
        activation("hidden_act", act, tanh="gelu_pytorch_tanh"),
        number("attention.dropout", "attention_dropout", default=0.0),
        number("norm.eps", "layer_norm_eps", default=eps, above=0),
    )


def image_keys(patch: int) -> tuple[Key, ...]:
    """Returns the keys of only the tower of images."""
    return (
        size("image.image_size", "image_size", default=224),
        size("image.patch_size", "patch_size", default=patch),
        size("image.num_channels", "num_channels", default=3),
        size("encoder_layers", "num_hidden_layers", default=12),
    )


def text_keys(layers: str, vocabulary: int, length: int) -> tuple[Key, ...]:
    """Returns the keys of only the tower of texts."""
    return (
        size("vocab_size", "vocab_size", default=vocabulary),
        size("positions.max_length", "max_position_embeddings", default=length),
        size(layers, "num_hidden_layers", default=12),
    )


@dataclasses.dataclass(frozen=True)
class TowerTables:
    """The keys of both towers of a family, and its fixed settings."""

    image: KeyTable
    text: KeyTable
    image_settings: dict[str, object]
    text_settings: dict[str, object]

    def configs(self, fields: ConfigReader) -> tuple[TransformerConfig, TransformerConfig]:
        """Returns the configurations of the towers of images and of texts."""
        usual = {
            "embedding.scale": 1.0,
            "embedding.dropout": 0.0,
            "positions.kind": "learned",
            "norm.placement": "pre",
            "norm.residual_dropout": 0.0,
        }
        images = {"vocab_size": 0, "decoder_layers": 0} | self.image_settings
        return (
            self.image.config(part_of(fields, "vision_config"), usual | images),
            self.text.config(part_of(fields, "text_config"), usual | self.text_settings),
        )


CLIP = TowerTables(
    KeyTable(*tower_keys("quick_gelu", 1e-5, 768, 12), *image_keys(32)),
    KeyTable(*tower_keys("quick_gelu", 1e-5, 512, 8), *text_keys("decoder_layers", 49408, 77)),
    {"image.patch_bias": False, "embedding.layernorm_embedding": True},
    {"encoder_layers": 0},
)


def part_of(fields: ConfigReader, name: str) -> ConfigReader:
    """Returns the keys of a tower; old files have a second set, which takes precedence."""
    again = fields.group(f"{name}_dict")
    return fields.group(name).replaced(**again.values)


def model(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns a model of two towers."""
    del tensors
    image, text = CLIP.configs(fields)
    words = part_of(fields, "text_config")
    end = words.whole("eos_token_id", default=49407, least=0)
    if end >= text.vocab_size:  # transformers uses the vector of this token
        raise words.refused("eos_token_id", end, f"one of {text.vocab_size} tokens is needed")
    size = fields.whole("projection_dim", default=512)
    return Model("two-tower", text, encoder=image, contrast=ContrastConfig(projection_dim=size))


def both_mappings(model: Model) -> list[TensorMapping]:
    """Returns the mappings of the layers of both towers, of positions and tables."""
    image, text = model.encoder, model.config
    assert image is not None
    seen, read = "vision_model", "text_model"
    pixels, patch = f"{seen}.embeddings.patch_embedding", image.image.patch_size
    table, places = "token_embedding.weight", "embeddings.position_embedding.weight"
    found = [
        TensorMapping("encoder/embedding/kernel", f"{pixels}.weight", "patches", patch=patch),
        TensorMapping("encoder/encoder/positions/table", f"{seen}.{places}"),
        *_layers("encoder/encoder", seen, image.encoder_layers),
        *norm_mappings("encoder/encoder/final_norm", f"{seen}.post_layernorm"),
        TensorMapping("text/embedding/table", f"{read}.embeddings.{table}"),
        TensorMapping("text/stack/positions/table", f"{read}.{places}"),
        *_layers("text/stack", read, text.encoder_layers or text.decoder_layers),
        *norm_mappings("text/stack/final_norm", f"{read}.final_layer_norm"),
    ]
    if image.image.patch_bias:
        found.append(TensorMapping("encoder/embedding/bias", f"{pixels}.bias"))
    return found


def _layers(ours: str, theirs: str, count: int) -> list[TensorMapping]:
    found: list[TensorMapping] = []
    for i in range(count):
        block, layer = f"{ours}/blocks/{i}", f"{theirs}.encoder.layers.{i}"
        at = f"{layer}.self_attn"
        found += [
            *norm_mappings(f"{block}/self_attention_norm", f"{layer}.layer_norm1"),
            *attention_mappings(f"{block}/self_attention", at, _ATTENTION),
            *norm_mappings(f"{block}/feed_forward_norm", f"{layer}.layer_norm2"),
            *linear_mappings(f"{block}/feed_forward/up", f"{layer}.mlp.fc1"),
            *linear_mappings(f"{block}/feed_forward/down", f"{layer}.mlp.fc2"),
        ]
    return found


def mappings(model: Model) -> list[TensorMapping]:
    """Returns the mappings of both towers, class embedding, norm, projections and temperature."""
    seen, ours = "vision_model", "encoder/class_embedding/table"
    return [
        *both_mappings(model),
        TensorMapping(ours, f"{seen}.embeddings.class_embedding", "first_row"),
        *norm_mappings("encoder/encoder/embedding_norm", f"{seen}.pre_layrnorm"),
        *linear_mappings("image_projection", "visual_projection", bias=False),
        *linear_mappings("text_projection", "text_projection", bias=False),
        TensorMapping("logit_scale", "logit_scale", "first_row"),
    ]


def contrast_of(model: Model) -> ContrastConfig:
    """Returns the configuration of both towers together.

    Raises:
        ConfigError: The model has one tower.
    """
    if model.encoder is None or model.contrast is None:
        raise ConfigError("only a model of images and texts has two towers")
    return model.contrast


def both_fields(
    model: Model,
    towers: TowerTables,
    name: str,
    *,
    text: Mapping[str, Json],
    image: Mapping[str, Json],
) -> dict[str, Json]:
    """Returns the configuration of both towers of a model, with further keys of each."""
    assert model.encoder is not None
    return {
        "model_type": name,
        "text_config": {
            "model_type": f"{name}_text_model",
            **towers.text.fields(model.config),
            **text,
        },
        "vision_config": {
            "model_type": f"{name}_vision_model",
            **towers.image.fields(model.encoder),
            **image,
        },
    }


def fields(model: Model) -> dict[str, Json]:
    """Returns the configuration of a model."""
    size: dict[str, Json] = {"projection_dim": contrast_of(model).projection_dim}
    text = {**size, "eos_token_id": model.config.vocab_size - 1}
    found = both_fields(model, CLIP, "clip", text=text, image=size)
    return {**found, "architectures": ["CLIPModel"], **size}


FAMILIES = (
    ModelFamily(
        types=("clip",),
        model=model,
        mappings=mappings,
        fields=fields,
        ignored=(r"(text|vision)_model\.embeddings\.position_ids",),
    ),
)

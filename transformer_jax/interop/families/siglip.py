"""SigLIP: a tower of images with attention pooling and a bidirectional tower of texts.

Zhai et al. 2023. Layout: https://huggingface.co/docs/transformers/model_doc/siglip.
"""

from transformer_jax.core.json_types import Json
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.families.clip import (
    TowerTables,
    both_fields,
    both_mappings,
    contrast_of,
    image_keys,
    part_of,
    text_keys,
    tower_keys,
)
from transformer_jax.interop.family import (
    Model,
    ModelFamily,
    TensorMapping,
    Tensors,
    linear_mappings,
    norm_mappings,
)
from transformer_jax.interop.key_table import KeyTable
from transformer_jax.models.contrast_config import ContrastConfig

__all__ = ["FAMILIES"]

_KEYS = tower_keys("gelu_pytorch_tanh", 1e-6, 768, 12)
SIGLIP = TowerTables(
    KeyTable(*_KEYS, *image_keys(16)),
    KeyTable(*_KEYS, *text_keys("encoder_layers", 32000, 64)),
    {"image.pooling": "attention"},
    {"decoder_layers": 0},
)


def model(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns a model of two towers."""
    del tensors
    part_of(fields, "vision_config").only(vision_use_head=True)
    image, text = SIGLIP.configs(fields)
    # The vectors of images are not projected, so their size is also that of texts.
    words = part_of(fields, "text_config")
    size = words.whole("projection_size", default=text.d_model)
    if size != image.d_model:
        wanted = f"hidden_size of vision_config is {image.d_model}: they must be equal"
        raise words.refused("projection_size", size, wanted)
    contrast = ContrastConfig("sigmoid", size, False, True, "last")
    return Model("two-tower", text, encoder=image, contrast=contrast)


def mappings(model: Model) -> list[TensorMapping]:
    """Returns the mappings of both towers, image pooling, text projection, temperature and bias."""
    ours, theirs = "encoder/pool", "vision_model.head"
    attention = f"{theirs}.attention"
    found = [
        *both_mappings(model),
        TensorMapping(f"{ours}/query/table", f"{theirs}.probe", "leading_axis"),
        *linear_mappings(f"{ours}/attention/out", f"{attention}.out_proj"),
        *norm_mappings(f"{ours}/norm", f"{theirs}.layernorm"),
        *linear_mappings(f"{ours}/feed_forward/up", f"{theirs}.mlp.fc1"),
        *linear_mappings(f"{ours}/feed_forward/down", f"{theirs}.mlp.fc2"),
        *linear_mappings("text_projection", "text_model.head"),
        TensorMapping("logit_scale", "logit_scale"),
        TensorMapping("logit_bias", "logit_bias"),
    ]
    for i, name in enumerate(("query", "key", "value")):
        part, place = (i, i + 1, 3), f"{attention}.in_proj"
        map_of = f"{ours}/attention/{name}"
        found += [
            TensorMapping(f"{map_of}/kernel", f"{place}_weight", "transposed", part),
            TensorMapping(f"{map_of}/bias", f"{place}_bias", "same", part),
        ]
    return found


def fields(model: Model) -> dict[str, Json]:
    """Returns the configuration of a model."""
    text = {"projection_size": contrast_of(model).projection_dim}
    found = both_fields(model, SIGLIP, "siglip", text=text, image={})
    return {**found, "architectures": ["SiglipModel"]}


FAMILIES = (
    ModelFamily(
        types=("siglip",),
        model=model,
        mappings=mappings,
        fields=fields,
        ignored=(r"(text|vision)_model\.embeddings\.position_ids",),
    ),
)

"""An image encoder and a decoder with cross-attention, each in the layout of its own family.

Li et al. 2021 (TrOCR). Layout: https://huggingface.co/docs/transformers/model_doc/vision-encoder-decoder.
"""

import dataclasses

from transformer_jax.core.errors import ConfigError
from transformer_jax.core.json_types import Json
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.families import gpt2, vit
from transformer_jax.interop.family import (
    Model,
    ModelFamily,
    TensorMapping,
    Tensors,
    linear_mappings,
)

__all__ = ["FAMILIES"]

_ENCODERS = {name: family for family in vit.FAMILIES for name in family.types}
_DECODERS = {name: family for family in gpt2.FAMILIES for name in family.types}
_BRIDGE = "enc_to_dec_proj"


def _part(
    fields: ConfigReader, name: str, families: dict[str, ModelFamily], usual: str
) -> tuple[ModelFamily, ConfigReader]:
    """Returns the family and the keys of the encoder or the decoder."""
    group = fields.group(name)
    kinds = dict(zip(families, families, strict=True))
    return families[group.choice(("model_type",), kinds, usual)], group


def _within(tensors: Tensors, prefix: str) -> Tensors:
    """Returns the tensors with a prefix of their names, without it."""
    shapes = {
        name.removeprefix(prefix): shape
        for name, shape in tensors.shapes.items()
        if name.startswith(prefix)
    }
    return Tensors(shapes, lambda a, b: tensors.same(prefix + a, prefix + b))


def model(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns a captioner."""
    fields.only(tie_encoder_decoder=False)
    reads, encoder = _part(fields, "encoder", _ENCODERS, "vit")
    writes, decoder = _part(fields, "decoder", _DECODERS, "bert")
    image = reads.model(encoder, _within(tensors, "encoder."))
    # The decoder of such a model has cross-attention, regardless of its keys.
    decoder = decoder.replaced(is_decoder=None, add_cross_attention=None)
    text = writes.model(decoder, _within(tensors, "decoder."))
    if image.prefix or image.task or text.kind != "decoder":
        raise fields.refused("architectures", fields.values.get("architectures"), "other heads")
    width = image.config.d_model
    if text.config.d_model == width:
        decoder.only(cross_attention_hidden_size=width)
    else:
        decoder.only(cross_attention_hidden_size=None)
    return dataclasses.replace(text, kind="captioner", encoder=image.config)


def _parts(model: Model) -> tuple[Model, Model]:
    """Returns the encoder and the decoder as separate models."""
    assert model.encoder is not None
    image = Model("image", model.encoder)
    return image, dataclasses.replace(model, kind="decoder", encoder=None)


def mappings(model: Model) -> list[TensorMapping]:
    """Returns the mappings of encoder, decoder with cross-attention, and the map between widths."""
    image, text = _parts(model)
    found = [
        row._replace(name=f"encoder/{row.name}", hf_name=f"encoder.{row.hf_name}")
        for row in vit.mappings(image)
    ]
    found += [
        row._replace(hf_name=f"decoder.{row.hf_name}")
        for row in [*gpt2.mappings(text), *gpt2.cross_mappings(text)]
    ]
    if image.config.d_model != text.config.d_model:
        found += linear_mappings("bridge", _BRIDGE)
    return found


def fields(model: Model) -> dict[str, Json]:
    """Returns the configuration of both parts."""
    image, text = _parts(model)
    decoder = {"is_decoder": True, "add_cross_attention": True}
    kind = image.config.image.distillation
    return {
        "model_type": "vision-encoder-decoder",
        "architectures": ["VisionEncoderDecoderModel"],
        "encoder": vit.fields(image, "vit" if kind == "none" else "deit"),
        "decoder": gpt2.fields(text) | decoder,
        "is_encoder_decoder": True,
        "tie_word_embeddings": False,
    }


def named(model: Model) -> Model:
    """Returns the model with the prefix of published names."""
    if model.encoder is None:
        raise ConfigError("only an image encoder with a decoder has this form")
    return dataclasses.replace(model, prefix="transformer.")


FAMILIES = (
    ModelFamily(
        types=("vision-encoder-decoder",),
        model=model,
        mappings=mappings,
        fields=fields,
        ignored=(r"decoder\..*\.(attn|crossattention)\.(bias|masked_bias)",),
        copies=(r"decoder\.lm_head\.weight",),
        named=named,
    ),
)

"""The Vision Transformer and DeiT, with a classifier or without.

Dosovitskiy et al. 2021; Touvron et al. 2021. Layouts:
https://huggingface.co/docs/transformers/model_doc/vit,
https://huggingface.co/docs/transformers/model_doc/deit.
"""

import dataclasses
import functools

from transformer_jax.core.json_types import Json
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.families.hf_heads import label_fields, labels_of, refuse_headless
from transformer_jax.interop.family import (
    Model,
    ModelFamily,
    TensorMapping,
    Tensors,
    attention_mappings,
    linear_mappings,
    norm_mappings,
)
from transformer_jax.interop.key_table import KeyTable, activation, flag, number, size, written
from transformer_jax.models.config import HeadConfig, TransformerConfig

__all__ = ["FAMILIES"]

_NAMES = ("attention.query", "attention.key", "attention.value", "output.dense")
_TABLE = KeyTable(
    size("image.image_size", "image_size"),
    size("image.patch_size", "patch_size"),
    size("image.num_channels", "num_channels", default=3),
    size("d_model", "hidden_size"),
    size("encoder_layers", "num_hidden_layers"),
    size("attention.num_heads", "num_attention_heads"),
    size("feed_forward.d_ff", "intermediate_size"),
    activation("hidden_act", "gelu"),
    number("norm.residual_dropout embedding.dropout", "hidden_dropout_prob", default=0.0),
    number("attention.dropout", "attention_probs_dropout_prob", default=0.0),
    flag("attention.bias", "qkv_bias", True),
    number("norm.eps", "layer_norm_eps", default=1e-12, above=0),
)
_POOLED = KeyTable(
    *_TABLE.keys,
    activation("pooler_act", "tanh", setting="head.pooler_activation"),
    written("pooler_output_size", "d_model"),
)


def config_of(fields: ConfigReader, pooler: bool, distillation: str = "none") -> TransformerConfig:
    """Returns the encoder described by a configuration."""
    table = _POOLED if pooler else _TABLE
    if pooler:
        fields.only(pooler_output_size=fields.whole("hidden_size"))
    settings = {
        "vocab_size": 0,
        "decoder_layers": 0,
        "embedding.scale": 1.0,
        "positions.kind": "learned",
        "norm.placement": "pre",
        "head.bias": True,
        "head.pooler": pooler,
        "image.distillation": distillation,
    }
    return table.config(fields, settings)


def model(fields: ConfigReader, tensors: Tensors, name: str = "vit") -> Model:
    """Returns an image encoder with the heads in the files."""
    prefix = f"{name}." if tensors.has(f"{name}.embeddings.cls_token") else ""
    distilled = name == "deit"
    # A distilled model has two heads.
    heads = ("classifier.weight", *("cls_classifier.weight",) * distilled)
    labeled = any(map(tensors.has, heads))
    if not labeled:
        refuse_headless(fields, "ForImageClassification", heads)
        if distilled:
            refuse_headless(fields, "ForImageClassificationWithTeacher", heads)
    if labeled:
        fields.only(problem_type="single_label_classification")
    second = "head" if tensors.has("cls_classifier.weight") else "embedding"
    pooler = not labeled and tensors.has(f"{prefix}pooler.dense.weight")
    return Model(
        kind="image",
        # A classifier reads the first vector directly, even if it was saved with a pooler.
        config=config_of(fields, pooler, second if distilled else "none"),
        prefix=prefix,
        task="classify" if labeled else None,
        labels=labels_of(fields) if labeled else (),
    )


def mappings(model: Model) -> list[TensorMapping]:
    """Returns the mappings of embeddings, layers and heads."""
    config, at = model.config, f"{model.prefix}embeddings."
    pixels = f"{at}patch_embeddings.projection"
    found = [
        TensorMapping(
            "embedding/kernel", f"{pixels}.weight", "patches", patch=config.image.patch_size
        ),
        TensorMapping("embedding/bias", f"{pixels}.bias"),
        TensorMapping("class_embedding/table", f"{at}cls_token", "leading_axis"),
        TensorMapping("encoder/positions/table", f"{at}position_embeddings", "leading_axis"),
    ]
    if config.image.distillation != "none":
        token = f"{at}distillation_token"
        found.append(TensorMapping("distillation_embedding/table", token, "leading_axis"))
    bias = config.attention.bias
    for i in range(config.encoder_layers):
        ours, theirs = f"encoder/blocks/{i}", f"{model.prefix}encoder.layer.{i}"
        at = f"{theirs}.attention"
        found += [
            *norm_mappings(f"{ours}/self_attention_norm", f"{theirs}.layernorm_before"),
            *attention_mappings(f"{ours}/self_attention", at, _NAMES, bias=bias, out_bias=True),
            *norm_mappings(f"{ours}/feed_forward_norm", f"{theirs}.layernorm_after"),
            *linear_mappings(f"{ours}/feed_forward/up", f"{theirs}.intermediate.dense"),
            *linear_mappings(f"{ours}/feed_forward/down", f"{theirs}.output.dense"),
        ]
    found += norm_mappings("encoder/final_norm", f"{model.prefix}layernorm")
    if config.head.pooler:
        found += linear_mappings("pooler", f"{model.prefix}pooler.dense")
    if not model.task:
        return found
    if config.image.distillation != "head":
        return [*found, *linear_mappings("labels", "classifier")]
    second = linear_mappings("distilled_labels", "distillation_classifier")
    return [*found, *linear_mappings("labels", "cls_classifier"), *second]


def fields(model: Model, name: str = "vit") -> dict[str, Json]:
    """Returns the configuration of a model."""
    table = _POOLED if model.config.head.pooler else _TABLE
    teacher = "WithTeacher" if model.config.image.distillation == "head" else ""
    head = f"ForImageClassification{teacher}" if model.task else "Model"
    return {
        "model_type": name,
        "architectures": [f"{'DeiT' if name == 'deit' else 'ViT'}{head}"],
        **table.fields(model.config),
        **label_fields(model),
    }


def named(model: Model, name: str = "vit") -> Model:
    """Returns the model with the prefix of published names."""
    return dataclasses.replace(model, prefix=f"{name}." if model.task else "")


def _for_heads(model: Model) -> Model:
    """Returns the model without a pooler if it has labels."""
    if not model.task:
        return model
    head = HeadConfig(bias=model.config.head.bias)
    return dataclasses.replace(model, config=dataclasses.replace(model.config, head=head))


def _family(name: str) -> ModelFamily:
    return ModelFamily(
        types=(name,),
        model=functools.partial(model, name=name),
        mappings=mappings,
        fields=functools.partial(fields, name=name),
        unused=lambda model: (rf"({name}\.)?pooler\..*",) if model.task else (),
        named=functools.partial(named, name=name),
        for_heads=_for_heads,
        module_names=_MODULE_NAMES,
    )


_MODULE_NAMES = (
    (r"encoder\.layer\.(\d+)\.attention\.attention\.(query|key|value)", r"layers.\1.attention.\2"),
    (r"(layers\.\d+\.attention)\.query", r"\1.q_proj"),
    (r"(layers\.\d+\.attention)\.key", r"\1.k_proj"),
    (r"(layers\.\d+\.attention)\.value", r"\1.v_proj"),
    (r"encoder\.layer\.(\d+)\.attention\.output\.dense", r"layers.\1.attention.o_proj"),
    (r"encoder\.layer\.(\d+)\.intermediate\.dense", r"layers.\1.mlp.fc1"),
    (r"encoder\.layer\.(\d+)\.output\.dense", r"layers.\1.mlp.fc2"),
    (r"encoder\.layer\.(\d+)\.layernorm", r"layers.\1.layernorm"),
)
FAMILIES = tuple(_family(name) for name in ("vit", "deit"))

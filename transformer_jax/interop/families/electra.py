"""ELECTRA: BERT with narrower tables and different heads.

Clark et al. 2020. Layout: https://huggingface.co/docs/transformers/model_doc/electra.
"""

import dataclasses

from transformer_jax.core.json_types import Json
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.families import bert
from transformer_jax.interop.families.hf_heads import (
    TEXT_TASKS,
    architecture,
    encoder,
    label_mappings,
    pooling_texts,
    prefixed,
    task_of,
    word_mappings,
)
from transformer_jax.interop.family import (
    Model,
    ModelFamily,
    TensorMapping,
    Tensors,
    linear_mappings,
    tied_names,
    ties_head,
)

__all__ = ["FAMILIES"]

_WORDS = "electra.embeddings.word_embeddings.weight"
_OWN = "generator_lm_head.weight"
_HEADS = ("classifier.weight", "classifier.out_proj.weight", "qa_outputs.weight")
_DETECTOR = "discriminator_predictions"
_REPLACED = ("original", "replaced")  # labels of the discriminator


def model(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns an encoder with the files' heads; a classifier's first map is a pooler with GELU."""
    detects = tensors.has(f"{_DETECTOR}.dense_prediction.weight")
    words = tensors.has("generator_predictions.dense.weight")
    task = "replaced" if detects else task_of(fields, tensors, _HEADS)
    settings = {
        "positions.max_length": fields.whole("max_position_embeddings"),
        "head.mlm_transform_activation": "gelu",  # regardless of the layers
        "head.pooler": task in TEXT_TASKS,
        "head.pooler_activation": "gelu" if task in TEXT_TASKS else "tanh",
        "head.tie_word_embeddings": not words or ties_head(fields, tensors, _OWN, _WORDS),
    }
    width = fields.whole("embedding_size", default=128)
    found = encoder(
        fields,
        bert.config_of(fields, settings, embedding=width),
        prefix="electra." if tensors.has(_WORDS) else "",
        task=task,
        words=words,
    )
    return dataclasses.replace(found, labels=_REPLACED) if detects else found


def mappings(model: Model) -> list[TensorMapping]:
    """Returns the mappings of embeddings, layers and heads."""
    found, config = bert.body(model), model.config
    if config.embedding_size != config.d_model:
        found += linear_mappings("encoder/projection", f"{model.prefix}embeddings_project")
    if model.task in TEXT_TASKS:
        found += linear_mappings("pooler", "classifier.dense")
    if model.task == "replaced":
        found += linear_mappings("detector", f"{_DETECTOR}.dense")
        return found + linear_mappings("labels", f"{_DETECTOR}.dense_prediction")
    at = "generator_predictions"
    biases = ("generator_lm_head.bias", "generator_lm_head.bias")
    found += word_mappings(model, f"{at}.dense", f"{at}.LayerNorm", biases, _OWN)
    texts = "classifier.out_proj" if model.task in TEXT_TASKS else "classifier"
    return found + label_mappings(model, texts)


def fields(model: Model) -> dict[str, Json]:
    """Returns the configuration of an encoder as ELECTRA."""
    detects = model.task == "replaced"
    plain = dataclasses.replace(model, task=None, labels=()) if detects else model
    name = architecture("Electra", task=plain.task, words=model.words)
    return {
        "model_type": "electra",
        "architectures": ["ElectraForPreTraining" if detects else name],
        **bert.body_fields(plain),
        "embedding_size": model.config.embedding_size,
        "max_position_embeddings": model.config.positions.max_length,
    }


FAMILIES = (
    ModelFamily(
        types=("electra",),
        model=model,
        mappings=mappings,
        fields=fields,
        ignored=(r".*embeddings\.position_ids",),
        tied_names=tied_names((_WORDS, _OWN)),
        copies=(r"generator_lm_head\.weight",),
        renamed=bert.RENAMED,
        named=prefixed("ELECTRA", "electra."),
        for_heads=pooling_texts("gelu"),
    ),
)

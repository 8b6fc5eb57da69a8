"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT with positions that count only real tokens.

Positions start after the padding id. Liu et al. 2019; Conneau et al. 2020; Martin et al. 2020.
Layout: https://huggingface.co/docs/transformers/model_doc/roberta.
"""

import dataclasses

from transformer_jax.core.errors import ConfigError
from transformer_jax.core.json_types import Json
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.families import bert
from transformer_jax.interop.families.hf_heads import (
    TEXT_TASKS,
    architecture,
    encoder,
    label_mappings,
    pooling_texts,
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

_WORDS = "roberta.embeddings.word_embeddings.weight"
_OWN = "lm_head.decoder.weight"
_BIASES = "lm_head.bias", "lm_head.decoder.bias"
_HEADS = ("classifier.weight", "classifier.out_proj.weight", "qa_outputs.weight")


def model(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns an encoder with the heads in the files; a classifier's first map is a pooler."""
    task = task_of(fields, tensors, _HEADS)
    prefix = "roberta." if tensors.has(_WORDS) else ""
    pooler = tensors.has(f"{prefix}pooler.dense.weight")
    words = tensors.has("lm_head.dense.weight")
    # Position 0 is for padding, whose table row is the padding id.
    first = fields.whole("pad_token_id", default=1, least=0) + 1
    rows = fields.whole("max_position_embeddings")
    if rows <= first:
        raise fields.refused(
            "max_position_embeddings", rows, f"more than pad_token_id + 1, {first}"
        )
    settings = {
        "positions.max_length": rows - first,
        "positions.offset": first,
        "positions.skip_padding": True,
        "head.mlm_transform_activation": "gelu",  # regardless of the layers
        "head.pooler": pooler or task in TEXT_TASKS,
        "head.tie_word_embeddings": not words or ties_head(fields, tensors, _OWN, _WORDS),
    }
    return encoder(fields, bert.config_of(fields, settings), prefix=prefix, task=task, words=words)


def mappings(model: Model) -> list[TensorMapping]:
    """Returns the mappings of embeddings, layers and heads."""
    found, texts = bert.body(model), model.task in TEXT_TASKS
    if texts:
        found += linear_mappings("pooler", "classifier.dense")
    elif model.config.head.pooler:
        found += linear_mappings("pooler", f"{model.prefix}pooler.dense")
    found += word_mappings(model, "lm_head.dense", "lm_head.layer_norm", _BIASES, _OWN)
    return found + label_mappings(model, "classifier.out_proj")


def fields(model: Model) -> dict[str, Json]:
    """Returns the configuration of an encoder as RoBERTa."""
    positions = model.config.positions
    return {
        "model_type": "roberta",
        "architectures": [architecture("Roberta", task=model.task, words=model.words)],
        **bert.body_fields(model),
        "max_position_embeddings": positions.max_length + positions.offset,
        "pad_token_id": positions.offset - 1,
    }


def named(model: Model) -> Model:
    """Returns the model with the prefix of published names."""
    if model.next_sentence:
        raise ConfigError("RoBERTa has no head for pairs of texts")
    bare = not (model.words or model.task)
    return dataclasses.replace(model, prefix="" if bare else "roberta.")


FAMILIES = (
    ModelFamily(
        types=("roberta", "xlm-roberta", "camembert"),
        model=model,
        mappings=mappings,
        fields=fields,
        ignored=(r".*embeddings\.position_ids",),
        # A classifier has a separate first map, and files may still have the unused pooler.
        unused=lambda model: (r"(roberta\.)?pooler\..*",) if model.task in TEXT_TASKS else (),
        tied_names=tied_names((_WORDS, _OWN), _BIASES),
        copies=(r"lm_head\.decoder\.(weight|bias)", r"lm_head\.bias"),
        renamed=bert.RENAMED,
        named=named,
        for_heads=pooling_texts(),
    ),
)

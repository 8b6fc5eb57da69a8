"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT with positions that count only real tokens.

Positions start after the padding id. Liu et al. 2019; Conneau et al. 2020; Martin et al. 2020.
Layout: https://huggingface.co/docs/transformers/model_doc/roberta.
"""

from collections.abc import Callable

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
from transformer_jax.models.config import TransformerConfig

__all__ = ["FAMILIES", "OWN", "described", "heads", "position_fields"]

OWN = ("lm_head.decoder.weight", ("lm_head.bias", "lm_head.decoder.bias"))
_HEADS = ("classifier.weight", "classifier.out_proj.weight", "qa_outputs.weight")


def model(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns an encoder with the heads in the files; a classifier's first map is a pooler."""
    return described(fields, tensors, "roberta.", bert.config_of)


def described(
    fields: ConfigReader,
    tensors: Tensors,
    prefix: str,
    config_of: Callable[[ConfigReader, dict[str, object]], TransformerConfig],
) -> Model:
    """Returns an encoder with RoBERTa's positions and heads.

    Args:
        fields: The configuration.
        tensors: The tensors of the folder.
        prefix: The prefix of tensor names in files with a head.
        config_of: Function from the keys and settings of positions and heads to a configuration.

    Raises:
        CheckpointError: A value is invalid.
    """
    task = task_of(fields, tensors, _HEADS)
    table = f"{prefix}embeddings.word_embeddings.weight"
    prefix = prefix if tensors.has(table) else ""
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
        "head.pooler": tensors.has(f"{prefix}pooler.dense.weight") or task in TEXT_TASKS,
        "head.tie_word_embeddings": not words or ties_head(fields, tensors, OWN[0], table),
    }
    return encoder(fields, config_of(fields, settings), prefix=prefix, task=task, words=words)


def mappings(model: Model) -> list[TensorMapping]:
    """Returns the mappings of embeddings, layers and heads."""
    return bert.body(model) + heads(model)


def heads(model: Model) -> list[TensorMapping]:
    """Returns the mappings of the pooler and the heads."""
    found, texts = [], model.task in TEXT_TASKS
    if model.config.head.pooler:
        name = "classifier.dense" if texts else f"{model.prefix}pooler.dense"
        found = linear_mappings("pooler", name)
    found += word_mappings(model, "lm_head.dense", "lm_head.layer_norm", OWN[1], OWN[0])
    return found + label_mappings(model, "classifier.out_proj")


def fields(model: Model) -> dict[str, Json]:
    """Returns the configuration of an encoder as RoBERTa."""
    return {
        "model_type": "roberta",
        "architectures": [architecture("Roberta", task=model.task, words=model.words)],
        **bert.body_fields(model),
        **position_fields(model),
    }


def position_fields(model: Model) -> dict[str, Json]:
    """Returns the keys of positions."""
    positions = model.config.positions
    return {
        "max_position_embeddings": positions.max_length + positions.offset,
        "pad_token_id": positions.offset - 1,
    }


FAMILIES = (
    ModelFamily(
        types=("roberta", "xlm-roberta", "camembert"),
        model=model,
        mappings=mappings,
        fields=fields,
        ignored=(r".*embeddings\.position_ids",),
        # A classifier has a separate first map, and files may still have the unused pooler.
        unused=lambda model: (r"(\w+\.)?pooler\..*",) if model.task in TEXT_TASKS else (),
        tied_names=tied_names(("roberta.embeddings.word_embeddings.weight", OWN[0]), OWN[1]),
        copies=(r"lm_head\.decoder\.(weight|bias)", r"lm_head\.bias"),
        renamed=bert.RENAMED,
        named=prefixed("RoBERTa", "roberta."),
        for_heads=pooling_texts(),
    ),
)

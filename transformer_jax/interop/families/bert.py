"""BERT, and models in its layout: MiniLM, sentence encoders, RoBERTa's body.

Devlin et al. 2019. Layout: https://huggingface.co/docs/transformers/model_doc/bert.
"""

import dataclasses
from collections.abc import Mapping

from transformer_jax.core.errors import ConfigError
from transformer_jax.core.json_types import Json
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.families.hf_heads import (
    TEXT_TASKS,
    architecture,
    encoder,
    label_fields,
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
    attention_mappings,
    linear_mappings,
    norm_mappings,
    tied_names,
    ties_head,
)
from transformer_jax.interop.key_table import KeyTable, activation, number, size, written
from transformer_jax.models.config import TransformerConfig

__all__ = ["FAMILIES", "RENAMED", "TABLE", "body", "body_fields", "config_of"]

_WORDS = "bert.embeddings.word_embeddings.weight"
_OWN = "cls.predictions.decoder.weight"
_BIASES = "cls.predictions.bias", "cls.predictions.decoder.bias"
_HEADS = ("classifier.weight", "qa_outputs.weight")
TABLE = KeyTable(
    size("vocab_size", "vocab_size"),
    size("d_model", "hidden_size"),
    size("encoder_layers", "num_hidden_layers"),
    size("attention.num_heads", "num_attention_heads"),
    size("feed_forward.d_ff", "intermediate_size"),
    activation("hidden_act", "gelu"),
    number("norm.residual_dropout embedding.dropout", "hidden_dropout_prob", default=0.1),
    number("attention.dropout", "attention_probs_dropout_prob", default=0.1),
    size("embedding.type_vocab_size", "type_vocab_size", default=2),
    number("norm.eps", "layer_norm_eps", default=1e-12, above=0),
    written("tie_word_embeddings", "head.tie_word_embeddings"),
)


def config_of(
    fields: ConfigReader, settings: Mapping[str, object], *, embedding: int | None = None
) -> TransformerConfig:
    """Returns the encoder described by BERT's keys.

    Args:
        fields: The keys.
        settings: Settings of positions and heads, by dotted path.
        embedding: The width of embedding tables, if the family has a key for it.

    Raises:
        CheckpointError: A value is invalid.
    """
    fields.only(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    width = fields.whole("hidden_size")
    if embedding is None:
        fields.only(embedding_size=width)
    shared = {
        "decoder_layers": 0,
        "embedding.scale": 1.0,
        "embedding.layernorm_embedding": True,
        "embedding.embedding_size": None if embedding == width else embedding,
        "positions.kind": "learned",
        "head.bias": True,
        "head.mlm_transform": True,
    }
    return TABLE.config(fields, shared | dict(settings))


def model(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns an encoder with the heads in the files."""
    task = task_of(fields, tensors, _HEADS)
    words = tensors.has("cls.predictions.transform.dense.weight")
    if tensors.has("cls.seq_relationship.weight") and not words:
        known = fields.values.get("architectures")
        raise fields.refused("architectures", known, "a head only for pairs is not supported")
    prefix = "bert." if tensors.has(_WORDS) else ""
    settings = {
        "positions.max_length": fields.whole("max_position_embeddings"),
        # A text classifier always reads the pooler's output.
        "head.pooler": tensors.has(f"{prefix}pooler.dense.weight") or task in TEXT_TASKS,
        "head.tie_word_embeddings": not words or ties_head(fields, tensors, _OWN, _WORDS),
    }
    return encoder(
        fields,
        config_of(fields, settings),
        prefix=prefix,
        task=task,
        words=words,
        next_sentence=tensors.has("cls.seq_relationship.weight"),
    )


def body(
    model: Model,
    names: tuple[str, str, str, str] = ("self.query", "self.key", "self.value", "output.dense"),
    norm: str = "output.LayerNorm",
) -> list[TensorMapping]:
    """Returns the mappings of embeddings and layers.

    Args:
        model: The encoder.
        names: Names of the projections of attention.
        norm: Name of the norm after attention.
    """
    at = f"{model.prefix}embeddings."
    mappings = [
        TensorMapping("embedding/table", f"{at}word_embeddings.weight"),
        TensorMapping("encoder/positions/table", f"{at}position_embeddings.weight"),
        *norm_mappings("encoder/embedding_norm", f"{at}LayerNorm"),
    ]
    if model.config.embedding.type_vocab_size:
        name = f"{at}token_type_embeddings.weight"
        mappings.append(TensorMapping("encoder/segments/table", name))
    for i in range(model.config.encoder_layers):
        ours, theirs = f"encoder/blocks/{i}", f"{model.prefix}encoder.layer.{i}"
        mappings += [
            *attention_mappings(f"{ours}/self_attention", f"{theirs}.attention", names),
            *norm_mappings(f"{ours}/self_attention_norm", f"{theirs}.attention.{norm}"),
            *linear_mappings(f"{ours}/feed_forward/up", f"{theirs}.intermediate.dense"),
            *linear_mappings(f"{ours}/feed_forward/down", f"{theirs}.output.dense"),
            *norm_mappings(f"{ours}/feed_forward_norm", f"{theirs}.output.LayerNorm"),
        ]
    return mappings


def mappings(model: Model) -> list[TensorMapping]:
    """Returns the mappings of embeddings, layers and heads."""
    found = body(model)
    if model.config.head.pooler:
        found += linear_mappings("pooler", f"{model.prefix}pooler.dense")
    at = "cls.predictions"
    transform = f"{at}.transform.dense", f"{at}.transform.LayerNorm"
    found += word_mappings(model, *transform, _BIASES, _OWN)
    if model.next_sentence:
        found += linear_mappings("next_sentence", "cls.seq_relationship")
    return found + label_mappings(model)


def body_fields(model: Model) -> dict[str, Json]:
    """Returns the keys that BERT, RoBERTa and ELECTRA share."""
    return {**TABLE.fields(model.config), **label_fields(model)}


def fields(model: Model) -> dict[str, Json]:
    """Returns the configuration of an encoder as BERT."""
    name = architecture("Bert", task=model.task, words=model.words)
    if model.next_sentence and model.words:
        name = "BertForPreTraining"
    return {
        "model_type": "bert",
        "architectures": [name],
        **body_fields(model),
        "max_position_embeddings": model.config.positions.max_length,
    }


def named(model: Model) -> Model:
    """Returns the model with the prefix of published names."""
    bare = not (model.words or model.next_sentence or model.task)
    if bare and not model.config.head.pooler:
        # transformers would initialize a missing pooler at random; ELECTRA has the same layers
        # without.
        raise ConfigError("a BERT without heads has a pooler")
    return dataclasses.replace(model, prefix="" if bare else "bert.")


# Names of old files.
RENAMED = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))
FAMILIES = (
    ModelFamily(
        types=("bert",),
        model=model,
        mappings=mappings,
        fields=fields,
        ignored=(r".*embeddings\.position_ids",),
        tied_names=tied_names((_WORDS, _OWN), _BIASES),
        copies=(r"cls\.predictions\.decoder\.(weight|bias)", r"cls\.predictions\.bias"),
        renamed=RENAMED,
        named=named,
        for_heads=pooling_texts(),
    ),
)

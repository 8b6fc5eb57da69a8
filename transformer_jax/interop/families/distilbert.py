"""DistilBERT: BERT without token types and pooler, half as deep.

Sanh et al. 2019. Layout: https://huggingface.co/docs/transformers/model_doc/distilbert.
"""

import dataclasses
from typing import Any

from transformer_jax.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.errors import ConfigError
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.families.heads import (
    TEXT_TASKS,
    architecture,
    encoder,
    label_fields,
    label_mappings,
    task_of,
    word_mappings,
)
from transformer_jax.interop.family import (
    ACTIVATIONS,
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

__all__ = ["FAMILY"]

_TABLE = "distilbert.embeddings.word_embeddings.weight"
_OWN = "vocab_projector.weight"
_EPS = 1e-12  # hard-coded there, and no key


def model(fields: ConfigReader, tensors: Tensors) -> Model:
    """An encoder with the heads that are there; a classifier's first map is a pooler with ReLU."""
    task = task_of(fields, tensors, ("classifier.weight", "qa_outputs.weight"))
    table = _TABLE
    rate, words = fields.number("dropout", default=0.1), tensors.has("vocab_transform.weight")
    config = TransformerConfig(
        vocab_size=fields.whole("vocab_size"),
        d_model=fields.whole("dim", "hidden_size"),
        encoder_layers=fields.whole("n_layers", "num_hidden_layers"),
        decoder_layers=0,
        embedding=EmbeddingConfig(scale=1.0, layernorm_embedding=True, dropout=rate),
        positions=PositionConfig(
            kind="learned", max_length=fields.whole("max_position_embeddings")
        ),
        attention=AttentionConfig(
            num_heads=fields.whole("n_heads", "num_attention_heads"),
            dropout=fields.number("attention_dropout", default=0.1),
        ),
        feed_forward=FeedForwardConfig(
            d_ff=fields.whole("hidden_dim"),
            activation=fields.choice(("activation",), ACTIVATIONS, "gelu"),
        ),
        norm=NormConfig(eps=_EPS, residual_dropout=rate),
        head=HeadConfig(
            bias=True,
            mlm_transform=True,
            pooler=task in TEXT_TASKS,
            pooler_activation="relu" if task in TEXT_TASKS else "tanh",
            tie_word_embeddings=not words or ties_head(fields, tensors, _OWN, table),
        ),
    )
    return encoder(
        fields,
        config,
        prefix="distilbert." if tensors.has(table) else "",
        task=task,
        words=words,
    )


def mappings(model: Model) -> list[TensorMapping]:
    """Embeddings, layers and heads."""
    at = f"{model.prefix}embeddings."
    found = [
        TensorMapping("embedding/table", f"{at}word_embeddings.weight"),
        TensorMapping("encoder/positions/table", f"{at}position_embeddings.weight"),
        *norm_mappings("encoder/embedding_norm", f"{at}LayerNorm"),
    ]
    for i in range(model.config.encoder_layers):
        ours, theirs = f"encoder/blocks/{i}", f"{model.prefix}transformer.layer.{i}"
        names = ("q_lin", "k_lin", "v_lin", "out_lin")
        found += [
            *attention_mappings(f"{ours}/self_attention", f"{theirs}.attention", names),
            *norm_mappings(f"{ours}/self_attention_norm", f"{theirs}.sa_layer_norm"),
            *linear_mappings(f"{ours}/feed_forward/up", f"{theirs}.ffn.lin1"),
            *linear_mappings(f"{ours}/feed_forward/down", f"{theirs}.ffn.lin2"),
            *norm_mappings(f"{ours}/feed_forward_norm", f"{theirs}.output_layer_norm"),
        ]
    if model.config.head.pooler:
        found += linear_mappings("pooler", "pre_classifier")
    biases = ("vocab_projector.bias", "vocab_projector.bias")
    found += word_mappings(model, "vocab_transform", "vocab_layer_norm", biases, _OWN)
    return found + label_mappings(model)


def fields(model: Model) -> dict[str, Any]:
    """The configuration of an encoder, as DistilBERT's."""
    config = model.config
    return {
        "model_type": "distilbert",
        "architectures": [architecture("DistilBert", task=model.task, words=model.words)],
        "vocab_size": config.vocab_size,
        "dim": config.d_model,
        "n_layers": config.encoder_layers,
        "n_heads": config.attention.num_heads,
        "hidden_dim": config.feed_forward.d_ff,
        "activation": config.feed_forward.activation.replace("gelu_tanh", "gelu_new"),
        "dropout": config.norm.residual_dropout,
        "attention_dropout": config.attention.dropout,
        "max_position_embeddings": config.positions.max_length,
        "tie_word_embeddings": config.head.tie_word_embeddings,
        **label_fields(model),
    }


def named(model: Model) -> Model:
    """A model of ours with the prefix that its names have once published."""
    if model.next_sentence:
        raise ConfigError("DistilBERT has no head for pairs of texts: export as BERT")
    bare = not (model.words or model.task)
    return dataclasses.replace(model, prefix="" if bare else "distilbert.")


FAMILY = ModelFamily(
    types=("distilbert",),
    model=model,
    mappings=mappings,
    fields=fields,
    ignored=(r".*embeddings\.position_ids",),
    copies=(r"vocab_projector\.weight",),
    tied_names=tied_names((_TABLE, _OWN)),
    named=named,
)

"""DistilBERT: BERT without token types and pooler, half as deep.

Sanh et al. 2019. Layout: https://huggingface.co/docs/transformers/model_doc/distilbert.
"""

from transformer_jax.core.json_types import Json
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.families.hf_heads import (
    TEXT_TASKS,
    architecture,
    encoder,
    label_fields,
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
    attention_mappings,
    linear_mappings,
    norm_mappings,
    tied_names,
    ties_head,
)
from transformer_jax.interop.key_table import KeyTable, activation, number, size, written

__all__ = ["FAMILIES"]

_WORDS = "distilbert.embeddings.word_embeddings.weight"
_OWN = "vocab_projector.weight"
_EPS = 1e-12  # hard-coded in transformers, without a key
_TABLE = KeyTable(
    size("vocab_size", "vocab_size"),
    size("d_model", "dim", "hidden_size"),
    size("encoder_layers", "n_layers", "num_hidden_layers"),
    size("attention.num_heads", "n_heads", "num_attention_heads"),
    size("feed_forward.d_ff", "hidden_dim"),
    activation("activation", "gelu"),
    number("norm.residual_dropout embedding.dropout", "dropout", default=0.1),
    number("attention.dropout", "attention_dropout", default=0.1),
    size("positions.max_length", "max_position_embeddings"),
    written("tie_word_embeddings", "head.tie_word_embeddings"),
)


def model(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns an encoder with the files' heads; a classifier's first map is a pooler with ReLU."""
    task = task_of(fields, tensors, ("classifier.weight", "qa_outputs.weight"))
    words = tensors.has("vocab_transform.weight")
    settings = {
        "decoder_layers": 0,
        "embedding.scale": 1.0,
        "embedding.layernorm_embedding": True,
        "positions.kind": "learned",
        "norm.eps": _EPS,
        "head.bias": True,
        "head.mlm_transform": True,
        "head.pooler": task in TEXT_TASKS,
        "head.pooler_activation": "relu" if task in TEXT_TASKS else "tanh",
        "head.tie_word_embeddings": not words or ties_head(fields, tensors, _OWN, _WORDS),
    }
    return encoder(
        fields,
        _TABLE.config(fields, settings),
        prefix="distilbert." if tensors.has(_WORDS) else "",
        task=task,
        words=words,
    )


def mappings(model: Model) -> list[TensorMapping]:
    """Returns the mappings of embeddings, layers and heads."""
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


def fields(model: Model) -> dict[str, Json]:
    """Returns the configuration of an encoder as DistilBERT."""
    return {
        "model_type": "distilbert",
        "architectures": [architecture("DistilBert", task=model.task, words=model.words)],
        **_TABLE.fields(model.config),
        **label_fields(model),
    }


FAMILIES = (
    ModelFamily(
        types=("distilbert",),
        model=model,
        mappings=mappings,
        fields=fields,
        ignored=(r".*embeddings\.position_ids",),
        copies=(r"vocab_projector\.weight",),
        tied_names=tied_names((_WORDS, _OWN)),
        named=prefixed("DistilBERT", "distilbert."),
        for_heads=pooling_texts("relu"),
    ),
)

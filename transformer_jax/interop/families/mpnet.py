"""MPNet: RoBERTa's positions and heads, with biases of distances and without token types.

Song et al. 2020. Layout: https://huggingface.co/docs/transformers/model_doc/mpnet.
"""

import dataclasses
from collections.abc import Mapping

from transformer_jax.core.json_types import Json
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.families import bert, roberta
from transformer_jax.interop.families.hf_heads import architecture, label_fields, prefixed
from transformer_jax.interop.family import Model, TensorMapping, Tensors, tied_names
from transformer_jax.interop.key_table import KeyTable
from transformer_jax.models.config import TransformerConfig

__all__ = ["FAMILIES"]

_PREFIX = "mpnet."
_TABLE = KeyTable(*(key for key in bert.TABLE.keys if key.name != "type_vocab_size"))
_NAMES = ("attn.q", "attn.k", "attn.v", "attn.o")
# transformers ignores these keys, which the tensors or the tokenizer may not.
_FIXED: Mapping[str, Json] = {"pad_token_id": 1, "relative_attention_num_buckets": 32}


def model(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns an encoder with the heads in the files; a classifier's first map is a pooler."""
    fields.only(**_FIXED)
    return roberta.described(fields, tensors, _PREFIX, _config_of)


def _config_of(fields: ConfigReader, settings: Mapping[str, object]) -> TransformerConfig:
    shared = {
        "decoder_layers": 0,
        "embedding.scale": 1.0,
        "embedding.layernorm_embedding": True,
        "positions.kind": "learned_relative",
        "head.bias": True,
        "head.mlm_transform": True,
    }
    return _TABLE.config(fields, shared | dict(settings))


def mappings(model: Model) -> list[TensorMapping]:
    """Returns the mappings of embeddings, layers and heads."""
    biases = f"{model.prefix}encoder.relative_attention_bias.weight"
    return [
        *bert.body(model, _NAMES, "LayerNorm"),
        TensorMapping("encoder/relative/table", biases),
        *roberta.heads(model),
    ]


def fields(model: Model) -> dict[str, Json]:
    """Returns the configuration of an encoder as MPNet."""
    return {
        "model_type": "mpnet",
        "architectures": [architecture("MPNet", task=model.task, words=model.words)],
        **_TABLE.fields(model.config),
        **label_fields(model),
        **roberta.position_fields(model),
        "relative_attention_num_buckets": model.config.positions.num_buckets,
    }


FAMILIES = (
    dataclasses.replace(
        roberta.FAMILIES[0],
        types=("mpnet",),
        model=model,
        mappings=mappings,
        fields=fields,
        tied_names=tied_names(
            (f"{_PREFIX}embeddings.word_embeddings.weight", roberta.OWN[0]), roberta.OWN[1]
        ),
        named=prefixed("MPNet", _PREFIX),
    ),
)

"""M2M100 and NLLB: multilingual translators, in mBART's layout without learned positions.

Fan et al. 2021; NLLB team 2022 (the dense models). Layout:
https://huggingface.co/docs/transformers/model_doc/m2m_100.
"""

import dataclasses

from transformer_jax.core.json_types import Json
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.families import bart
from transformer_jax.interop.family import Model, Tensors

__all__ = ["FAMILIES"]

_KIND, _NAME = "m2m_100", "M2M100ForConditionalGeneration"
# Defaults of missing keys that differ from BART's.
_USUAL: dict[str, Json] = {
    "activation_function": "relu",
    "scale_embedding": True,
    "max_position_embeddings": 1024,
    "attention_dropout": 0.1,
}


def model(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns an M2M100; positions start after the padding id."""
    missing = {key: usual for key, usual in _USUAL.items() if fields.values.get(key) is None}
    fields = fields.replaced(**missing)
    pad = fields.whole("pad_token_id", default=1, least=0)
    if fields.values.get("decoder_start_token_id") == pad:
        reason = "must differ from decoder_start_token_id, since padding has no position"
        raise fields.refused("pad_token_id", pad, reason)
    settings = {
        "positions.kind": "sinusoidal_fairseq",
        "positions.offset": pad + 1,
        "positions.skip_padding": True,
    }
    return bart.model_of_layout(fields, tensors, settings, before=True)


def fields(model: Model) -> dict[str, Json]:
    """Returns the configuration of an encoder-decoder as M2M100."""
    pad = model.config.positions.offset - 1
    return bart.published_fields(_KIND, _NAME, model) | {"pad_token_id": pad}


_BASE = bart.family(_KIND, _NAME, model)
FAMILIES = (
    dataclasses.replace(
        _BASE,
        fields=fields,
        ignored=(*_BASE.ignored, r"(model\.)?(encoder|decoder)\.embed_positions\.weights?"),
    ),
)

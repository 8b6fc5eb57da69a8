"""The model and the tokenizer of a stored run, as tests of models and searches need them."""

from typing import Any

from transformer_jax.inference.engines import EngineConfig, on_ctranslate2
from transformer_jax.inference.pretrained import Pretrained, read_facts

__all__ = ["engine_language", "engine_translator", "load", "load_language"]


def load(
    path: Any,
    checkpoint: str = "best",
    *,
    kind: str | tuple[str, ...] = "encoder-decoder",
    **how: Any,
):
    """Returns graph and parameters, and the tokenizer, of a model of one of the families."""
    kinds = (kind,) if isinstance(kind, str) else kind
    opened = Pretrained.load(read_facts(path, checkpoint), *kinds, **how)
    return opened.model, opened.tokenizer


def load_language(path: Any, checkpoint: str = "best", **how: Any):
    """Returns the language model of a decoder or an n-gram model."""
    return Pretrained.load(read_facts(path, checkpoint), "decoder", "ngram").language(**how)


def engine_translator(path: Any, engine: EngineConfig | None = None, **how: Any):
    """Returns the translator of a run on CTranslate2."""
    opened = on_ctranslate2(read_facts(path), engine or EngineConfig(), "encoder-decoder")
    return opened.translator(**how)


def engine_language(path: Any, engine: EngineConfig | None = None, **how: Any):
    """Returns the language model of a run on CTranslate2."""
    return on_ctranslate2(read_facts(path), engine or EngineConfig(), "decoder").language(**how)

"""Runs on an engine other than JAX: exported once, then decoded there."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import transformer_jax
from transformer_jax.core.errors import ConfigError
from transformer_jax.inference.facts import Facts
from transformer_jax.inference.pretrained import Pretrained, chosen_checkpoint
from transformer_jax.interop.cached_exports import cached_export, user_cache
from transformer_jax.interop.ctranslate2 import check_ctranslate2, write_ctranslate2
from transformer_jax.interop.ctranslate2_engine import CTranslate2Engine, check_compute
from transformer_jax.interop.export_plan import unscan_layers
from transformer_jax.interop.hf_run_directory import model_of

if TYPE_CHECKING:
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.interop.family import Model

__all__ = ["EngineConfig", "on_ctranslate2"]

FOLDER = "ctranslate2"  # folder of exports, in a run or a cache
_TRIES = 5


class EngineConfig(NamedTuple):
    """Settings for running a model on CTranslate2."""

    compute: str = "float32"  # a data type that the CPU supports
    cache: Path | None = None  # None is the run, or the user's cache if the run is read-only
    # Called with the folder of a new export and a summary line.
    wrote: Callable[[Path, str], None] = lambda folder, said: None


def on_ctranslate2(facts: Facts, engine: EngineConfig, *kinds: str) -> Pretrained:
    """Returns a translator or a decoder on CTranslate2, whose ``model`` is the engine.

    The parameters are only read if the model was not exported yet.

    Args:
        facts: Facts of the model.
        engine: Settings of the engine.
        *kinds: The allowed families; none allows translators and decoders.

    Raises:
        ConfigError: The model is of another family, or CTranslate2 does not support it.
        CheckpointError: Its files are damaged, or the export cannot be written.
    """
    which, average = chosen_checkpoint(facts.checkpoint)
    if facts.kind == "ngram":
        raise ConfigError(f"{facts.source}: an n-gram model, which CTranslate2 does not support")
    facts.require(*(kinds or ("encoder-decoder", "decoder")))
    model, tokenizer, run = model_of(facts.record, facts.kind), facts.tokenizer, facts.reader
    check_compute(engine.compute)
    check_ctranslate2(model)
    own = [run.path, user_cache()]
    folders = [folder / FOLDER for folder in ([engine.cache] if engine.cache else own)]
    for _ in range(_TRIES):
        weights = run.weights_digest(which, average=average)
        written = lambda draft, weights=weights: _write(draft, facts, model, weights)
        try:
            key = _key(dict(facts.record), tokenizer, weights)
            folder = cached_export(folders, key, written, engine.wrote)
        except _Trained:
            continue  # a new checkpoint was saved in the meantime
        return Pretrained(
            dataclasses.replace(facts, files=None, config=model.config),
            CTranslate2Engine(folder, model, tokenizer, engine.compute),
            tokenizer,
        )
    raise ConfigError(f"{facts.source}: its checkpoints change during the export: name a step")


class _Trained(Exception):  # noqa: N818  (the training of the run did what it should)
    """A new checkpoint was saved between selection and loading."""


def _key(fields: dict[str, Any], tokenizer: "Tokenizer", weights: str) -> str:
    """Returns the name of an export: a checksum of all its inputs."""
    made = [transformer_jax.__version__, fields, tokenizer.sha256, weights]
    return hashlib.sha256(json.dumps(made, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _write(draft: Path, facts: Facts, model: "Model", weights: str) -> str:
    """Exports a model whose weights have the checksum ``weights``; returns a summary line.

    Raises:
        _Trained: The weights have a different checksum.
    """
    which, average = chosen_checkpoint(facts.checkpoint)
    opened = Pretrained.load(facts)
    if facts.reader.weights_digest(which, average=average) != weights:
        raise _Trained
    model, params = unscan_layers(model, opened.model[1])
    tokenizer = opened.tokenizer
    start = facts.text_start(tokenizer) if model.kind == "decoder" else None
    return write_ctranslate2(draft, model, params, tokenizer, start=start)

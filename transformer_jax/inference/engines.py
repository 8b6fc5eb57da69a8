"""Runs on an engine other than JAX: exported once, then decoded there."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import transformer_jax
from transformer_jax.core.errors import ConfigError
from transformer_jax.decoding.generation_config import TRANSLATION, GenerationConfig
from transformer_jax.decoding.options import BatchingConfig, TranslationBatching
from transformer_jax.inference.load_run import chosen_checkpoint, load
from transformer_jax.inference.runs import open_directory, refuse_others, text_format, text_start
from transformer_jax.interop.cached_exports import cached_export, user_cache
from transformer_jax.interop.ctranslate2 import check_ctranslate2, write_ctranslate2
from transformer_jax.interop.ctranslate2_engine import CTranslate2Engine, check_compute
from transformer_jax.interop.ctranslate2_language import CTranslate2LanguageModel
from transformer_jax.interop.ctranslate2_translator import CTranslate2Translator
from transformer_jax.interop.export_plan import unscan_layers
from transformer_jax.interop.hf_run_directory import model_of
from transformer_jax.models.config import TransformerConfig

if TYPE_CHECKING:
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.interop.family import Model
    from transformer_jax.runs.run_directory import RunDirectory

__all__ = ["EngineConfig", "load_engine_language", "load_engine_translator"]

FOLDER = "ctranslate2"  # folder of exports, in a run or a cache
_TRIES = 5


class EngineConfig(NamedTuple):
    """Settings for running a model on CTranslate2."""

    compute: str = "float32"  # a data type that the CPU supports
    cache: Path | None = None  # None is the run, or the user's cache if the run is read-only
    # Called with the folder of a new export and a summary line.
    wrote: Callable[[Path, str], None] = lambda folder, said: None


class _Loaded(NamedTuple):
    engine: CTranslate2Engine
    tokenizer: "Tokenizer"
    config: TransformerConfig
    run: "RunDirectory"


def load_engine_translator(
    path: Path,
    checkpoint: str = "best",
    engine: EngineConfig | None = None,
    *,
    search: GenerationConfig = TRANSLATION,
    batching: TranslationBatching | None = None,
) -> CTranslate2Translator:
    """Loads the translator of a run on CTranslate2.

    Args:
        path: The run directory or Hugging Face folder.
        checkpoint: The checkpoint, see :func:`~.load_run.chosen_checkpoint`.
        engine: Settings of the engine.
        search: Settings of beam search.
        batching: Batch sizes.

    Raises:
        ConfigError: The run is of another family, or CTranslate2 does not support it.
        CheckpointError: The run does not exist, its files are damaged, or the export cannot be
            written.
    """
    loaded = _load(path, checkpoint, engine or EngineConfig(), "encoder-decoder")
    return CTranslate2Translator(*loaded[:3], search=search, batching=batching)


def load_engine_language(
    path: Path,
    checkpoint: str = "best",
    engine: EngineConfig | None = None,
    *,
    shapes: BatchingConfig | None = None,
) -> CTranslate2LanguageModel:
    """Loads the language model of a run, a decoder, on CTranslate2.

    Args:
        path: The run directory or Hugging Face folder.
        checkpoint: The checkpoint, see :func:`~.load_run.chosen_checkpoint`.
        engine: Settings of the engine.
        shapes: Batch sizes, and the treatment of long prompts and of a full context.

    Raises:
        ConfigError: The run is of another family, or CTranslate2 does not support it.
        CheckpointError: The run does not exist, its files are damaged, or the export cannot be
            written.
    """
    loaded = _load(path, checkpoint, engine or EngineConfig(), "decoder")
    return CTranslate2LanguageModel(
        *loaded[:3],
        start=text_start(loaded.run, loaded.tokenizer),
        ends=text_format(loaded.run).ends,
        shapes=shapes,
    )


def _load(path: Path, checkpoint: str, engine: EngineConfig, kind: str) -> _Loaded:
    run = open_directory(path)
    which, average = chosen_checkpoint(checkpoint)
    if run.group("model").get("kind") == "ngram":
        raise ConfigError(f"{path}: an n-gram model, which CTranslate2 does not support")
    refuse_others(run, (kind,))
    fields = run.read_config()
    model, tokenizer = model_of(fields, kind), run.load_tokenizer()
    check_compute(engine.compute)
    check_ctranslate2(model)
    own = [run.path, user_cache()]
    folders = [folder / FOLDER for folder in ([engine.cache] if engine.cache else own)]
    for _ in range(_TRIES):
        weights = run.weights_digest(which, average=average)
        written = lambda draft, weights=weights: _write(
            draft, run, checkpoint, model, tokenizer, weights
        )
        try:
            key = _key(fields, tokenizer, weights)
            folder = cached_export(folders, key, written, engine.wrote)
            return _Loaded(
                CTranslate2Engine(folder, model, tokenizer, engine.compute),
                tokenizer,
                model.config,
                run,
            )
        except _Trained:
            continue  # a new checkpoint was saved in the meantime
    raise ConfigError(f"{path}: its checkpoints change during the export: name a step")


class _Trained(Exception):  # noqa: N818  (the training of the run did what it should)
    """A new checkpoint was saved between selection and loading."""


def _key(fields: dict[str, Any], tokenizer: "Tokenizer", weights: str) -> str:
    """Returns the name of an export: a checksum of all its inputs."""
    made = [transformer_jax.__version__, fields, tokenizer.sha256, weights]
    return hashlib.sha256(json.dumps(made, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _write(
    draft: Path,
    run: "RunDirectory",
    checkpoint: str,
    model: "Model",
    tokenizer: "Tokenizer",
    weights: str,
) -> str:
    """Exports a run whose weights have the checksum ``weights``; returns a summary line.

    Raises:
        _Trained: The weights have a different checksum.
    """
    which, average = chosen_checkpoint(checkpoint)
    (_, params), _ = load(run.path, checkpoint, kind=model.kind)
    if run.weights_digest(which, average=average) != weights:
        raise _Trained
    model, params = unscan_layers(model, params)
    start = text_start(run, tokenizer) if model.kind == "decoder" else None
    return write_ctranslate2(draft, model, params, tokenizer, start=start)

"""``transformer_jax.load``: the predictor of any trained model."""

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack, overload

from jax.sharding import Mesh

from transformer_jax.core.arguments import check_values
from transformer_jax.core.config_fields import nearest
from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.core.runtime import uncollected
from transformer_jax.core.storage.copies import fetched
from transformer_jax.core.storage.urls import url_of
from transformer_jax.inference.base import Predictor
from transformer_jax.inference.facts import Facts, Opening
from transformer_jax.inference.pretrained import chosen_checkpoint, read_facts
from transformer_jax.recipes.registry import get_recipe
from transformer_jax.runs.manifest import is_optimizer_file

if TYPE_CHECKING:
    from transformer_jax.inference.captions import CaptionPredictor
    from transformer_jax.inference.generation import LanguageModelPredictor, TranslationPredictor
    from transformer_jax.inference.image_texts import ImageTextPredictor
    from transformer_jax.inference.images import ImagePredictor
    from transformer_jax.inference.speech import SpeechPredictor
    from transformer_jax.inference.texts import (
        ClassificationPredictor,
        EncoderPredictor,
        QuestionAnsweringPredictor,
        RegressionPredictor,
        RewardPredictor,
        TaggingPredictor,
    )
    from transformer_jax.training.task import Task

__all__ = ["load"]

TranslatorName = Literal["translation", "summarization", "denoising"]

# The predictor of each task, by its name in ``transformer_jax.recipes.tasks``.
_PREDICTORS = {
    **dict.fromkeys(("translation", "summarization", "denoising"), "generation.Translation"),
    "speech_recognition": "speech.Speech",
    "language_model": "generation.LanguageModel",
    **dict.fromkeys(("masked_lm", "similarity"), "texts.Encoder"),
    "sequence_classification": "texts.Classification",
    "regression": "texts.Regression",
    "token_classification": "texts.Tagging",
    "question_answering": "texts.QuestionAnswering",
    "reward": "texts.Reward",
    "images": "images.Image",
    "captioning": "captions.Caption",
    "contrast": "image_texts.ImageText",
}
Place: TypeAlias = str | os.PathLike[str]


class LoadOptions(TypedDict, total=False):
    """The keyword arguments of ``transformer_jax.load``."""

    checkpoint: str | int
    allow_changed_config: bool
    mesh: Mesh | None
    engine: str
    compute: str | None
    engine_cache: str | os.PathLike[str] | None


_KINDS = {
    "path": Place,
    "checkpoint": str | int,
    "mesh": Mesh | None,
    "allow_changed_config": bool,
}


@overload
def load(
    path: Place, task: TranslatorName, **how: Unpack[LoadOptions]
) -> "TranslationPredictor": ...
@overload
def load(
    path: Place, task: Literal["language_model"], **how: Unpack[LoadOptions]
) -> "LanguageModelPredictor": ...
@overload
def load(
    path: Place, task: Literal["speech_recognition"], **how: Unpack[LoadOptions]
) -> "SpeechPredictor": ...
@overload
def load(
    path: Place, task: Literal["masked_lm", "similarity"], **how: Unpack[LoadOptions]
) -> "EncoderPredictor": ...
@overload
def load(
    path: Place, task: Literal["sequence_classification"], **how: Unpack[LoadOptions]
) -> "ClassificationPredictor": ...
@overload
def load(
    path: Place, task: Literal["regression"], **how: Unpack[LoadOptions]
) -> "RegressionPredictor": ...
@overload
def load(
    path: Place, task: Literal["token_classification"], **how: Unpack[LoadOptions]
) -> "TaggingPredictor": ...
@overload
def load(
    path: Place, task: Literal["question_answering"], **how: Unpack[LoadOptions]
) -> "QuestionAnsweringPredictor": ...
@overload
def load(path: Place, task: Literal["reward"], **how: Unpack[LoadOptions]) -> "RewardPredictor": ...
@overload
def load(path: Place, task: Literal["images"], **how: Unpack[LoadOptions]) -> "ImagePredictor": ...
@overload
def load(
    path: Place, task: Literal["captioning"], **how: Unpack[LoadOptions]
) -> "CaptionPredictor": ...
@overload
def load(
    path: Place, task: Literal["contrast"], **how: Unpack[LoadOptions]
) -> "ImageTextPredictor": ...
@overload
def load(path: Place, task: "Task | None" = None, **how: Unpack[LoadOptions]) -> Any: ...
def load(
    path: Place,
    task: "Task | str | None" = None,
    *,
    checkpoint: str | int = "best",
    allow_changed_config: bool = False,
    mesh: Mesh | None = None,
    engine: str = "jax",
    compute: str | None = None,
    engine_cache: str | os.PathLike[str] | None = None,
) -> Any:
    """Loads the predictor of a run directory or a Hugging Face checkpoint.

    For your own task, this is the result of ``task.predictor(model, tokenizer)``. Otherwise it is a
    :class:`~transformer_jax.inference.generation.TranslationPredictor` for an encoder-decoder, a
    ``SpeechPredictor`` for a speech recognizer, a ``LanguageModelPredictor`` for a decoder or an
    n-gram model, an ``EncoderPredictor`` for a pre-trained encoder, an ``ImagePredictor`` for an
    image model, a ``CaptionPredictor`` for a captioner, an ``ImageTextPredictor`` for a model of
    images and texts, a ``ClassificationPredictor``, ``RegressionPredictor``, ``TaggingPredictor``
    or ``QuestionAnsweringPredictor`` for a fine-tuned model, and a ``RewardPredictor`` for a reward
    model.

    Args:
        path: Run directory or Hugging Face checkpoint, local or on an object store
            (``s3://bucket/run``).
        task: The task of the run, if it is your own. Runs of the library's tasks do not need it:
            their ``config.json`` describes the model. A name of ``tj.tasks``, such as
            ``"translation"``, or ``"reward"`` or ``"images"``, makes other models an error, and
            lets type checkers infer the result.
        checkpoint: Checkpoint of a run: ``best``, ``last``, a step, or ``average:N``, the mean of
            the last N.
        allow_changed_config: Use a run whose ``config.json`` was changed after training.
        mesh: Devices for the model and the rows of each batch, from
            :func:`transformer_jax.parallel.mesh.make_mesh`; None is one device.
        engine: ``ctranslate2`` runs translators and decoders on the CPU with CTranslate2; the model
            is exported once, next to the run.
        compute: Data type of CTranslate2: ``float32`` (None), ``int8``, ``int16`` ...
        engine_cache: Folder of exported models; None is the run directory, or the user's cache if
            that is read-only.

    Raises:
        ConfigError: The name of the checkpoint is invalid, the task has no predictor or is not the
            model's, or the engine does not support the model.
        CheckpointError: The path has no trained model, its files are damaged, its family is
            unknown, or the run trained another task.
    """
    given = {"path": path, "checkpoint": checkpoint, "mesh": mesh}
    check_values("load: ", _KINDS, given | {"allow_changed_config": allow_changed_config})
    if isinstance(task, str):
        _check_task_name(task)
    folder = fetched(path, is_optimizer_file)
    if engine not in ("jax", "ctranslate2"):
        raise ConfigError(f"engine is {engine!r}: must be 'jax' or 'ctranslate2'")
    if engine == "jax" and (compute is not None or engine_cache is not None):
        raise ConfigError("compute and engine_cache need engine='ctranslate2': add it")
    if engine_cache is not None and (url := url_of(engine_cache)) is not None:
        raise ConfigError(f"engine_cache {url}: CTranslate2 reads local files: name a local folder")
    opening = Opening(allow_changed_config or None, mesh)
    with uncollected():
        if task is not None and not isinstance(task, str):
            if engine != "jax":
                raise ConfigError("engine: your own tasks run on JAX: leave it out")
            return _of_task(folder, task, str(checkpoint), opening)
        facts = read_facts(folder, str(checkpoint), opening)
        if engine == "ctranslate2":
            if mesh is not None:
                raise ConfigError("mesh: CTranslate2 runs on one CPU: leave it out")
            predictor = _in_engine(facts, compute, engine_cache)
        else:
            predictor = get_recipe(facts.recipe).predictor(facts)
        if task is not None:
            _check_task(path, task, predictor)
        return predictor


def _in_engine(
    facts: Facts, compute: str | None, cache: str | os.PathLike[str] | None
) -> Predictor:
    """Returns the predictor of a translator or decoder on CTranslate2."""
    from transformer_jax.inference.engines import EngineConfig, on_ctranslate2
    from transformer_jax.inference.generation import LanguageModelPredictor, TranslationPredictor

    where = None if cache is None else Path(cache)
    engine = EngineConfig("float32" if compute is None else compute, where)
    if facts.kind in ("speech", "captioner"):
        what = "speech is transcribed" if facts.kind == "speech" else "pictures are described"
        raise ConfigError(f"engine: {what} with JAX: leave it out")
    opened = on_ctranslate2(facts, engine)
    return (
        TranslationPredictor(opened)
        if facts.kind == "encoder-decoder"
        else LanguageModelPredictor(opened)
    )


def _of_task(path: Path, task: "Task", checkpoint: str, opening: Opening) -> Any:
    """Returns the predictor of a task."""
    from transformer_jax.training.task import Task

    if not isinstance(task, Task):
        raise ConfigError(f"task is {task!r}: give a Task, or a name from tj.tasks")
    if task.predictor is None:
        raise ConfigError(
            f"{path}: the task has no predictor: set Task(predictor=) to a function of model and "
            f"tokenizer; runs of the library's tasks need no task: transformer_jax.load(path)"
        )
    from transformer_jax.runs.run_directory import RunDirectory
    from transformer_jax.training.trained_model import load_model

    which, average = chosen_checkpoint(checkpoint)
    found = load_model(task, path, which, average=average, mesh=opening.mesh)
    RunDirectory(path, opening.allow_changed).read_config()  # refuses a changed configuration
    tokenizer = None if task.tokenizer is None else task.tokenizer.sha256
    if found.manifest.get("tokenizer") != tokenizer:
        raise CheckpointError(f"{path}: was trained with a tokenizer different from the task's")
    return task.predictor(found.model, task.tokenizer)


def _check_task_name(name: str) -> None:
    """Refuses an unknown name of a task.

    Raises:
        ConfigError: The message suggests the nearest.

    Example:
        >>> _check_task_name("translaton")
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ConfigError: task is translaton: allowed are translation, ...
    """
    if name not in _PREDICTORS:
        raise ConfigError(
            f"task is {name}: allowed are {', '.join(_PREDICTORS)}{nearest(name, _PREDICTORS)}"
        )


def _check_task(path: str | os.PathLike[str], name: str, predictor: Predictor) -> None:
    """Refuses a model whose task is not the named one.

    Args:
        path: Path of the model.
        name: The name of the task.
        predictor: The loaded predictor.

    Raises:
        ConfigError: The message names the tasks of the model.
    """
    if isinstance(predictor, _class_of(name)):
        return
    own = [one for one in _PREDICTORS if type(predictor) is _class_of(one)]
    known = (
        f"for {' or '.join(own)}: give that, or no task" if own else "of another kind: leave it out"
    )
    raise ConfigError(f"task is {name}: the model in {os.fspath(path)} is {known}")


def _class_of(name: str) -> Any:
    module, _, kind = _PREDICTORS[name].partition(".")
    found = importlib.import_module(f"transformer_jax.inference.{module}")
    return getattr(found, f"{kind}Predictor")

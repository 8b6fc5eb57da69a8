"""Names of tasks by which ``transformer_jax.load`` says what it returns."""

import importlib
import os
from typing import Any, Literal, TypedDict

from jax.sharding import Mesh

from transformer_jax.config_fields import nearest
from transformer_jax.errors import ConfigError
from transformer_jax.predictors.base import Predictor

__all__ = ["LoadOptions", "TranslatorName", "check_task", "check_task_name"]

TranslatorName = Literal["translation", "summarization", "denoising"]

# The predictor of each task, as ``transformer_jax.tasks`` calls them.
_PREDICTORS = {
    **dict.fromkeys(("translation", "summarization", "denoising"), "generation.Translation"),
    "speech_recognition": "speech.Speech",
    "language_model": "generation.LanguageModel",
    "masked_lm": "texts.Encoder",
    "sequence_classification": "texts.Classification",
    "regression": "texts.Regression",
    "token_classification": "texts.Tagging",
    "question_answering": "texts.QuestionAnswering",
    "reward": "texts.Reward",
    "images": "images.Image",
}


class LoadOptions(TypedDict, total=False):
    """The keywords of ``transformer_jax.load``."""

    checkpoint: str | int
    allow_changed_config: bool
    mesh: Mesh | None
    engine: str
    compute: str | None
    engine_cache: str | os.PathLike[str] | None


def check_task_name(name: str) -> None:
    """Refuses a name that no task has.

    Raises:
        ConfigError: It names the nearest.

    Example:
        >>> check_task_name("translaton")
        Traceback (most recent call last):
        ...
        transformer_jax.errors.ConfigError: task is translaton: allowed are translation, ...
    """
    if name not in _PREDICTORS:
        raise ConfigError(
            f"task is {name}: allowed are {', '.join(_PREDICTORS)}{nearest(name, _PREDICTORS)}"
        )


def check_task(path: str | os.PathLike[str], name: str, predictor: Predictor) -> None:
    """Refuses a model that has another task than its caller names.

    Args:
        path: Where it is.
        name: The task that was named.
        predictor: What was loaded.

    Raises:
        ConfigError: It names the tasks of the model.
    """
    if isinstance(predictor, _class_of(name)):
        return
    own = [one for one in _PREDICTORS if type(predictor) is _class_of(one)]
    raise ConfigError(
        f"task is {name}: the model in {os.fspath(path)} is for {' or '.join(own)}: give that, "
        f"or no task"
    )


def _class_of(name: str) -> Any:
    module, _, kind = _PREDICTORS[name].partition(".")
    found = importlib.import_module(f"transformer_jax.predictors.{module}")
    return getattr(found, f"{kind}Predictor")

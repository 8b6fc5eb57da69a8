"""``transformer_jax.load``: the predictor of whatever was trained."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformer_jax.errors import ConfigError
from transformer_jax.predictors.base import Predictor
from transformer_jax.predictors.generation import LanguageModelPredictor, TranslationPredictor
from transformer_jax.predictors.images import ImagePredictor
from transformer_jax.predictors.runs import FINE_TUNED, family, open_directory, task_of
from transformer_jax.predictors.texts import (
    ClassificationPredictor,
    EncoderPredictor,
    QuestionAnsweringPredictor,
    RegressionPredictor,
    TaggingPredictor,
)
from transformer_jax.training.sealed import changed_config

__all__ = ["PREDICTORS", "load"]

# By the family of a model, or the task of a fine-tuned one.
PREDICTORS: dict[str, Callable[[Path, str], Predictor]] = {
    "encoder-decoder": TranslationPredictor,
    "decoder": LanguageModelPredictor,
    "ngram": LanguageModelPredictor,
    "encoder": EncoderPredictor,
    "image": ImagePredictor,
    "classify": ClassificationPredictor,
    "multi_label": ClassificationPredictor,
    "pair": ClassificationPredictor,
    "regress": RegressionPredictor,
    "tag": TaggingPredictor,
    "replaced": TaggingPredictor,
    "qa": QuestionAnsweringPredictor,
}


def load(
    path: str | os.PathLike[str],
    *,
    checkpoint: str | int = "best",
    allow_changed_config: bool = False,
) -> Any:
    """The predictor of a run directory or a Hugging Face checkpoint.

    A :class:`~transformer_jax.predictors.generation.TranslationPredictor` for an encoder-decoder, a
    ``LanguageModelPredictor`` for a decoder or an n-gram model, an ``EncoderPredictor`` for a
    pre-trained encoder, an ``ImagePredictor`` for an image model, and a
    ``ClassificationPredictor``, ``RegressionPredictor``, ``TaggingPredictor`` or
    ``QuestionAnsweringPredictor`` for a fine-tuned model.

    Args:
        path: A run directory, or the folder of a Hugging Face checkpoint.
        checkpoint: Of a run: ``best``, ``last``, a step, or ``average:N``, the mean of the last N.
        allow_changed_config: Use a run whose ``config.json`` was changed after training.

    Raises:
        ConfigError: There is no such checkpoint.
        CheckpointError: Nothing trained is there, its files are damaged, or its family is unknown.
    """
    folder = Path(path)
    with changed_config(True) if allow_changed_config else contextlib.nullcontext():
        run = open_directory(folder)
        kind = family(run)
        if kind in ("image", "ngram") and checkpoint != "best":
            raise ConfigError(f"{path}: has no steps: leave checkpoint out")
        predictor = PREDICTORS[task_of(run)["kind"] if kind in FINE_TUNED else kind]
        return predictor(folder, str(checkpoint))

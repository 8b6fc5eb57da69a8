"""Trained models as functions of text, whatever family they are of and whoever trained them."""

import contextlib
import os
from pathlib import Path
from typing import Any

__all__ = ["load"]

# Where the predictor of each family stands, and of each task of fine-tuned models.
_OF = {
    "encoder-decoder": ("generation", "TranslationPredictor"),
    "decoder": ("generation", "LanguageModelPredictor"),
    "ngram": ("generation", "LanguageModelPredictor"),
    "encoder": ("texts", "EncoderPredictor"),
    "classify": ("texts", "ClassificationPredictor"),
    "multi_label": ("texts", "ClassificationPredictor"),
    "pair": ("texts", "ClassificationPredictor"),
    "regress": ("texts", "RegressionPredictor"),
    "tag": ("texts", "TaggingPredictor"),
    "replaced": ("texts", "TaggingPredictor"),
    "span": ("texts", "QuestionAnsweringPredictor"),
}


def load(
    path: str | os.PathLike[str],
    *,
    checkpoint: str | int = "best",
    allow_changed_config: bool = False,
) -> Any:
    """The predictor of what was trained: a function of text, or of images.

    It is a :class:`~transformer_jax.predictors.generation.TranslationPredictor` of an
    encoder-decoder, a ``LanguageModelPredictor`` of a decoder or an n-gram model, an
    ``EncoderPredictor`` of a pre-trained encoder, and a ``ClassificationPredictor``,
    ``RegressionPredictor``, ``TaggingPredictor`` or ``QuestionAnsweringPredictor`` of a fine-tuned
    model; of images it is the Flax module.

    Args:
        path: A run directory, or the folder of a Hugging Face checkpoint.
        checkpoint: Of a run: ``best``, ``last``, a step, or ``average:N``, the mean of the last N.
        allow_changed_config: Use a run whose ``config.json`` was changed after training.

    Raises:
        ConfigError: There is no such checkpoint.
        CheckpointError: Nothing trained is there, its files are damaged, or it is of no family
            that is known.
    """
    import importlib

    from transformer_jax.errors import ConfigError
    from transformer_jax.predictors.runs import FINE_TUNED, family, task_of
    from transformer_jax.training.run_directory import RunDirectory
    from transformer_jax.training.sealed import changed_config

    folder = Path(path)
    with changed_config(True) if allow_changed_config else contextlib.nullcontext():
        run = RunDirectory.open(folder)
        kind = family(run)
        if kind in ("image", "ngram") and checkpoint != "best":
            raise ConfigError(f"{path}: has no steps: leave checkpoint out")
        if kind == "image":
            from transformer_jax.interop.hf_run_directory import load_image_model

            return load_image_model(folder)
        module, name = _OF[task_of(run)["kind"] if kind in FINE_TUNED else kind]
        found = importlib.import_module(f"{__name__}.{module}")
        return getattr(found, name)(folder, str(checkpoint))

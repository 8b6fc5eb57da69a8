"""Tasks: functions from data, a model's configuration and a tokenizer to what a Trainer trains.

Each task is imported on first use::

    task = tj.tasks.translation(pairs, config, tokenizer)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_jax.recipes.tasks.caption_task import captioning
    from transformer_jax.recipes.tasks.contrast_task import contrast
    from transformer_jax.recipes.tasks.denoising_task import denoising
    from transformer_jax.recipes.tasks.image_task import image_classification
    from transformer_jax.recipes.tasks.labeled import (
        question_answering,
        regression,
        sequence_classification,
        token_classification,
    )
    from transformer_jax.recipes.tasks.language_model_task import language_model
    from transformer_jax.recipes.tasks.masked_lm_task import masked_lm
    from transformer_jax.recipes.tasks.similarity_task import similarity
    from transformer_jax.recipes.tasks.speech_task import speech_recognition
    from transformer_jax.recipes.tasks.summarization_task import summarization
    from transformer_jax.recipes.tasks.translation_task import translation

__all__ = [
    "captioning",
    "contrast",
    "denoising",
    "image_classification",
    "language_model",
    "masked_lm",
    "question_answering",
    "regression",
    "sequence_classification",
    "similarity",
    "speech_recognition",
    "summarization",
    "token_classification",
    "translation",
]

# Modules of tasks. A module with the name of its function would hide the function.
_MODULES = {
    "captioning": "caption_task",
    "contrast": "contrast_task",
    "denoising": "denoising_task",
    "image_classification": "image_task",
    "language_model": "language_model_task",
    "masked_lm": "masked_lm_task",
    "similarity": "similarity_task",
    "speech_recognition": "speech_task",
    "summarization": "summarization_task",
    "translation": "translation_task",
}


if not TYPE_CHECKING:  # for type checkers, which know the names above

    def __getattr__(name: str) -> Any:
        """Imports a task on first use."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'labeled')}")
        value = globals()[name] = getattr(module, name)
        return value


def __dir__() -> list[str]:
    return sorted(__all__)

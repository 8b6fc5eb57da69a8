"""The settings of a run of any family, as types of functions that serve several of them."""

from typing import TypeAlias, TypeVar

from transformer_jax.runs.encoder_settings import FinetuneRun, PretrainRun
from transformer_jax.runs.language_settings import LanguageRun, NgramRun
from transformer_jax.runs.translation_settings import Run as TranslationRun

__all__ = ["AnyRun", "BucketedRunType", "NewRunType", "RunType"]

# Trained step by step.
AnyRun: TypeAlias = TranslationRun | LanguageRun | PretrainRun | FinetuneRun

# Of functions that return the same run with other settings: trained step by step, in buckets by
# length, and of any kind.
RunType = TypeVar("RunType", TranslationRun, LanguageRun, PretrainRun, FinetuneRun)
BucketedRunType = TypeVar("BucketedRunType", TranslationRun, PretrainRun, FinetuneRun)
NewRunType = TypeVar(
    "NewRunType", bound=TranslationRun | LanguageRun | NgramRun | PretrainRun | FinetuneRun
)

"""Types of the settings of runs of any family."""

from typing import TypeAlias, TypeVar

from transformer_jax.runs.alignment_settings import PolicyRun, PreferenceRun
from transformer_jax.runs.denoising_settings import DenoisingRun
from transformer_jax.runs.encoder_settings import FinetuneRun, PretrainRun
from transformer_jax.runs.instruct_settings import InstructRun
from transformer_jax.runs.language_settings import LanguageRun, NgramRun
from transformer_jax.runs.translation_settings import Run as TranslationRun

__all__ = ["AnyRun", "BucketedRunType", "NewRunType", "RunType"]

# Runs with training steps.
AnyRun: TypeAlias = (
    TranslationRun
    | DenoisingRun
    | InstructRun
    | LanguageRun
    | PretrainRun
    | FinetuneRun
    | PreferenceRun
    | PolicyRun
)

# Functions that return a run of the same type: runs with steps, runs with buckets by length, and
# runs of any kind.
RunType = TypeVar(
    "RunType",
    TranslationRun,
    DenoisingRun,
    InstructRun,
    LanguageRun,
    PretrainRun,
    FinetuneRun,
    PreferenceRun,
    PolicyRun,
)
BucketedRunType = TypeVar(
    "BucketedRunType", TranslationRun, DenoisingRun, PretrainRun, FinetuneRun, PreferenceRun
)
NewRunType = TypeVar("NewRunType", bound=AnyRun | NgramRun)

"""What ``config.json`` holds of library tasks: all that ``transformer_jax.load`` needs."""

import dataclasses
from typing import Literal

from transformer_jax.config import TransformerConfig
from transformer_jax.data.denoising import NoiseConfig
from transformer_jax.data.sources import ReadOptions
from transformer_jax.data.summaries import SummaryOptions
from transformer_jax.recurrent_config import ModelConfig
from transformer_jax.speech.audio import AudioConfig
from transformer_jax.speech.features import Normalization
from transformer_jax.speech.recordings import SpeechReadOptions

__all__ = [
    "DenoisingSettings",
    "ExampleSettings",
    "LabeledSettings",
    "LanguageModelSettings",
    "LengthSettings",
    "MaskedLMSettings",
    "PairSettings",
    "SentenceObjectiveSettings",
    "SpeechDataSettings",
    "SpeechSettings",
    "SummarizationSettings",
    "SummarySettings",
    "TranslationSettings",
]


@dataclasses.dataclass(frozen=True)
class PairSettings:
    """How sentence pairs are read."""

    read: ReadOptions


@dataclasses.dataclass(frozen=True)
class TranslationSettings:
    """A translator."""

    model: ModelConfig
    data: PairSettings


@dataclasses.dataclass(frozen=True)
class SummarySettings:
    """How texts and summaries are read."""

    read: SummaryOptions


@dataclasses.dataclass(frozen=True)
class SummarizationSettings:
    """A summarizer."""

    model: ModelConfig
    data: SummarySettings


@dataclasses.dataclass(frozen=True)
class SpeechDataSettings:
    """How recordings are read, and how their features are made and normalized."""

    read: SpeechReadOptions = SpeechReadOptions()
    audio: AudioConfig = AudioConfig()
    normalization: Normalization = Normalization()  # empty: computed from the training data


@dataclasses.dataclass(frozen=True)
class SpeechSettings:
    """A speech recognizer."""

    model: ModelConfig
    data: SpeechDataSettings


@dataclasses.dataclass(frozen=True)
class LanguageModelSettings:
    """A decoder, and the token before the first token of a text."""

    model: TransformerConfig
    first: Literal["bos", "eos", "newline"]


@dataclasses.dataclass(frozen=True)
class SentenceObjectiveSettings:
    """The sentence-pair objective of pre-training, which has a head."""

    sentence_objective: str


@dataclasses.dataclass(frozen=True)
class LengthSettings:
    """Longest sequence of training, beyond which learned positions are untrained."""

    sequence_length: int


@dataclasses.dataclass(frozen=True)
class MaskedLMSettings:
    """A pre-trained encoder."""

    model: TransformerConfig
    masking: SentenceObjectiveSettings
    training: LengthSettings


@dataclasses.dataclass(frozen=True)
class DenoisingSettings:
    """An encoder-decoder that restores texts."""

    model: TransformerConfig
    noise: NoiseConfig
    training: LengthSettings


@dataclasses.dataclass(frozen=True)
class ExampleSettings:
    """The task of a fine-tuned encoder."""

    kind: str
    labels: tuple[str, ...]
    max_length: int
    doc_stride: int


@dataclasses.dataclass(frozen=True)
class LabeledSettings:
    """A fine-tuned encoder."""

    model: TransformerConfig
    task: ExampleSettings

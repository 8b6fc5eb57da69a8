"""Settings shared by several tasks."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from transformer_jax.core.config_fields import Amount, Configuration, Count, NotNegative
from transformer_jax.decoding.generation_config import TRANSLATION, GenerationConfig, LengthLimit
from transformer_jax.evaluation.word_splitting import Tokenize, choose_tokenize

__all__ = [
    "RECURRENT",
    "CaptionEvaluation",
    "EvaluationConfig",
    "ImageTask",
    "SummaryEvaluation",
    "TrainingLength",
]


RECURRENT = "recurrent_"  # prefix of recipe names


@dataclasses.dataclass(frozen=True)
class ImageTask(Configuration, group="task"):
    """The task of labeled pictures."""

    kind: Literal["classify"] = "classify"  # kind of labels
    labels: tuple[str, ...] = ()  # names of the labels, in order; read from the training pictures


@dataclasses.dataclass(frozen=True)
class EvaluationConfig(Configuration, group="evaluation"):
    """Settings of translations in validation and at the end of training."""

    # Number of validation sentences per direction to translate greedily during training; 0 is none.
    sentences: Amount = 200
    shown: Amount = 3  # translations to print with references at each evaluation
    num_beams: Count = 4  # beams for the test sets at the end; 1 is greedy search
    # Exponent of the length penalty of beams, also the default when the run is used; 0 prefers
    # short translations.
    length_penalty: NotNegative = 0.6
    # A translation has at most max_len_a * source tokens + max_len_b tokens, also when the run is
    # used; None is derived from the training pairs.
    max_len_a: NotNegative | None = None
    max_len_b: Count | None = None  # ... plus this number of tokens
    # Word splitting of sacreBLEU, and of error rates for scripts without blanks: 13a, intl, zh,
    # char, ja-mecab, ko-mecab (packages: sacrebleu[ja], sacrebleu[ko]), flores101, flores200, spm,
    # spBLEU-1K (which download a model once) or none. None is chosen by the script of the targets.
    tokenize: Tokenize | None = None

    @property
    def limit(self) -> LengthLimit:
        """Returns the maximum length of a text."""
        return LengthLimit().changed(self.max_len_a, self.max_len_b)

    def search(self, num_beams: int) -> GenerationConfig:
        """Returns the settings of beam search."""
        penalty = self.length_penalty
        return TRANSLATION.changed(
            num_beams=num_beams, length_penalty=penalty, **self.limit._asdict()
        )

    def completed(self, limit: LengthLimit, targets: Sequence[str] | None) -> "EvaluationConfig":
        """Returns the settings with None replaced by values derived from the training data.

        Args:
            limit: The limit by the lengths of the data.
            targets: Training targets, whose script determines word splitting; None leaves it to the
                references of each direction.

        Example:
            >>> made = EvaluationConfig(max_len_b=50).completed(LengthLimit(3.5, 10), ["我们"])
            >>> made.limit, made.tokenize
            (LengthLimit(max_len_a=3.5, max_len_b=50), 'zh')
        """
        given = limit.changed(self.max_len_a, self.max_len_b)
        tokenize = self.tokenize or (None if targets is None else choose_tokenize(targets))
        return dataclasses.replace(self, **given._asdict(), tokenize=tokenize)


@dataclasses.dataclass(frozen=True)
class SummaryEvaluation(Configuration, group="evaluation"):
    """Settings of summaries in validation and at the end of training."""

    texts: Amount = 100  # validation texts to summarize greedily during training; 0 is none
    shown: Amount = 1  # summaries to print with references at each evaluation
    num_beams: Count = 4  # beams for the test texts at the end; 1 is greedy search
    # Maximum length of a summary in tokens, also when the run is used; None is derived from the
    # training summaries.
    max_length: Count | None = None
    # Word splitting of ROUGE: latin, as in rouge-score, or 13a, intl, zh, char, ja-mecab ..., as in
    # sacreBLEU. None is chosen by the script of the summaries.
    tokenize: Literal["latin"] | Tokenize | None = None
    lead: Count = 1  # number of leading sentences in the lead baseline
    oracle: Count = 3  # maximum number of sentences of the extractive oracle

    @property
    def limit(self) -> LengthLimit:
        """Returns the maximum length of a summary."""
        return LengthLimit() if self.max_length is None else LengthLimit(0.0, self.max_length)

    def search(self, num_beams: int) -> GenerationConfig:
        """Returns the settings of beam search."""
        return TRANSLATION.changed(num_beams=num_beams, **self.limit._asdict())


@dataclasses.dataclass(frozen=True)
class CaptionEvaluation(Configuration, group="evaluation"):
    """Settings of captions in validation and at the end of training."""

    captions: Amount = 200  # validation pictures to describe greedily during training; 0 is none
    shown: Amount = 3  # captions to print with a reference at each evaluation
    num_beams: Count = 4  # beams for the test sets at the end; 1 is greedy search
    # Exponent of the length penalty of beams, also the default when the run is used.
    length_penalty: NotNegative = 0.6
    # Maximum length of a caption in tokens, also when the run is used; None is the limit of
    # training.
    max_length: Count | None = None
    # Word splitting of sacreBLEU, see the setting of translators. None is chosen by the script.
    tokenize: Tokenize | None = None

    def search(self, num_beams: int) -> GenerationConfig:
        """Returns the settings of beam search."""
        return TRANSLATION.changed(
            num_beams=num_beams,
            length_penalty=self.length_penalty,
            max_len_a=0.0,
            max_len_b=self.max_length,
        )


@dataclasses.dataclass(frozen=True)
class TrainingLength:
    """The longest sequence in training, beyond which learned positions are untrained."""

    sequence_length: int

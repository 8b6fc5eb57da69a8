"""Settings that several tasks of the library share."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from transformer_jax.core.config_fields import Amount, Configuration, Count, NotNegative
from transformer_jax.decoding.generation_config import TRANSLATION, GenerationConfig, LengthLimit
from transformer_jax.evaluation.words import Tokenize, choose_tokenize

__all__ = [
    "RECURRENT",
    "CaptionEvaluation",
    "EvaluationConfig",
    "ImageTask",
    "LengthSettings",
    "SummaryEvaluation",
]


RECURRENT = "recurrent_"  # before the name of the recipe of a Transformer


@dataclasses.dataclass(frozen=True)
class ImageTask(Configuration, group="task"):
    """The task of labeled pictures."""

    kind: Literal["classify"] = "classify"  # what labels are of
    labels: tuple[str, ...] = ()  # their names, in order; filled in from the training pictures


@dataclasses.dataclass(frozen=True)
class EvaluationConfig(Configuration, group="evaluation"):
    """Settings of translations in validation and at the end of training."""

    # Validation sentences, of each direction, translated greedily while training; 0 is none.
    sentences: Amount = 200
    shown: Amount = 3  # of these, how many are shown with their references at each evaluation
    num_beams: Count = 4  # for the test sets in the end; 1 is greedy search
    # Exponent of the length penalty of beams, here and wherever the run is used; 0 prefers short
    # translations.
    length_penalty: NotNegative = 0.6
    # A translation has at most max_len_a * source tokens + max_len_b tokens, here and wherever the
    # run is used; None follows from the training pairs.
    max_len_a: NotNegative | None = None
    max_len_b: Count | None = None  # ... plus this many tokens
    # How sacreBLEU splits words, and error rates of scripts without blanks: 13a, intl, zh, char,
    # ja-mecab, ko-mecab (packages: sacrebleu[ja], sacrebleu[ko]), flores101, flores200, spm,
    # spBLEU-1K (they download a model once) or none. None follows from the script of the targets.
    tokenize: Tokenize | None = None

    @property
    def limit(self) -> LengthLimit:
        """The most tokens of a text."""
        return LengthLimit().changed(self.max_len_a, self.max_len_b)

    def search(self, num_beams: int) -> GenerationConfig:
        """The search for texts."""
        penalty = self.length_penalty
        return TRANSLATION.changed(
            num_beams=num_beams, length_penalty=penalty, **self.limit._asdict()
        )

    def completed(self, limit: LengthLimit, targets: Sequence[str] | None) -> "EvaluationConfig":
        """The same with what follows from the training data where nothing is given.

        Args:
            limit: The limit that follows from the lengths of the data.
            targets: Training targets, whose script tells the words; None leaves that to the
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

    texts: Amount = 100  # validation texts summarized greedily while training; 0 is none
    shown: Amount = 1  # of these, how many are shown with their references at each evaluation
    num_beams: Count = 4  # for the test texts in the end; 1 is greedy search
    # Most tokens of a summary, here and wherever the run is used; None follows from the training
    # summaries.
    max_length: Count | None = None
    # How ROUGE splits words: latin, as rouge-score does, or as sacreBLEU does with 13a, intl, zh,
    # char, ja-mecab ... None follows from the script of the summaries.
    tokenize: Literal["latin"] | Tokenize | None = None
    lead: Count = 1  # sentences of the baseline that takes the first ones
    oracle: Count = 3  # most sentences of the extractive oracle

    @property
    def limit(self) -> LengthLimit:
        """The most tokens of a summary."""
        return LengthLimit() if self.max_length is None else LengthLimit(0.0, self.max_length)

    def search(self, num_beams: int) -> GenerationConfig:
        """The search for summaries."""
        return TRANSLATION.changed(num_beams=num_beams, **self.limit._asdict())


@dataclasses.dataclass(frozen=True)
class CaptionEvaluation(Configuration, group="evaluation"):
    """Settings of captions in validation and at the end of training."""

    captions: Amount = 200  # validation pictures described greedily while training; 0 is none
    shown: Amount = 3  # of these, how many are shown with a reference at each evaluation
    num_beams: Count = 4  # for the test sets in the end; 1 is greedy search
    # Exponent of the length penalty of beams, here and wherever the run is used.
    length_penalty: NotNegative = 0.6
    # Most tokens of a caption, here and wherever the run is used; None is that of training.
    max_length: Count | None = None
    # How sacreBLEU splits words; see the setting of translators. None follows from the script.
    tokenize: Tokenize | None = None

    def search(self, num_beams: int) -> GenerationConfig:
        """The search for captions."""
        return TRANSLATION.changed(
            num_beams=num_beams,
            length_penalty=self.length_penalty,
            max_len_a=0.0,
            max_len_b=self.max_length,
        )


@dataclasses.dataclass(frozen=True)
class LengthSettings:
    """Longest sequence of training, beyond which learned positions are untrained."""

    sequence_length: int

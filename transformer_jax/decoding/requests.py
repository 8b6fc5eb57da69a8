"""Requests to language models and their results, as plain values independent of any model."""

import collections
import copy
import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal, Protocol, runtime_checkable

from transformer_jax.core.config_fields import Range, check_fields
from transformer_jax.core.json_types import Json
from transformer_jax.data.words import spellings
from transformer_jax.decoding.generation_config import GenerationConfig

__all__ = [
    "TEXT_SETTINGS",
    "Continuation",
    "CountingLanguageModel",
    "FinishReason",
    "GenerationRequest",
    "LanguageModel",
    "TextScore",
    "Translation",
    "numbered",
    "perplexity",
]


# By an end token, a stop string, or the length limit.
FinishReason = Literal["end", "stop", "length"]

# Settings of language models; all others need generation_config hf.
TEXT_SETTINGS = (
    *("max_new_tokens", "min_new_tokens", "max_length", "num_beams", "num_return_sequences"),
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"),
    *("no_repeat_ngram_size", "stop", "seed", "adapter"),
)
_SAMPLING = (
    *("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "no_repeat_ngram_size"),
    *("do_sample", "min_new_tokens"),
)


@dataclasses.dataclass(frozen=True)
class GenerationRequest(GenerationConfig):
    """A prompt with its generation settings, which may differ between requests of a batch."""

    prompt: str
    number: Annotated[int, Range(0, 2**32 - 1)] | None = None  # None is its index in the call
    # A conversation to answer, instead of ``prompt``: messages with role and content.
    messages: tuple[Mapping[str, Json], ...] | None = None
    # Token ids to read instead of the tokens of ``prompt``, such as those of a conversation.
    prompt_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_settings(
            TEXT_SETTINGS,
            "only generation_config hf (the search of transformers) supports it: leave it out",
        )
        if self.num_beams > 1:
            taken = [name for name in TEXT_SETTINGS if name not in _SAMPLING]
            self.refuse_settings(
                taken,
                f"needs sampling, but num_beams is {self.num_beams}: set num_beams to 1, or leave "
                f"it out",
            )

    @classmethod
    def of(cls, prompt: str, config: GenerationConfig) -> "GenerationRequest":
        """Returns a prompt with the settings of a configuration."""
        names = (field.name for field in dataclasses.fields(GenerationConfig))
        return cls(prompt, **{name: getattr(config, name) for name in names})

    def with_prompt(self, prompt: str, number: int | None = None) -> "GenerationRequest":
        """Returns the request of another prompt; the settings are not checked again.

        Raises:
            ConfigError: The prompt is no text, or the number is out of range.
        """
        check_fields(type(self), {"prompt": prompt, "number": number})
        made = copy.copy(self)
        vars(made).update(prompt=prompt, number=number)
        return made

    @property
    def samples(self) -> bool:
        """Returns whether tokens are sampled instead of searched for."""
        return self.num_beams == 1 and self.do_sample is not False and self.temperature > 0

    @functools.cached_property
    def stop_spellings(self) -> tuple[str, ...]:
        """The stop strings in each spelling that the model may write."""
        return tuple(form for text in self.stop for form in spellings(text))

    @property
    def greedy(self) -> bool:
        """Returns whether each token is the most probable one."""
        return self.num_beams == 1 and not self.samples


def numbered(requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
    """Numbers requests, so that no two draw the same samples.

    Example:
        >>> requests = [GenerationRequest("a", number=number) for number in (None, 7, None)]
        >>> [one.number for one in numbered(requests)]
        [0, 7, 2]
    """
    return [
        request if request.number is not None else request.with_prompt(request.prompt, place)
        for place, request in enumerate(requests)
    ]


@dataclasses.dataclass(frozen=True)
class Continuation:
    """A generated text: the continuation of a prompt, or a translation."""

    text: str  # without the prompt and without the stop string
    tokens: tuple[int, ...]  # as written by the model, including the end token
    # Log-probability of the tokens under the model itself, whatever the sampling, in nats; nan if a
    # search has only scores.
    log_prob: float
    finish_reason: FinishReason
    score: float  # ranks texts: log_prob, normalized for length if the search does so


@dataclasses.dataclass(frozen=True)
class TextScore:
    """The log-probability of a text under a model, in nats."""

    log_prob: float  # of the complete text: the sum over tokens
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]  # of each token, given the tokens before it
    characters: int  # number of characters of the scored text
    bytes: int  # number of its bytes in UTF-8

    @property
    def perplexity(self) -> float:
        """``exp(-log_prob / tokens)``: the average number of equally likely choices per token."""
        return perplexity(self.log_prob, len(self.tokens))

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of text, which does not depend on the tokenizer."""
        return -self.log_prob / math.log(2) / self.bytes if self.bytes else math.nan

    @property
    def bits_per_character(self) -> float:
        """Bits per character of text."""
        return -self.log_prob / math.log(2) / self.characters if self.characters else math.nan


def perplexity(log_prob: float, tokens: int) -> float:
    """``exp(-log_prob / tokens)``; nan without tokens, inf beyond the largest float.

    Example:
        >>> perplexity(-4.0, 2)
        7.38905609893065
    """
    if not tokens:
        return math.nan
    mean = -log_prob / tokens
    return math.inf if mean > 709 else math.exp(mean)


@runtime_checkable
class LanguageModel(Protocol):
    """The methods of every language model, neural or n-gram."""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Continuation]]:
        """Returns the continuations of each prompt: its samples, or its best beams."""

    def stream(self, request: GenerationRequest) -> Iterator[str]:
        """Yields the first continuation in parts, as it is written."""

    def score(self, texts: Sequence[str], prompts: Sequence[str] | None = None) -> list[TextScore]:
        """Returns the log-probability of each text, given its prompt if there are prompts."""


@runtime_checkable
class CountingLanguageModel(LanguageModel, Protocol):
    """A language model with the numbers of what it has read.

    Attributes:
        counts: Numbers so far: of ``prompts``, and of prompts and scored texts with text that the
            tokenizer does not know, ``unknown``.
    """

    counts: collections.Counter[str]


@dataclasses.dataclass(frozen=True)
class Translation:
    """A line with its translations: at least one, best first."""

    source: str
    # Tokens include EOS, unless greedy search or sampling reached its limit. Beam search writes EOS
    # at its limit too, but the finish reason is "length".
    hypotheses: tuple[Continuation, ...]
    cut: bool = False  # whether only the beginning of the line was read

    @property
    def text(self) -> str:
        """The best translation."""
        return self.hypotheses[0].text

    @property
    def score(self) -> float:
        """Its log-probability, normalized for length."""
        return self.hypotheses[0].score

    @property
    def tokens(self) -> tuple[int, ...]:
        """Its tokens."""
        return self.hypotheses[0].tokens

    @property
    def alternatives(self) -> tuple[Continuation, ...]:
        """The next best translations, if more than one was requested."""
        return self.hypotheses[1:]

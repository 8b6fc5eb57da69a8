"""Requests to language models and their answers, as plain values that depend on no model."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from transformer_jax.errors import ConfigError

__all__ = [
    "Continuation",
    "FinishReason",
    "GenerationRequest",
    "LanguageModel",
    "TextScore",
    "numbered",
    "perplexity",
]


# The end token, a stop string, or the maximum length.
FinishReason = Literal["end", "stop", "length"]

# Largest values that the arrays of a batch can hold.
_MOST = {
    "temperature": 1e38,
    "repetition_penalty": 1e38,
    "top_k": 2**31 - 1,
    "no_repeat_ngram_size": 2**31 - 1,
    "number": 2**32 - 1,
}


@dataclasses.dataclass(frozen=True)
class GenerationRequest:
    """A prompt with its generation settings; each request of a batch has its own settings."""

    prompt: str
    max_new_tokens: int = 128
    temperature: float | int = 1.0  # 0 is greedy (row B34)
    top_k: int | None = None  # sample from the k most probable tokens (row B32)
    top_p: float | int | None = None  # from the fewest that hold this probability (row B33)
    min_p: float | int | None = (
        None  # from those with at least this fraction of the highest probability
    )
    repetition_penalty: float | int = 1.0  # of tokens of the prompt and the text so far; 1 is none
    no_repeat_ngram_size: int = 0  # no n-gram of this size is repeated; 0 is no limit
    stop: tuple[str, ...] = ()  # the text ends before the first of these strings
    num_return_sequences: int = 1  # samples of each prompt
    seed: int = 0  # random seed, combined with the numbers of the request and of the sample
    num_beams: int = 1  # above 1 is beam search instead of sampling
    nbest: int = 1  # texts that beam search returns
    adapter: str | None = None  # the adapter that computes it, by name; None is the model alone
    number: int | None = None  # of the request; None is its index in the call, from 0
    # A conversation that is answered, instead of ``prompt``: messages with role and content.
    messages: tuple[Mapping[str, Any], ...] | None = None
    # What the model reads instead of the tokens of ``prompt``, such as those of a conversation.
    prompt_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        counts = ("max_new_tokens", "num_return_sequences", "num_beams", "nbest")
        for name in (*counts, "seed", "no_repeat_ngram_size"):
            if type(getattr(self, name)) is not int:
                raise ConfigError(f"{name} is {getattr(self, name)!r}: a whole number is wanted")
        for name in counts:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: at least 1")
        for name, most in _MOST.items():
            if (getattr(self, name) or 0) > most:
                raise ConfigError(f"{name} is {getattr(self, name)}: at most {most:,}")
        if not 0 <= self.temperature < math.inf:
            raise ConfigError(f"temperature is {self.temperature}: 0 (greedy) or more")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k is {self.top_k}: at least 1")
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise ConfigError(f"{name} is {value}: above 0 and at most 1")
        if not 0 < self.repetition_penalty < math.inf:
            raise ConfigError(
                f"repetition_penalty is {self.repetition_penalty}: above 0 (1 is none)"
            )
        if self.no_repeat_ngram_size < 0:
            raise ConfigError(
                f"no_repeat_ngram_size is {self.no_repeat_ngram_size}: 0 (free) or more"
            )
        if any(not text for text in self.stop):
            raise ConfigError("stop holds an empty text, which would end everything at once")
        if self.seed < 0:
            raise ConfigError(f"seed is {self.seed}: 0 or more")
        if self.number is not None and self.number < 0:
            raise ConfigError(f"number is {self.number}: 0 or more")
        if self.nbest > self.num_beams:
            raise ConfigError(
                f"nbest is {self.nbest}: at most num_beams, which is {self.num_beams}"
            )
        drawn = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty",
                 "no_repeat_ngram_size", "num_return_sequences")  # fmt: skip
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        given = [name for name in drawn if getattr(self, name) != defaults[name]]
        if self.num_beams > 1 and given:
            raise ConfigError(
                f"{given[0]} needs sampling, but num_beams is {self.num_beams}: set num_beams to "
                f"1, or leave {given[0]} out"
            )


def numbered(requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
    """Requests of which each knows its place, so that no two draw the same.

    Example:
        >>> requests = [GenerationRequest("a", number=number) for number in (None, 7, None)]
        >>> [one.number for one in numbered(requests)]
        [0, 7, 2]
    """
    return [
        request if request.number is not None else dataclasses.replace(request, number=place)
        for place, request in enumerate(requests)
    ]


@dataclasses.dataclass(frozen=True)
class Continuation:
    """One generated text: what follows a prompt, or a translation."""

    text: str  # without the prompt, and without the stop string
    tokens: tuple[int, ...]  # as written by the model, its end token included
    # Of the tokens under the model itself, whatever the sampling, in nats; nan where a search has
    # only scores.
    log_prob: float
    finish_reason: FinishReason
    score: float  # what ranks texts: log_prob, normalized for length where the search does so


@dataclasses.dataclass(frozen=True)
class TextScore:
    """How probable a text is to a model, in nats."""

    log_prob: float  # of the whole: the sum of the tokens'
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]  # of each token, given those before it
    characters: int  # of the text that was scored
    bytes: int  # of the same in UTF-8

    @property
    def perplexity(self) -> float:
        """``exp(-log_prob / tokens)``: among so many equal choices a token was, on average."""
        return perplexity(self.log_prob, len(self.tokens))

    @property
    def bits_per_byte(self) -> float:
        """Bits that a byte of the text costs, which does not depend on the tokenizer."""
        return -self.log_prob / math.log(2) / self.bytes if self.bytes else math.nan

    @property
    def bits_per_character(self) -> float:
        """The same for each character."""
        return -self.log_prob / math.log(2) / self.characters if self.characters else math.nan


def perplexity(log_prob: float, tokens: int) -> float:
    """``exp(-log_prob / tokens)``; of no tokens, nan; beyond the largest float, inf.

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
    """What every language model does, neural or n-gram."""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Continuation]]:
        """The continuations of each prompt: its samples, or its ``nbest`` best beams."""

    def stream(self, request: GenerationRequest) -> Iterator[str]:
        """The first continuation piece by piece, as it is written."""

    def score(self, texts: Sequence[str], prompts: Sequence[str] | None = None) -> list[TextScore]:
        """The log-probability of each text, given its prompt if there are prompts."""

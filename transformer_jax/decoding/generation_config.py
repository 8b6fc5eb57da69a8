"""The configuration of text generation, with the names and meanings of Hugging Face.

Translators, language models, speech recognizers, chat, ``generate()`` of Hugging Face and the
engine CTranslate2 take a :class:`GenerationConfig`; each has its own default instance.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Self

from transformer_jax.core.config_fields import (
    Configuration,
    Range,
    Seed,
    check_fields,
    field_types,
    nearest,
)
from transformer_jax.core.errors import ConfigError

__all__ = [
    "MOST_BEAMS",
    "NEW_TOKENS",
    "TRANSLATION",
    "GenerationConfig",
    "LengthLimit",
    "Normalization",
]

NEW_TOKENS = 128  # default number of new tokens of a language model

LONGEST = 2**20  # longest text, since arrays have this size
POWER = 6  # largest exponent for which single precision holds its power of the longest length
FACTOR = 1e6
MOST_BEAMS = 1024

Normalization = Literal["none", "power", "gnmt"]
Token = Annotated[int, Range(0, 2**31 - 1)]  # fits in an int32
MaybeToken = Annotated[int, Range(-1, 2**31 - 1)]  # some files use -1 for none
Length = Annotated[int, Range(1, LONGEST)]
Minimum = Annotated[int, Range(0, LONGEST)]
Beams = Annotated[int, Range(1, MOST_BEAMS)]
Ngram = Annotated[int, Range(0, 256)]  # tokens of an n-gram are compared one by one
Penalty = Annotated[float | int, Range(1 / FACTOR, FACTOR)]
Probability = Annotated[float | int, Range(above=0, most=1)]
PerToken = Annotated[float | int, Range(0)]
Texts = Annotated[int, Range(1, 10_000)]
Exponent = Annotated[float | int, Range(-POWER, POWER)]
Temperature = Annotated[float | int, Range(0, 1e38)]
Rank = Annotated[int, Range(1, 2**31 - 1)]
Run = tuple[Token, ...]
Bias = tuple[Run, Annotated[float | int, Range(-1e38, 1e38)]]
Decay = tuple[Annotated[int, Range(-LONGEST, LONGEST)], Penalty]


class LengthLimit(NamedTuple):
    """The most tokens in a text, end included: ``max_len_a * source length + max_len_b``."""

    max_len_a: float = 2.0
    max_len_b: int = 10

    def changed(
        self, max_len_a: float | None = None, max_len_b: int | None = None
    ) -> "LengthLimit":
        """Returns the limit with the arguments that are not None.

        Example:
            >>> LengthLimit(3.5).changed(max_len_b=50)
            LengthLimit(max_len_a=3.5, max_len_b=50)
        """
        return LengthLimit(
            self.max_len_a if max_len_a is None else max_len_a,
            self.max_len_b if max_len_b is None else max_len_b,
        )

    def __str__(self) -> str:
        factor = f"{self.max_len_a:g} x source tokens + " if self.max_len_a else ""
        return f"{factor}{self.max_len_b}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationConfig(Configuration, group=""):
    """Settings of text generation; None disables a setting or leaves it to the model."""

    max_new_tokens: Length | None = None  # largest number of new tokens
    min_new_tokens: Minimum | None = None  # no end before this many new tokens
    max_length: Length | None = None  # largest length, including the prompt
    min_length: Minimum = 0  # smallest length, including the prompt or the decoder's start token
    num_beams: Beams = 1  # beam width; 1 is greedy search or sampling
    # Number of texts to return: samples, or the best of beam search (at most the beam width).
    num_return_sequences: Texts = 1
    # Whether to sample with one beam; None: language models sample, other models do not.
    do_sample: bool | None = None
    # With finishing hf, search ends once num_beams hypotheses have ended (true), once no
    # improvement is expected (false), or once none is possible (never).
    early_stopping: Literal[False, True, "never"] = False
    length_penalty: Exponent = 1.0  # exponent of the length penalty; 0 favors short texts
    temperature: Temperature = 1.0  # sampling temperature; 0 is greedy
    top_k: Rank | None = None  # sample from the k most probable tokens
    # Nucleus sampling: the fewest most probable tokens with at least this total probability.
    top_p: Probability | None = None
    # Sample from tokens with at least this fraction of the highest probability.
    min_p: Probability | None = None
    repetition_penalty: Penalty = 1.0  # penalizes tokens of prompt and text; 1 is none
    no_repeat_ngram_size: Ngram = 0  # size of n-grams that may not repeat; 0 is no limit
    encoder_repetition_penalty: Penalty = 1.0  # above 1 favors tokens of the input
    encoder_no_repeat_ngram_size: Ngram = 0  # size of n-grams of the input that may not occur
    bad_words_ids: tuple[Run, ...] = ()  # sequences never written; a lone end token is exempt
    sequence_bias: tuple[Bias, ...] = ()  # sequences, and the bias of their last token
    suppress_tokens: tuple[MaybeToken, ...] = ()  # tokens never written
    begin_suppress_tokens: tuple[MaybeToken, ...] = ()  # tokens never written first
    forced_bos_token_id: Token | None = None  # first written token, after a prompt of one token
    forced_eos_token_id: tuple[Token, ...] = ()  # one of these is written at the length limit
    exponential_decay_length_penalty: Decay | None = None  # favors ends: start, base
    renormalize_logits: bool = False  # normalize probabilities after all processors
    remove_invalid_values: bool = False  # make infinite logits finite
    eos_token_id: tuple[Token, ...] = ()  # each of these ends a text
    pad_token_id: MaybeToken | None = None  # fills after an end; None is the first of eos_token_id
    decoder_start_token_id: Token | None = None  # first input of an encoder-decoder's decoder
    # The settings below are not from Hugging Face.
    # optimal: search ends when no hypothesis can be better; hf: according to early_stopping.
    finishing: Literal["optimal", "hf"] = "optimal"
    # At the length limit, a text is cut, or its end token is scored (eos).
    at_limit: Literal["cut", "eos"] = "cut"
    normalization: Normalization = "power"  # length normalization of scores
    max_len_a: PerToken = 0.0  # longest translation: this many tokens per source token
    max_len_b: Length | None = None  # ... plus this many tokens
    allow_unk: bool = True  # whether a translation may contain the unknown token
    stop: tuple[str, ...] = ()  # stop strings: the text ends before the first of them
    seed: Seed = 0  # random seed for sampling
    adapter: str | None = None  # name of the adapter to use; None is the base model

    def __post_init__(self) -> None:
        super().__post_init__()
        single = self.do_sample is not False and self.finishing == "optimal"
        if self.num_return_sequences > self.num_beams and (self.num_beams > 1 or not single):
            raise ConfigError(
                f"num_return_sequences is {self.num_return_sequences}: allowed are 1 to num_beams, "
                f"{self.num_beams}"
            )
        if self.finishing == "optimal" and self.length_penalty < 0:
            raise ConfigError(
                f"length_penalty is {self.length_penalty}: at least 0 (none), since a negative one "
                f"prefers ever shorter texts"
            )
        if any(not text for text in self.stop):
            raise ConfigError("stop holds an empty text, which would end everything at once")
        biased = tuple(run for run, _ in self.sequence_bias)
        for name, runs in (("bad_words_ids", self.bad_words_ids), ("sequence_bias", biased)):
            if not all(runs):
                raise ConfigError(f"{name} holds an empty sequence: each needs tokens")
        if self.exponential_decay_length_penalty is not None and not self.eos_token_id:
            raise ConfigError("exponential_decay_length_penalty favors ends: give eos_token_id")
        for name in ("forced_bos_token_id", "forced_eos_token_id"):
            forced = _several(getattr(self, name))
            if forced and set(forced) <= set(self.suppress_tokens):
                raise ConfigError(
                    f"{name} {list(forced)} is also among suppress_tokens: nothing could be "
                    f"written there; take it out of one of them"
                )

    def changed(self, **settings: Any) -> Self:
        """Returns the configuration with some settings changed.

        Raises:
            ConfigError: A setting is unknown, out of its range, or contradicts another.

        Example:
            >>> GenerationConfig().changed(num_beam=2)
            Traceback (most recent call last):
            ...
            transformer_jax.core.errors.ConfigError: num_beam is not a setting of generation; ...
        """
        cls: type = type(self)
        kinds = field_types(cls)
        for name in settings:
            if name not in kinds:
                near = nearest(name, kinds) or f": there are {', '.join(kinds)}"
                raise ConfigError(f"{name} is not a setting of generation{near}")
        check_fields(cls, settings)
        return dataclasses.replace(self, **settings)

    def refuse_settings(self, taken: Iterable[str], reason: str) -> None:
        """Refuses settings, except ``taken``, that change the generated texts.

        Args:
            taken: Names of the settings that apply.
            reason: Why the other settings do not apply, and what to do.

        Raises:
            ConfigError: Names the first setting that differs from its default.

        Example:
            >>> GenerationConfig(min_p=0.1).refuse_settings(["top_p"], "unknown: leave it out")
            Traceback (most recent call last):
            ...
            transformer_jax.core.errors.ConfigError: min_p: unknown: leave it out
        """
        known = {*taken}
        for name in field_types(GenerationConfig):
            if name not in known and getattr(self, name) != getattr(GenerationConfig, name):
                raise ConfigError(f"{name}: {reason}")

    @property
    def pad(self) -> int:
        """The token that follows an end in greedy search; -1 if no token ends a text."""
        if self.pad_token_id is None:
            return self.eos_token_id[0] if self.eos_token_id else -1
        return self.pad_token_id

    @property
    def fill(self) -> int:
        """The token after an end in beams of ``hf``, which ignores padding token 0."""
        if not self.eos_token_id:
            return -1
        return self.pad_token_id or self.eos_token_id[0]

    @property
    def barred(self) -> tuple[tuple[int, ...], ...]:
        """``bad_words_ids`` without sequences that are a lone end token."""
        ends = {(token,) for token in self.eos_token_id}
        return tuple(dict.fromkeys(run for run in self.bad_words_ids if run not in ends))

    @property
    def tokens(self) -> set[int]:
        """All tokens that are forced, favored or forbidden by name."""
        runs = (*self.bad_words_ids, *(run for run, _ in self.sequence_bias))
        tokens = {token for run in runs for token in run} | set(self.eos_token_id)
        return tokens | set(self.forced_eos_token_id) | set(_several(self.forced_bos_token_id))

    @property
    def limit(self) -> LengthLimit:
        """The largest number of tokens of a translation, by the length of its source."""
        usual = LengthLimit()
        return usual if self.max_len_b is None else LengthLimit(self.max_len_a, self.max_len_b)

    def shortest(self, prompt: int = 1) -> int:
        """Returns the smallest number of tokens before an end, after ``prompt`` tokens.

        Example:
            >>> GenerationConfig(min_length=4).shortest()
            3
        """
        if self.min_new_tokens is not None:
            return self.min_new_tokens
        return max(0, self.min_length - prompt)

    def new_tokens(self, prompt: int) -> int:
        """Returns the largest number of tokens that a language model writes after a prompt.

        Example:
            >>> GenerationConfig().new_tokens(5), GenerationConfig(max_length=12).new_tokens(5)
            (128, 7)
        """
        if self.max_new_tokens is not None or self.max_length is None:
            return NEW_TOKENS if self.max_new_tokens is None else self.max_new_tokens
        return max(0, self.max_length - prompt)

    def target_tokens(self, source: int, longest: int) -> int:
        """Returns the largest number of tokens in a translation, including its end.

        Args:
            source: Number of tokens in the source, including its end.
            longest: Largest number that the model can write.

        Example:
            >>> TRANSLATION.target_tokens(20, 256)
            50
        """
        limit = self.limit
        most = min(int(limit.max_len_a * source) + limit.max_len_b, longest)
        if self.max_length is not None:  # includes the start of the decoder
            most = min(most, self.max_length - 1)
        return most if self.max_new_tokens is None else min(most, self.max_new_tokens)

    def longest(self, prompt: int, positions: int) -> int:
        """Returns the largest number of tokens in a text with ``hf``, including its prompt.

        Args:
            prompt: Number of tokens read, including padding; 1 if an encoder reads.
            positions: The model's longest text, used if the config has no length.

        Example:
            >>> GenerationConfig().longest(5, 1024)
            25
            >>> GenerationConfig(max_length=12).longest(5, 1024)
            12
        """
        if self.max_new_tokens is not None:
            return prompt + self.max_new_tokens
        return min(prompt + 20, positions) if self.max_length is None else self.max_length


def _several(value: int | Sequence[int] | None) -> tuple[int, ...]:
    """Returns one, several or no tokens as a tuple."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


TRANSLATION = GenerationConfig(
    num_beams=4,
    do_sample=False,
    at_limit="eos",
    normalization="gnmt",
    length_penalty=0.6,
    max_len_a=2.0,
    max_len_b=10,
)

"""The generation config of a Hugging Face checkpoint: ``generation_config.json``."""

import dataclasses
import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from transformer_jax.errors import ConfigError

__all__ = ["HFGenerationConfig", "from_generation_config"]

EARLY = (False, True, "never")

TOKEN = 2**31 - 1  # the last that an int32 holds
LENGTH = 2**20  # arrays are as long as texts may be
BEAMS = 1024
NGRAM = 256  # tokens of a run are compared one by one
# The power of the longest length that single precision holds.
POWER = 6
FACTOR = 1e6
BIAS = 1e38

# Settings that change what greedy or beam search finds, with the values that do not.
LACKING: dict[str, tuple[Any, ...]] = {
    "assistant_ensemble_weight": (),
    "constraints": (),
    "dola_layers": (),
    "force_words_ids": (),
    "guidance_scale": (1,),
    "low_memory": (False,),
    "max_time": (),
    "num_beam_groups": (1,),
    "penalty_alpha": (0,),
    "stop_strings": (),
    "token_healing": (False,),
    "watermarking_config": (),
}


@dataclasses.dataclass(frozen=True)
class HFGenerationConfig:
    """What ``generate()`` of Hugging Face ``transformers`` does at greedy and beam search.

    Names and meanings are those of ``generation_config.json``; None leaves a setting out.
    """

    max_new_tokens: int | None = None  # at most so many are written; None is 20, or max_length
    min_new_tokens: int | None = None  # no end before
    min_length: int = 0  # the same, the prompt and its padding included
    max_length: int | None = None  # prompt included; max_new_tokens goes before it
    num_beams: int = 1  # 1 is greedy search
    num_return_sequences: int = 1  # of each prompt, at most as many as beams
    length_penalty: float | int = 1.0  # scores of beams are divided by length to this power
    early_stopping: bool | str = (
        False  # whether a sentence ends as soon as num_beams hypotheses have
    )
    repetition_penalty: float | int = 1.0  # of what was read or written
    no_repeat_ngram_size: int = 0  # no run of so many tokens twice
    encoder_repetition_penalty: float | int = 1.0  # above 1 favours tokens of the input
    encoder_no_repeat_ngram_size: int = 0  # no run of so many tokens of the input
    bad_words_ids: tuple[tuple[int, ...], ...] = ()  # runs never written; an end alone is exempt
    suppress_tokens: tuple[int, ...] = ()  # tokens never written
    begin_suppress_tokens: tuple[int, ...] = ()  # tokens never written first
    forced_bos_token_id: int | None = None  # written first, after a prompt of one token
    forced_eos_token_id: tuple[int, ...] = ()  # one of them is written where length runs out
    exponential_decay_length_penalty: tuple[int, float | int] | None = (
        None  # ends favoured: start, base
    )
    renormalize_logits: bool = False  # whether probabilities sum to 1 after all this
    sequence_bias: tuple[
        tuple[tuple[int, ...], float | int], ...
    ] = ()  # added to a run's last logit
    remove_invalid_values: bool = False  # whether infinite logits become finite
    eos_token_id: tuple[int, ...] = ()  # each ends a text
    pad_token_id: int | None = None  # follows an end; None is the first of eos_token_id
    decoder_start_token_id: int | None = None  # what a decoder beside an encoder starts from
    do_sample: bool = False  # kept for others to read: search here never samples

    def __post_init__(self) -> None:
        _within(self, 0, LENGTH, "min_new_tokens", "min_length")
        _within(self, 1, LENGTH, "max_new_tokens", "max_length")
        _within(self, 1, BEAMS, "num_beams", "num_return_sequences")
        _within(self, 0, NGRAM, "no_repeat_ngram_size", "encoder_no_repeat_ngram_size")
        _within(self, 0, TOKEN, "eos_token_id", "forced_eos_token_id", "forced_bos_token_id")
        _within(self, 0, TOKEN, "decoder_start_token_id")
        # -1 is how some files say that there is none.
        _within(self, -1, TOKEN, "pad_token_id", "suppress_tokens", "begin_suppress_tokens")
        _within(self, -POWER, POWER, "length_penalty")
        _within(self, 1 / FACTOR, FACTOR, "repetition_penalty", "encoder_repetition_penalty")
        self._check_runs()
        if self.num_return_sequences > self.num_beams:
            raise ConfigError(
                f"num_return_sequences is {self.num_return_sequences}: allowed are 1 to num_beams, "
                f"{self.num_beams}"
            )
        if self.early_stopping not in EARLY:
            raise ConfigError(
                f"early_stopping is {self.early_stopping!r}: allowed are false, true and 'never'"
            )
        if self.exponential_decay_length_penalty is not None and not self.eos_token_id:
            raise ConfigError("exponential_decay_length_penalty favours ends: give eos_token_id")
        for name in ("forced_bos_token_id", "forced_eos_token_id"):
            forced = _several(getattr(self, name))
            if forced and set(forced) <= set(self.suppress_tokens):
                raise ConfigError(
                    f"{name} {list(forced)} is also among suppress_tokens: nothing could be "
                    f"written there; take it out of one of them"
                )

    def _check_runs(self) -> None:
        """Refuses runs without tokens, and numbers beside runs or ends that cannot be."""
        biased = tuple(run for run, _ in self.sequence_bias)
        for name, runs in (("bad_words_ids", self.bad_words_ids), ("sequence_bias", biased)):
            if not all(runs):
                raise ConfigError(f"{name} holds an empty run: each run needs tokens")
            _check(name, (token for run in runs for token in run), 0, TOKEN)
        _check("sequence_bias", (bias for _, bias in self.sequence_bias), -BIAS, BIAS)
        if self.exponential_decay_length_penalty is not None:
            start, base = self.exponential_decay_length_penalty
            _check("exponential_decay_length_penalty", (start,), -LENGTH, LENGTH)
            _check("exponential_decay_length_penalty", (base,), 1 / FACTOR, FACTOR)

    @property
    def pad(self) -> int:
        """What follows an end in greedy search; -1 where nothing ends."""
        if self.pad_token_id is None:
            return self.eos_token_id[0] if self.eos_token_id else -1
        return self.pad_token_id

    @property
    def fill(self) -> int:
        """What follows an end in beam search: the same, but a padding token 0 counts as none."""
        if not self.eos_token_id:
            return -1
        return self.pad_token_id or self.eos_token_id[0]

    @property
    def barred(self) -> tuple[tuple[int, ...], ...]:
        """``bad_words_ids`` without those that are nothing but an end."""
        ends = {(token,) for token in self.eos_token_id}
        return tuple(dict.fromkeys(run for run in self.bad_words_ids if run not in ends))

    def tokens(self) -> set[int]:
        """All tokens that are chosen, favoured or forbidden by name."""
        runs = (*self.bad_words_ids, *(run for run, _ in self.sequence_bias))
        named = {token for run in runs for token in run} | set(self.eos_token_id)
        return named | set(self.forced_eos_token_id) | set(_several(self.forced_bos_token_id))

    def longest(self, prompt: int, positions: int) -> int:
        """The most tokens of a text, its prompt included.

        Args:
            prompt: Tokens that are read, padding included; 1 where an encoder reads.
            positions: Of the model: the longest text where the config has no length.

        Example:
            >>> HFGenerationConfig().longest(5, 1024)
            25
            >>> HFGenerationConfig(max_length=12).longest(5, 1024)
            12
        """
        if self.max_new_tokens is not None:
            return prompt + self.max_new_tokens
        return min(prompt + 20, positions) if self.max_length is None else self.max_length


def from_generation_config(fields: Mapping[str, Any]) -> HFGenerationConfig:
    """The settings of a ``generation_config.json``, or of an older ``config.json`` without one.

    Settings that only sampling reads, and those that change only the speed or what is
    reported, are passed over. ``do_sample`` is kept for others to read: the config describes greedy
    and beam search, which is what ``generate(do_sample=False)`` does with the same file.

    Args:
        fields: What the file holds. A ``config.json`` may hold anything besides.

    Raises:
        ConfigError: A value that cannot be, or a setting that changes texts and is not supported.

    Example:
        >>> from_generation_config({"eos_token_id": 2, "num_beams": 4, "forced_eos_token_id": 2})
        HFGenerationConfig(...num_beams=4...forced_eos_token_id=(2,)...eos_token_id=(2,)...)
    """
    given = {name: value for name, value in fields.items() if value is not None}
    for name, harmless in LACKING.items():
        if name in given and given[name] not in harmless:
            raise ConfigError(
                f"{name} is {given[name]!r}: generation with it is not supported; leave it out of "
                f"generation_config.json, or generate elsewhere"
            )
    if given.get("force_bos_token_to_be_generated"):
        given.setdefault("forced_bos_token_id", given.get("bos_token_id"))
    if "bos_token_id" in given:
        given.setdefault("decoder_start_token_id", given["bos_token_id"])
    names = {field.name: field.type for field in dataclasses.fields(HFGenerationConfig)}
    return HFGenerationConfig(
        **{name: _read(name, given[name], names[name]) for name in names if name in given}
    )


TOKENS, LIST = "a token id or a list of them", "a list of token ids"
# What the values of a file may be, by name or else by type.
FORMS: dict[Any, str] = {
    "eos_token_id": TOKENS,
    "forced_eos_token_id": TOKENS,
    "suppress_tokens": LIST,
    "begin_suppress_tokens": LIST,
    "bad_words_ids": "a list of lists of token ids",
    "sequence_bias": "a list of pairs, each of a list of token ids and a number",
    "exponential_decay_length_penalty": "a pair of a whole number and a number",
    bool: "true or false",
    int: "a whole number",
    float: "a number that is finite",
}


def _read(name: str, value: Any, kind: Any) -> Any:
    """A value of a JSON file as the field holds it."""
    wanted = kind if isinstance(kind, type) else get_args(kind)[0]
    try:
        match name:
            case "eos_token_id" | "forced_eos_token_id":
                return _ids(value if isinstance(value, list | tuple) else [value])
            case "suppress_tokens" | "begin_suppress_tokens":
                return _ids(value)
            case "bad_words_ids":
                return tuple(_ids(run) for run in _listed(value))
            case "sequence_bias":
                pairs = value.items() if isinstance(value, Mapping) else _listed(value)
                # Of a run given twice the last counts.
                runs = {_ids(run): _number(bias) for run, bias in pairs}
                return tuple(runs.items())
            case "exponential_decay_length_penalty":
                start, base = _listed(value)
                return _whole(start), _number(base)
            case "early_stopping":
                return value
        if wanted is bool:
            if not isinstance(value, bool):
                raise ValueError
            return value
        return _whole(value) if wanted is int else _number(value)
    except (TypeError, ValueError, OverflowError):
        allowed = FORMS[name] if name in FORMS else FORMS[wanted]
        raise ConfigError(f"{name} is {reprlib.repr(value)}: allowed is {allowed}") from None


def _listed(value: Any) -> Sequence[Any]:
    """A list of a JSON file; text and objects have items too, and mean something else."""
    if not isinstance(value, list | tuple):
        raise TypeError
    return value


def _ids(value: Any) -> tuple[int, ...]:
    return tuple(_whole(token) for token in _listed(value))


def _whole(value: Any) -> int:
    if isinstance(value, bool) or int(value) != value:
        raise ValueError
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool | str) or not math.isfinite(value):
        raise ValueError
    return float(value)


def _several(value: int | Sequence[int] | None) -> tuple[int, ...]:
    """One, several or no tokens as a tuple."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _within(config: HFGenerationConfig, least: float | int, most: float | int, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        numbers = value if isinstance(value, tuple) else () if value is None else (value,)
        _check(name, numbers, least, most)


def _check(
    name: str, numbers: Iterable[float | int], least: float | int, most: float | int
) -> None:
    """Refuses what is out of range, and what is no number at all (nan)."""
    for number in numbers:
        if not least <= number <= most:
            raise ConfigError(
                f"{name} is {reprlib.repr(number)}: allowed are {least:.10g} to {most:.10g}"
            )

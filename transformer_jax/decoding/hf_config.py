"""The generation config of a Hugging Face checkpoint: ``generation_config.json``."""

import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from transformer_jax.core.config_fields import field_types
from transformer_jax.core.errors import ConfigError
from transformer_jax.core.json_types import Json
from transformer_jax.decoding.generation_config import GenerationConfig

__all__ = ["from_generation_config"]

# Settings that change the result of greedy or beam search, with values that do not.
LACKING: dict[str, tuple[Json, ...]] = {
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


# Settings that only sampling reads, and those of this library.
PASSED_OVER = {
    *("temperature", "top_k", "top_p", "min_p", "finishing", "at_limit", "normalization"),
    *("max_len_a", "max_len_b", "allow_unk", "stop", "seed", "adapter"),
}


def from_generation_config(fields: Mapping[str, Json]) -> GenerationConfig:
    """Returns the settings of a ``generation_config.json``, or of an older ``config.json``.

    Settings that affect only sampling, speed or additional outputs are ignored. ``do_sample`` is
    kept for other readers: the config describes greedy and beam search, as in
    ``generate(do_sample=False)`` with the same file.

    Args:
        fields: Content of the file. A ``config.json`` may have any further fields.

    Raises:
        ConfigError: An invalid value, or an unsupported setting that changes texts.

    Example:
        >>> from_generation_config({"eos_token_id": 2, "num_beams": 4, "forced_eos_token_id": 2})
        GenerationConfig(...num_beams=4...forced_eos_token_id=(2,)...finishing='hf'...)
    """
    given: dict[str, Json] = {name: value for name, value in fields.items() if value is not None}
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
    kinds = field_types(GenerationConfig)
    names = [name for name in kinds if name in given and name not in PASSED_OVER]
    read: dict[str, Any] = {name: _read(name, given[name], kinds[name]) for name in names}
    return GenerationConfig(**{"do_sample": False, **read}, finishing="hf")


TOKENS, LIST = "a token id or a list of them", "a list of token ids"
# Descriptions of valid values, by name or else by type.
FORMS: dict[str | type, str] = {
    "eos_token_id": TOKENS,
    "forced_eos_token_id": TOKENS,
    "early_stopping": "true, false or 'never'",
    "suppress_tokens": LIST,
    "begin_suppress_tokens": LIST,
    "bad_words_ids": "a list of lists of token ids",
    "sequence_bias": "a list of pairs, each of a list of token ids and a number",
    "exponential_decay_length_penalty": "a pair of a whole number and a number",
    bool: "true or false",
    int: "a whole number",
    float: "a number that is finite",
}


def _read(name: str, value: Json, kind: object) -> object:
    """Converts a value of a JSON file to the field's type."""
    try:
        match name:
            case "eos_token_id" | "forced_eos_token_id":
                return _ids(value if isinstance(value, list | tuple) else [value])
            case "suppress_tokens" | "begin_suppress_tokens":
                return _ids(value)
            case "bad_words_ids":
                return tuple(_ids(run) for run in _listed(value))
            case "sequence_bias":
                pairs = value.items() if isinstance(value, Mapping) else map(_pair, _listed(value))
                # Of a sequence given twice, the last counts.
                runs = {_ids(run): _number(bias) for run, bias in pairs}
                return tuple(runs.items())
            case "exponential_decay_length_penalty":
                start, base = _pair(value)
                return _whole(start), _number(base)
            case "early_stopping":
                if value != "never" and not isinstance(value, bool):
                    raise ValueError
                return value
        wanted = _base(kind)
        if wanted is bool:
            if not isinstance(value, bool):
                raise ValueError
            return value
        return _whole(value) if wanted is int else _number(value)
    except (TypeError, ValueError, OverflowError):
        allowed = FORMS[name] if name in FORMS else FORMS[_base(kind)]
        raise ConfigError(f"{name} is {reprlib.repr(value)}: allowed is {allowed}") from None


def _base(kind: object) -> type:
    """The first type of a union, or of a type with ranges."""
    while not isinstance(kind, type):
        kind = get_args(kind)[0]
    return kind


def _listed(value: Json) -> Sequence[Json]:
    """A list from a JSON file; text and objects are iterable too, but mean something else."""
    if not isinstance(value, list | tuple):
        raise TypeError
    return value


def _pair(value: Json) -> tuple[Json, Json]:
    first, second = _listed(value)
    return first, second


def _ids(value: Json) -> tuple[int, ...]:
    return tuple(_whole(token) for token in _listed(value))


def _whole(value: Json) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or int(value) != value:
        raise ValueError
    return int(value)


def _number(value: Json) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError
    return float(value)

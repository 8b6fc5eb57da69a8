"""Settings of a folder's generation config that the search of this library does not apply."""

import functools
import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from transformer_jax.core.task_progress import log
from transformer_jax.decoding.hf_config import LACKING
from transformer_jax.decoding.line_translator import TRANSLATOR_SETTINGS
from transformer_jax.decoding.requests import TEXT_SETTINGS

if TYPE_CHECKING:
    from transformer_jax.inference.facts import Facts
    from transformer_jax.inference.pretrained import Pretrained

__all__ = ["GivenSearch", "note_unused", "note_unused_here", "unused_settings"]

# Keys that change texts, with the values that do not: of the search of transformers, and of its
# sampling, which are read only if ``do_sample`` is true.
SEARCH: Mapping[str, Any] = {
    "num_beams": 1, "max_length": 20, "max_new_tokens": None, "min_length": 0,
    "min_new_tokens": None, "num_return_sequences": 1, "length_penalty": 1.0,
    "early_stopping": False, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0, "bad_words_ids": None,
    "sequence_bias": None, "suppress_tokens": None, "begin_suppress_tokens": None,
    "forced_eos_token_id": None, "exponential_decay_length_penalty": None,
    "renormalize_logits": False, "remove_invalid_values": False,
}  # fmt: skip
SAMPLING: Mapping[str, Any] = {
    "temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": None, "top_h": None, "typical_p": 1.0,
    "epsilon_cutoff": 0.0, "eta_cutoff": 0.0,
}  # fmt: skip
# Settings with the same meaning here, and those that limit lengths.
_SHARED = {
    *("num_beams", "max_new_tokens", "repetition_penalty", "no_repeat_ngram_size"),
    *("temperature", "top_k", "top_p", "min_p"),
}
_LENGTHS = {"max_length", "max_new_tokens", "max_len_a", "max_len_b"}


class GivenSearch(NamedTuple):
    """The settings of a search, and how further ones are given where it was called.

    Attributes:
        given: The settings that were given.
        names: The settings that can be given.
        has_hf: Whether ``generation_config`` hf can be chosen.
        flags: Whether settings are flags of a command; otherwise they are arguments.
        sampling: What must be given before settings of sampling, if the search does not sample.
    """

    given: Mapping[str, Any]
    names: Collection[str]
    has_hf: bool = True
    flags: bool = True
    sampling: str = ""


def unused_settings(generation: Mapping[str, Any], given: Collection[str]) -> dict[str, Any]:
    """Returns the settings of a generation config that would change texts, without given ones.

    Ids of special tokens are not among them, since each search uses them.

    Args:
        generation: The content of ``generation_config.json``.
        given: Names of the settings that were given.

    Example:
        >>> unused_settings({"num_beams": 6, "top_k": 5, "max_length": 512}, ["max_len_b"])
        {'num_beams': 6}
    """
    usual = {**SEARCH, **(SAMPLING if generation.get("do_sample") is True else {})}
    found = {
        name: value
        for name, without in usual.items()
        if (value := generation.get(name)) not in (None, without, [])
    }
    found |= {
        name: value
        for name, harmless in LACKING.items()
        if (value := generation.get(name)) is not None and value not in harmless
    }
    replaced = {*given} | (_LENGTHS if _LENGTHS & {*given} else set())
    return {name: value for name, value in found.items() if name not in replaced}


def note_unused(facts: "Facts", search: GivenSearch) -> None:
    """Logs once which settings of a folder's generation config a search does not apply.

    The line says how each setting is applied, or that it is not available.

    Args:
        facts: Facts of the model.
        search: The search.
    """
    generation = (facts.published or {}).get("generation")
    if not isinstance(generation, dict):
        return
    if unused := unused_settings(generation, search.given):
        listing = ", ".join(f"{name} {json.dumps(v)[:40]}" for name, v in unused.items())
        _log_once(
            f"{facts.source}: this search does not apply {listing} of the folder's generation "
            f"config: {'; '.join(_remedies(unused, search))}"
        )


@runtime_checkable
class _Searching(Protocol):
    """A predictor with a search; without a model, it runs on CTranslate2."""

    model: Any
    opened: "Pretrained"
    folder_search: Any


def note_unused_here(
    predictor: _Searching,
    kind: Literal["translator", "language model"],
    changes: Mapping[str, Any],
    *,
    has_hf: bool = True,
) -> None:
    """Logs the same for a call of a predictor.

    Args:
        predictor: The predictor.
        kind: What it is.
        changes: The settings of the call.
        has_hf: Whether ``generation_config`` hf can be chosen in this call.
    """
    names = set(TRANSLATOR_SETTINGS if kind == "translator" else TEXT_SETTINGS)
    if predictor.model is None:
        from transformer_jax.interop.ctranslate2_engine import SETTINGS

        names &= SETTINGS[kind]
    has_hf = has_hf and predictor.folder_search is not None
    sampling = "do_sample=True, num_beams=1" if kind == "translator" else ""
    note_unused(predictor.opened.facts, GivenSearch(changes, names, has_hf, False, sampling))


def _remedies(unused: Mapping[str, Any], search: GivenSearch) -> list[str]:
    """Returns what applies the settings, in words."""
    own = [name for name in unused if name in _SHARED and name in search.names]
    if drawn := [name for name in own if name in SAMPLING]:  # beam search does not sample
        own = drawn + [name for name in own if name not in (*drawn, "num_beams")]
    by_hf = [name for name in unused if name in SEARCH]
    rest = [name for name in unused if name not in own and name not in by_hf]
    found = []
    if own:
        before = [search.sampling] if drawn and search.sampling else []
        found.append(f"give {_spelt(before, {name: unused[name] for name in own}, search.flags)}")
    if by_hf and search.has_hf:
        choice = "--generation-config hf" if search.flags else 'generation_config="hf"'
        found.append(f"{choice} applies {', '.join(by_hf)}")
    elif others := [name for name in by_hf if name not in own]:
        found.append(
            f"{', '.join(others)}: only with --generation-config hf of translate and generate"
        )
    if rest:
        found.append(f"not available here: {', '.join(rest)}")
    return found


def _spelt(before: list[str], settings: Mapping[str, Any], flags: bool) -> str:
    """Returns settings as flags of a command, or as arguments."""
    pairs = {name: json.dumps(value) for name, value in settings.items()}
    if flags:
        return " ".join([*before, *(f"--{n.replace('_', '-')} {v}" for n, v in pairs.items())])
    return ", ".join([*before, *(f"{name}={value}" for name, value in pairs.items())])


@functools.lru_cache(maxsize=64)
def _log_once(line: str) -> None:
    log(line)

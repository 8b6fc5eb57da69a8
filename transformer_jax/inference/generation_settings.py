"""Settings of text generation: of a call and of a run, requests, first tokens, limits."""

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.decoding.generation_config import GenerationConfig, LengthLimit
from transformer_jax.decoding.requests import Continuation, GenerationRequest
from transformer_jax.inference.results import GeneratedText, with_alternatives

if TYPE_CHECKING:
    from transformer_jax.decoding.line_translator import LineTranslator
    from transformer_jax.inference.facts import Facts

__all__ = [
    "ConfigChoice",
    "changes_of",
    "generated",
    "is_hf",
    "refuse_hf",
    "request_of",
    "requests_of",
    "search_settings",
    "warn_if_limited",
]

# "hf" decodes like generate(do_sample=False) of Hugging Face transformers; settings that are None
# come from the checkpoint's generation config.
ConfigChoice = GenerationConfig | Literal["hf"] | None


def is_hf(generation_config: object) -> bool:
    """Returns whether to search as in transformers.

    Raises:
        ConfigError: The value is neither a configuration, None nor ``"hf"``.
    """
    if isinstance(generation_config, GenerationConfig):
        return generation_config.finishing == "hf"
    if generation_config not in (None, "hf"):
        raise ConfigError(
            f"generation_config is {generation_config!r}: must be None, 'hf' or a GenerationConfig"
        )
    return generation_config == "hf"


def refuse_hf(generation_config: object, what: str) -> None:
    """Refuses the search of transformers for models that do not have it.

    Args:
        generation_config: The argument of a call.
        what: The generated texts, such as "captions".

    Raises:
        ConfigError: The configuration is ``"hf"``.

    Example:
        >>> refuse_hf("hf", "captions")
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ConfigError: generation_config hf is not available for ...
    """
    if is_hf(generation_config):
        raise ConfigError(f"generation_config hf is not available for {what}: leave it out")


def changes_of(generation_config: ConfigChoice, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a call that override the defaults.

    Args:
        generation_config: A configuration, whose non-default settings count.
        settings: Further settings by name; None is ignored.

    Raises:
        ConfigError: The generation config is neither a configuration, ``"hf"`` nor None.

    Example:
        >>> changes_of(GenerationConfig(num_beams=2), {"stop": "ab", "top_k": None})
        {'num_beams': 2, 'stop': ('ab',)}
    """
    is_hf(generation_config)
    changes = {}
    if isinstance(generation_config, GenerationConfig):
        changes = {
            field.name: value
            for field in dataclasses.fields(GenerationConfig)
            if (value := getattr(generation_config, field.name)) != field.default
        }
    changes |= {name: value for name, value in settings.items() if value is not None}
    if isinstance(changes.get("stop"), str):
        changes["stop"] = (changes["stop"],)
    return changes


def generated(texts: Sequence[Continuation]) -> GeneratedText:
    """Returns the first text, with the remaining ones as its alternatives."""
    return with_alternatives(
        [
            GeneratedText(
                one.text, score=one.score, tokens=one.tokens, finish_reason=one.finish_reason
            )
            for one in texts
        ]
    )


def requests_of(prompts: list[str], changes: Mapping[str, Any]) -> list[GenerationRequest]:
    """Returns prompts with their settings; each may have its own adapter.

    Raises:
        ConfigError: A setting is unknown or out of range.
    """
    adapter = changes.get("adapter")
    if not _is_listed(adapter):
        request = request_of("", changes)
        return [request.with_prompt(prompt) for prompt in prompts]
    if len(adapter) != len(prompts):
        raise ConfigError(
            f"adapter names {plural(len(adapter), 'adapter')} for "
            f"{plural(len(prompts), 'prompt')}: give one name, or one per prompt"
        )
    each = zip(prompts, adapter, strict=True)
    return [request_of(prompt, {**changes, "adapter": name}) for prompt, name in each]


def request_of(prompt: str, changes: Mapping[str, Any]) -> GenerationRequest:
    """Returns a prompt with its settings.

    Raises:
        ConfigError: A setting is unknown or out of range.
    """
    GenerationConfig().changed(**changes)
    return GenerationRequest(prompt, **changes)


def _is_listed(adapter: Any) -> TypeGuard[Sequence[str | None]]:
    return isinstance(adapter, list | tuple)


def search_settings(facts: "Facts") -> dict[str, Any]:
    """Returns the search settings of a run: length limit and length penalty.

    The limit is derived from the training data unless set in the run. A run without these settings,
    such as a Hugging Face folder or a run of an earlier version, has the defaults of
    :class:`.LengthLimit` and of the penalty.

    Args:
        facts: Facts of the model.
    """
    fields = facts.record.get("evaluation")
    evaluation = fields if isinstance(fields, dict) else {}
    limit = LengthLimit()
    if isinstance(longest := evaluation.get("max_length"), int):  # for summaries
        limit = LengthLimit(0.0, longest)
    limit = limit.changed(evaluation.get("max_len_a"), evaluation.get("max_len_b"))
    settings: dict[str, Any] = limit._asdict()
    if (penalty := evaluation.get("length_penalty")) is not None:
        settings["length_penalty"] = penalty
    return settings


@contextlib.contextmanager
def warn_if_limited(translator: "LineTranslator", search: GenerationConfig) -> Iterator[None]:
    """Context manager: warns afterwards if texts reached their length limit.

    Args:
        translator: The translator of the texts.
        search: Search settings of the texts.
    """
    before = translator.counts["limited"], translator.counts["lines"]
    yield
    limited, lines = (
        translator.counts[name] - count
        for name, count in zip(("limited", "lines"), before, strict=True)
    )
    if limited:
        note = translator.limit_note(limited, lines, search.limit)
        names = "max_len_a or max_len_b" if search.limit.max_len_a else "max_len_b"
        warnings.warn(f"{note}: raise {names}", stacklevel=4)

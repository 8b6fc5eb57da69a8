"""Settings of text generation in Python, requests made of them, and results."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeGuard

from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.decoding.requests import Continuation, GenerationRequest
from transformer_jax.errors import ConfigError
from transformer_jax.predictors.results import GeneratedText, with_alternatives

__all__ = ["ConfigChoice", "changes_of", "generated", "is_hf", "request_of", "requests_of"]

# "hf" decodes as generate(do_sample=False) of Hugging Face transformers does, with the
# checkpoint's generation config for each setting that is None.
ConfigChoice = GenerationConfig | Literal["hf"] | None


def is_hf(generation_config: object) -> bool:
    """Returns whether texts are searched for as transformers does.

    Raises:
        ConfigError: The value is no configuration, neither None nor ``"hf"``.
    """
    if isinstance(generation_config, GenerationConfig):
        return generation_config.finishing == "hf"
    if generation_config not in (None, "hf"):
        raise ConfigError(
            f"generation_config is {generation_config!r}: must be None, 'hf' or a GenerationConfig"
        )
    return generation_config == "hf"


def changes_of(generation_config: ConfigChoice, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a call that differ from the usual ones.

    Args:
        generation_config: A configuration, of which those count that are not its defaults.
        settings: Others by name; None leaves one out.

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
    """Returns the first of some texts, with the others as its alternatives."""
    return with_alternatives(
        [
            GeneratedText(
                one.text, score=one.score, tokens=one.tokens, finish_reason=one.finish_reason
            )
            for one in texts
        ]
    )


def requests_of(prompts: list[str], changes: Mapping[str, Any]) -> list[GenerationRequest]:
    """Returns prompts with their settings; each may have an adapter of its own.

    Raises:
        ConfigError: A setting is unknown or out of range.
    """
    adapter = changes.get("adapter")
    if not _is_listed(adapter):
        return [request_of(prompt, changes) for prompt in prompts]
    if len(adapter) != len(prompts):
        raise ConfigError(
            f"adapter names {len(adapter)} adapters for {len(prompts)} prompts: one name, or one "
            f"for each prompt"
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

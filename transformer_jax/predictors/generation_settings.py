"""Settings of text generation in Python, requests made of them, and results."""

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from transformer_jax.decoding.requests import Continuation, GenerationRequest
from transformer_jax.errors import ConfigError
from transformer_jax.predictors.results import GeneratedText, with_alternatives

__all__ = [
    "GenerationConfig",
    "GenerationSettings",
    "check_returned",
    "generated",
    "is_hf",
    "request_of",
    "requests_of",
]

# "hf" decodes as generate(do_sample=False) of Hugging Face transformers does, with the
# checkpoint's generation config for each setting that is None.
GenerationConfig = Literal["hf"] | None


class GenerationSettings(TypedDict, total=False):
    """Settings of text generation, each optional."""

    max_new_tokens: int  # 128 if left out
    temperature: float  # 1 if left out; 0 is greedy
    top_k: int | None  # sample from the k most probable tokens
    top_p: float | None  # from the fewest tokens that hold this probability
    min_p: float | None  # from tokens at least this fraction as probable as the most probable
    repetition_penalty: float  # above 1 makes repeated tokens less probable
    no_repeat_ngram_size: int  # no n-gram of this size is repeated; 0 is no limit
    stop: str | Sequence[str]  # the text ends before the first of these strings
    num_beams: int  # more than 1 is beam search instead of sampling
    num_return_sequences: int  # texts of each prompt
    seed: int  # random seed for sampling
    # The name of an adapter of with_adapters, or one for each prompt.
    adapter: str | Sequence[str | None] | None
    generation_config: GenerationConfig  # "hf": greedy and beam search as transformers has them


def check_returned(number: int | None, beams: int) -> None:
    """Refuses more results than there are beams, or fewer than one.

    Raises:
        ConfigError: It says how many are possible.
    """
    if number is not None and not 1 <= number <= beams:
        raise ConfigError(f"num_return_sequences is {number}: must be 1 to num_beams, {beams}")


def is_hf(generation_config: str | None) -> bool:
    """Returns whether the checkpoint's generation config applies.

    Raises:
        ConfigError: The value is neither None nor ``"hf"``.
    """
    if generation_config not in (None, "hf"):
        raise ConfigError(f"generation_config is {generation_config!r}: must be None or 'hf'")
    return generation_config == "hf"


def generated(texts: Sequence[Continuation]) -> GeneratedText:
    """The first of some texts, with the others as its alternatives."""
    return with_alternatives(
        [
            GeneratedText(
                one.text, score=one.score, tokens=one.tokens, finish_reason=one.finish_reason
            )
            for one in texts
        ]
    )


def requests_of(prompts: list[str], settings: GenerationSettings) -> list[GenerationRequest]:
    """Prompts with their settings; each may have an adapter of its own."""
    adapter = settings.get("adapter")
    if adapter is None or isinstance(adapter, str):
        return [request_of(prompt, settings) for prompt in prompts]
    if len(adapter) != len(prompts):
        raise ConfigError(
            f"adapter names {len(adapter)} adapters for {len(prompts)} prompts: one name, or one "
            f"for each prompt"
        )
    each = zip(prompts, adapter, strict=True)
    return [request_of(prompt, {**settings, "adapter": name}) for prompt, name in each]


def request_of(prompt: str, settings: GenerationSettings) -> GenerationRequest:
    """A prompt with its settings.

    Raises:
        ConfigError: A setting is unknown or out of range.
    """
    known = GenerationSettings.__annotations__
    if unknown := [name for name in settings if name not in known]:
        raise ConfigError(
            f"{unknown[0]} is no setting of generation: use one of {', '.join(known)}"
        )
    given: dict[str, Any] = {**settings}
    given.pop("generation_config", None)
    stop = given.pop("stop", ())
    given["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    if (beams := given.get("num_beams", 1)) != 1:
        given["nbest"] = given.pop("num_return_sequences", 1)
        check_returned(given["nbest"], beams)
    return GenerationRequest(prompt, **given)

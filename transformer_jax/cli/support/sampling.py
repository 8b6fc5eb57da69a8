"""Prompts from a file, texts or conversations, and models that complete them."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.cli.support.run_command import PredictionCommand
from transformer_jax.core.errors import DataError
from transformer_jax.decoding.generation_config import NEW_TOKENS, GenerationConfig
from transformer_jax.recipes.generation_flags import generation_flags

if TYPE_CHECKING:
    from transformer_jax.data.preferences import Prompt
    from transformer_jax.decoding.language import DecoderLanguageModel
    from transformer_jax.decoding.ngram import NgramLanguageModel
    from transformer_jax.decoding.requests import Continuation, GenerationRequest
    from transformer_jax.inference.chat_session import ChatModel
    from transformer_jax.inference.facts import Facts
    from transformer_jax.interop.ctranslate2_language import CTranslate2LanguageModel

__all__ = ["Sampler", "SamplingCommand", "load_sampler", "read_prompts"]


SamplingFlags: Any = generation_flags(
    GenerationConfig(max_new_tokens=NEW_TOKENS),
    *("max_new_tokens", "temperature", "top_k", "top_p", "seed"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingCommand(SamplingFlags, PredictionCommand):
    """A command that samples completions of prompts."""

    def requests(
        self, facts: "Facts", prompts: "list[Prompt]", samples: int
    ) -> "list[GenerationRequest]":
        """Returns requests for completions of prompts or answers to conversations.

        Prompts are as the model reads them.

        Args:
            facts: Facts of a language model.
            prompts: The prompts.
            samples: Number of samples per prompt.

        Raises:
            ConfigError: A setting is out of its range.
        """
        from transformer_jax.decoding.requests import GenerationRequest
        from transformer_jax.inference.folder_generation import GivenSearch, note_unused

        note_unused(facts, GivenSearch(self.given(), self.FLAGS, has_hf=False))
        prepare = facts.preparation.text
        base = GenerationRequest.of("", self.generation(num_return_sequences=samples))
        asked = lambda prompt: (
            {"prompt": prepare(prompt)} if isinstance(prompt, str) else {"messages": tuple(prompt)}
        )
        return [
            dataclasses.replace(base, number=i, **asked(prompt)) for i, prompt in enumerate(prompts)
        ]


def read_prompts(path: Path) -> "list[Prompt]":
    """Reads the prompts of a file: lines, or ``"prompt"`` or ``"messages"`` of a ``.jsonl`` file.

    Raises:
        DataError: The file cannot be read, all lines are blank, a line is not a prompt, or texts
            and conversations are mixed.
    """
    from transformer_jax.data.preferences import PreferenceOptions, read_preferences
    from transformer_jax.data.text import read_lines

    if path.name.removesuffix(".gz").endswith(".jsonl"):
        as_they_are = PreferenceOptions(normalization="none")
        found = read_preferences(path, "prompts", as_they_are, "prompts").prompts
    else:
        found = list(read_lines(path, "prompts"))
    if all(isinstance(prompt, str) and not prompt.strip() for prompt in found):
        raise DataError(f"{path}: no prompts: it is empty")
    return found


def completions(request: "GenerationRequest", found: "Sequence[Continuation]") -> list[str]:
    """Returns the texts of samples for a rule; answers to conversations are stripped."""
    from transformer_jax.data.preferences import answer_text

    clean = str if request.messages is None else answer_text
    return [clean(sample.text) for sample in found]


@dataclasses.dataclass(frozen=True)
class Sampler:
    """A model as a function from requests to samples.

    Attributes:
        language: The language model.
        chat: The same model for conversations; None for texts.
    """

    language: "DecoderLanguageModel | NgramLanguageModel | CTranslate2LanguageModel"
    chat: "ChatModel | None"

    def __call__(self, requests: "Sequence[GenerationRequest]") -> "Iterable[list[Continuation]]":
        """Returns the samples of each request."""
        if self.chat is None:
            return self.language.generate(requests)
        return self.language.generate(list(map(self.chat.request, requests)))

    def reads(self, request: "GenerationRequest") -> bool:
        """Returns whether a prompt fits into the model's context."""
        if self.chat is not None and request.messages is not None:
            return not self.chat.dropped(request)
        [ids] = self.language.tokenizer.encode_batch([self.language.prepare(request.prompt)])
        return len(ids) < getattr(self.language, "context", len(ids) + 1)


def load_sampler(facts: "Facts", *, conversational: bool) -> Sampler:
    """Loads a language model to complete prompts.

    Args:
        facts: Facts of a language model.
        conversational: Whether the requests are conversations.

    Raises:
        ConfigError: The model is not a language model, or lacks a chat template for conversations.
        CheckpointError: Its files are damaged.
    """
    from transformer_jax.inference.chats import load_chat
    from transformer_jax.inference.pretrained import Pretrained

    if not conversational:
        return Sampler(Pretrained.load(facts, "decoder", "ngram").language(), None)
    chat = load_chat(facts)
    return Sampler(chat.language, chat)

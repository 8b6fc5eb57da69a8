"""Prompts of a file, texts or conversations, and the models that complete them."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_jax.cli.run_command import PredictionCommand
from transformer_jax.errors import DataError

if TYPE_CHECKING:
    from transformer_jax.data.conversations import Message
    from transformer_jax.data.preferences import Prompt
    from transformer_jax.decoding.requests import Continuation, GenerationRequest

__all__ = ["SamplingCommand", "completing", "read_asked", "text_of"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingCommand(PredictionCommand):
    """A command that samples completions of prompts."""

    max_new_tokens: int = 128
    """Maximum number of new tokens."""
    temperature: float = 1.0
    """Sampling temperature; 0 is greedy search."""
    top_k: int | None = None
    """Sample from the k most probable tokens."""
    top_p: float | None = None
    """Nucleus sampling: the fewest tokens with at least this total probability."""
    seed: int = 0
    """Random seed for sampling."""
    checkpoint: str = "best"
    """Checkpoint: best, last, a step number, or average:N (mean of the last N)."""

    def requests(
        self, run: Path, prompts: "list[Prompt]", samples: int
    ) -> "list[GenerationRequest]":
        """Requests of completions of prompts, or of answers to conversations.

        Args:
            run: Run directory or Hugging Face folder of a language model.
            prompts: The prompts.
            samples: Of each prompt.

        Raises:
            ConfigError: A setting is out of its range.
        """
        from transformer_jax.decoding.requests import GenerationRequest
        from transformer_jax.predictors.runs import as_trained

        prepare = as_trained(run, trim=False)
        base = GenerationRequest(
            "",
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
            num_return_sequences=samples,
        )
        asked = lambda prompt: (
            {"prompt": prepare(prompt)} if isinstance(prompt, str) else {"messages": tuple(prompt)}
        )
        return [
            dataclasses.replace(base, number=i, **asked(prompt)) for i, prompt in enumerate(prompts)
        ]


def read_asked(path: Path) -> "list[Prompt]":
    """The prompts of a file: its lines, or of a ``.jsonl`` file ``"prompt"`` or ``"messages"``.

    Raises:
        DataError: The file cannot be read or is empty, a line is no prompt, or some are texts and
            others conversations.
    """
    from transformer_jax.data.preferences import read_preferences
    from transformer_jax.data.text import read_lines

    if path.name.removesuffix(".gz").endswith(".jsonl"):
        return read_preferences(path, "prompts", where="prompts").prompts
    found: list[Prompt] = list(read_lines(path, "prompts"))
    if not any(found):
        raise DataError(f"{path}: no prompts: it is empty")
    return found


def text_of(prompt: "Prompt | tuple[Message, ...]") -> str:
    """What a rule is given as the prompt: the text, or the last message of a conversation."""
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])


def completing(
    run: Path, checkpoint: str, *, conversational: bool
) -> "Callable[[Sequence[GenerationRequest]], Iterable[list[Continuation]]]":
    """A model as a function of requests.

    Args:
        run: Run directory or Hugging Face folder of a language model.
        checkpoint: Of the run.
        conversational: Whether the requests are conversations.

    Raises:
        ConfigError: The run is no language model, or has no chat template that is needed.
        CheckpointError: The run does not exist, or is damaged.
    """
    from transformer_jax.predictors.chats import load_chat
    from transformer_jax.predictors.runs import as_trained, load_language

    if not conversational:
        return load_language(run, checkpoint).generate
    chat, prepare = load_chat(run, checkpoint), as_trained(run, trim=False)
    return lambda requests: chat.language.generate([chat.request(one, prepare) for one in requests])

"""Conversations with a language model, turn by turn; only new tokens are computed."""

import dataclasses
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from transformer_jax.core.errors import DataError, plural
from transformer_jax.data.chat.encoding import ChatEncoder
from transformer_jax.data.conversations import Message
from transformer_jax.data.coverage import unknown_texts
from transformer_jax.decoding.language import DecoderLanguageModel
from transformer_jax.decoding.partial_text import GenerationSequence, KeptContext, stable_prefix
from transformer_jax.decoding.requests import Continuation, GenerationRequest
from transformer_jax.decoding.text_generation import CausalTextGenerator

__all__ = ["ChatModel", "ChatSession", "fit_messages"]


def fit_messages(
    encoder: ChatEncoder,
    messages: Sequence[Message],
    limit: int,
    room: int | None = None,
    most: int | None = None,
) -> tuple[list[int], int]:
    """Returns the ids before an answer, and the number of oldest messages that are dropped.

    Complete turns are dropped, the oldest first; a system prompt at the beginning and the last user
    message are kept.

    Args:
        encoder: Encoder with the chat template.
        messages: The conversation; the last message is not from the assistant.
        limit: Turns are dropped if there are more ids than this.
        room: Number of ids to reduce to then, if possible; None is ``limit``.
        most: Maximum number of ids if nothing can be dropped; None is ``limit``.

    Raises:
        DataError: The last message alone is too long, or the template refuses the conversation.
    """
    ids, most = encoder.prompt(messages), limit if most is None else most
    if len(ids) <= limit:
        return ids, 0
    start = int(messages[0]["role"] == "system")
    turns = [i for i in range(start, len(messages)) if messages[i]["role"] == "user"]
    first = start
    if len(turns) > 1:
        prompt = lambda first: encoder.prompt([*messages[:start], *messages[first:]])
        first, ids = _longest(prompt, turns[1:], limit if room is None else room)
    if len(ids) > most:
        raise DataError(
            f"the message has {plural(len(ids), 'token')} with its template and system prompt, but "
            f"the context of the model allows {most}: shorten it, or the system prompt"
        )
    return ids, first - start


def _longest(
    prompt: Callable[[int], list[int]], turns: Sequence[int], limit: int
) -> tuple[int, list[int]]:
    """Returns the earliest turn from which the prompt has at most ``limit`` tokens, and the prompt.

    If even the last turn is too long, it is returned. The search doubles the number of turns, so
    its work depends on the limit and not on the number of turns.
    """
    fits, ids, least = len(turns) - 1, prompt(turns[-1]), -1  # turns[least] does not fit
    step = 1
    while fits - least > 1 and len(ids) <= limit:
        middle = max(fits - step, least + 1) if least < 0 else (fits + least) // 2
        longer = prompt(turns[middle])
        if len(longer) <= limit:
            fits, ids, step = middle, longer, 2 * step
        else:
            least = middle
    return turns[fits], ids


class ChatModel:
    """A language model that answers conversations with a chat template.

    The KV cache of the last conversation is kept: for a conversation with the same beginning, only
    the rest is computed. Answers are the same as without a cache.

    Attributes:
        language: The language model, with the template's end token, which prepares messages as
            prompts.
        encoder: Encoder of conversations.
    """

    def __init__(self, language: DecoderLanguageModel, encoder: ChatEncoder):
        """Initializes it with a language model and its encoder of conversations.

        Raises:
            ConfigError: The chat template does not end answers with a special token.
        """
        self.language, self.encoder = language.ending_at(encoder.end_tokens), encoder
        self._kept = KeptContext()

    def sequence(self, messages: Sequence[Message], request: GenerationRequest) -> "PendingAnswer":
        """Returns the answer to a conversation of prepared messages, before its first token.

        Raises:
            ConfigError: The template is refused.
            DataError: The conversation does not fit in the context, or the template refuses it.
        """
        ids, dropped = self._fit(messages, request)
        self._count(messages)
        request = dataclasses.replace(request, prompt_ids=tuple(ids))
        sequence = next(self.language.sequences(request, 0))
        sequence.kept = self._kept
        return PendingAnswer(self.language, sequence, dropped)

    def _count(self, messages: Sequence[Message]) -> None:
        """Counts a conversation, as the prompts of the language model."""
        said = "\n".join(one["content"] for one in messages if one["role"] != "assistant")
        unknown = unknown_texts([said], self.language.tokenizer)
        self.language.counts.update(prompts=1, unknown=unknown)

    def _fit(
        self, messages: Sequence[Message], request: GenerationRequest
    ) -> tuple[list[int], int]:
        context = self.language.context
        reserve = min(request.new_tokens(0), context // 4)
        return fit_messages(self.encoder, messages, context - reserve, context // 2, context)

    def request(self, request: GenerationRequest) -> GenerationRequest:
        """Replaces the conversation of a request, if any, by its ids for ``language``.

        Raises:
            DataError: The conversation does not fit in the context, or the template refuses it.
        """
        if request.messages is None:
            return request
        messages = self.prepared(request.messages)
        ids, _ = self._fit(messages, request)
        self._count(messages)
        return dataclasses.replace(request, prompt_ids=tuple(ids))

    def dropped(self, request: GenerationRequest) -> int:
        """Returns the number of oldest messages of a request that do not fit into the context.

        Raises:
            DataError: The conversation does not fit in the context, or the template refuses it.
        """
        return self._fit(self.prepared(request.messages or ()), request)[1]

    def prepared(self, messages: Sequence[Mapping[str, Any]]) -> list[Message]:
        """Returns messages with the texts that the model reads."""
        prepare = self.language.prepare
        return [{**one, "content": prepare(one["content"])} for one in messages]

    def answer(self, messages: Sequence[Message], request: GenerationRequest) -> Continuation:
        """Returns the answer to a conversation; see :meth:`sequence`."""
        answer = self.sequence(self.prepared(messages), request)
        for _ in answer.stream():
            pass
        return answer.sequence.done()


@dataclasses.dataclass(frozen=True)
class PendingAnswer:
    """An answer in progress."""

    language: CausalTextGenerator
    sequence: GenerationSequence
    dropped: int  # number of oldest messages that were dropped

    def stream(self) -> Iterator[str]:
        """Yields the text in parts, each as soon as it is final."""
        return self.language.stream_sequence(self.sequence)


class ChatSession:
    """A conversation of several turns.

    When the context is full, the oldest turns are dropped until half of it is free; the system
    prompt is kept.

    Attributes:
        messages: All messages so far, including dropped ones.
        finish_reason: The reason why the last answer ended.
        context_full: Whether the model's context truncated the last answer, rather than the limit
            of the request.
        dropped: Number of oldest messages, after the system prompt, that were dropped.
        counts: Numbers of messages of the last turn, of which the first brings the system prompt,
            with text that the tokenizer does not know: ``unknown``.
    """

    def __init__(self, model: ChatModel, system: str | None = None):
        self._model = model
        self.messages: list[Message] = []
        self.dropped, self.finish_reason, self.context_full = 0, "", False
        self.counts: dict[str, int] = {"unknown": 0}
        self.set_system(system)

    def set_system(self, text: str | None) -> None:
        """Sets the system prompt and forgets the conversation; None or "" removes the prompt."""
        text = self._model.language.prepare(text or "")
        self.messages = [{"role": "system", "content": text}] if text else []
        self.dropped = 0

    def reset(self) -> None:
        """Forgets the conversation, except the system prompt."""
        self.messages = self.messages[: self._start]
        self.dropped = 0

    @property
    def context(self) -> int:
        """The context length of the model in tokens."""
        return self._model.language.context

    @property
    def _start(self) -> int:
        return int(bool(self.messages) and self.messages[0]["role"] == "system")

    def ask(self, text: str, request: GenerationRequest) -> Generator[str, None, None]:
        """Yields the answer to a user message, in parts.

        If the iteration stops early, the partial answer is added to the conversation.

        Args:
            text: The message.
            request: Settings of the answer; its prompt is ignored.

        Raises:
            DataError: The message is too long, or the template refuses it; the message is then
                discarded.
        """
        said = {"role": "user", "content": self._model.language.prepare(text)}
        start = self._start
        seen: list[Any] = [*self.messages[:start], *self.messages[start + self.dropped :], said]
        new = [one["content"] for one in (seen if not self.messages[start:] else [said])]
        self.counts = {"unknown": unknown_texts(new, self._model.language.tokenizer)}
        turn = sum(message["role"] == "user" for message in self.messages)
        answer = self._model.sequence(seen, dataclasses.replace(request, number=turn))
        self.messages.append(said)
        self.dropped += answer.dropped
        try:
            yield from answer.stream()
        finally:
            sequence = answer.sequence
            text = sequence.text if sequence.finish_reason else stable_prefix(sequence.text, ())
            self.finish_reason = sequence.finish_reason or "length"
            cut = sequence.finish_reason == "length"
            self.context_full = cut and len(sequence.tokens) < sequence.limit
            self.messages.append({"role": "assistant", "content": text})

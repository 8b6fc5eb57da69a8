"""Conversations as token ids, and which of these are answers.

Time and memory are linear in the messages: a conversation is rendered and tokenized once, and
whatever else is rendered or tokenized to find its answers is a part of bounded size.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from transformer_jax.chat.answer_finder import AnswerFinder
from transformer_jax.chat.rendered_tokens import MarkedRenderer, MarkedText, PartTokenizer
from transformer_jax.chat.template import ChatTemplate
from transformer_jax.data.conversations import Message
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.errors import ConfigError, DataError

__all__ = ["ChatEncoder", "EncodedChat"]

# Characters of the conversations that are tokenized together.
_CHARACTERS = 1_000_000
_TURN: list[Message] = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
]


class EncodedChat(NamedTuple):
    """A conversation as token ids."""

    ids: list[int]
    answers: np.ndarray  # bool, which of the ids are answers and their end tokens


class ChatEncoder:
    """Conversations to token ids, by a chat template.

    Special tokens of the template become their ids, as in ``apply_chat_template`` of Hugging Face
    transformers. Those that a message spells out stay text: nobody ends a turn by writing its end.

    Attributes:
        template: The chat template.
        tokenizer: Tokenizer of the model.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate):
        """Takes the tokenizer and the template.

        Raises:
            ConfigError: The template ends answers with no special token of the tokenizer.
        """
        self.template, self.tokenizer = template, tokenizer
        self._texts = PartTokenizer(tokenizer)
        self._renderer = MarkedRenderer(template, self._texts.special)
        self._finder = AnswerFinder(self._renderer, template.name)

    @functools.cached_property
    def end_tokens(self) -> tuple[int, ...]:
        """The tokens that end an answer: that of the template, and EOS.

        Raises:
            ConfigError: The template ends answers with no special token of the tokenizer.
        """
        try:
            [encoded] = self.encode([_TURN])
            last = encoded.ids[int(np.flatnonzero(encoded.answers)[-1])]
        except DataError as error:
            raise ConfigError(str(error)) from None
        if last == self.tokenizer.unk or last not in self._texts.special.values():
            raise ConfigError(self._no_end())
        return tuple(dict.fromkeys((last, self.tokenizer.eos)))

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The ids that an answer to the last message follows.

        Raises:
            ConfigError: The template is refused.
            DataError: The template refuses the conversation.
        """
        return self._prompts([messages])[0]

    def _prompts(self, chats: Sequence[Sequence[Message]]) -> list[list[int]]:
        rendered = [self._renderer.render(chat, add_generation_prompt=True) for chat in chats]
        return [tokens.ids for tokens in self._texts.encode(rendered)]

    def encode(self, chats: Sequence[Sequence[Message]]) -> list[EncodedChat]:
        """The ids of whole conversations, and which are answers.

        Answers are what ``{% generation %}`` tags of the template hold. Without tags, they are what
        follows the text that asks for the answer, up to the next special token.

        Raises:
            ConfigError: The template is refused.
            DataError: The template refuses a conversation; or it is not clear which tokens are
                answers, because the tokens before an answer are others without it.
        """
        encoded: list[EncodedChat] = []
        for group in _groups(chats):
            encoded += self._encode_group(group)
        return encoded

    def _encode_group(self, chats: Sequence[Sequence[Message]]) -> Iterator[EncodedChat]:
        rendered = [self._renderer.render(chat) for chat in chats]
        spans = [self._spans(chat, one) for chat, one in zip(chats, rendered, strict=True)]
        encoded = self._texts.encode(rendered)
        starts = [[start for start, _ in found] for found in spans]
        firsts = self._texts.count_before(rendered, encoded, starts)
        for one, found, tokens, counts in zip(rendered, spans, encoded, firsts, strict=True):
            answers = np.zeros(len(tokens.ids), bool)
            for number, ((start, end), first) in enumerate(zip(found, counts, strict=True)):
                if first is None:
                    raise DataError(
                        f"answer {number + 1}: the tokens before it are others without it, so that "
                        f"it cannot be told from its prompt: strip what it begins with "
                        f"({one.text[start : start + 8]!r})"
                    )
                stop = tokens.next_special(first) if end is None else tokens.count_from(end)
                if stop is None:
                    raise DataError(self._no_end())
                answers[first:stop] = True
            yield EncodedChat(tokens.ids, answers)

    def _spans(
        self, chat: Sequence[Message], rendered: MarkedText
    ) -> Sequence[tuple[int, int | None]]:
        """The characters of each answer; an end of None is the next special token."""
        if not self.template.marks_answers:
            return [(start, None) for start in self._finder.starts(chat, rendered.text)]
        count = sum(message["role"] == "assistant" for message in chat)
        if len(rendered.answers) != count:
            raise DataError(
                f"{self.template.name} shows {len(rendered.answers)} of the {count} answers"
            )
        return rendered.answers

    def encode_answers(
        self, chats: Sequence[Sequence[Message]], answers: Sequence[str]
    ) -> list[tuple[list[int], list[int]]]:
        """For each conversation the ids that its answer follows, and those of the answer.

        The last of an answer is the token that ends it.

        Args:
            chats: Conversations whose last message is not of the assistant.
            answers: An answer to each.

        Raises:
            ConfigError: The template is refused.
            DataError: As of :meth:`encode`.
        """
        prompts = self._prompts(chats)
        said: list[Message] = [{"role": "assistant", "content": text} for text in answers]
        wholes = self.encode([[*chat, one] for chat, one in zip(chats, said, strict=True)])
        found = []
        for prompt, whole in zip(prompts, wholes, strict=True):
            if whole.ids[: len(prompt)] != prompt:
                raise DataError(
                    f"{self.template.name} writes what stands before an answer otherwise when it "
                    f"asks for it, so that the answer cannot be told apart"
                )
            end = int(np.flatnonzero(whole.answers)[-1]) + 1
            found.append((prompt, whole.ids[len(prompt) : end]))
        return found

    def _no_end(self) -> str:
        return (
            f"{self.template.name} ends answers with no special token of the tokenizer, so that "
            f"nothing would end what the model writes: add the special tokens of the template, or "
            f"choose another template"
        )


def _groups(chats: Sequence[Sequence[Message]]) -> Iterator[list[Sequence[Message]]]:
    """Conversations that are tokenized together."""
    group: list[Sequence[Message]] = []
    characters = 0
    for chat in chats:
        group.append(chat)
        characters += sum(len(message["content"]) for message in chat)
        if characters > _CHARACTERS:
            yield group
            group, characters = [], 0
    yield group

"""Conversations as token ids, and which of these are answers."""

import functools
import itertools
import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from transformer_jax.chat.template import ChatTemplate
from transformer_jax.data.conversations import Message
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.errors import ConfigError, DataError

__all__ = ["ChatEncoder", "EncodedChat"]

# Stands within special tokens that a message spells out, so that they stay text. One of the last
# characters of Unicode, which no text holds.
_MARKS = ("\U0010fffd", "\U0010fffc", "\U0010fffb", "\U0010fffa")
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
        backend = tokenizers.Tokenizer.from_str(tokenizer.text)
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        added = json.loads(tokenizer.text).get("added_tokens", ())
        self._special = {one["content"]: one["id"] for one in added if one.get("special")}
        names = sorted(self._special, key=len, reverse=True)
        self._spelled = re.compile("|".join(map(re.escape, names)) or "(?!)")

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
        if last == self.tokenizer.unk or last not in self._special.values():
            raise ConfigError(self._no_end())
        return tuple(dict.fromkeys((last, self.tokenizer.eos)))

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The ids that an answer to the last message follows.

        Raises:
            ConfigError: The template is refused.
            DataError: The template refuses the conversation.
        """
        text, cuts, _ = self._render(messages, add_generation_prompt=True)
        return self._ids([(text, cuts)])[0][0]

    def encode(self, chats: Sequence[Sequence[Message]]) -> list[EncodedChat]:
        """The ids of whole conversations, and which are answers.

        Answers are what ``{% generation %}`` tags of the template hold. Without tags, they are what
        follows the text that asks for the answer, up to the next special token.

        Raises:
            ConfigError: The template is refused.
            DataError: The template refuses a conversation; or it is not clear which tokens are
                answers, because the tokens before an answer are others without it.
        """
        rendered = [self._render(chat) for chat in chats]
        spans = [
            list(answers) if self.template.marks_answers else self._starts(chat, text)
            for chat, (text, _, answers) in zip(chats, rendered, strict=True)
        ]
        wholes = self._ids([(text, cuts) for text, cuts, _ in rendered])
        before = iter(
            self._ids(
                [
                    (text[:start], [cut for cut in cuts if cut < start])
                    for (text, cuts, _), found in zip(rendered, spans, strict=True)
                    for start, _ in found
                ]
            )
        )
        encoded = []
        for chat, (text, _, _), found, (ids, offsets) in zip(
            chats, rendered, spans, wholes, strict=True
        ):
            answers = np.zeros(len(ids), bool)
            said = [message["content"] for message in chat if message["role"] == "assistant"]
            if len(found) != len(said):
                raise DataError(
                    f"{self.template.name} shows {len(found)} of the {len(said)} answers"
                )
            for number, (start, end) in enumerate(found):
                first = next(before)[0]
                if ids[: len(first)] != first:
                    raise DataError(
                        f"answer {number + 1}: the tokens before it are others without it, so that "
                        f"it cannot be told from its prompt: strip what it begins with "
                        f"({text[start : start + 8]!r})"
                    )
                stop = self._end(ids, offsets, len(first), end)
                answers[len(first) : stop] = True
            encoded.append(EncodedChat(ids, answers))
        return encoded

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
        rendered = [self._render(chat, add_generation_prompt=True) for chat in chats]
        prompts = self._ids([(text, cuts) for text, cuts, _ in rendered])
        said: list[Message] = [{"role": "assistant", "content": text} for text in answers]
        wholes = self.encode([[*chat, one] for chat, one in zip(chats, said, strict=True)])
        found = []
        for (prompt, _), whole in zip(prompts, wholes, strict=True):
            if whole.ids[: len(prompt)] != prompt:
                raise DataError(
                    f"{self.template.name} writes what stands before an answer otherwise when it "
                    f"asks for it, so that the answer cannot be told apart"
                )
            end = int(np.flatnonzero(whole.answers)[-1]) + 1
            found.append((prompt, whole.ids[len(prompt) : end]))
        return found

    def _end(
        self, ids: list[int], offsets: list[tuple[int, int]], first: int, end: int | None
    ) -> int:
        """The index after the last token of an answer that begins with token ``first``."""
        if end is not None:
            return sum(start < end for start, _ in offsets)
        special = set(self._special.values())
        for i in range(first, len(ids)):
            if ids[i] in special:
                return i + 1
        raise DataError(self._no_end())

    def _no_end(self) -> str:
        return (
            f"{self.template.name} ends answers with no special token of the tokenizer, so that "
            f"nothing would end what the model writes: add the special tokens of the template, or "
            f"choose another template"
        )

    def _starts(self, chat: Sequence[Message], text: str) -> list[tuple[int, int | None]]:
        """Where each answer starts: after the text that asks for it."""
        found: list[tuple[int, int | None]] = []
        for i, message in enumerate(chat):
            if message["role"] != "assistant":
                continue
            follows = i > 0 and chat[i - 1]["role"] == "user"
            start = self._after_asking(chat[:i], text)
            # Some templates ask after messages alone, or after those of the user alone.
            if start is None or not (follows or text.endswith(self._header, 0, start)):
                start = None if follows else self._after_header(chat, i, text)
            if start is None:
                raise DataError(
                    f"message {i + 1}: {self.template.name} writes what stands before this answer "
                    f"otherwise when it asks for it, and has no {{% generation %}} tags, so that "
                    f"answers cannot be told apart"
                )
            found.append((start, None))
        return found

    def _after_asking(self, chat: Sequence[Message], text: str) -> int | None:
        try:
            asked = self._render(chat, add_generation_prompt=True)[0]
        except DataError:
            if chat:
                raise
            return None  # the template looks at the first message
        return len(asked) if text.startswith(asked) else None

    def _after_header(self, chat: Sequence[Message], number: int, text: str) -> int | None:
        """Where an answer starts that follows no message of the user, or nothing at all.

        Up to its content the text is the same whatever that is; what asks for answers elsewhere
        stands there.
        """
        others = [
            self._render([*chat[:number], {**chat[number], "content": said}, *chat[number + 1 :]])
            for said in ("a", "b")
        ]
        end = min(_shared(text, other) for other, _, _ in others)
        start = text.rfind(self._header, 0, end) + len(self._header)
        right = start >= len(self._header) > 0 and not text[start:end].strip()
        return start if right else None

    @functools.cached_property
    def _header(self) -> str:
        """What the template writes to ask for an answer."""
        plain, asked = (
            self._render(_TURN[:1], add_generation_prompt=asks)[0] for asks in (False, True)
        )
        return asked[_shared(plain, asked) :]

    def _render(
        self, messages: Sequence[Message], **how: Any
    ) -> tuple[str, list[int], tuple[tuple[int, int], ...]]:
        """The text, where it must be cut so that spelled special tokens stay text, and answers."""
        contents = "".join(message["content"] for message in messages)
        if not self._spelled.search(contents):
            text, answers = self.template.render(messages, **how)
            return text, [], answers
        mark = next((one for one in _MARKS if one not in contents), None)
        if mark is None:
            raise DataError(f"a message spells a special token and {_MARKS[0]!r}: leave one out")
        parted = lambda found: found[0][0] + mark + found[0][1:]
        marked = [
            {**message, "content": self._spelled.sub(parted, message["content"])}
            for message in messages
        ]
        text, answers = self.template.render(marked, **how)
        places = [match.start() for match in re.finditer(mark, text)]
        moved = lambda at: at - sum(place < at for place in places)
        cuts = [place - number for number, place in enumerate(places)]
        return text.replace(mark, ""), cuts, tuple((moved(a), moved(b)) for a, b in answers)

    def _ids(
        self, texts: Sequence[tuple[str, list[int]]]
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Ids of texts and their spans of characters; no token crosses a cut."""
        pieces, origins = [], []
        for number, (text, cuts) in enumerate(texts):
            bounds = [0, *cuts, len(text)]
            for start, end in itertools.pairwise(bounds):
                pieces.append(text[start:end])
                origins.append((number, start))
        found: list[tuple[list[int], list[tuple[int, int]]]] = [([], []) for _ in texts]
        encodings = self._backend.encode_batch(pieces, add_special_tokens=False)
        for (number, at), encoding in zip(origins, encodings, strict=True):
            ids, offsets = found[number]
            ids += encoding.ids
            offsets += [(start + at, end + at) for start, end in encoding.offsets]
        return found


def _shared(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))

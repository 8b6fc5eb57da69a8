"""Conversations as token ids, with answers marked; special tokens in messages stay text.

Time and memory are linear in the messages: a conversation is rendered and tokenized once, and any
further rendering or tokenizing to locate its answers is limited to parts of bounded size.
"""

import bisect
import functools
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Encoding

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.chat.template import ChatTemplate
from transformer_jax.data.conversations import Message
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_files.opening import guarded, open_backend

__all__ = [
    "AnswerFinder",
    "ChatEncoder",
    "EncodedChat",
    "MarkedRenderer",
    "MarkedText",
    "PartTokenizer",
    "TextTokens",
]

# Inserted into special tokens that a message spells out, so that they stay text. One of the last
# characters of Unicode, which no text contains.
_MARKS = ("\U0010fffd", "\U0010fffc", "\U0010fffb", "\U0010fffa")


# Characters that are tokenized in one go, and roughly together: tokenizing takes many times the
# memory of the tokens.
_CHUNK, _TOGETHER = 20_000, 200_000
_AT_ONCE = 500  # number of ends of texts that are tokenized together
_FLAGS = ("lstrip", "single_word", "normalized")


class MarkedText(NamedTuple):
    """A conversation as text."""

    text: str
    cuts: list[int]  # no token crosses these characters
    answers: tuple[tuple[int, int], ...]  # character spans within ``{% generation %}`` tags


class MarkedRenderer:
    """Renders conversations, and records where messages spell out special tokens."""

    def __init__(self, template: ChatTemplate, special: Iterable[str]):
        self._template = template
        self._spelled = _any_of(special)

    def render(self, messages: Sequence[Message], **variables: Any) -> MarkedText:
        """Renders a conversation.

        Raises:
            ConfigError: The template is refused.
            DataError: The template refuses the conversation; or a message spells out a special
                token and contains all characters that could separate it.
        """
        if not any(self._spelled.search(message["content"]) for message in messages):
            text, answers = self._template.render(messages, **variables)
            return MarkedText(text, [], answers)
        contents = [message["content"] for message in messages]
        free = (mark for mark in _MARKS if not any(mark in content for content in contents))
        if (mark := next(free, None)) is None:
            raise DataError(f"a message spells a special token and {_MARKS[0]!r}: leave one out")
        parted = lambda found: found[0][0] + mark + found[0][1:]
        marked = [
            {**message, "content": self._spelled.sub(parted, message["content"])}
            for message in messages
        ]
        text, answers = self._template.render(marked, **variables)
        places = [match.start() for match in re.finditer(mark, text)]
        moved = lambda at: at - bisect.bisect_left(places, at)
        cuts = [place - number for number, place in enumerate(places)]
        spans = tuple((moved(start), moved(end)) for start, end in answers)
        return MarkedText(text.replace(mark, ""), cuts, spans)


class TextTokens(NamedTuple):
    """The tokens of a rendered conversation.

    Attributes:
        ids: The ids.
        spans: Start and end of each token in the text, int32 ``[T 2]``.
        parts: First character and first token of each part between cuts.
        special: Indices of the tokens that are special tokens of the text.
    """

    ids: list[int]
    spans: np.ndarray
    parts: list[tuple[int, int]]
    special: np.ndarray

    def count_from(self, end: int) -> int:
        """Returns the number of tokens that start before a character."""
        return int(np.searchsorted(self.spans[:, 0], end))

    def next_special(self, first: int) -> int | None:
        """Returns the index after the next special token from ``first`` on; None without one."""
        at = int(np.searchsorted(self.special, first))
        return int(self.special[at]) + 1 if at < len(self.special) else None


class _Prefix(NamedTuple):
    """The end of a text before an answer, whose tokens do not depend on anything earlier."""

    text: str
    token: int  # index in the conversation of the first token to compare
    skipped: tuple[int, ...]  # ids of special tokens; the first compared token is the last of them


class _Chunk(NamedTuple):
    """A part of a text that is tokenized in one go."""

    number: int  # of the text
    begin: int
    end: int
    fresh: bool  # whether a cut or nothing is before it


class _Parts:
    """The tokens of the chunks of a text."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.spans: list[np.ndarray] = []
        self.parts: list[tuple[int, int]] = []

    def add(self, chunk: _Chunk, encoding: Encoding) -> None:
        if chunk.fresh:
            self.parts.append((chunk.begin, len(self.ids)))
        self.ids += encoding.ids
        self.spans.append(np.array(encoding.offsets, np.int32).reshape(-1, 2) + chunk.begin)


class PartTokenizer:
    """Tokenizes rendered conversations.

    Attributes:
        special: Ids of special tokens, by their text.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._backend = open_backend(tokenizer.text)
        added = json.loads(tokenizer.text).get("added_tokens", ())
        self.special: dict[str, int] = {
            one["content"]: one["id"] for one in added if one.get("special")
        }
        self._names = {id: name.strip() for name, id in self.special.items()}
        # A text can be divided before special tokens that are recognized by their characters alone;
        # its tokens are then those of its parts.
        plain = not any(one.get(flag) for one in added for flag in _FLAGS)
        self._divides = _any_of(self.special) if plain and self.special else None

    def encode(self, rendered: Sequence[MarkedText]) -> list[TextTokens]:
        """Returns the tokens of texts; no token crosses a cut."""
        parts = [_Parts() for _ in rendered]
        for group in _token_groups(self._chunks(rendered)):
            texts = [rendered[chunk.number].text[chunk.begin : chunk.end] for chunk in group]
            with guarded():
                encodings = self._backend.encode_batch(texts, add_special_tokens=False)
            for chunk, encoding in zip(group, encodings, strict=True):
                parts[chunk.number].add(chunk, encoding)
        return [self._join(one.text, found) for one, found in zip(rendered, parts, strict=True)]

    def _chunks(self, rendered: Sequence[MarkedText]) -> Iterator["_Chunk"]:
        """Splits texts at cuts, and long parts also before special tokens."""
        for number, (text, cuts, _) in enumerate(rendered):
            for start, end in itertools.pairwise([0, *cuts, len(text)]):
                begin = start
                if self._divides is not None:
                    for match in self._divides.finditer(text, start, end):
                        if match.start() - begin >= _CHUNK:
                            yield _Chunk(number, begin, match.start(), begin == start)
                            begin = match.start()
                yield _Chunk(number, begin, end, begin == start)

    def _join(self, text: str, parts: "_Parts") -> TextTokens:
        ids, at = parts.ids, np.concatenate(parts.spans)
        # The unknown token may stand for a text that does not spell it.
        special = [
            i
            for i, id in enumerate(ids)
            if id in self._names and self._names[id] in text[at[i, 0] : at[i, 1]]
        ]
        return TextTokens(ids, at, parts.parts, np.array(special, np.int64))

    def count_before(
        self,
        rendered: Sequence[MarkedText],
        encoded: Sequence[TextTokens],
        starts: Sequence[Sequence[int]],
    ) -> list[list[int | None]]:
        """The number of tokens of each text before given characters.

        Args:
            rendered: Conversations.
            encoded: Their tokens.
            starts: Characters in each.

        Returns:
            For each conversation and character, the number; None if the tokens of the text up to
            there are not the first tokens of the complete text.
        """
        asked = [
            [self._prefix(one.text, tokens, start) for start in places]
            for one, tokens, places in zip(rendered, encoded, starts, strict=True)
        ]
        texts = [prefix.text for row in asked for prefix in row]
        found = self._encode_prefixes(texts)
        return [
            [_count(tokens.ids, prefix, next(found)) for prefix in row]
            for tokens, row in zip(encoded, asked, strict=True)
        ]

    def _encode_prefixes(self, texts: Sequence[str]) -> Iterator[list[int]]:
        for first in range(0, len(texts), _AT_ONCE):
            part = list(texts[first : first + _AT_ONCE])
            with guarded():
                encodings = self._backend.encode_batch_fast(part, add_special_tokens=False)
            yield from (encoding.ids for encoding in encodings)

    def _prefix(self, text: str, tokens: TextTokens, start: int) -> _Prefix:
        """Returns the end of ``text[:start]``.

        It begins one special token before the first token to compare: tokens after a special token
        depend on nothing before it, but a tokenizer may treat the first characters of a text
        differently, or merge the blanks around a special token into it.
        """
        place = bisect.bisect_left(tokens.parts, (start, 0)) - 1
        begin, first = tokens.parts[max(place, 0)]
        count = int(np.searchsorted(tokens.spans[tokens.special, 1], start, "right"))
        if count >= 2:
            at = tokens.special[count - 2 : count]
            if tokens.spans[at[0], 0] >= begin:
                names = tuple(tokens.ids[i] for i in at)
                return _Prefix(text[tokens.spans[at[0], 0] : start], int(at[1]), names)
        return _Prefix(text[begin:start], first, ())


def _count(ids: list[int], prefix: _Prefix, found: list[int]) -> int | None:
    """The number of tokens up to the end of a prefix; None if the complete text's tokens differ."""
    at = -1
    for id in prefix.skipped:
        at = found.index(id, at + 1)
    tail = found[max(at, 0) :]
    same = ids[prefix.token : prefix.token + len(tail)] == tail
    return prefix.token + len(tail) if same else None


def _token_groups(chunks: Iterable[_Chunk]) -> Iterator[list[_Chunk]]:
    """Groups chunks that are tokenized together."""
    group: list[_Chunk] = []
    size = 0
    for chunk in chunks:
        group.append(chunk)
        size += chunk.end - chunk.begin
        if size >= _TOGETHER:
            yield group
            group, size = [], 0
    if group:
        yield group


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    """A pattern that matches any of the texts, preferring the longest."""
    ordered = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) or "(?!)")


_ASKED: list[Message] = [{"role": "user", "content": "a"}]
# Longest conversation that is rendered up to each of its answers. Longer ones are rendered in
# overlapping parts of half this length.
_MOST = 64


class AnswerFinder:
    """Locates answers, each of which begins after the text that prompts for it.

    Args:
        renderer: Renders conversations with the template.
        name: Name of the template, for messages.
    """

    def __init__(self, renderer: MarkedRenderer, name: str):
        self._renderer, self._name = renderer, name

    def starts(self, chat: Sequence[Message], text: str) -> list[int]:
        """Returns the first character of each answer.

        A conversation of more than 64 messages is rendered in parts, each with the system prompt,
        so that the work grows only linearly. If the concatenated parts do not give the text, the
        conversation is rendered up to each answer instead.

        Args:
            chat: The conversation.
            text: The conversation as text.

        Raises:
            ConfigError: The template is refused.
            DataError: The template changes the text before an answer when it prompts for the
                answer.
        """
        if len(chat) > _MOST:
            try:
                starts = self._starts_by_parts(chat, text)
            except DataError:
                starts = None  # of a part, which does not match the conversation
            if starts is not None:
                return starts
        return self._starts_one_by_one(chat, text)

    def _starts_by_parts(self, chat: Sequence[Message], text: str) -> list[int] | None:
        """Computes the same from parts; None if the text does not consist of them.

        A part begins with the turn before the last answer of the previous part, so it contains the
        text from there to the next answer.
        """
        system = list(chat[: int(chat[0]["role"] == "system")])
        begin, known = len(system), -1  # the last message whose answer is located
        found: list[int] = []
        while True:
            end = begin + _MOST // 2
            while end < len(chat) and not _answers(chat, max(begin, known + 1), end):
                end += _MOST // 2
            end = min(end, len(chat))
            part = [*system, *chat[begin:end]]
            shown = self._renderer.render(part).text
            starts = self._starts_one_by_one(part, shown)
            numbers = _answers(chat, begin, end)
            if known < 0 and not numbers:
                return []  # no answer in the complete conversation
            if known < 0 and starts:
                if not text.startswith(shown[: starts[0]]):
                    return None
                found.append(starts[0])
                known = numbers[0]
            if known not in numbers:
                return None
            at = numbers.index(known)
            for one, next_one in zip(starts[at:], starts[at + 1 :], strict=False):
                if not text.startswith(shown[one:next_one], found[-1]):
                    return None
                found.append(found[-1] + next_one - one)
            if end == len(chat):
                return found if text[found[-1] :] == shown[starts[-1] :] else None
            known = numbers[-1]
            users = [i for i in range(begin + 1, known) if chat[i]["role"] == "user"]
            begin = users[-min(2, len(users))] if users else max(begin, known - 1)

    def _starts_one_by_one(self, chat: Sequence[Message], text: str) -> list[int]:
        found: list[int] = []
        for i, message in enumerate(chat):
            if message["role"] != "assistant":
                continue
            follows = i > 0 and chat[i - 1]["role"] == "user"
            start = self._after_asking(chat[:i], text)
            # Some templates only prompt after messages, or only after user messages.
            if start is None or not (follows or text.endswith(self._header, 0, start)):
                start = None if follows else self._after_header(chat, i, text)
            if start is None:
                raise DataError(
                    f"message {i + 1}: {self._name} writes the text before this answer "
                    f"differently when it prompts for it, and has no {{% generation %}} tags, so "
                    f"that answers cannot be located"
                )
            found.append(start)
        return found

    def _after_asking(self, chat: Sequence[Message], text: str) -> int | None:
        try:
            asked = self._renderer.render(chat, add_generation_prompt=True).text
        except DataError:
            if chat:
                raise
            return None  # the template looks at the first message
        return len(asked) if text.startswith(asked) else None

    def _after_header(self, chat: Sequence[Message], number: int, text: str) -> int | None:
        """Returns the start of an answer that does not follow a user message.

        Up to its content, the text is the same for any content, and ends with the text that prompts
        for answers elsewhere.
        """
        others = [
            self._renderer.render(
                [*chat[:number], {**chat[number], "content": said}, *chat[number + 1 :]]
            ).text
            for said in ("a", "b")
        ]
        end = min(_shared(text, other) for other in others)
        start = text.rfind(self._header, 0, end) + len(self._header)
        right = start >= len(self._header) > 0 and not text[start:end].strip()
        return start if right else None

    @functools.cached_property
    def _header(self) -> str:
        """The text with which the template prompts for an answer."""
        plain, asked = (
            self._renderer.render(_ASKED, add_generation_prompt=asks).text for asks in (False, True)
        )
        return asked[_shared(plain, asked) :]


def _answers(chat: Sequence[Message], begin: int, end: int) -> list[int]:
    """The indices of answers among messages."""
    numbers = range(begin, min(end, len(chat)))
    return [i for i in numbers if chat[i]["role"] == "assistant"]


def _shared(one: str, other: str) -> int:
    """Returns the length of the longest common prefix of two texts."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


# Number of characters of conversations that are tokenized together.
_CHARACTERS = 1_000_000
_TURN: list[Message] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


class EncodedChat(NamedTuple):
    """A conversation as token ids."""

    ids: list[int]
    answers: np.ndarray  # bool, True for ids of answers and their end tokens


class ChatEncoder:
    """Encodes conversations with a chat template.

    Special tokens of the template become their ids, as in ``apply_chat_template`` of Hugging Face
    transformers. If a message spells one out, it stays text, so nobody can end a turn by writing
    its end token.

    Attributes:
        template: The chat template.
        tokenizer: The model's tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate):
        """Stores the tokenizer and the template.

        Raises:
            ConfigError: The template does not end answers with a special token of the tokenizer.
        """
        self.template, self.tokenizer = template, tokenizer
        self._texts = PartTokenizer(tokenizer)
        self._renderer = MarkedRenderer(template, self._texts.special)
        self._finder = AnswerFinder(self._renderer, template.name)

    @functools.cached_property
    def end_tokens(self) -> tuple[int, ...]:
        """The tokens that end an answer: the template's, and EOS.

        Raises:
            ConfigError: The template does not end answers with a special token of the tokenizer.
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
        """Returns the ids before an answer to the last message.

        Raises:
            ConfigError: The template is refused.
            DataError: The template refuses the conversation.
        """
        return self._prompts([messages])[0]

    def _prompts(self, chats: Sequence[Sequence[Message]]) -> list[list[int]]:
        rendered = [self._renderer.render(chat, add_generation_prompt=True) for chat in chats]
        return [tokens.ids for tokens in self._texts.encode(rendered)]

    def encode(self, chats: Sequence[Sequence[Message]]) -> list[EncodedChat]:
        """Encodes complete conversations, with answers marked.

        Answers are inside the ``{% generation %}`` tags of the template. Without tags, they follow
        the text that prompts for them, up to the next special token.

        Raises:
            ConfigError: The template is refused.
            DataError: The template refuses a conversation; or it is ambiguous which tokens are
                answers, because the tokens before an answer differ without it.
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
                        f"answer {number + 1}: the tokens before it change without it, so that "
                        f"it cannot be separated from its prompt: strip its beginning "
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
        """Yields the character span of each answer; an end of None is the next special token."""
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
        """For each conversation, returns the ids before its answer, and the ids of the answer.

        The last id of an answer is the token that ends it.

        Args:
            chats: Conversations whose last message is not from the assistant.
            answers: An answer to each.

        Raises:
            ConfigError: The template is refused.
            DataError: As for :meth:`encode`.
        """
        prompts = self._prompts(chats)
        said: list[Message] = [{"role": "assistant", "content": text} for text in answers]
        wholes = self.encode([[*chat, one] for chat, one in zip(chats, said, strict=True)])
        found = []
        for prompt, whole in zip(prompts, wholes, strict=True):
            if whole.ids[: len(prompt)] != prompt:
                raise DataError(
                    f"{self.template.name} writes the text before an answer differently when it "
                    f"prompts for it, so that the answer cannot be located"
                )
            end = int(np.flatnonzero(whole.answers)[-1]) + 1
            found.append((prompt, whole.ids[len(prompt) : end]))
        return found

    def _no_end(self) -> str:
        return (
            f"{self.template.name} does not end answers with a special token of the tokenizer: "
            f"nothing would end what the model writes: add the special tokens of the template, or "
            f"choose another template"
        )


def _groups(chats: Sequence[Sequence[Message]]) -> Iterator[list[Sequence[Message]]]:
    """Groups conversations that are tokenized together."""
    group: list[Sequence[Message]] = []
    characters = 0
    for chat in chats:
        group.append(chat)
        characters += sum(len(message["content"]) for message in chat)
        if characters > _CHARACTERS:
            yield group
            group, characters = [], 0
    yield group

"""Tokenization of rendered conversations; special tokens that messages spell out stay text."""

import bisect
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Encoding

from transformer_jax.core.errors import DataError
from transformer_jax.data.chat.template import ChatTemplate
from transformer_jax.data.conversations import Message
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_files.opening import guarded, open_backend

__all__ = ["MarkedRenderer", "MarkedText", "PartTokenizer", "TextTokens"]

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
        for group in _groups(self._chunks(rendered)):
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


def _groups(chunks: Iterable[_Chunk]) -> Iterator[list[_Chunk]]:
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

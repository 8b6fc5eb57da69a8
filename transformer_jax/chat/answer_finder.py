"""The beginnings of answers in a conversation whose template does not mark them."""

import functools
from collections.abc import Sequence

from transformer_jax.chat.rendered_tokens import MarkedRenderer
from transformer_jax.data.conversations import Message
from transformer_jax.errors import DataError

__all__ = ["AnswerFinder"]

_TURN: list[Message] = [{"role": "user", "content": "a"}]
# Messages that are rendered up to each of their answers. Longer conversations are rendered in
# parts of half of it, which overlap.
_MOST = 64


class AnswerFinder:
    """Finds answers: an answer begins after the text that asks for it.

    Args:
        renderer: Renders conversations by the template.
        name: The name of the template, for messages.
    """

    def __init__(self, renderer: MarkedRenderer, name: str):
        self._renderer, self._name = renderer, name

    def starts(self, chat: Sequence[Message], text: str) -> list[int]:
        """The first character of each answer.

        A conversation of more than 64 messages is rendered in parts, each with the system prompt,
        so that the work grows with the messages alone. Where the text is not that of its parts one
        after the other, the conversation is rendered up to each answer.

        Args:
            chat: The conversation.
            text: The conversation as text.

        Raises:
            ConfigError: The template is refused.
            DataError: The text before an answer is another one when the template asks for it.
        """
        if len(chat) > _MOST:
            try:
                starts = self._starts_by_parts(chat, text)
            except DataError:
                starts = None  # of a part, which is not the conversation
            if starts is not None:
                return starts
        return self._starts_one_by_one(chat, text)

    def _starts_by_parts(self, chat: Sequence[Message], text: str) -> list[int] | None:
        """The same by parts of the conversation; None if the text is not made of them.

        A part begins with the turn before the last answer of the part before, so that the text from
        there to the next answer is in it.
        """
        system = list(chat[: int(chat[0]["role"] == "system")])
        begin, known = len(system), -1  # the last message whose answer is found
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
            # Some templates ask after messages alone, or after those of the user alone.
            if start is None or not (follows or text.endswith(self._header, 0, start)):
                start = None if follows else self._after_header(chat, i, text)
            if start is None:
                raise DataError(
                    f"message {i + 1}: {self._name} writes what stands before this answer "
                    f"otherwise when it asks for it, and has no {{% generation %}} tags, so that "
                    f"answers cannot be told apart"
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
        """Returns the start of an answer that follows no message of the user, or nothing at all.

        Up to its content the text is the same whatever that is; what asks for answers elsewhere
        stands there.
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
        """The text by which the template asks for an answer."""
        plain, asked = (
            self._renderer.render(_TURN, add_generation_prompt=asks).text for asks in (False, True)
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

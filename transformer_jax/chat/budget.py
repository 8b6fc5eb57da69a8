"""What a template may spend: counted work, so that a refusal depends on no clock."""

import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from typing import Any

from jinja2.utils import Namespace

__all__ = ["Budget", "TemplateTooExpensive", "spend", "spending", "weigh"]

# Numbers that size something, such as the width of a filter.
MOST_NUMBER = 10_000
# Bits of an integer: beyond, products take long.
_BITS = 256


class TemplateTooExpensive(Exception):  # noqa: N818  (a refusal)
    """A template that loops, or writes, more than any layout of a conversation needs."""


class Budget:
    """Steps that are left to a template, the longest text that it may make, and what it wrote.

    Args:
        messages: Messages of the conversation.
        characters: Characters of what the template reads.
    """

    def __init__(self, messages: int, characters: int):
        self.steps = 50_000 + 1_000 * messages + characters
        self.longest = 100_000 + 16 * characters
        self.written = 0
        self.answers: list[tuple[int, int]] = []

    def spend(self, steps: int) -> None:
        """Takes ``steps``.

        Raises:
            TemplateTooExpensive: Fewer are left.
        """
        self.steps -= steps
        if self.steps < 0:
            raise TemplateTooExpensive("it loops longer than a conversation of this size needs")

    def text(self, length: int) -> None:
        """Takes the steps of a text of so many characters.

        Raises:
            TemplateTooExpensive: The text is too long.
        """
        if length > self.longest:
            raise TemplateTooExpensive("it makes a text far longer than the conversation")
        self.spend(1 + length // 64)

    def write(self, text: str) -> str:
        """``text``, the next part of what is written.

        Raises:
            TemplateTooExpensive: The whole is too long.
        """
        self.written += len(text)
        self.text(self.written if self.written > self.longest else len(text))
        return text

    def note_answer(self, length: int) -> None:
        """Notes that the next so many characters to be written are an answer."""
        self.answers.append((self.written, self.written + length))


_CURRENT: contextvars.ContextVar[Budget | None] = contextvars.ContextVar("budget", default=None)


@contextlib.contextmanager
def spending(budget: Budget) -> Iterator[None]:
    """Context in which templates spend ``budget``."""
    token = _CURRENT.set(budget)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def spend(steps: int = 1) -> Budget:
    """Takes steps of the current budget, and returns it.

    Raises:
        TemplateTooExpensive: Fewer are left.
    """
    budget = _CURRENT.get()
    if budget is None:
        raise TemplateTooExpensive("it runs before it is asked to")
    budget.spend(steps)
    return budget


def weigh(value: Any) -> Any:
    """``value``, whose characters and items the budget pays.

    A list that holds a list twice counts it twice, as whoever prints or compares it does.

    Raises:
        TemplateTooExpensive: There are too many.
    """
    budget, waiting = spend(), [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            budget.text(len(one))
        elif isinstance(one, int):
            if one.bit_length() > _BITS:
                raise TemplateTooExpensive("it computes a number of too many digits")
        elif isinstance(one, Mapping):
            budget.spend(1 + len(one))
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            budget.spend(1 + len(one))
            waiting += one
        elif isinstance(one, Namespace):
            waiting.append(one._Namespace__attrs)  # type: ignore[attr-defined]
    return value

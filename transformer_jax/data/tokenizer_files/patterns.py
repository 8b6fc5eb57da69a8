"""Regular expressions that cannot backtrack for long, recognized by their form."""

import re
from typing import NamedTuple

__all__ = ["Pattern", "examine"]

# An escape that stands for one character: a property, a code, a class, or the character itself.
_ESCAPE = re.compile(
    r"\\(?:[pP]\{\^?\w+\}|x\{[0-9a-fA-F]{1,8}\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}"
    r"|[sSdDwWhHrntfvae]|[^0-9a-zA-Z])"
)
_ANCHOR = re.compile(r"\\[AzZbB]|[\^$]")
_GROUP = re.compile(r"\((?:\?(?:[im]*:|>|<?[=!]))?")
_QUANTIFIER = re.compile(r"([?*+]|\{(\d{1,5})(,?)(\d{0,5})\})")
_DEEPEST = 8
_BOUNDED = 16  # repetitions that do not count as unlimited ones


class Pattern(NamedTuple):
    """The result of :func:`examine`.

    Attributes:
        safe: Whether the work at each character is at most proportional to the text.
        least: The length of the shortest match, 0 if unknown.
    """

    safe: bool
    least: int


class _Part(NamedTuple):
    """A part of an expression.

    Attributes:
        least: The length of its shortest match.
        unlimited: The number of repetitions without limit that one match may go through.
        may_fail: Whether there are texts that it does not match.
        repeats: Whether it contains repetitions or alternatives.
    """

    least: int
    unlimited: int
    may_fail: bool
    repeats: bool


class _Unknown(Exception):  # noqa: N818  (no error of the program)
    """The expression has another form."""


def examine(text: str) -> Pattern:
    r"""Recognizes expressions in which a failure is found quickly.

    Alternatives may have two unlimited repetitions if nothing required follows the second one; a
    repeated group is at most optional. The expressions of GPT-2, GPT-4, Llama 3, Qwen, DeepSeek and
    CLIP, and those that SentencePiece models need, have this form. Other expressions may be
    harmless too.

    Example:
        >>> examine(r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)| {2,}")
        Pattern(safe=True, least=1)
        >>> examine("(a+)+$"), examine("a*a*b"), examine(r"(.)\1")
        (Pattern(safe=False, least=0), Pattern(safe=False, least=0), Pattern(safe=False, least=0))
    """
    try:
        reader = _Reader(text)
        part = reader.alternatives(0)
        if not reader.at_end():
            raise _Unknown
    except _Unknown:
        return Pattern(False, 0)
    return Pattern(True, part.least)


class _Reader:
    """Reads an expression from left to right."""

    def __init__(self, text: str):
        self._text = text
        self._at = 0

    def at_end(self) -> bool:
        return self._at >= len(self._text)

    def alternatives(self, depth: int) -> _Part:
        """Reads up to the end of a group."""
        parts = [self._sequence(depth)]
        while self._next("|"):
            parts.append(self._sequence(depth))
        return _Part(
            min(part.least for part in parts),
            max(part.unlimited for part in parts),
            all(part.may_fail for part in parts),
            len(parts) > 1 or parts[0].repeats,
        )

    def _sequence(self, depth: int) -> _Part:
        least, unlimited, may_fail, repeats = 0, 0, False, False
        while not self.at_end() and self._text[self._at] not in "|)":
            part = self._quantified(depth)
            # After the second repetition, a failure would try all lengths of both.
            if unlimited + part.unlimited > 2 or (unlimited == 2 and part.may_fail):
                raise _Unknown
            least += part.least
            unlimited += part.unlimited
            may_fail = may_fail or part.may_fail
            repeats = repeats or part.repeats
        return _Part(least, unlimited, may_fail, repeats)

    def _quantified(self, depth: int) -> _Part:
        part, single = self._item(depth)
        found = _QUANTIFIER.match(self._text, self._at)
        if found is None:
            return part
        self._at = found.end()
        lazy = self._next("?") or self._next("+")
        if found[2] is not None:
            if lazy or not (single or found[0] == "{1}"):
                raise _Unknown
            first = int(found[2])
            last = first if not found[3] else int(found[4]) if found[4] else None
        else:
            first, last = {"?": (0, 1), "*": (0, None), "+": (1, None)}[found[1]]
        if _QUANTIFIER.match(self._text, self._at) or not (single or (first, last) == (0, 1)):
            raise _Unknown
        more = int(last is None or last > _BOUNDED)
        return _Part(first * part.least, part.unlimited + more, first > 0 and part.may_fail, True)

    def _item(self, depth: int) -> tuple[_Part, bool]:
        """Reads an item; returns it, and whether it is a single character."""
        if found := _ANCHOR.match(self._text, self._at):
            self._at = found.end()
            return _Part(0, 0, True, False), False
        if self._text[self._at] == "(":
            return self._group(depth), False
        self._character()
        return _Part(1, 0, True, False), True

    def _group(self, depth: int) -> _Part:
        found = _GROUP.match(self._text, self._at)
        if found is None or depth == _DEEPEST:
            raise _Unknown
        self._at = found.end()
        if found[0] == "(" and self._text.startswith("?", self._at):
            raise _Unknown
        inner = self.alternatives(depth + 1)
        if not self._next(")"):
            raise _Unknown
        looks = found[0][-1] in "=!"
        return _Part(0, inner.unlimited, True, True) if looks else inner

    def _character(self) -> None:
        """Reads a character, an escape or a class."""
        if self._text[self._at] == "[":
            self._class(0)
        elif self._text[self._at] == "\\":
            self._escape()
        elif self._text[self._at] in "?*+{":
            raise _Unknown
        else:
            self._at += 1

    def _escape(self) -> None:
        found = _ESCAPE.match(self._text, self._at)
        if found is None:
            raise _Unknown
        self._at = found.end()

    def _class(self, depth: int) -> None:
        """Reads ``[...]``, with classes inside."""
        self._at += 1
        self._next("^")
        first = self._at
        while not self.at_end() and depth < _DEEPEST:
            if self._text[self._at] == "]" and self._at > first:
                self._at += 1
                return
            if self._text[self._at] == "[":
                self._class(depth + 1)
            elif self._text[self._at] == "\\":
                self._escape()
            else:
                self._at += 1
        raise _Unknown

    def _next(self, text: str) -> bool:
        """Reads ``text`` if it is next."""
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

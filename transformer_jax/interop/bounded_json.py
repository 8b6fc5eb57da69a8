"""JSON from strangers, read member by member: no value is built that was not asked for."""

import json
import re
from collections.abc import Iterator

__all__ = ["Cursor"]

_LONGEST = 10_000_000  # bytes of a string
_BLANK = rb"[ \t\r\n]*+"
# Possessive, so that no text makes the pattern try twice.
_TEXT = re.compile(_BLANK + rb'("[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+")')
_SCALAR = re.compile(_BLANK + rb"(-?[0-9][-+.0-9eE]{0,40}|true|false|null)")
_LIST = re.compile(_BLANK + rb"(\[[^\[\]{}]{0,2000}+\])")
_OPEN = re.compile(_BLANK + rb"(\{)")
_CLOSE = re.compile(_BLANK + rb"(\})")
_COLON = re.compile(_BLANK + rb"(:)")
_NEXT = re.compile(_BLANK + rb"([,}])")
_END = re.compile(_BLANK + rb"()\Z")


class Cursor:
    """A cursor in JSON text whose shape the reader knows beforehand.

    The reader asks for what must come next, so the depth is that of the questions, and what was
    not asked for ends the reading with a ValueError of a few words. Memory is that of the answers.

    Example:
        >>> cursor = Cursor(b'{"a": "x", "b": [1, 2]}', 10)
        >>> [cursor.values() if name == "b" else cursor.text() for name in cursor.members()]
        ['x', [1, 2]]
    """

    def __init__(self, data: bytes, most: int):
        """A cursor at the beginning of ``data``, which may hold ``most`` members in all."""
        self._data = data
        self._at = 0
        self._left = most

    def members(self) -> Iterator[str]:
        """The names in an object, each once; its value is to be taken before the next is asked."""
        self._take(_OPEN, "an object {...}")
        if self._maybe(_CLOSE) is not None:
            return
        seen: set[str] = set()
        while True:
            name = self.text()
            if name in seen:
                raise ValueError(f"the key {name[:80]!r} comes twice")
            seen.add(name)
            self._left -= 1
            if self._left < 0:
                raise ValueError("it has too many keys")
            self._take(_COLON, "a colon")
            yield name
            if self._take(_NEXT, "a comma or }") == b"}":
                return

    def text(self) -> str:
        """A string, which is valid Unicode."""
        raw = self._take(_TEXT, "a string")
        if len(raw) > _LONGEST:
            raise ValueError(f"it has a string of {len(raw)} bytes, {_LONGEST} is the most")
        if b"\\" not in raw:
            return raw[1:-1].decode("utf-8")
        text = json.loads(raw.decode("utf-8"))
        text.encode("utf-8")  # "\\ud800" is half a character
        return text

    def values(self) -> list[object]:
        """A short list of anything but lists and objects."""
        return json.loads(self._take(_LIST, "a short list of numbers").decode("utf-8"))

    def scalar(self) -> object:
        """A string, a number, true, false or null."""
        found = self._maybe(_SCALAR)
        return self.text() if found is None else json.loads(found)

    def end(self) -> None:
        """Nothing follows but blanks."""
        self._take(_END, "nothing more")

    def _maybe(self, pattern: re.Pattern[bytes]) -> bytes | None:
        match = pattern.match(self._data, self._at)
        if match is None:
            return None
        self._at = match.end()
        return match[1]

    def _take(self, pattern: re.Pattern[bytes], what: str) -> bytes:
        found = self._maybe(pattern)
        if found is None:
            raise ValueError(f"at byte {self._at} it should have {what}")
        return found

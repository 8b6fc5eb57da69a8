"""Reads untrusted JSON member by member, without building values that are not requested."""

import json
import re
from collections.abc import Iterator

__all__ = ["Cursor"]

_LONGEST = 10_000_000  # maximum bytes of a string
_BLANK = rb"[ \t\r\n]*+"
# Possessive quantifiers prevent backtracking.
_TEXT = re.compile(_BLANK + rb'("[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+")')
_SCALAR = re.compile(_BLANK + rb"(-?[0-9][-+.0-9eE]{0,40}|true|false|null)")
_LIST = re.compile(_BLANK + rb"(\[[^\[\]{}]{0,2000}+\])")
_OPEN = re.compile(_BLANK + rb"(\{)")
_CLOSE = re.compile(_BLANK + rb"(\})")
_COLON = re.compile(_BLANK + rb"(:)")
_NEXT = re.compile(_BLANK + rb"([,}])")
_END = re.compile(_BLANK + rb"()\Z")


class Cursor:
    """A cursor in JSON text of known structure.

    The caller requests what must come next; anything else raises a short ValueError. So depth and
    memory are bounded by the requests.

    Example:
        >>> cursor = Cursor(b'{"a": "x", "b": [1, 2]}', 10)
        >>> [cursor.values() if name == "b" else cursor.text() for name in cursor.members()]
        ['x', [1, 2]]
    """

    def __init__(self, data: bytes, most: int):
        """Creates a cursor at the start of ``data``, with at most ``most`` members in total."""
        self._data = data
        self._at = 0
        self._left = most

    def members(self) -> Iterator[str]:
        """Yields the names in an object, each once; the caller must read each value in between."""
        self._take(_OPEN, "an object {...}")
        if self._maybe(_CLOSE) is not None:
            return
        seen: set[str] = set()
        while True:
            name = self.text()
            if name in seen:
                raise ValueError(f"duplicate key {name[:80]!r}")
            seen.add(name)
            self._left -= 1
            if self._left < 0:
                raise ValueError("it has too many keys")
            self._take(_COLON, "a colon")
            yield name
            if self._take(_NEXT, "a comma or }") == b"}":
                return

    def text(self) -> str:
        """Reads a string of valid Unicode."""
        raw = self._take(_TEXT, "a string")
        if len(raw) > _LONGEST:
            raise ValueError(f"it has a string of {len(raw)} bytes, more than {_LONGEST}")
        if b"\\" not in raw:
            return raw[1:-1].decode("utf-8")
        text = json.loads(raw.decode("utf-8"))
        text.encode("utf-8")  # "\\ud800" is a lone surrogate
        return text

    def values(self) -> list[object]:
        """Reads a short list of anything but lists and objects."""
        return json.loads(self._take(_LIST, "a short list of numbers").decode("utf-8"))

    def scalar(self) -> object:
        """Reads a string, a number, true, false or null."""
        found = self._maybe(_SCALAR)
        return self.text() if found is None else json.loads(found)

    def end(self) -> None:
        """Checks that only blanks follow."""
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

"""Bytes of a file that is read once, up to a mark or by their number."""

import io

__all__ = ["BufferedBytes"]

_BLOCK = 1 << 20  # bytes


class BufferedBytes:
    """A file of which a little more than a block is in memory at any time.

    Example:
        >>> import io
        >>> data = BufferedBytes(io.BytesIO(b"one two"))
        >>> data.until(b" ", 10), data.until(b" ", 10), data.take(2), data.take(5)
        (b'one ', None, b'tw', b'o')
    """

    def __init__(self, file: io.BufferedIOBase):
        self._file = file
        self._held, self._at, self._ended = b"", 0, False

    def peek(self, count: int) -> bytes:
        """Returns the next bytes without taking them; fewer at the end of the file."""
        while len(self._held) - self._at < count and not self._ended:
            block = self._file.read(max(_BLOCK, count))
            self._ended = not block
            self._held, self._at = self._held[self._at :] + block, 0
        return self._held[self._at : self._at + count]

    def take(self, count: int) -> bytes:
        """Returns the next bytes; fewer at the end of the file."""
        taken = self.peek(count)
        self._at += len(taken)
        return taken

    def until(self, mark: bytes, most: int) -> bytes | None:
        """Takes the bytes up to a mark, with the mark; None, and nothing, if it is not near.

        Args:
            mark: One byte.
            most: The bytes in which the mark is looked for.
        """
        end = self._held.find(mark, self._at, self._at + most)
        if end < 0:
            self.peek(most)
            end = self._held.find(mark, self._at, self._at + most)
        return None if end < 0 else self.take(end + 1 - self._at)

"""Lines of text files, numbered as by ``wc -l`` and verified to be text."""

import codecs
import errno
import gzip
import io
import os
import pathlib
import stat
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from transformer_jax.core.errors import CheckpointError, DataError
from transformer_jax.core.storage.copies import fetched
from transformer_jax.data.bad_rows import FIRST, RowErrors
from transformer_jax.data.files import open_file

__all__ = [
    "check_readable",
    "decode_lines",
    "flaw_of",
    "numbered_lines",
    "open_bytes",
    "read_lines",
    "refuse_pipe",
]


_LONGEST_LINE = 128 << 20  # bytes
# From so many bytes on, what is unpacked may be so many times as long as what was read of the
# archive. Text in a language is 2 to 10 times as long as its archive.
_SMALL, _MOST_UNPACKED = 1 << 22, 200
_BLOCK = 1 << 16  # bytes
# Beginnings of files that are no plain text, and what to do.
_KINDS = {
    b"\x1f\x8b": "a .gz archive: give it a name that ends in .gz",
    b"PK\x03\x04": "a zip archive or a workbook: unpack it, or save it as text in UTF-8",
    codecs.BOM_UTF16_LE: "UTF-16: convert it to UTF-8 (iconv -f utf-16 -t utf-8)",
    codecs.BOM_UTF16_BE: "UTF-16: convert it to UTF-8 (iconv -f utf-16 -t utf-8)",
}


def decode_lines(lines: Iterable[bytes], name: str) -> Iterator[str]:
    r"""Decodes raw lines, without their line ends.

    Only ``\n`` ends a line: a lone carriage return and the Unicode separators, at which
    ``str.splitlines`` would split, are ordinary characters, so two aligned files stay aligned. One
    ``\r`` before the line end (CRLF) is dropped, and so is a byte order mark at the very start.

    Args:
        lines: Byte strings that each end with ``\n``, except possibly the last: a file opened in
            binary mode, or ``sys.stdin.buffer``.
        name: Name of the input for messages.

    Raises:
        DataError: A line is not UTF-8, holds a NUL character or is longer than 128 MiB; the message
            begins with ``name:line``.

    Example:
        >>> list(decode_lines([b"\xef\xbb\xbfone\r\n", b"\n", b"two\rthree"], "example"))
        ['one', '', 'two\rthree']
        >>> list(decode_lines([b"caf\xe9\n"], "menu.txt"))
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.DataError: menu.txt:1: not UTF-8 (byte 0xe9 at column 4): ...
    """
    for _, texts in _decoded(lines, name, FIRST):
        yield from texts


def _decoded(lines: Iterable[bytes], name: str, rows: RowErrors) -> Iterator[tuple[int, list[str]]]:
    """Yields decoded lines, many at a time, with the number of the first."""
    number = 1
    for block in _blocks(lines, name) if isinstance(lines, io.BufferedIOBase) else lines:
        if number == 1:
            block = block.removeprefix(codecs.BOM_UTF8)
        texts = _texts(block)
        if texts is None:
            for raw in block.removesuffix(b"\n").split(b"\n"):
                with rows:
                    yield number, [_text(raw, f"{name}:{number}")]
                number += 1
        else:
            yield number, texts
            number += len(texts)


def _blocks(file: io.BufferedIOBase, name: str) -> Iterator[bytes]:
    """Yields the lines of a file as soon as they are available, many at a time.

    A small .gz with one line of several gigabytes is refused before all of it is in memory.
    """
    number, begun, size = 1, list[bytes](), 0
    while piece := file.read1(_BLOCK):
        head, end, tail = piece.rpartition(b"\n")
        size += piece.index(b"\n") if end else len(piece)
        if size > _LONGEST_LINE:
            if b"\0" in (first := (begun or [piece])[0]):
                _text(first, f"{name}:{number}")
            raise DataError(
                f"{name}:{number}: longer than {_LONGEST_LINE >> 20:,} MiB: this is not text in "
                f"lines; cut it into lines"
            )
        if end:
            block = b"".join([*begun, head, end])
            yield block
            number, begun, size = number + block.count(b"\n"), [], len(tail)
        begun.append(tail)
    if size:
        yield b"".join(begun)


def _texts(block: bytes) -> list[str] | None:
    """Decodes lines without their ends; None if one of them is not text."""
    if b"\0" in block:
        return None
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError:
        return None
    lines = text.removesuffix("\n").split("\n")
    return [line.removesuffix("\r") for line in lines] if "\r" in text else lines


def _text(raw: bytes, where: str) -> str:
    """Decodes a line.

    Raises:
        DataError: It is not text.
    """
    raw = raw.removesuffix(b"\r")
    for begin, kind in _KINDS.items():
        if where.endswith(":1") and raw.startswith(begin):
            raise DataError(f"{where}: not text in UTF-8, but {kind}")
    if b"\0" in raw:
        raise DataError(
            f"{where}: a NUL character at column {raw.index(0) + 1}: this is not text, or it is "
            f"UTF-16; convert it to UTF-8"
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: not UTF-8 (byte {raw[error.start]:#04x} at column {error.start + 1}): "
            f"convert the file, for example from Latin-1 (iconv -f latin1 -t utf-8)"
        ) from None


def open_bytes(path: str | pathlib.Path, flag: str = "") -> io.BufferedIOBase:
    """Opens a file for reading bytes, decompressed if its name ends in ``.gz``.

    Args:
        path: The file.
        flag: The setting of the file, for messages.

    Raises:
        DataError: The file is missing, a folder, a device, a pipe without a writer, or not
            readable.
    """
    path = local_data(path, flag)
    where = f"{flag} {path}" if flag else str(path)
    try:
        file = open_file(path)
        if path.suffix != ".gz":
            return file
        return io.BufferedReader(_Unpacked(file), _BLOCK)
    except FileNotFoundError:
        raise DataError(f"{where}: no such file (looked from {pathlib.Path.cwd()})") from None
    except IsADirectoryError:
        raise DataError(f"{where}: this is a folder; a file is needed") from None
    except OSError as error:
        raise DataError(f"{where}: cannot be read: {error.strerror or error}") from None


class _Unpacked(io.RawIOBase):
    """The content of an archive, whose length is not out of proportion to it."""

    def __init__(self, file: io.BufferedReader):
        self._file = file
        self._unpacked = gzip.GzipFile(fileobj=file, mode="rb")
        self._limited = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        self._size = 0

    def readable(self) -> bool:
        """True."""
        return True

    def fileno(self) -> int:
        """The file descriptor of the archive."""
        return self._file.fileno()

    def readinto(self, buffer: Any) -> int:
        """Unpacks into ``buffer``; returns the number of bytes."""
        part = self._unpacked.read1(len(buffer))
        self._size += len(part)
        if self._limited and self._size > max(_SMALL, _MOST_UNPACKED * self._file.tell()):
            raise OSError(
                errno.EFBIG,
                f"it is more than {_MOST_UNPACKED} times as long as its archive, which text is "
                f"not: unpack it first if it is meant to be",
            )
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        """Closes the archive."""
        if not self.closed:
            self._unpacked.close()
            self._file.close()
        super().close()


def local_data(path: str | os.PathLike[str], flag: str = "") -> pathlib.Path:
    """Returns a local copy of the file or folder at a URL; a local path is returned unchanged.

    Args:
        path: A local path or a URL.
        flag: The setting of the path, for messages.

    Raises:
        DataError: There is nothing, or it cannot be read.
    """
    try:
        return fetched(path)
    except CheckpointError as error:
        raise DataError(f"{flag} {error}".lstrip()) from None


def flaw_of(text: str) -> str | None:
    r"""Describes the first defect of a text; None without one.

    Example:
        >>> flaw_of("a\0"), flaw_of("a")
        ('holds NUL', None)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds half a character (a lone surrogate)"
    return "holds NUL" if "\0" in text else None


def read_lines(path: str | pathlib.Path, flag: str = "") -> Iterator[str]:
    """Yields the lines of a text file; see ``decode_lines`` and ``open_bytes``.

    Their number is the result of ``wc -l``, plus one if the last line has no end.

    Raises:
        DataError: The file cannot be read, is not UTF-8, holds NUL, or is a damaged ``.gz``.
    """
    for _, texts in _file_lines(path, flag, FIRST):
        yield from texts


def numbered_lines(
    path: str | pathlib.Path, flag: str = "", rows: RowErrors = FIRST
) -> Iterator[tuple[int, str]]:
    """Yields the lines of a file in which each line is a row, with their numbers from 1.

    Args:
        path: The file.
        flag: The setting of the file, for messages.
        rows: Collects the lines that are not text, which are left out.

    Raises:
        DataError: As for :func:`read_lines`.
    """
    for first, texts in _file_lines(path, flag, rows):
        yield from enumerate(texts, first)


def _file_lines(
    path: str | pathlib.Path, flag: str, rows: RowErrors
) -> Iterator[tuple[int, list[str]]]:
    """Yields the lines of a file as :func:`_decoded`."""
    with open_bytes(path, flag) as file:
        try:
            yield from _decoded(file, str(path), rows)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path}: the .gz is cut or damaged ({error}): get it again") from None
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def refuse_pipe(path: str | pathlib.Path, flag: str = "") -> None:
    """Refuses a pipe or a device, for what is read more than once.

    Args:
        path: The file; if it is missing, opening it gives the reason.
        flag: The setting of the file, for messages.

    Raises:
        DataError: It can be read only once.
    """
    try:
        kind = os.stat(path).st_mode
    except OSError:
        return
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise DataError(
            f"{flag} {path}: a pipe or a device, and this is read more than once: copy it to a "
            f"file first".lstrip()
        )


def check_readable(path: str | pathlib.Path, flag: str = "") -> None:
    """Refuses a file that cannot be read, or whose beginning is not text.

    Input that can be read only once, such as pipes and terminals, is not touched.

    Args:
        path: The file.
        flag: The setting of the file, for messages.

    Raises:
        DataError: As for ``open_bytes`` and ``decode_lines``, for the first line.
    """
    try:
        kind = os.stat(path).st_mode
    except OSError:
        kind = 0  # opening it gives the reason
    if stat.S_ISREG(kind):
        next(read_lines(path, flag), None)
    elif not stat.S_ISFIFO(kind):
        open_bytes(path, flag).close()

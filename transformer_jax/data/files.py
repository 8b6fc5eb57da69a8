"""Files that end: what might be waited for without end is refused before it is read."""

import errno
import io
import os
import pathlib
import select
import stat
import time
from typing import Any

__all__ = ["open_file", "read_file"]

_PATIENCE = 2.0  # seconds for whoever writes to a pipe to open it


def open_file(path: str | os.PathLike[str]) -> io.BufferedReader:
    """A file, or a pipe that somebody writes to, opened for reading bytes.

    A pipe without a writer would be waited for without end, and devices such as ``/dev/zero`` have
    none.

    Raises:
        OSError: It is missing, may not be read, a folder, a device, or a pipe without a writer;
            ``strerror`` says which.

    Example:
        >>> open_file("/dev/zero")
        Traceback (most recent call last):
        ...
        OSError: [Errno 22] it is a device, and a file is needed: '/dev/zero'
    """
    # Without O_NONBLOCK, opening a pipe waits for its writer.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        kind = os.fstat(handle).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if stat.S_ISFIFO(kind):
            begun = _first_bytes(handle, str(path))
            os.set_blocking(handle, True)
            return io.BufferedReader(_Begun(begun, handle))
        if not (stat.S_ISREG(kind) or os.isatty(handle) or str(path) == os.devnull):
            raise OSError(errno.EINVAL, "it is a device, and a file is needed", str(path))
        if os.isatty(handle):
            os.set_blocking(handle, True)
        return open(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_file(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """All bytes of a file, for what is read as a whole and must not be a pipe.

    Args:
        path: The file.
        most: Bytes that are allowed; None is any number.

    Raises:
        OSError: As :func:`open_file`; or it is a pipe, or larger; ``strerror`` says which.
    """
    path = pathlib.Path(path)
    if stat.S_ISFIFO(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is a pipe, and a file is needed", str(path))
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise OSError(
                errno.EFBIG, f"it has {size:,} bytes, and {most:,} are allowed", str(path)
            )
        return file.read()


def _first_bytes(handle: int, path: str) -> bytes:
    """What a pipe has to say first; nothing if its writer is there, but still silent."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            begun = os.read(handle, 1 << 16)
        except BlockingIOError:
            return b""
        if begun:
            return begun
        # Either nobody has opened it yet, or whoever did has closed it again.
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        closed = any(event & select.POLLHUP for _, event in poll.poll(50))
        if closed:
            return b""
        if time.monotonic() > end:
            raise OSError(errno.EINVAL, "it is a pipe that nobody writes to", path)


class _Begun(io.RawIOBase):
    """A pipe whose first bytes were read already."""

    def __init__(self, begun: bytes, handle: int):
        self._begun, self._handle = begun, handle

    def readable(self) -> bool:
        """It is."""
        return True

    def fileno(self) -> int:
        """The system's number of the pipe."""
        return self._handle

    def readinto(self, buffer: Any) -> int:
        """Fills what fits into ``buffer``, and returns how much that is."""
        taken = self._begun[: len(buffer)] or os.read(self._handle, len(buffer))
        self._begun = self._begun[len(taken) :]
        buffer[: len(taken)] = taken
        return len(taken)

    def close(self) -> None:
        """Closes the pipe."""
        if not self.closed:
            os.close(self._handle)
        super().close()

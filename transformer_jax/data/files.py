"""Opening of files; devices, and pipes without a writer, are refused since they never end."""

import errno
import io
import os
import posixpath
import select
import stat
import time
from typing import Any

from transformer_jax.core.errors import DataError
from transformer_jax.core.storage.copies import local_file
from transformer_jax.core.storage.urls import is_url

__all__ = ["listed_path", "open_file", "read_file"]

_PATIENCE = 2.0  # seconds to wait for a pipe's writer


def listed_path(name: str, folder: str | os.PathLike[str], place: str) -> str:
    """Returns the path of a file that another file names, relative to a folder.

    A name in a file never makes the program talk to another machine: the user names those. So a
    file in an object store names only files in its own folder there.

    Args:
        name: The name in the file.
        folder: The folder to which names are relative, usually that of the file.
        place: File and line, with which messages begin.

    Raises:
        DataError: The name is a URL, or leads out of the folder in an object store.

    Example:
        >>> listed_path("a.png", "pictures", "pictures/table.csv:2")
        'pictures/a.png'
        >>> listed_path("s3://bucket/a.png", "pictures", "pictures/table.csv:2")
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.DataError: pictures/table.csv:2: s3://bucket/a.png is on ...
    """
    here = os.fspath(folder)
    inner = name
    if is_url(name):
        inside = is_url(here) and name.startswith(f"{here.rstrip('/')}/")
        inner = name[len(here.rstrip("/")) + 1 :] if inside else ""
        if not inside:
            raise DataError(
                f"{place}: {name} is on another machine, which only a command may name: copy the "
                f"file here, and name the copy"
            )
    if not is_url(here) or os.path.isabs(inner):
        return os.path.join(here, inner)
    inner = posixpath.normpath(inner)
    if inner.split("/")[0] == "..":
        raise DataError(f"{place}: {name} is not in {here}: copy the file there")
    return f"{here.rstrip('/')}/{inner}"


def open_file(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Opens a file, a pipe with a writer, or the local copy of a URL, for reading bytes.

    Reading a pipe without a writer would block, and devices such as ``/dev/zero`` never end.

    Raises:
        OSError: It is missing, not readable, a folder, a device, or a pipe without a writer;
            ``strerror`` gives the reason.

    Example:
        >>> open_file("/dev/zero")
        Traceback (most recent call last):
        ...
        OSError: [Errno 22] it is a device; a file is needed: '/dev/zero'
    """
    # Without O_NONBLOCK, opening a pipe waits for its writer.
    path = local_file(path)
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
            raise OSError(errno.EINVAL, "it is a device; a file is needed", str(path))
        if os.isatty(handle):
            os.set_blocking(handle, True)
        return open(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_file(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """Reads all bytes of a file that is not a pipe.

    Args:
        path: The file.
        most: Maximum number of bytes; None is unlimited.

    Raises:
        OSError: As for :func:`open_file`; or it is a pipe, or larger than ``most``.
    """
    path = local_file(path)
    if stat.S_ISFIFO(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is a pipe; a file is needed", str(path))
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise OSError(
                errno.EFBIG, f"it has {size:,} bytes, but at most {most:,} are allowed", str(path)
            )
        return file.read()


def _first_bytes(handle: int, path: str) -> bytes:
    """The first bytes of a pipe; empty if its writer has not written anything yet."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            begun = os.read(handle, 1 << 16)
        except BlockingIOError:
            return b""
        if begun:
            return begun
        # No writer has opened it yet, or the writer has closed it again.
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        closed = any(event & select.POLLHUP for _, event in poll.poll(50))
        if closed:
            return b""
        if time.monotonic() > end:
            raise OSError(errno.EINVAL, "it is a pipe that nobody writes to", path)


class _Begun(io.RawIOBase):
    """A pipe whose first bytes have already been read."""

    def __init__(self, begun: bytes, handle: int):
        self._begun, self._handle = begun, handle

    def readable(self) -> bool:
        """True."""
        return True

    def fileno(self) -> int:
        """The file descriptor of the pipe."""
        return self._handle

    def readinto(self, buffer: Any) -> int:
        """Reads into ``buffer``; returns the number of bytes."""
        taken = self._begun[: len(buffer)] or os.read(self._handle, len(buffer))
        self._begun = self._begun[len(taken) :]
        buffer[: len(taken)] = taken
        return len(taken)

    def close(self) -> None:
        """Closes the pipe."""
        if not self.closed:
            os.close(self._handle)
        super().close()

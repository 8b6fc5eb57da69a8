"""Where files are written: under another name first, links followed, permissions kept."""

import os
import re
import shutil
from pathlib import Path
from typing import IO

__all__ = ["Destination", "flush_directory"]

_STREAM = re.compile(r"/(?:dev|proc/self)/fd/([0-9]+)")  # as /dev/stdout leads to
_MOST_LINKS = 40


class Destination:
    """Where a path leads.

    A regular file, and one that is not there yet, is written as a draft beside it and then
    replaced: it is whole or not there. Links stay links, and a file that is replaced passes its
    permissions on. All else (a pipe, a device, an open file such as ``/dev/stdout``) is written
    directly.

    Attributes:
        path: What is written or replaced in the end, no link.
        draft: The file that is written meanwhile, in the same folder; None of what is written
            directly.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "new" / "text"
        >>> to = Destination(path)
        >>> with to.open() as file:
        ...     _ = file.write(b"whole")
        >>> path.exists(), to.draft.exists()
        (False, True)
        >>> to.publish()
        >>> path.read_bytes(), to.draft.exists()
        (b'whole', False)
        >>> Destination(Path("/dev/null")).draft is None
        True
    """

    def __init__(self, path: Path):
        self.path = Path(os.path.realpath(path))
        self._stream = _stream_of(path)
        # Unlike those of Path, these skip files without permission: opening them says why.
        regular = os.path.isfile(self.path) or not os.path.lexists(self.path)
        self.draft: Path | None = None
        if regular and self._stream is None:
            self.draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")

    def open(self, mode: str = "wb") -> IO[bytes]:
        """The draft, in a folder that is made if need be, or what is written directly.

        Args:
            mode: Of the draft.

        Raises:
            OSError: It cannot be written.
        """
        if self._stream is not None:  # its position is that of whoever opened it
            return os.fdopen(os.dup(self._stream), "wb")
        if self.draft is None:
            return open(self.path, "wb")
        self.draft.parent.mkdir(parents=True, exist_ok=True)
        file = open(self.draft, mode)  # noqa: SIM115  (whoever asked for it closes it)
        self.keep_mode(self.draft)
        return file

    def keep_mode(self, draft: Path) -> None:
        """Gives ``draft`` the permissions of the file that it is to replace, if there is one."""
        if os.path.isfile(self.path):
            shutil.copymode(self.path, draft)

    def publish(self, draft: Path | None = None) -> None:
        """Puts the draft, or another file beside it, into its place.

        Raises:
            OSError: It cannot be written.
        """
        draft = draft or self.draft
        if draft is not None:
            os.replace(draft, self.path)


def _stream_of(path: Path) -> int | None:
    """The number of the open file that a path stands for, or a link that it goes through."""
    at = os.path.abspath(path)
    for _ in range(_MOST_LINKS):
        if found := _STREAM.fullmatch(at):
            return int(found[1])
        try:
            at = os.path.abspath(os.path.join(os.path.dirname(at), os.readlink(at)))
        except (OSError, ValueError):
            break
    return None


def flush_directory(path: Path) -> None:
    """Makes renames in ``path`` survive a power failure, where the file system can."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass  # some network file systems cannot
    finally:
        os.close(handle)

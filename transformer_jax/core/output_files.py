"""Files and folders written as drafts first, whose names identify the writing process.

A draft is next to its target under a hidden name, and is renamed when complete. A killed process
leaves its draft; the next process that writes the same target removes it.
"""

import contextlib
import hashlib
import itertools
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from transformer_jax.core.processes import machine, process_started

__all__ = [
    "Destination",
    "draft_file",
    "draft_folder",
    "draft_path",
    "flush_directory",
    "is_draft",
    "remove_dead_drafts",
    "replace_folder",
    "restore_folder",
]

_DRAFT = re.compile(r"\.(.+)\.([0-9a-f]{12})\.([0-9]{1,10})\.([^.]*)\.[0-9]+\.draft", re.DOTALL)
_OLD = ".old"  # appended to the draft that replaces a folder: the name of the old folder
_DAY = 24 * 3600.0  # seconds without a write after which a process elsewhere counts as dead
_LONGEST = 150  # bytes of a name that a draft repeats; file systems allow 255
_count = itertools.count()

_STREAM = re.compile(r"/(?:dev|proc/self)/fd/([0-9]+)")  # the target of /dev/stdout
_MOST_LINKS = 40


class Destination:
    """The target of a path.

    A regular file, existing or not, is written as a draft next to it and then replaced atomically.
    Links are followed, and the new file keeps the permissions of the old one. Anything else (a
    pipe, a device, an open file such as ``/dev/stdout``) is written directly.

    Attributes:
        path: The path written or replaced in the end; not a link.
        draft: The file written meanwhile, in the same folder; None for a target that is written
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
        # Unlike Path's, these skip files without permission: opening them gives the reason.
        regular = os.path.isfile(self.path) or not os.path.lexists(self.path)
        self.draft: Path | None = None
        if regular and self._stream is None:
            self.draft = draft_path(self.path)

    def open(self, mode: str = "wb") -> IO[bytes]:
        """Opens the draft, creating its folder if necessary, or the directly written target.

        Args:
            mode: Mode of the draft.

        Raises:
            OSError: It cannot be written.
        """
        if self._stream is not None:  # its position belongs to whoever opened it
            return os.fdopen(os.dup(self._stream), "wb")
        if self.draft is None:
            return open(self.path, "wb")
        self.draft.parent.mkdir(parents=True, exist_ok=True)
        file = open(self.draft, mode)  # noqa: SIM115  (whoever asked for it closes it)
        self.keep_mode(self.draft)
        remove_dead_drafts(self.path.parent, self.path.name)
        return file

    def keep_mode(self, draft: Path) -> None:
        """Gives ``draft`` the permissions of the file that it replaces, if there is one."""
        if os.path.isfile(self.path):
            shutil.copymode(self.path, draft)

    def publish(self, draft: Path | None = None) -> None:
        """Moves the draft, or another file next to it, to the target.

        Raises:
            OSError: It cannot be written.
        """
        draft = draft or self.draft
        if draft is not None:
            os.replace(draft, self.path)


def draft_path(path: Path) -> Path:
    """Returns a new hidden name in the folder of ``path``, unique to this process and call.

    Example:
        >>> first, second = draft_path(Path("runs/a")), draft_path(Path("runs/a"))
        >>> first.parent == Path("runs"), is_draft(first.name), first == second
        (True, True, False)
    """
    pid = os.getpid()
    parts = (_stem(path.name), _place(), pid, _plain(process_started(pid)), next(_count))
    return path.with_name(f".{'.'.join(map(str, parts))}.draft")


@contextlib.contextmanager
def draft_file(path: Path) -> Iterator[Path]:
    """Context manager: the path of a draft that replaces ``path`` at the end, flushed to disk.

    After a crash, ``path`` is unchanged or complete. After an error, the draft is removed.

    Args:
        path: The file, whose folder must exist.

    Raises:
        OSError: The file cannot be written.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "text"
        >>> with draft_file(file) as draft:
        ...     _ = draft.write_text("all")
        >>> file.read_text(), len(list(file.parent.iterdir()))
        ('all', 1)
    """
    draft = draft_path(path)
    try:
        remove_dead_drafts(path.parent, path.name)
        yield draft
        with open(draft, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(draft)
    flush_directory(path.parent)


@contextlib.contextmanager
def draft_folder(path: Path) -> Iterator[Path]:
    """Context manager: a new folder next to ``path``, removed at the end unless renamed.

    Folders left by dead processes for the same target are removed first.

    Args:
        path: The target, whose parent is created if missing; or a name for a temporary folder.

    Raises:
        OSError: The folder cannot be created.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "model"
        >>> with draft_folder(target) as draft:
        ...     _ = (draft / "weights").write_text("all")
        ...     _ = draft.rename(target)
        >>> [path.name for path in target.parent.iterdir()]
        ['model']
    """
    draft = draft_path(path)
    draft.mkdir(parents=True)
    try:
        remove_dead_drafts(path.parent, path.name)
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def replace_folder(draft: Path, path: Path) -> None:
    """Moves a complete folder to a path, replacing an existing folder.

    The old folder exists until then: if killed in between, the process leaves it under the name of
    a draft, from which :func:`restore_folder` restores it.

    Args:
        draft: The folder, from :func:`draft_folder`, in the same file system.
        path: Its final path.

    Raises:
        OSError: It cannot be renamed.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "model"
        >>> for text in ("first", "second"):
        ...     with draft_folder(target) as draft:
        ...         _ = (draft / "weights").write_text(text)
        ...         replace_folder(draft, target)
        >>> (target / "weights").read_text(), len(list(target.parent.iterdir()))
        ('second', 1)
    """
    if not path.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.rename(path)
        flush_directory(path.parent)
        return
    shutil.copymode(path, draft)
    old = path.with_name(f"{draft.name}{_OLD}")
    path.rename(old)
    try:
        draft.rename(path)
    except OSError:
        old.rename(path)
        raise
    flush_directory(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def restore_folder(path: Path) -> None:
    """Restores a folder that a process was replacing when it was killed.

    Args:
        path: Its path. If the new folder is already there, the old one is removed.
    """
    with contextlib.suppress(OSError):
        for entry in sorted(path.parent.glob(f".*{_OLD}")):
            found = _DRAFT.fullmatch(entry.name.removesuffix(_OLD))
            if found and found[1] == _stem(path.name) and _is_dead(found, str(entry)):
                if path.exists():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.rename(path)


def remove_dead_drafts(folder: Path, name: str | None = None) -> None:
    """Removes drafts whose processes have ended; drafts that cannot be removed are kept.

    A process on another machine, as on a shared disk, counts as dead after a day without a write.

    Args:
        folder: The folder with the drafts; it may be missing.
        name: The name of their target; None is any.
    """
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            found = _DRAFT.fullmatch(entry.name)
            if found and (name is None or found[1] == _stem(name)) and _is_dead(found, entry.path):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)


def is_draft(name: str) -> bool:
    """Returns whether a file or folder of this name is a draft.

    Example:
        >>> is_draft("model.safetensors"), is_draft(draft_path(Path("model.safetensors")).name)
        (False, True)
    """
    return _DRAFT.fullmatch(name) is not None


def _is_dead(found: re.Match[str], path: str) -> bool:
    _, place, pid, started = found.groups()
    if place == _place() and started:
        now = process_started(int(pid))
        if now != "":
            return _plain(now) != started
    with contextlib.suppress(OSError):
        return time.time() - _last_write(path) > _DAY
    return False


def _last_write(path: str) -> float:
    """The time of the last write to a file, or to anything in a folder."""
    times = [os.lstat(path).st_mtime]
    for parent, folders, files in os.walk(path):
        for name in (*folders, *files):
            with contextlib.suppress(OSError):  # its process removes it
                times.append(os.lstat(os.path.join(parent, name)).st_mtime)
    return max(times)


def _stem(name: str) -> str:
    """A name in the form that drafts repeat: long ones are replaced by a digest."""
    encoded = os.fsencode(name)
    return name if len(encoded) <= _LONGEST else hashlib.sha256(encoded).hexdigest()


def _place() -> str:
    """The machine, its boot and its container, in the form used in drafts' names."""
    return hashlib.sha256(machine().encode()).hexdigest()[:12]


def _plain(started: str | None) -> str:
    """The start time of a process in the form used in drafts' names, without dots and slashes."""
    return re.sub(r"[^0-9A-Za-z]+", "-", started or "")


def _stream_of(path: Path) -> int | None:
    """The number of the open file that a path, or a link in it, refers to."""
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
    """Makes renames in ``path`` survive a power failure, if the file system supports it."""
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

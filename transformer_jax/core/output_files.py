"""Files and folders written as drafts first, whose names hold the process that writes them.

A draft lies beside its target under a hidden name, and is renamed once it is complete. A process
that is killed leaves its draft; the next one that writes the same target removes it.
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
_OLD = ".old"  # behind the name of the draft that replaces a folder: the name of that folder
_DAY = 24 * 3600.0  # seconds without a write after which a process elsewhere counts as dead
_LONGEST = 150  # bytes of a name that a draft repeats; file systems allow 255
_count = itertools.count()

_STREAM = re.compile(r"/(?:dev|proc/self)/fd/([0-9]+)")  # as /dev/stdout leads to
_MOST_LINKS = 40


class Destination:
    """The target of a path.

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
            self.draft = draft_path(self.path)

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
        remove_dead_drafts(self.path.parent, self.path.name)
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


def draft_path(path: Path) -> Path:
    """Returns a new hidden name in the folder of ``path``, unique to this process and this call.

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
    """Context with the path of a draft, which replaces ``path`` at the end, flushed to the disk.

    After a crash ``path`` is as before or complete. After an error the draft is removed.

    Args:
        path: The file, whose folder exists.

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
    """Context with a new folder beside ``path``, which is removed at the end unless it was renamed.

    Folders that dead processes left for the same target are removed first.

    Args:
        path: The target, whose parent is made if missing; or a name for a temporary folder.

    Raises:
        OSError: The folder cannot be made.

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
    """Puts a complete folder in the place of another, or where there is none.

    The other one stays until then: killed in between, a process leaves it under the name of a
    draft, from where :func:`restore_folder` puts it back.

    Args:
        draft: The folder, of :func:`draft_folder`, in the same file system.
        path: Its place.

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
    """Puts a folder back that a process was replacing when it was killed.

    Args:
        path: Its place. Where the new folder is there already, the old one is removed.
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
    """Removes drafts whose processes have ended; what cannot be removed stays.

    A process of another machine, as on a shared disk, counts as dead after a day without a write.

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
    """A name as drafts repeat it: a long one by its digest."""
    encoded = os.fsencode(name)
    return name if len(encoded) <= _LONGEST else hashlib.sha256(encoded).hexdigest()


def _place() -> str:
    """The machine, its boot and its container, as drafts name them."""
    return hashlib.sha256(machine().encode()).hexdigest()[:12]


def _plain(started: str | None) -> str:
    """The start time of a process as drafts name it; it has neither dots nor slashes."""
    return re.sub(r"[^0-9A-Za-z]+", "-", started or "")


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

"""The lock of a run directory: one process at a time may write to it.

The lock is a small file in the directory. It names the machine and the process that hold it, and is
touched every few seconds. On the same machine, a dead process is recognized by its number and start
time, and its lock is taken over at once. On another machine, with a shared disk, a process counts
as dead after minutes without a touch. Times come from the file system, so clocks need not agree.

System locks (``flock``, and libraries based on it such as ``filelock``) are not used: on many
shared disks they work only within one machine, and they do not name their holder.
"""

import contextlib
import errno
import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from transformer_jax.core.errors import CheckpointError, command
from transformer_jax.core.json_types import Json
from transformer_jax.core.output_files import draft_path, remove_dead_drafts
from transformer_jax.core.processes import machine, process_alive, this_process
from transformer_jax.core.storage.urls import with_urls, working_copy
from transformer_jax.data.files import read_file
from transformer_jax.runs.lease import lease_of
from transformer_jax.runs.manifest import run_storage

__all__ = [
    "LOCK",
    "RunLock",
    "check_lock",
    "held_token",
    "holds_lock",
    "is_locked",
    "lock_token",
    "of_a_lock",
]

LOCK = "lock.json"
_EVERY = 15.0  # seconds between touches
_STALE = 180.0  # seconds without a touch; shared disks may show outdated times for a minute
_WRITTEN = 0.5  # seconds in which a new lock is completely written
_LARGEST = 1 << 16  # maximum size in bytes; a lock has a few hundred

# Tokens of the locks of this process, by the real path of the directory.
_held: dict[str, str] = {}


class RunLock:
    """The right to write to a run directory, held while entered.

    Readers do not need it: files are renamed into place once they are complete.

    Args:
        path: The run directory; created if missing, and removed if it stays empty.
        every: Seconds between touches.
        stale: Seconds without a touch after which a process on another machine counts as dead.
        say: Called with a line of text when a lock is taken over.

    Raises:
        CheckpointError: On entering, if another process holds the lock or the directory cannot be
            written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        every: float | int = _EVERY,
        stale: float | int = _STALE,
        say: Callable[[str], None] = lambda text: None,
    ):
        self.path = working_copy(path)
        self.file = self.path / LOCK
        self._lease, self._storage = lease_of(self.path), run_storage(self.path)
        self._every, self._stale, self._say = every, stale, say
        self._token = secrets.token_hex(8)
        self._made = False
        self._done = threading.Event()
        self._beat: threading.Thread | None = None

    def __enter__(self) -> "RunLock":
        try:
            self._take()
            try:
                self._lease.take(self._token)
                # A download may take longer than the lock is valid without renewal.
                self._beat = threading.Thread(target=self._touch, name="run lock", daemon=True)
                self._beat.start()
                self._storage.fetch()
                self._lease.check(self._token)
            except BaseException:
                self._let_go()
                raise
        except OSError as error:
            raise self._unwritten(error) from None
        _held[os.path.realpath(self.path)] = self._token
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        try:
            self._storage.publish(check=lambda: self._lease.check(self._token))
        except (OSError, CheckpointError) as error:
            if kind is None:
                raise self._unwritten(error) if isinstance(error, OSError) else error from None
            self._say(f"not all of {with_urls(str(self.path))} was uploaded: {error}")
        finally:
            where = os.path.realpath(self.path)
            if _held.get(where) == self._token:
                del _held[where]
            self._let_go()

    def _unwritten(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"{with_urls(str(self.path))}: cannot be written: {error.strerror}")

    def _let_go(self) -> None:
        self._done.set()
        # A signal may have arrived before.
        if self._beat is not None and self._beat.is_alive():
            self._beat.join()
        with contextlib.suppress(OSError):
            self._lease.release(self._token)
        with contextlib.suppress(OSError):
            if self._ours():
                self.file.unlink()
            if self._made:
                self.path.rmdir()  # fails unless the directory is empty, as intended

    def _ours(self) -> bool:
        found = _read(self.file)
        return found is not None and found.get("token") == self._token

    def _take(self) -> None:
        self._made = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        draft = draft_path(self.file)
        try:
            remove_dead_drafts(self.path)
            draft.write_text(json.dumps(this_process() | {"token": self._token}), encoding="utf-8")
            while not _link(draft, self.file):
                found = _read(self.file)
                if found is None:
                    continue  # just released
                if found and not _is_lock(found):
                    raise CheckpointError(
                        f"{self.file}: not written by this program, so it is not changed: choose "
                        f"another directory, or move the file away"
                    )
                silent = self._silent(draft)
                if silent is None:
                    continue
                if not found and silent < _WRITTEN:
                    time.sleep(_WRITTEN / 20)  # just being written, on file systems without links
                    continue
                self._refuse_unless_dead(found, silent)
                self._replace(found, draft)
                if self._ours():
                    self._say(f"{self.path}: was in use by {_who(found)}, which has ended")
                    return
        finally:
            draft.unlink(missing_ok=True)

    def _silent(self, draft: Path) -> float | None:
        """Returns the seconds since the lock was touched, by its disk's clock, or None."""
        draft.touch()
        try:
            return draft.stat().st_mtime - self.file.stat().st_mtime
        except FileNotFoundError:
            return None

    def _refuse_unless_dead(self, found: dict[str, Json], silent: float) -> None:
        alive = process_alive(found)
        if alive is False or (alive is None and silent > self._stale):
            return
        hint = "wait until it ends, or stop it first"
        if alive is None:
            left = max(1, round(self._stale - silent))
            hint += f" (if it has ended, try again in {left} s)"
        raise CheckpointError(f"{self.path}: in use by {_who(found)}: {hint}")

    def _replace(self, found: dict[str, Json], draft: Path) -> None:
        """Replaces a dead lock, unless another process is faster.

        A process creates a folder with a fixed name, which is exclusive, containing the new lock,
        and renames the lock out of it. This fails if another process removed the folder in the
        meantime.
        """
        turn, ours = self.path / f".{LOCK}.turn", draft_path(self.file)
        ours.mkdir(exist_ok=True)
        (ours / self._token).write_text(draft.read_text(encoding="utf-8"), encoding="utf-8")
        try:
            ours.rename(turn)
        except OSError as error:
            shutil.rmtree(ours, ignore_errors=True)
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self._end_dead(turn, draft)
            time.sleep(0.05)
            return
        try:
            if _read(self.file) == found:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    (turn / self._token).rename(self.file)
        finally:
            with contextlib.suppress(OSError):
                (turn / self._token).unlink(missing_ok=True)
                turn.rmdir()  # fails if it now belongs to another process, as intended

    def _end_dead(self, turn: Path, draft: Path) -> None:
        """Removes the replacement folder of a dead process."""
        gone = draft_path(self.file)
        with contextlib.suppress(OSError):
            draft.touch()
            if draft.stat().st_mtime - turn.stat().st_mtime > self._stale:
                turn.rename(gone)
                shutil.rmtree(gone, ignore_errors=True)

    def _touch(self) -> None:
        while not self._done.wait(self._every):
            # A shared disk may be temporarily unavailable; `check_lock` detects lost locks.
            with contextlib.suppress(OSError):
                if self._ours():
                    os.utime(self.file)
                    self._lease.renew(self._token)


def check_lock(path: str | os.PathLike[str]) -> None:
    """Refuses to write to a run that another process has locked; a missing lock is allowed.

    A lock that this process holds must still exist. A process that slept for minutes, as on a
    closed laptop, counts as dead on other machines; the process that took over its run may have
    ended since.

    Raises:
        CheckpointError: Another process holds the lock; the message names it.
    """
    file = Path(path) / LOCK
    try:
        found = _read(file) or {}
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from None
    ours = _held.get(os.path.realpath(path))
    if ours is not None and found.get("token") == ours:
        lease_of(path).check(ours)
        return
    here = found.get("machine") == machine() and found.get("pid") == os.getpid()
    if _is_lock(found) and not here and process_alive(found) is not False:
        raise CheckpointError(
            f"{path}: in use by {_who(found)}, so this process no longer writes to it; if that "
            f"process has ended, delete {file}"
        )
    if ours is None:
        if not here:
            lease_of(path).check_free()
    else:
        raise CheckpointError(
            f"{path}: no longer locked by this process: another process took over, or {LOCK} was "
            f"deleted; so this process no longer writes to it: continue with "
            f"{command('resume', path)}"
        )


def held_token(path: str | os.PathLike[str]) -> str | None:
    """Returns the token of this process's lock of a run directory, or None."""
    return _held.get(os.path.realpath(path))


def lock_token(path: str | os.PathLike[str]) -> str | None:
    """Returns the token of the lock in a run directory, of any process, or None."""
    found = _read(Path(path) / LOCK)
    token = None if found is None else found.get("token")
    return token if isinstance(token, str) else None


def holds_lock(path: str | os.PathLike[str]) -> bool:
    """Returns whether this process has locked a run."""
    return os.path.realpath(path) in _held


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Returns whether a directory has a lock, of a live or a dead process."""
    with contextlib.suppress(OSError):
        return _is_lock(_read(Path(path) / LOCK) or {})
    return False


def of_a_lock(name: str) -> bool:
    """Returns whether a file name belongs to the lock of its directory.

    Example:
        >>> [of_a_lock(name) for name in ("lock.json", ".lock.json.12ab", "package-lock.json")]
        [True, True, False]
    """
    return name in (LOCK, f"{LOCK}.tmp") or name.startswith(f".{LOCK}.")


def _link(draft: Path, file: Path) -> bool:
    """Renames a complete file, unless the new name exists."""
    try:
        os.link(draft, file)
    except FileExistsError:
        return False
    except OSError:
        # On a file system without links, other processes may see an empty file, and wait for its
        # content.
        try:
            handle = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        with open(handle, "w", encoding="utf-8") as out:
            out.write(draft.read_text(encoding="utf-8"))
    return True


def _read(file: Path) -> dict[str, Json] | None:
    """Reads the fields of a lock; None without a lock, empty if it is damaged or incomplete.

    :func:`_is_lock` rejects other content.
    """
    try:
        found = json.loads(read_file(file, _LARGEST).decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {"content": found}


def _is_lock(found: dict[str, Json]) -> bool:
    """Returns whether the fields describe a lock."""
    return isinstance(found.get("token"), str)


def _who(found: dict[str, Json]) -> str:
    if not isinstance(found.get("pid"), int):
        return f"an unknown process (not named in {LOCK})"
    return f"process {found['pid']} on {found.get('host')} since {found.get('since')}"

"""Exports of models kept on disk: each is written once, and is whole or not there."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from transformer_jax.core.errors import CheckpointError
from transformer_jax.core.output_files import (
    draft_folder,
    draft_path,
    flush_directory,
    is_draft,
    remove_dead_drafts,
)

__all__ = ["cached_export", "user_cache"]

_FILES = "export.json"  # names and sizes of the other files
_KEPT = 3  # exports of a folder, the most recently used


def user_cache() -> Path:
    """The user's folder of exports: ``TRANSFORMER_JAX_CACHE``, else ``~/.cache/transformer_jax``.

    If that variable is ``off``, it is as if it were not set.
    """
    chosen = os.environ.get("TRANSFORMER_JAX_CACHE", "")
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    root = Path(chosen) if chosen not in ("", "off") else Path(home) / "transformer_jax"
    return root / "exports"


def cached_export(
    folders: Sequence[Path],
    key: str,
    write: Callable[[Path], str],
    wrote: Callable[[Path, str], None] = lambda path, said: None,
) -> Path:
    """The folder of an export, from before or written now.

    It is written as a draft that is renamed, so that several processes may ask for the same one,
    and one that is interrupted leaves nothing that another would read. Of each folder the three
    exports that were used last are kept.

    Args:
        folders: Where it may be; it is written to the first of them that can be written.
        key: Its name there, which says what is exported.
        write: Writes it into a new folder; returns a line about it.
        wrote: Called after it was written, with the folder and that line.

    Raises:
        CheckpointError: No folder can be written.
    """
    for folder in folders:
        if _is_whole(folder / key):
            with contextlib.suppress(OSError):  # that of a folder that is read only stays
                os.utime(folder / key)
            return folder / key
    problems = []
    for folder in folders:
        try:
            with draft_folder(folder / key) as draft:
                said = write(draft)
                _seal(draft)
                _publish(draft, folder / key)
        except OSError as error:
            problems.append(f"{folder}: {error.strerror}")
            continue
        _prune(folder, key)
        wrote(folder / key, said)
        return folder / key
    raise CheckpointError(
        f"the exported model cannot be written ({'; '.join(problems)}): name another folder with "
        f"--engine-cache"
    )


def _is_whole(path: Path) -> bool:
    """Returns whether an export is there with all its files."""
    try:
        sizes = json.loads((path / _FILES).read_text())
        return bool(sizes) and all(
            (path / name).stat().st_size == size for name, size in sizes.items()
        )
    except (OSError, ValueError, AttributeError):
        return False


def _seal(draft: Path) -> None:
    """Writes the sizes of the files, after the files themselves are on disk."""
    files = sorted(path for path in draft.iterdir() if path.is_file())
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sizes = {path.name: path.stat().st_size for path in files}
    with (draft / _FILES).open("w") as file:
        file.write(json.dumps(sizes, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    flush_directory(draft)


def _publish(draft: Path, place: Path) -> None:
    """Renames a draft to its place, unless another process was first."""
    if place.exists() and not _is_whole(place):  # damaged since
        aside = draft_path(place)
        with contextlib.suppress(FileNotFoundError):
            place.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    try:
        draft.rename(place)
    except OSError:
        if not _is_whole(place):
            raise
    flush_directory(place.parent)


def _prune(folder: Path, key: str) -> None:
    """Removes what is no longer used: older exports, and drafts of processes that have ended."""
    remove_dead_drafts(folder)
    exports = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process removes it
            if not is_draft(path.name) and (path / _FILES).is_file() and path.name != key:
                exports.append((path.stat().st_mtime, path))
    for _, path in sorted(exports, reverse=True)[_KEPT - 1 :]:
        shutil.rmtree(path, ignore_errors=True)

"""A cache of exported models on disk, each written once, atomically."""

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
_KEPT = 3  # exports to keep per folder, the most recently used


def user_cache() -> Path:
    """Returns the user's cache: ``TRANSFORMER_JAX_CACHE``, or else ``~/.cache/transformer_jax``.

    If the variable is ``off``, it is ignored.
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
    """Returns the folder of an export, cached or newly written.

    It is written as a draft that is renamed, so that several processes may request the same export,
    and an interrupted one leaves nothing to read. Each folder keeps the three most recently used
    exports.

    Args:
        folders: Possible cache folders; the export is written to the first writable one.
        key: The name of the export, which identifies its content.
        write: Function that writes the export into a new folder, and returns a summary line.
        wrote: Called after writing, with the folder and the summary line.

    Raises:
        CheckpointError: No folder can be written.
    """
    for folder in folders:
        if _is_whole(folder / key):
            with contextlib.suppress(OSError):  # fails for a read-only folder
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
    """Returns whether an export is complete."""
    try:
        sizes = json.loads((path / _FILES).read_text())
        return bool(sizes) and all(
            (path / name).stat().st_size == size for name, size in sizes.items()
        )
    except (OSError, ValueError, AttributeError):
        return False


def _seal(draft: Path) -> None:
    """Writes the sizes of the files after the files themselves are on disk."""
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
    """Renames a draft to its final path, unless another process was faster."""
    if place.exists() and not _is_whole(place):  # damaged in the meantime
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
    """Removes older exports, and drafts of dead processes."""
    remove_dead_drafts(folder)
    exports = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process may have removed it
            if not is_draft(path.name) and (path / _FILES).is_file() and path.name != key:
                exports.append((path.stat().st_mtime, path))
    for _, path in sorted(exports, reverse=True)[_KEPT - 1 :]:
        shutil.rmtree(path, ignore_errors=True)

"""Folders mirrored on an object store.

Object stores replace an object atomically, but cannot rename. So a folder with a ``manifest.json``
is complete if and only if its manifest exists: it is written last and removed first.
"""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from transformer_jax.core.errors import CheckpointError
from transformer_jax.core.output_files import draft_file
from transformer_jax.core.storage.objects import Objects, Stored
from transformer_jax.core.storage.urls import read_copy, url_of, url_of_folder

__all__ = [
    "EXPORTS",
    "LocalStorage",
    "ObjectStorage",
    "Storage",
    "fetched",
    "local_file",
    "storage_of",
]

MANIFEST = "manifest.json"
_MISSING: list[object] = []
_INDEX = ".objects.json"  # what was last seen of each object, next to its local copy
EXPORTS = ("ctranslate2",)  # folders that using a run creates in it
_SETTINGS = ("config.json", "tokenizer.json")  # without which there is no run
_SEALED = ("checkpoints", "frozen")  # folders that are ignored without their manifest
_TRIES = 5  # number of listings, if objects vanish between listing and reading

Chosen = Callable[[str], bool]


def _none(name: str) -> bool:
    del name
    return False


def _allowed() -> None:
    """Does nothing: no other process can write."""


@runtime_checkable
class Storage(Protocol):
    """The permanent place of a run folder."""

    def names(self) -> set[str]:
        """Returns the top-level names in the store."""

    def fetch(self) -> None:
        """Makes the folder equal to the stored copy."""

    def publish(
        self, drafts: Mapping[str, Path] = {}, check: Callable[[], None] = _allowed
    ) -> None:
        """Makes the stored copy equal to the folder, with drafts under their final names.

        Args:
            drafts: Complete folders by their final names, relative to the folder.
            check: Raises an error if another process has taken over the run.
        """


class LocalStorage:
    """A local folder, which is itself the store: flushed files and renames make it durable."""

    def __init__(self, folder: Path):
        self._folder = folder

    def names(self) -> set[str]:
        """Returns the names in the folder."""
        return set(os.listdir(self._folder)) if self._folder.is_dir() else set()

    def fetch(self) -> None:
        """Does nothing: the folder is the store."""

    def publish(
        self, drafts: Mapping[str, Path] = {}, check: Callable[[], None] = _allowed
    ) -> None:
        """Does nothing: the folder is the store; drafts are stored when they are renamed."""


class _StoredFile(NamedTuple):
    path: Path
    size: int
    changed: int  # nanoseconds


class ObjectStorage:
    """A folder whose files are stored as objects.

    Args:
        url: URL of the objects.
        folder: The local copy.
        ignored: Whether a path in the folder is never published, and never removed by a fetch.
    """

    def __init__(self, url: str, folder: Path, ignored: Chosen = _none):
        self.objects, self.folder = Objects(url), folder
        self._ignored = ignored

    def names(self) -> set[str]:
        """Returns the top-level names of the objects."""
        return {name.split("/")[0] for name in self._listed()}

    def fetch(self, omitted: Chosen = _none) -> None:
        """Makes the folder equal to the objects.

        Args:
            omitted: Whether to skip an object.

        Raises:
            OSError: The store cannot be read; ``strerror`` gives the reason.
        """
        for left in reversed(range(_TRIES)):
            try:
                self._fetch(omitted)
            except FileNotFoundError:  # removed since it was listed
                if not left:
                    raise
            else:
                return

    def _fetch(self, omitted: Chosen) -> None:
        listed = self._listed()
        index = self._read_index()
        complete = {name: one for name, one in listed.items() if _is_complete(name, listed)}
        local = self._local()
        stale = [n for n in local if index.get(n, _MISSING) != _entry(complete.get(n), local[n])]
        gone = [name for name in stale if name not in complete or omitted(name)]
        for name in _removed(gone):
            (self.folder / name).unlink(missing_ok=True)
        wanted = [
            name
            for name, one in complete.items()
            if not omitted(name) and index.get(name, _MISSING) != _entry(one, local.get(name))
        ]
        for unit in {_unit(name, listed) for name in wanted} - {None}:
            (self.folder / str(unit) / MANIFEST).unlink(missing_ok=True)
            wanted += [f"{unit}/{MANIFEST}"]
        for name in _uploaded(set(wanted)):
            self.objects.download(name, self.folder / name)
        self._remove_empty_folders()
        self._write_index(complete)

    def publish(
        self, drafts: Mapping[str, Path] = {}, check: Callable[[], None] = _allowed
    ) -> None:
        """Makes the objects equal to the files of the folder.

        Objects that another writer has added since the last look are kept: only objects that this
        folder once had are removed, and files of folders without a manifest.

        Args:
            drafts: Complete folders by their final names, relative to the folder.
            check: Raises an error if another process has taken over the run; called before objects
                are written and before they are removed.

        Raises:
            OSError: The store cannot be written; ``strerror`` gives the reason.
        """
        listed, index, local = self._listed(), self._read_index(), self._local()
        for name, folder in drafts.items():
            local |= {f"{name}/{inner}": file for inner, file in _files(folder).items()}
        changed = [
            name
            for name, file in local.items()
            if name not in listed or index.get(name) != _entry(listed[name], file)
        ]
        # A complete folder with changed files is incomplete from here on.
        units = {_unit(n, local) for n in changed if Path(n).name != MANIFEST} - {None}
        sealed = {f"{unit}/{MANIFEST}" for unit in units}
        ours = [name for name in listed if name in index or not _is_complete(name, listed)]
        gone = [name for name in ours if name not in local]
        if changed or gone:
            check()
        self.objects.remove(sealed & set(listed))
        for name in _uploaded(sealed | set(changed)):
            self.objects.upload(local[name].path, name)
        if gone:
            check()
        self.objects.remove(_removed(gone))
        self._write_index(self._listed(), local)

    def _listed(self) -> dict[str, Stored]:
        found = self.objects.list()
        if not found:
            self.objects.check_bucket()
        return {name: one for name, one in found.items() if not self._ignored(name)}

    def _local(self) -> dict[str, _StoredFile]:
        found = _files(self.folder)
        return {n: file for n, file in found.items() if n != _INDEX and not self._ignored(n)}

    def _read_index(self) -> dict[str, list[object]]:
        try:
            found = json.loads((self.folder / _INDEX).read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write_index(
        self, listed: Mapping[str, Stored], local: Mapping[str, _StoredFile] | None = None
    ) -> None:
        local = self._local() if local is None else local
        index = {name: _entry(one, local[name]) for name, one in listed.items() if name in local}
        self.folder.mkdir(parents=True, exist_ok=True)
        with draft_file(self.folder / _INDEX) as draft:
            draft.write_text(json.dumps(index), encoding="utf-8")

    def _remove_empty_folders(self) -> None:
        for path in sorted(self.folder.rglob("*"), reverse=True):
            ignored = self._ignored(path.relative_to(self.folder).as_posix())
            if path.is_dir() and not ignored and not any(path.iterdir()):
                with contextlib.suppress(OSError):  # another process has just written there
                    path.rmdir()


def _files(folder: Path) -> dict[str, _StoredFile]:
    """The files in a folder, by their relative names."""
    found = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            try:
                said = path.stat()
            except FileNotFoundError:
                continue  # a draft that has just been renamed
            inner = path.relative_to(folder).as_posix()
            found[inner] = _StoredFile(path, said.st_size, said.st_mtime_ns)
    return found


def _entry(stored: Stored | None, local: _StoredFile | None) -> list[object] | None:
    """Returns the index entry of an object and its copy, which changes if either changes."""
    if stored is None or local is None:
        return None
    return [stored.tag, stored.size, local.size, local.changed]


def _unit(name: str, names: Iterable[str]) -> str | None:
    """The outermost folder with a manifest that contains a file."""
    known = names if isinstance(names, Mapping) else set(names)
    parents = [parent.as_posix() for parent in reversed(Path(name).parents)]
    return next((p for p in parents if p != "." and f"{p}/{MANIFEST}" in known), None)


def _is_complete(name: str, listed: Mapping[str, Stored]) -> bool:
    """Returns whether no folder that contains a file lacks its manifest."""
    parts = name.split("/")
    if len(parts) < 3 or parts[0] not in _SEALED:
        return True
    return f"{parts[0]}/{parts[1]}/{MANIFEST}" in listed


def _uploaded(names: Iterable[str]) -> list[str]:
    """The order of uploads: settings first, and manifests, which vouch for other files, last.

    So a partly stored folder is empty, or a run with its settings.
    """
    return sorted(names, key=lambda name: (_rank(name), name))


def _removed(names: Iterable[str]) -> list[str]:
    """The order of removals: the reverse of :func:`_uploaded`."""
    return _uploaded(names)[::-1]


def _rank(name: str) -> int:
    first, *rest = name.split("/")
    if rest and rest[-1] == MANIFEST:
        return 3
    return 0 if name in _SETTINGS else 2 if first in _SEALED else 1


def storage_of(folder: str | os.PathLike[str], ignored: Chosen = _none) -> Storage:
    """Returns the storage of a run: the object store of a working copy, else the folder itself."""
    url, folder = url_of_folder(folder), Path(folder)
    return LocalStorage(folder) if url is None else ObjectStorage(url, folder, ignored)


def fetched(path: str | os.PathLike[str], omitted: Chosen = _none) -> Path:
    """Returns an up-to-date local copy of a URL; a local path is returned unchanged.

    Args:
        path: A local path or a URL.
        omitted: Whether to skip an object of a folder, by its relative name.

    Raises:
        ConfigError: As for :func:`transformer_jax.core.storage.urls.url_of`.
        CheckpointError: There is nothing, or it cannot be read.
    """
    url = url_of(path)
    if url is None:
        return Path(path)
    try:
        return local_file(path) if Objects(url).info() is not None else _folder(url, omitted)
    except OSError as error:
        raise CheckpointError(f"{url}: cannot be read: {error.strerror or error}") from None


def _folder(url: str, omitted: Chosen) -> Path:
    folder = read_copy(url)
    if folder.is_file():
        folder.unlink()
    ObjectStorage(url, folder, _of_machine).fetch(omitted)
    if not any(path.name != _INDEX for path in folder.iterdir()):
        shutil.rmtree(folder, ignore_errors=True)
        raise CheckpointError(f"{url}: nothing is there")
    return folder


def _of_machine(name: str) -> bool:
    """Returns whether a file of a copy is specific to this machine: locks, and local exports."""
    first = name.split("/")[0]
    return first.startswith((".", "lock.json")) or first in EXPORTS


def local_file(path: str | os.PathLike[str]) -> Path:
    """Returns a local copy of an object, downloaded if it changed; a local path is unchanged.

    Raises:
        ConfigError: As for :func:`transformer_jax.core.storage.urls.url_of`.
        OSError: It is missing or cannot be read.
    """
    url = url_of(path)
    if url is None:
        if "\0" in os.fspath(path):
            raise OSError(errno.EINVAL, "the name holds NUL", os.fspath(path))
        try:
            os.fsencode(path)
        except UnicodeEncodeError:
            name = "the name holds half a character (a lone surrogate)"
            raise OSError(errno.EINVAL, name, os.fspath(path)) from None
        return Path(path)
    objects, copy = Objects(url), read_copy(url)
    found = objects.info()
    if found is None:
        objects.check_bucket()
        raise FileNotFoundError(2, "there is no such object", url)
    if copy.is_dir():  # the same URL used to be a folder
        shutil.rmtree(copy)
    note = copy.with_name(f".{copy.name}.object")
    seen = f"{found.tag} {found.size}"
    if not (copy.is_file() and note.is_file() and note.read_text("utf-8") == seen):
        note.unlink(missing_ok=True)
        objects.download("", copy)
        if found.written is not None:  # the same everywhere
            os.utime(copy, (found.written.timestamp(),) * 2)
        note.write_text(seen, encoding="utf-8")
    return copy

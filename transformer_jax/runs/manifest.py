"""Checkpoints as folders: their names, manifests, and checks of unchanged files.

``manifest.json`` is the last file written into a checkpoint; a checkpoint without it does not
count. It has the step, the name, shape and type of every array, the size and SHA-256 of every file,
and the information for resuming: configuration, tokenizer, data position, seed, versions.
"""

import errno
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

from transformer_jax.core.errors import CheckpointError, no_such_run, plural
from transformer_jax.core.json_types import Json
from transformer_jax.core.old_names import ITEMS, current_config
from transformer_jax.core.output_files import draft_file
from transformer_jax.core.storage.copies import EXPORTS, Storage, storage_of
from transformer_jax.data.files import open_file, read_file

__all__ = [
    "DAMAGED",
    "FROZEN",
    "MANIFEST",
    "SCHEMA",
    "SCRATCH",
    "ArrayRecord",
    "DataRecord",
    "FileRecord",
    "KeyRecord",
    "Manifest",
    "ProgressRecord",
    "ScoreRecord",
    "UnreadableError",
    "atomic_write",
    "check_checkpoint",
    "check_frozen",
    "checkpoint_name",
    "checkpoints_of",
    "exists",
    "file_record",
    "find_corruption",
    "is_optimizer_file",
    "item_directory",
    "read",
    "rewrite",
    "run_storage",
    "steps",
    "versions",
    "write",
]

MANIFEST = "manifest.json"
# 2: the configuration is a copy of config.json, and keys are derived by purpose (keys.py).
SCHEMA = 2

PREFIX = "step_"
SCRATCH = ".orbax-checkpoint-tmp"  # Orbax's suffix of incomplete directories
DAMAGED = "damaged_"
DELETING = "deleting_"  # prefix of a checkpoint during its deletion
FROZEN = "frozen"  # folder of frozen parameters
_CACHES = ("store", "launch-logs", *EXPORTS)
_LARGEST = 1 << 26  # bytes of a manifest

# Errors for paths of a different kind from what was written: damage, not missing permissions.
_FOREIGN = {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ELOOP, errno.EFBIG),
    errno.ENAMETOOLONG,
}


class FileRecord(TypedDict):
    """Size and checksum of a file."""

    bytes: int
    sha256: str


class ArrayRecord(TypedDict):
    """Shape and type of an array."""

    shape: list[int]
    dtype: str


class ScoreRecord(TypedDict):
    """The score of a checkpoint."""

    name: str
    value: float
    better: Literal["lower", "higher"]


class ProgressRecord(TypedDict, total=False):
    """The evaluations of a run up to a checkpoint."""

    metric: str
    best: float | None
    best_step: int
    since: int
    evaluated: int
    skipped: int


class DataRecord(TypedDict, total=False):
    """Checksums of what a run reads; earlier versions stored the first two alone."""

    fingerprint: str
    steps_per_epoch: int
    inputs: dict[str, str]
    tests: dict[str, str]


class KeyRecord(TypedDict, total=False):
    """The random keys of a run; earlier versions had one scheme."""

    seed: int
    impl: str
    scheme: str


class Manifest(TypedDict, total=False):
    """The fields of a manifest; weights alone and earlier versions have some of them."""

    schema: int
    files: dict[str, FileRecord]
    digest: str
    step: int
    tree: dict[str, ArrayRecord]
    score: ScoreRecord | None
    progress: ProgressRecord
    versions: dict[str, str]
    devices: int
    processes: int
    config: dict[str, Any]  # the settings, whose types their recipe declares
    tokenizer: str | None
    template: str | None
    data: DataRecord
    key: KeyRecord
    frozen: str
    digest_of_arrays: str
    merge: str | Mapping[str, Json]


class UnreadableError(CheckpointError):
    """A checkpoint that cannot be read now, due to permissions or a failing disk.

    It may be good, so it is neither set aside nor replaced by an earlier one.
    """


def is_optimizer_file(name: str) -> bool:
    """Returns whether a file of a run is needed only to resume it.

    Example:
        >>> is_optimizer_file("checkpoints/7/optimizer/0.npz"), is_optimizer_file("config.json")
        (True, False)
    """
    parts = name.split("/")
    return len(parts) > 3 and parts[0] == "checkpoints" and parts[2] == "optimizer"


def _unread(path: Path, error: OSError) -> CheckpointError:
    kind = CheckpointError if error.errno in _FOREIGN else UnreadableError
    return kind(f"{path}: cannot be read: {error.strerror or error}")


def exists(path: Path) -> bool:
    """Returns whether ``path`` exists.

    Raises:
        UnreadableError: The parent folder cannot be searched.
    """
    try:
        os.lstat(path)
    except OSError as error:
        problem = _unread(path, error)
        if isinstance(problem, UnreadableError):
            raise problem from None
        return False
    return True


def versions() -> dict[str, str]:
    """Returns the versions of the packages that compute and write.

    Example:
        >>> sorted(versions())
        ['flax', 'jax', 'orbax-checkpoint', 'transformer_jax']
    """
    from importlib import metadata

    import transformer_jax

    names = ("jax", "flax", "orbax-checkpoint")
    return {name: metadata.version(name) for name in names} | {
        "transformer_jax": transformer_jax.__version__
    }


def file_record(path: Path, *, flush: bool = False) -> FileRecord:
    """Returns size and SHA-256 of a file, after flushing it to disk on request."""
    digest = hashlib.sha256()
    size = 0
    with open_file(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
        if flush:
            os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def _encode(fields: Mapping[str, Json] | Manifest) -> str:
    return json.dumps(fields, indent=1, sort_keys=True, allow_nan=False)


def write(directory: Path, items: tuple[str, ...], fields: Manifest) -> None:
    """Seals ``directory``: records every file below its ``items``, then writes the manifest.

    Args:
        directory: The checkpoint, with all files written.
        items: The sub-directories of arrays; other files are never read.
        fields: Fields of the manifest besides the schema and the files.
    """
    names = sorted(
        path.relative_to(directory).as_posix()
        for item in items
        for path in (directory / item).rglob("*")
        if path.is_file()
    )
    fields = fields | {
        "schema": SCHEMA,
        "files": {name: file_record(directory / name, flush=True) for name in names},
    }
    rewrite(directory, fields)


def rewrite(directory: Path, fields: Manifest) -> None:
    """Replaces the manifest of a checkpoint whose files have not changed."""
    # The manifest includes a digest of its own remaining content.
    digest = hashlib.sha256(_encode(fields).encode()).hexdigest()
    atomic_write(directory / MANIFEST, _encode(fields | {"digest": digest}))


def atomic_write(path: Path, text: str) -> None:
    """Writes a file so that after a crash it has either the old or the new text."""
    with draft_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


def read(directory: Path) -> Manifest:
    """Reads the manifest of a checkpoint, and verifies its digest.

    Raises:
        UnreadableError: The manifest cannot be read now.
        CheckpointError: The manifest is missing, altered, or written by a later version.
    """
    path = directory / MANIFEST
    try:
        text = read_file(path, _LARGEST).decode("utf-8")
        fields: Manifest = json.loads(text)
        claimed = fields.pop("digest")
        schema = int(fields["schema"])
    except FileNotFoundError:
        raise CheckpointError(
            f"{directory}: {MANIFEST} is missing (the save did not finish)"
        ) from None
    except OSError as error:
        raise _unread(path, error) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"{path}: damaged (not the JSON that was written)") from None
    digest = hashlib.sha256(_encode(fields).encode("utf-8", "surrogatepass")).hexdigest()
    if digest != claimed or _encode(fields | {"digest": digest}) != text:
        raise CheckpointError(f"{path}: damaged (its digest differs)")
    if schema > SCHEMA:
        raise CheckpointError(
            f"{path}: has schema {schema}, this version reads up to {SCHEMA}: install a newer one"
        )
    if isinstance(fields.get("config"), dict):
        fields["config"] = current_config(fields["config"])
    if isinstance(fields.get("tree"), dict):
        fields["tree"] = {_current_path(name): leaf for name, leaf in fields["tree"].items()}
    return fields


def _current_path(name: str) -> str:
    item, slash, rest = name.partition("/")
    return ITEMS.get(item, item) + slash + rest


def item_directory(fields: Manifest, item: str) -> str:
    """Returns the directory name of an item, which may be from an earlier version.

    Example:
        >>> item_directory({"files": {"average/d/a": {}}}, "ema_params")
        'average'
    """
    found = {name.partition("/")[0] for name in fields["files"]}
    return next((old for old, new in ITEMS.items() if new == item and old in found), item)


def find_corruption(directory: Path, fields: Manifest, item: str | None = None) -> str | None:
    """Describes the first file of a checkpoint that differs from the manifest, or returns None.

    Args:
        directory: The checkpoint.
        fields: The manifest of the checkpoint.
        item: The item to check; None is all.

    Raises:
        UnreadableError: A file cannot be read now.
    """
    directory_of_item = item and item_directory(fields, item)
    for name, record in fields["files"].items():
        if item is not None and not name.startswith(f"{directory_of_item}/"):
            continue
        path = directory / name
        try:
            size = path.stat().st_size
            if size != record["bytes"]:
                return f"{name} has {plural(size, 'byte')} instead of {record['bytes']}"
            if file_record(path) != record:
                return f"{name} is damaged (SHA-256 differs)"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            problem = _unread(path, error)
            if isinstance(problem, UnreadableError):
                raise problem from None
            return f"{name} cannot be read: {error.strerror}"
    return None


def checkpoint_name(step: int) -> str:
    """Returns the name of the directory of a step.

    Example:
        >>> checkpoint_name(42)
        'step_00000042'
    """
    return f"{PREFIX}{step:08d}"


def steps(directory: Path) -> list[int]:
    """Returns the steps with a checkpoint directory, newest first, verified or not."""
    try:
        names = [path.name for path in directory.iterdir() if path.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be read: {error.strerror}") from None
    found = (re.fullmatch(rf"{PREFIX}(\d+)", name) for name in names)
    return sorted((int(match[1]) for match in found if match), reverse=True)


def check_checkpoint(path: Path, item: str | None = None) -> tuple[Manifest | None, str | None]:
    """Returns the manifest of a checkpoint, and the problem with its files, if any.

    Args:
        path: The checkpoint.
        item: The item to check, such as ``params``; None is all, and an empty name is none: only
            the manifest is checked.

    Raises:
        UnreadableError: A file cannot be read now.
    """
    try:
        fields = read(path)
        if path.name != checkpoint_name(int(fields["step"])):
            return fields, f"the manifest of {path} is for step {fields['step']}"
        problem = find_corruption(path, fields, item)
    except UnreadableError as error:
        raise UnreadableError(
            f"{error}: make it readable, or move {path} away to skip this checkpoint"
        ) from None
    except CheckpointError as error:
        return None, str(error)
    return fields, None if problem is None else f"{path}: {problem}"


def checkpoints_of(run: str | os.PathLike[str]) -> Path:
    """Returns the folder of the checkpoints of a run.

    Raises:
        CheckpointError: The run has none.
    """
    path = Path(run).absolute()
    if not os.path.isdir(path):
        raise CheckpointError(no_such_run(run))
    if not exists(path / "checkpoints") or not os.path.isdir(path / "checkpoints"):
        raise CheckpointError(f"{run}: not a run directory (it has no checkpoints/)")
    return path / "checkpoints"


def check_frozen(run: Path, fields: Manifest) -> tuple[Manifest | None, str | None]:
    """Returns the manifest of the frozen parameters in ``fields``, and the problem, if any."""
    path = run / FROZEN / checkpoint_name(0)
    if not exists(path):
        why = "contains the frozen parameters: copy it from where the run was trained"
        return None, f"frozen parameters: {path}: is missing, which {why}"
    kept, problem = check_checkpoint(path)
    if problem is None and kept is not None and kept["digest_of_arrays"] != fields["frozen"]:
        problem = f"{path}: its parameters have changed since the run began"
    return kept, None if problem is None else f"frozen parameters: {problem}"


def _private(name: str) -> bool:
    """Returns whether a path below a run directory is local to this machine.

    Example:
        >>> [_private(n) for n in ("lock.json", "store/a", "checkpoints/step_1/manifest.json")]
        [True, True, False]
    """
    first, *_ = parts = name.split("/")
    return (
        first in (*_CACHES, "lock.json")
        or name.endswith(".tmp")
        or any(part.startswith((".", DELETING, DAMAGED)) or SCRATCH in part for part in parts)
    )


def run_storage(folder: str | os.PathLike[str]) -> Storage:
    """Returns the storage of the run in a folder.

    Example:
        >>> type(run_storage("runs/base")).__name__
        'LocalStorage'
    """
    return storage_of(folder, _private)

"""What a checkpoint says about itself, and whether its files still say the same.

``manifest.json`` is the last file written into a checkpoint, and a checkpoint without one does not
count. It holds the step, the name, shape and type of every array, the size and SHA-256 of every
file, and what is needed to resume: configuration, tokenizer, data position, seed, versions.
"""

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.data.files import open_file, read_file
from transformer_jax.errors import CheckpointError, plural
from transformer_jax.old_names import ITEMS, current_settings
from transformer_jax.output_files import draft_file

__all__ = [
    "MANIFEST",
    "SCHEMA",
    "UnreadableError",
    "atomic_write",
    "exists",
    "file_record",
    "find_corruption",
    "item_directory",
    "read",
    "rewrite",
    "versions",
    "write",
]

MANIFEST = "manifest.json"
# 2: the configuration is config.json as it stood, and keys are derived by purpose (keys.py).
SCHEMA = 2


# What is in the way is of another kind than what was written: damage, not a lack of permission.
_FOREIGN = {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ELOOP, errno.EFBIG),
    errno.ENAMETOOLONG,
}


class UnreadableError(CheckpointError):
    """A checkpoint that cannot be read now, for lack of permission or by a failing disk.

    It may be sound, so it is neither set aside nor replaced by an earlier one.
    """


def _unread(path: Path, error: OSError) -> CheckpointError:
    kind = CheckpointError if error.errno in _FOREIGN else UnreadableError
    return kind(f"{path}: cannot be read: {error.strerror or error}")


def exists(path: Path) -> bool:
    """Returns whether something is at ``path``.

    Raises:
        UnreadableError: The folder that would hold it cannot be searched.
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
    """The versions of what computes and what writes.

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


def file_record(path: Path, *, flush: bool = False) -> dict[str, Any]:
    """Size and SHA-256 of a file, which is flushed to the disk on request."""
    digest = hashlib.sha256()
    size = 0
    with open_file(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
        if flush:
            os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def _encode(fields: dict[str, Any]) -> str:
    return json.dumps(fields, indent=1, sort_keys=True, allow_nan=False)


def write(directory: Path, items: tuple[str, ...], fields: dict[str, Any]) -> None:
    """Seals ``directory``: records every file below its ``items``, then renames the manifest in.

    Args:
        directory: The checkpoint, all of whose files are written.
        items: The sub-directories that hold arrays; what lies beside them is never read.
        fields: What the manifest says beyond the schema and the files.
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


def rewrite(directory: Path, fields: dict[str, Any]) -> None:
    """Replaces the manifest of a checkpoint whose files have not changed."""
    # The manifest vouches for itself too: its digest is that of all the rest.
    digest = hashlib.sha256(_encode(fields).encode()).hexdigest()
    atomic_write(directory / MANIFEST, _encode(fields | {"digest": digest}))


def atomic_write(path: Path, text: str) -> None:
    """Writes a file so that after a crash it holds the old text or the new, never a part."""
    with draft_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


def read(directory: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, whose every byte is vouched for by its own digest.

    Raises:
        UnreadableError: It cannot be read now.
        CheckpointError: Missing, altered, or written by a later version.
    """
    path = directory / MANIFEST
    try:
        text = read_file(path).decode("utf-8")
        fields = json.loads(text)
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
        fields["config"] = current_settings(fields["config"])
    if isinstance(fields.get("tree"), dict):
        fields["tree"] = {_current_path(name): leaf for name, leaf in fields["tree"].items()}
    return fields


def _current_path(name: str) -> str:
    item, slash, rest = name.partition("/")
    return ITEMS.get(item, item) + slash + rest


def item_directory(fields: Mapping[str, Any], item: str) -> str:
    """Name of the directory of an item, which may be one of an earlier version.

    Example:
        >>> item_directory({"files": {"average/d/a": {}}}, "ema_params")
        'average'
    """
    found = {name.partition("/")[0] for name in fields["files"]}
    return next((old for old, new in ITEMS.items() if new == item and old in found), item)


def find_corruption(directory: Path, fields: dict[str, Any], item: str | None = None) -> str | None:
    """The first file of a checkpoint that is not as its manifest says, in words, or None.

    Args:
        directory: The checkpoint.
        fields: Its manifest.
        item: The item whose files are checked; None is all of them.

    Raises:
        UnreadableError: A file cannot be read now, so that nothing is known of it.
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

"""Compares the data of a resumed run with the checksums in its checkpoints' manifests."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from transformer_jax.core.errors import DataError
from transformer_jax.core.task_progress import log
from transformer_jax.runs.manifest import DataRecord

__all__ = ["content_checksum", "refuse_changed_data"]

_NAMED: tuple[Literal["inputs", "tests"], ...] = ("inputs", "tests")
_PLACES = ("name", "lines", "counts")  # fields that say where data are, for messages


def refuse_changed_data(
    run: Path, said: DataRecord, now: DataRecord, earlier: Sequence[str] = ()
) -> None:
    """Refuses to resume a run on other data than it began with, however they are read.

    Other test data are told in a line: training does not depend on them.

    Args:
        run: The run directory, for messages.
        said: The manifest's ``data``: ``fingerprint`` of the training data; ``inputs`` and
            ``tests``, checksums of what else the run reads, by name, such as "the validation data".
            Manifests of earlier versions have the first alone.
        now: The same of the data that are there now. A name that only one of both has is no change.
        earlier: Checksums of the training data as earlier versions computed them.

    Raises:
        DataError: A checksum of training, validation or an input differs.

    Example:
        >>> was, now = ({"fingerprint": "a", "inputs": {"the rewards": sum}} for sum in "bc")
        >>> refuse_changed_data(Path("runs/a"), was, now)
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.DataError: runs/a: the rewards have changed since the run \
began: restore them, or begin a new run
    """
    was = said["fingerprint"]
    named = [("the training data", was, was if was in earlier else now["fingerprint"])]
    for kind in _NAMED:
        these = now.get(kind, {})
        named += [(name, was, these.get(name, was)) for name, was in said.get(kind, {}).items()]
    for name, was, found in named:
        if was == found:
            continue
        if name in said.get("tests", {}):
            log(f"{run}: {name} have changed since the run began: scores are those of the new ones")
            continue
        raise DataError(
            f"{run}: {name} have changed since the run began: restore them, or begin a new run"
        )


def content_checksum(value: object) -> str:
    """Returns the checksum of texts, numbers and arrays in nested containers and dataclasses.

    What is in files, such as pictures and recordings, counts by its content, which is read in
    parts. Functions and other objects count as their type, and fields that say where data are do
    not.

    Raises:
        DataError: A file, or a text that is read in parts, cannot be read.

    Example:
        >>> content_checksum(["a", "b"]) == content_checksum(("a", "b"))
        True
        >>> content_checksum(["a", "b"]) == content_checksum(["ab"])
        False
    """
    digest = hashlib.sha256()
    _update(digest.update, value)
    return digest.hexdigest()[:16]


def _update(add: Callable[[bytes], None], value: object) -> None:
    if isinstance(value, str | bytes | int | float | None):
        add(f"{type(value).__name__} {value!r};".encode("utf-8", "surrogatepass"))
    elif isinstance(value, np.ndarray):
        add(f"array {value.dtype} {value.shape};".encode())
        add(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, list | tuple):
        add(f"list {len(value)};".encode())
        for item in value:
            _update(add, item)
    elif isinstance(value, Mapping):
        _update(add, [[str(key), item] for key, item in value.items()])
    elif dataclasses.is_dataclass(value) and isinstance(value, Iterable):  # texts read in parts
        for item in value:
            _update(add, item)
    elif dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.name not in _PLACES]
        _update(add, [[name, getattr(value, name)] for name in names])
        _update_files(add, value)
    else:
        add(f"{type(value).__name__};".encode())
        _update_files(add, value)


def _update_files(add: Callable[[bytes], None], value: object) -> None:
    """Adds the checksums of the files of an object with a method ``digests``."""
    if callable(digests := getattr(value, "digests", None)):
        for one in digests():
            add(f"file {len(one)};".encode() + one)

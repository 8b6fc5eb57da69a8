"""Manifests: tables of recordings, or of segments of recordings, and their texts."""

import dataclasses
import hashlib
import math
import os
import pathlib
from collections.abc import Iterator, Sequence

from jaxtyping import Float32
from numpy import ndarray

from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.core.storage.urls import url_of
from transformer_jax.data.bad_rows import BadRowPolicy, BadRows
from transformer_jax.data.files import listed_path, open_file
from transformer_jax.data.preparation import Preparation
from transformer_jax.data.speech.audio import AudioConfig
from transformer_jax.data.speech.features import SUFFIXES, read_features
from transformer_jax.data.speech.wav import WHOLE, Segment
from transformer_jax.data.tables import JsonRow, json_rows, tsv_rows
from transformer_jax.data.unread import Unread

__all__ = ["Recordings", "read_manifest"]

_PATHS = ("path", "audio_filepath")
_READ = (*_PATHS, "text", "offset", "duration")
_COLUMNS = "path (or audio_filepath), text, and if needed offset and duration"
_SECONDS = "give the segment by offset and duration, in seconds"
_CHANNELS = "the channels of a recording are averaged: leave it out, or extract the channel"
# Keys of other programs that select a part of a file.
_UNUSABLE = {
    **dict.fromkeys(("start", "end", "begin", "start_time", "end_time", "begin_time"), _SECONDS),
    **dict.fromkeys(("channel", "channels", "channel_selector"), _CHANNELS),
}


@dataclasses.dataclass(frozen=True)
class Recordings:
    """The recordings of a manifest and their texts.

    Attributes:
        paths: Paths of the files.
        texts: The transcript of each.
        name: Name of the manifest.
        lines: Line number of each.
        segments: The part of each file that is read.
    """

    paths: list[str]
    texts: list[str]
    name: str
    lines: list[int]
    segments: list[Segment]

    def __len__(self) -> int:
        return len(self.paths)

    def where(self, index: int) -> str:
        """Returns the line that lists a recording, with which messages begin."""
        return f"{self.name}:{self.lines[index]}: "

    def title(self, index: int) -> str:
        """Returns the path of a recording, with its segment unless it is the whole file."""
        segment = self.segments[index]
        return self.paths[index] + ("" if segment == WHOLE else f" ({segment})")

    def read(self, index: int, audio: AudioConfig) -> tuple[Float32[ndarray, "T F"], bytes]:
        """Reads the features of a recording and their checksum, as :func:`read_features`."""
        where, segment = self.where(index), self.segments[index]
        return read_features(self.paths[index], audio, where, segment)

    def digests(self) -> Iterator[bytes]:
        """The SHA-256 of each file; the recordings of one file share it.

        Raises:
            DataError: A file cannot be read.
        """
        known: dict[str, bytes] = {}
        for index, path in enumerate(self.paths):
            if path not in known:
                try:
                    with open_file(path) as file:
                        known[path] = hashlib.file_digest(file, "sha256").digest()
                except OSError as error:
                    reason = error.strerror or error
                    raise DataError(f"{self.where(index)}{path}: {reason}") from None
            yield known[path]

    def first_width(self, audio: AudioConfig) -> int:
        """Returns the number of features per frame of the first recording that can be read.

        Raises:
            DataError: None can be read; the message is about the first.
        """
        errors = []
        for index in range(len(self)):
            try:
                return int(self.read(index, audio)[0].shape[1])
            except DataError as error:
                errors.append(error)
        raise errors[0]

    def select(self, indices: Sequence[int], name: str) -> "Recordings":
        """Selects recordings."""
        pick = lambda values: [values[i] for i in indices]
        columns = map(pick, (self.lines, self.segments))
        return Recordings(pick(self.paths), pick(self.texts), name, *columns)


def read_manifest(
    path: str,
    flag: str = "",
    *,
    prepare: Preparation = Preparation(),
    bad_rows: BadRowPolicy | None = None,
) -> Recordings:
    """Reads a manifest, with one recording per line; empty lines are skipped.

    A row with ``offset`` and ``duration``, in seconds, is a segment of its file. Other keys are not
    read, and named in one line.

    Args:
        path: A ``.tsv`` file of paths and texts, or with a line of column names before them, or
            ``.jsonl`` of objects with ``path`` (or ``audio_filepath``) and ``text``. Paths are
            relative to its folder. ``.gz`` is unpacked.
        flag: The setting of the manifest, for messages.
        prepare: Preparation of texts.
        bad_rows: Whether bad rows are refused or skipped; None offers no skipping.

    Raises:
        ConfigError: The manifest is of another kind.
        DataError: Lines have no path or no text, or list files that are missing or of another
            kind, or select a part in another way; or there are no lines.
    """
    suffix = pathlib.PurePath(path.removesuffix(".gz")).suffix.lower()
    if suffix not in (".tsv", ".jsonl"):
        raise ConfigError(f"{flag} {path}: the name of a manifest ends in .tsv or .jsonl")
    bad, table = BadRows(path, bad_rows, "recording"), suffix == ".tsv"
    unread = Unread(path, "column" if table else "key")
    rows = (_tsv_rows if table else _jsonl_rows)(path, flag, bad)
    found = Recordings([], [], path, [], [])
    for number, row in rows:
        with bad:
            file, text, segment = _row(row, path)
            found.paths.append(file)
            found.texts.append(prepare.line(text))
            found.lines.append(number)
            found.segments.append(segment)
            unread.note(row.fields, _READ)
    bad.report(len(found))
    if not found.paths:
        raise DataError(f"{path}: no recordings: it is empty")
    unread.report()
    return found


def _jsonl_rows(path: str, flag: str, bad: BadRows) -> Iterator[tuple[int, JsonRow]]:
    for number, row in json_rows(path, flag, bad):
        there = {key: value for key, value in row.fields.items() if value is not None}
        yield number, row._replace(fields=there)


def _tsv_rows(path: str, flag: str, bad: BadRows) -> Iterator[tuple[int, JsonRow]]:
    """Yields the rows of a table; its first line may name the columns.

    Raises:
        DataError: The first line is neither a recording nor the names of the columns.
    """
    names = list[str]()
    for number, cells in tsv_rows(path, flag, bad):
        if not cells:
            continue
        if not names:
            names = _names_of_columns(cells, f"{path}:{number}: ")
            if names:
                continue
            names = ["path", "text"]
        with bad:
            if len(cells) != len(names):
                raise DataError(
                    f"{path}:{number}: {plural(len(cells), 'column')}, but {len(names)} are needed "
                    f"({', '.join(names)}): name others in a first line, such as "
                    f"path<tab>text<tab>offset<tab>duration"
                )
            there = {k: v for k, v in zip(names, cells, strict=True) if v.strip()}
            seconds = {k: _number(v) for k, v in there.items() if k in ("offset", "duration")}
            row: dict[str, object] = {"path": "", "text": "", **there, **seconds}
            yield number, JsonRow(row, f"{path}:{number}")


def _names_of_columns(cells: list[str], where: str) -> list[str]:
    """Returns the names of the columns in a first line; none if it lists a recording.

    Raises:
        DataError: It is neither, or lacks a column, or names one twice.
    """
    names = [cell.strip() for cell in cells]
    shown = ", ".join(map(repr, names[:8]))
    if not {*names} & {*_PATHS}:
        if len(names) > 1 and names[0] and not pathlib.PurePath(names[0]).suffix:
            raise DataError(
                f"{where}neither a recording, whose name ends in {', '.join(SUFFIXES)}, nor the "
                f"names of the columns {_COLUMNS}: found {shown}"
            )
        return []
    if "text" not in names or len({*names}) < len(names):
        raise DataError(f"{where}the columns {_COLUMNS}, each once, are needed: found {shown}")
    return names


def _number(cell: str) -> object:
    try:
        return float(cell)
    except ValueError:
        return cell


def _row(row: JsonRow, manifest: str) -> tuple[str, str, Segment]:
    """Returns the file, the text and the segment of a row, from its cells that have a value.

    Raises:
        DataError: A cell is missing or of another type, or selects a part in another way.
    """
    cells, where = row.fields, f"{row.place}: "
    for key in cells:
        if key in _UNUSABLE:
            raise DataError(f"{where}{key!r} is not read: {_UNUSABLE[key]}")
    named = [key for key in _PATHS if cells.get(key)]
    if len({str(cells[key]) for key in named}) > 1:
        raise DataError(f"{where}path and audio_filepath are different files: give one of them")
    hint = f"a manifest has {_COLUMNS}"
    path, text = row.text(named[0] if named else "path", hint), row.text("text", hint)
    for what, given in (("path", path), ("text", text)):
        if not given.strip():
            raise DataError(f"{where}no {what}: a path and a text are needed")
    offset, duration = (_seconds(cells, key, where) for key in ("offset", "duration"))
    if duration == 0:
        raise DataError(f"{where}duration is 0: a number of seconds above 0 is needed")
    segment = Segment(offset or 0.0, duration)
    file = listed_path(path.strip(" "), os.path.dirname(manifest), row.place)
    _check_there(file, segment, where)
    return file, text, segment


def _seconds(cells: dict[str, object], key: str, where: str) -> float | None:
    value = cells.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{where}{key} is {value!r}: a number of seconds is needed")
    if not 0 <= value <= 1e9 or math.isnan(value):
        raise DataError(f"{where}{key} is {value:g}: a number of seconds, 0 or more, is needed")
    return float(value)


def _check_there(path: str, segment: Segment, where: str) -> None:
    """Refuses a file of another kind, and a missing local file, before any is read."""
    suffix = pathlib.PurePath(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(f"{where}{path}: the name ends in none of {', '.join(SUFFIXES)}")
    if segment != WHOLE and suffix != ".wav":
        raise DataError(
            f"{where}{path}: offset and duration are read of .wav alone: cut the features, and "
            f"leave both out"
        )
    if url_of(path) is None and not os.path.exists(path):
        raise DataError(f"{where}{path}: no such file (looked from {pathlib.Path.cwd()})")

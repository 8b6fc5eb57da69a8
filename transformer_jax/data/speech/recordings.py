"""Recordings and their texts: manifests, the data of a run, and arrays of features.

A manifest is a table of recordings, or of segments of recordings, and their texts.
"""

import dataclasses
import functools
import hashlib
import math
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float32, Int, UInt8
from numpy import ndarray

from transformer_jax.core.config_fields import Amount, Configuration, Range
from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.core.storage.copies import local_file
from transformer_jax.core.storage.urls import url_of
from transformer_jax.core.task_progress import log, tracked
from transformer_jax.data.bad_rows import BadRowPolicy, BadRows, Unread
from transformer_jax.data.files import listed_path, open_file
from transformer_jax.data.pairs import Pairs, describe_overlap, hold_out
from transformer_jax.data.preparation import Preparation, ReadSettings
from transformer_jax.data.row_offsets import row_offsets
from transformer_jax.data.speech.audio import AudioConfig
from transformer_jax.data.speech.features import (
    SUFFIXES,
    FeatureStatistics,
    Normalization,
    is_encoded,
    read_features,
    refuse_encoded,
)
from transformer_jax.data.speech.wav import WHOLE, Segment
from transformer_jax.data.splits import HELD_OUT, DataSplits
from transformer_jax.data.store import open_arrays, write_arrays
from transformer_jax.data.tables import (
    CellFormat,
    JsonRow,
    cell_rows,
    chosen_columns,
    json_rows,
    table_format,
)
from transformer_jax.data.token_file import write_ids

__all__ = [
    "FeatureStore",
    "Recordings",
    "SpeechData",
    "SpeechReadOptions",
    "SpeechSplits",
    "build_features",
    "load_recordings",
    "read_manifest",
]

_PATHS = ("path", "audio_filepath")
_READ = (*_PATHS, "text", "offset", "duration")
# Usual names of columns, for those that are not there: Common Voice, DeepSpeech, VoxPopuli.
_USUAL = {
    "path": ("file", "file_name", "filename", "wav_filename", "audio"),
    "text": ("sentence", "transcript", "transcription", "normalized_text"),
}
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
        return f"{self.name.removesuffix(HELD_OUT)}:{self.lines[index]}: "

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
        path: A ``.tsv`` or ``.csv`` file of paths and texts, or with a line of column names before
            them, or ``.jsonl`` (or ``.json``) of objects with ``path`` (or ``audio_filepath``) and
            ``text``. Paths are relative to its folder. ``.gz`` is unpacked.
        flag: The setting of the manifest, for messages.
        prepare: Preparation of texts.
        bad_rows: Whether bad rows are refused or skipped; None offers no skipping.

    Raises:
        ConfigError: The manifest is of another kind.
        DataError: Lines have no path or no text, or list files that are missing or of another
            kind, or select a part in another way; or there are no lines.
    """
    suffix = pathlib.PurePath(path.removesuffix(".gz")).suffix.lower()
    if suffix not in (".tsv", ".csv", ".jsonl", ".json"):
        raise ConfigError(
            f"{flag} {path}: the name of a manifest ends in .tsv, .csv, .jsonl or .json (an object "
            f"in each line)"
        )
    bad = BadRows(path, bad_rows, "recording")
    format = "jsonl" if suffix == ".json" else table_format(path)
    unread = Unread(path, "key" if format == "jsonl" else "column")
    if format == "jsonl":
        rows = _jsonl_rows(path, flag, bad)
    else:
        rows = _table_rows(path, format, flag, bad)
    found, notes = Recordings([], [], path, [], []), dict[str, None]()
    for number, row in rows:
        with bad:
            file, text, segment = _row(row, path, notes)
            found.paths.append(file)
            found.texts.append(prepare.line(text))
            found.lines.append(number)
            found.segments.append(segment)
            unread.note(row.fields, _READ)
    bad.report(len(found))
    if not found.paths:
        raise DataError(f"{path}: no recordings: it is empty")
    for note in notes:
        log(f"{path}: {note}")
    unread.report()
    return found


def _jsonl_rows(path: str, flag: str, bad: BadRows) -> Iterator[tuple[int, JsonRow]]:
    for number, row in json_rows(path, flag, bad):
        there = {key: value for key, value in row.fields.items() if value is not None}
        yield number, row._replace(fields=there)


def _table_rows(
    path: str, format: CellFormat, flag: str, bad: BadRows
) -> Iterator[tuple[int, JsonRow]]:
    """Yields the rows of a table; its first line may name the columns.

    Raises:
        DataError: The first line is neither a recording nor the names of the columns.
    """
    names = list[str]()
    for number, cells in cell_rows(path, format, flag, bad):
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
    usual = _USUAL if not {*names} & {*_PATHS} else {"text": _USUAL["text"]}
    named = {name: field for field, name in chosen_columns(names, usual, where[:-2]).items()}
    names = [named.get(name, name) for name in names]
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


def _row(row: JsonRow, manifest: str, notes: dict[str, None]) -> tuple[str, str, Segment]:
    """Returns the file, the text and the segment of a row, from its cells that have a value.

    Notes say where files are that are not where the row says.

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
    if url_of(file) is None:
        file = _where_it_is(file, notes)
    _check_there(file, segment, where)
    return file, text, segment


def _where_it_is(file: str, notes: dict[str, None]) -> str:
    """Returns a file in ``clips``, as in Common Voice, or decoded, if it is not as it is listed."""
    folder, name = os.path.split(file)
    clips, suffix = os.path.join(folder, "clips"), pathlib.PurePath(name).suffix
    if not os.path.exists(file) and os.path.isdir(clips):
        notes[f"recordings are in {clips}"] = None
        file = os.path.join(clips, name)
    wav = file.removesuffix(suffix) + ".wav"
    if is_encoded(name) and os.path.exists(wav):
        notes[f"{suffix} files are read as the .wav files next to them"] = None
        return wav
    return file


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
    if is_encoded(path):
        refuse_encoded(path, where)
    if suffix not in SUFFIXES:
        raise DataError(f"{where}{path}: the name ends in none of {', '.join(SUFFIXES)}")
    if segment != WHOLE and suffix != ".wav":
        raise DataError(
            f"{where}{path}: offset and duration are read of .wav alone: cut the features, and "
            f"leave both out"
        )
    if url_of(path) is None and not os.path.exists(path):
        raise DataError(f"{where}{path}: no such file (looked from {pathlib.Path.cwd()})")


_NAMES = ("features", "offsets", "digests")


@dataclasses.dataclass(frozen=True)
class SpeechReadOptions(ReadSettings):
    """Options for reading recordings and their texts."""

    # Longest recording, in positions of stacked frames, and longest text, in tokens; longer ones
    # are dropped and counted.
    max_length: Annotated[int, Range(2)] = 512
    validation_size: Amount = 1000  # recordings held out if none are given; at most a tenth


@dataclasses.dataclass(frozen=True)
class SpeechData(Configuration, group="data"):
    """Manifests of recordings: paths and texts, in .tsv, .csv or .jsonl; offset, duration."""

    train: str | None = None  # training recordings; paths are relative to the manifest
    valid: str | None = None  # validation recordings; without them, a part of training is held out
    test: str | None = None  # test recordings
    read: SpeechReadOptions = SpeechReadOptions()
    audio: AudioConfig = AudioConfig()
    normalization: Normalization = Normalization()

    def __post_init__(self) -> None:
        super().__post_init__()
        mean, std = self.normalization.mean, self.normalization.std
        if len(mean) != len(std) or not all(0 < value < float("inf") for value in std):
            raise ConfigError(
                f"data.normalization has {len(mean)} means and {len(std)} standard deviations: as "
                f"many of both are needed, the latter above 0"
            )


@dataclasses.dataclass(frozen=True)
class SpeechSplits(DataSplits[Recordings]):
    """All recordings of a run."""


def load_recordings(data: SpeechData) -> SpeechSplits:
    """Loads training, validation and test recordings.

    Without ``data.valid``, a part of training is held out, chosen by a hash of the path in the
    manifest, independent of the order of lines.

    Raises:
        ConfigError: There is no training data.
        DataError: A manifest cannot be read, or a file that it lists is missing.
    """
    if data.train is None:
        raise ConfigError("no training data: give data.train, a manifest of recordings")
    prepare, tests = Preparation.of(data.read), {}
    read = functools.partial(read_manifest, prepare=prepare, bad_rows=data.read.bad_rows)
    train = read(data.train, "data.train")
    valid = None
    if data.valid is not None:
        valid = read(data.valid, "data.valid")
    else:
        train, valid = _held_out(train, os.path.dirname(data.train), data.read.validation_size)
    if data.test is not None:
        tests["test"] = read(data.test, "data.test")
    for path, part in ((data.valid, valid), (data.test, tests.get("test"))):
        if path is not None and part is not None:
            log(describe_overlap(*map(_as_pairs, (train, part))))
    return SpeechSplits(train, valid, tests)


def _as_pairs(recordings: Recordings) -> Pairs:
    titles = [recordings.title(i) for i in range(len(recordings))]
    return Pairs(titles, recordings.texts, recordings.name)


def _held_out(
    recordings: Recordings, folder: str, count: int
) -> tuple[Recordings, Recordings | None]:
    """Splits recordings into training and validation; see :func:`hold_out`."""
    short = [os.path.relpath(path, folder or ".") for path in recordings.paths]
    numbers = [str(index) for index in range(len(short))]
    train, valid = hold_out(Pairs(short, numbers, recordings.name), count)
    if valid is None:
        return recordings, None
    pick = lambda pairs: recordings.select([int(i) for i in pairs.targets], pairs.name)
    return pick(train), pick(valid)


@dataclasses.dataclass(frozen=True)
class FeatureStore:
    """Features of recordings: recording ``i`` is rows ``offsets[i]`` to ``offsets[i + 1]``."""

    features: Float32[np.ndarray, "total F"]
    offsets: Int[np.ndarray, " ends"]
    digests: UInt8[np.ndarray, "count 32"]  # SHA-256 of the files, or of the samples of segments

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Float32[np.ndarray, "T F"]:
        return self.features[self.offsets[index] : self.offsets[index + 1]]

    @property
    def frames(self) -> Int[np.ndarray, " count"]:
        """Number of frames of each recording."""
        return np.diff(self.offsets)

    def normalization(self) -> Normalization:
        """Mean and standard deviation of each feature over all frames."""
        read = np.flatnonzero(self.frames).tolist()
        return FeatureStatistics.of(self[i] for i in read).normalization()


def build_features(
    recordings: Recordings,
    audio: AudioConfig,
    width: int | None = None,
    cache: pathlib.Path | None = None,
    bad_rows: BadRowPolicy | None = None,
) -> FeatureStore:
    """Reads the features of recordings, not normalized, and shows progress.

    Args:
        recordings: The recordings.
        audio: Settings of frames computed from waveforms.
        width: Values per frame; None is as in the first recording.
        cache: A folder that keeps the arrays, memory-mapped, under a name made from the segments
            and the paths, sizes and times of the files and from ``audio``. None keeps them in
            memory.
        bad_rows: Whether recordings that cannot be read are refused, or have no frames; None
            offers no skipping.

    Raises:
        DataError: Files cannot be read as features, or their frames have another width; the message
            names up to twenty lines of the manifest.
    """
    if cache is None:
        blocks: list[np.ndarray] = []
        offsets, digests, found = _read_all(recordings, audio, width, bad_rows, blocks.append)
        return FeatureStore(np.concatenate(blocks).reshape(-1, found), offsets, digests)
    folder = cache / f"features-{_key(recordings, audio, bad_rows)}"
    kept = open_arrays(folder, _NAMES)
    if kept is None:
        write = lambda draft: _write(draft, recordings, audio, width, bad_rows)
        kept = write_arrays(folder, _NAMES, write)
    (features, offsets, digests), counts = kept
    if width not in (None, counts["width"]):
        raise _other_width(recordings, 0, counts["width"], width)
    return FeatureStore(features.reshape(-1, counts["width"]), offsets, digests)


def _key(recordings: Recordings, audio: AudioConfig, bad_rows: BadRowPolicy | None) -> str:
    """A name that depends on the files, and on whether some of them may be without frames."""
    digest = hashlib.sha256(repr(audio).encode() + b"skip" * (bad_rows == "skip"))
    for i, path in enumerate(recordings.paths):
        try:
            status = local_file(path).stat()
        except OSError as error:
            raise DataError(f"{recordings.where(i)}{path}: {error.strerror or error}") from None
        # The time of the last change of the file's entry: mtime alone can be set at will.
        stamp = f"{status.st_size}\0{status.st_mtime_ns}\0{status.st_ctime_ns}"
        digest.update(f"{path}\0{stamp}\0{recordings.segments[i]!r}\0".encode())
    return digest.hexdigest()[:24]


def _write(
    draft: pathlib.Path,
    recordings: Recordings,
    audio: AudioConfig,
    width: int | None,
    bad_rows: BadRowPolicy | None,
) -> dict[str, int]:
    offsets, digests, found = write_ids(
        draft / "features.npy",
        np.dtype(np.float32),
        lambda add: _read_all(recordings, audio, width, bad_rows, add),
    )
    np.save(draft / "offsets.npy", offsets)
    np.save(draft / "digests.npy", digests)
    return {"width": found}


def _read_all(
    recordings: Recordings,
    audio: AudioConfig,
    width: Any,
    bad_rows: BadRowPolicy | None,
    add: Callable[[np.ndarray], object],
) -> tuple[np.ndarray, np.ndarray, int]:
    """Passes the flat features of each file to ``add``; returns offsets, digests and the width."""
    count, bad = len(recordings), BadRows(recordings.name, bad_rows, "recording")
    frames, digests = np.zeros(count, np.int64), np.zeros((count, 32), np.uint8)
    for i in tracked(range(count), f"reading the recordings of {recordings.name}"):
        with bad:
            features, digest = recordings.read(i, audio)
            width = width or features.shape[1]
            if features.shape[1] != width:
                raise _other_width(recordings, i, features.shape[1], width)
            frames[i], digests[i] = len(features), np.frombuffer(digest, np.uint8)
            add(features.reshape(-1))
    bad.report(count - bad.count)
    return row_offsets(frames), digests, width


def _other_width(recordings: Recordings, index: int, found: int, wanted: int) -> DataError:
    return DataError(
        f"{recordings.where(index)}{recordings.title(index)}: frames of {found} values, but "
        f"{wanted} are needed, as in the others and the model"
    )

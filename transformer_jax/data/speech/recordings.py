"""Recordings and their texts: manifests, and the listed files as arrays of features and ids."""

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float32, Int, UInt8

from transformer_jax.core.config_fields import Amount, Configuration, Range
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.core.storage.copies import local_file
from transformer_jax.core.storage.urls import url_of
from transformer_jax.core.task_progress import log, tracked
from transformer_jax.data.pairs import Pairs, describe_overlap, hold_out
from transformer_jax.data.preparation import Preparation, TextNormalization
from transformer_jax.data.ragged import row_offsets
from transformer_jax.data.speech.audio import AudioConfig
from transformer_jax.data.speech.features import (
    SUFFIXES,
    FeatureStatistics,
    Normalization,
    read_features,
)
from transformer_jax.data.store import open_arrays, write_arrays
from transformer_jax.data.tables import read_jsonl, read_tsv
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

_NAMES = ("features", "offsets", "digests")


@dataclasses.dataclass(frozen=True)
class SpeechReadOptions(Configuration, group="data.read"):
    """Options for reading recordings and their texts."""

    lowercase: bool = False  # lower-case the texts
    normalization: TextNormalization = "nfc"  # composed characters (NFC), or none: text as it is
    # Longest recording, in positions of stacked frames, and longest text, in tokens; longer ones
    # are dropped and counted.
    max_length: Annotated[int, Range(2)] = 512
    validation_size: Amount = 1000  # recordings held out if none are given; at most a tenth


@dataclasses.dataclass(frozen=True)
class SpeechData(Configuration, group="data"):
    """Manifests of recordings: lines with a path and its text, as .tsv or .jsonl (path, text)."""

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
class Recordings:
    """The recordings of a manifest and their texts.

    Attributes:
        paths: Paths of the files.
        texts: The transcript of each.
        name: Name of the manifest.
        lines: Line number of each.
    """

    paths: list[str]
    texts: list[str]
    name: str
    lines: list[int]

    def __len__(self) -> int:
        return len(self.paths)

    def where(self, index: int) -> str:
        """Returns the line that lists a recording, with which messages begin."""
        return f"{self.name}:{self.lines[index]}: "

    def read(self, index: int, audio: AudioConfig) -> tuple[Float32[np.ndarray, "T F"], bytes]:
        """Reads the features of a recording and the bytes of its file, as :func:`read_features`."""
        return read_features(self.paths[index], audio, self.where(index))

    def select(self, indices: Sequence[int], name: str) -> "Recordings":
        """Selects recordings."""
        paths, texts = ([side[i] for i in indices] for side in (self.paths, self.texts))
        return Recordings(paths, texts, name, [self.lines[i] for i in indices])


@dataclasses.dataclass(frozen=True)
class SpeechSplits:
    """All recordings of a run; ``tests`` are by name."""

    train: Recordings
    valid: Recordings | None = None
    tests: dict[str, Recordings] = dataclasses.field(default_factory=dict)


def read_manifest(path: str, flag: str = "", *, prepare: Preparation = Preparation()) -> Recordings:
    """Reads a manifest, with one recording per line; empty lines are skipped.

    Args:
        path: A ``.tsv`` file of paths and texts, or ``.jsonl`` of objects with ``path`` and
            ``text``. Paths are relative to its folder. ``.gz`` is unpacked.
        flag: The setting of the manifest, for messages.
        prepare: Preparation of texts.

    Raises:
        ConfigError: The manifest is of another kind.
        DataError: A line has no path or no text, or lists a file that is missing or of another
            kind; or there are no lines.
    """
    suffix = pathlib.PurePath(path.removesuffix(".gz")).suffix.lower()
    if suffix not in (".tsv", ".jsonl"):
        raise ConfigError(f"{flag} {path}: the name of a manifest ends in .tsv or .jsonl")
    if suffix == ".tsv":
        rows: Iterator[tuple[str, str]] = read_tsv(path, (1, 2), flag)
    else:
        rows = read_jsonl(path, ("path", "text"), flag, "a manifest has path and text")
    folder, found = os.path.dirname(path), Recordings([], [], path, [])
    for number, (file, text) in enumerate(rows, 1):
        if not file and not text:
            continue
        for what, given in (("path", file), ("text", text)):
            if not given.strip():
                raise DataError(f"{path}:{number}: no {what}: a path, a tab and a text are needed")
        _check_there(os.path.join(folder, file.strip(" ")), f"{path}:{number}: ")
        found.paths.append(os.path.join(folder, file.strip(" ")))
        found.texts.append(prepare.line(text))
        found.lines.append(number)
    if not found.paths:
        raise DataError(f"{path}: no recordings: it is empty")
    return found


def _check_there(path: str, where: str) -> None:
    """Refuses a file of another kind, and a missing local file, before any is read."""
    if pathlib.PurePath(path).suffix.lower() not in SUFFIXES:
        raise DataError(f"{where}{path}: the name ends in none of {', '.join(SUFFIXES)}")
    if url_of(path) is None and not os.path.exists(path):
        raise DataError(f"{where}{path}: no such file (looked from {pathlib.Path.cwd()})")


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
    train = read_manifest(data.train, "data.train", prepare=prepare)
    valid = None
    if data.valid is not None:
        valid = read_manifest(data.valid, "data.valid", prepare=prepare)
    else:
        train, valid = _held_out(train, os.path.dirname(data.train), data.read.validation_size)
    if data.test is not None:
        tests["test"] = read_manifest(data.test, "data.test", prepare=prepare)
    for path, part in ((data.valid, valid), (data.test, tests.get("test"))):
        if path is not None and part is not None:
            log(describe_overlap(*(Pairs(one.paths, one.texts, one.name) for one in (train, part))))
    return SpeechSplits(train, valid, tests)


def _held_out(
    recordings: Recordings, folder: str, count: int
) -> tuple[Recordings, Recordings | None]:
    """Splits recordings into training and validation; see :func:`hold_out`."""
    short = [os.path.relpath(path, folder or ".") for path in recordings.paths]
    numbers = [str(index) for index in range(len(short))]
    train, valid = hold_out(Pairs(short, numbers, recordings.name), count)
    if valid is None:
        return recordings, None
    pick = lambda pairs: recordings.select([int(i) for i in pairs.targets], recordings.name)
    return pick(train), pick(valid)


@dataclasses.dataclass(frozen=True)
class FeatureStore:
    """Features of recordings: recording ``i`` is rows ``offsets[i]`` to ``offsets[i + 1]``."""

    features: Float32[np.ndarray, "total F"]
    offsets: Int[np.ndarray, " ends"]
    digests: UInt8[np.ndarray, "count 32"]  # SHA-256 of the files

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
        return FeatureStatistics.of(self[i] for i in range(len(self))).normalization()


def build_features(
    recordings: Recordings,
    audio: AudioConfig,
    width: int | None = None,
    cache: pathlib.Path | None = None,
) -> FeatureStore:
    """Reads the features of recordings, not normalized, and shows progress.

    Args:
        recordings: The recordings.
        audio: Settings of frames computed from waveforms.
        width: Values per frame; None is as in the first recording.
        cache: A folder that keeps the arrays, memory-mapped, under a name made from the paths,
            sizes and times of the files and from ``audio``. None keeps them in memory.

    Raises:
        DataError: A file cannot be read as features, or its frames have another width; the message
            names the line of the manifest.
    """
    if cache is None:
        blocks: list[np.ndarray] = []
        offsets, digests, found = _read_all(recordings, audio, width, blocks.append)
        return FeatureStore(np.concatenate(blocks).reshape(-1, found), offsets, digests)
    folder = cache / f"features-{_key(recordings, audio)}"
    kept = open_arrays(folder, _NAMES)
    if kept is None:
        write_arrays(folder, lambda draft: _write(draft, recordings, audio, width))
        kept = open_arrays(folder, _NAMES)
        assert kept is not None
    (features, offsets, digests), counts = kept
    if width not in (None, counts["width"]):
        raise _other_width(recordings, 0, counts["width"], width)
    return FeatureStore(features.reshape(-1, counts["width"]), offsets, digests)


def _key(recordings: Recordings, audio: AudioConfig) -> str:
    """A name that depends on the files."""
    digest = hashlib.sha256(repr(audio).encode())
    for i, path in enumerate(recordings.paths):
        try:
            status = local_file(path).stat()
        except OSError as error:
            raise DataError(f"{recordings.where(i)}{path}: {error.strerror or error}") from None
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()[:24]


def _write(
    draft: pathlib.Path, recordings: Recordings, audio: AudioConfig, width: int | None
) -> dict[str, int]:
    offsets, digests, found = write_ids(
        draft / "features.npy",
        np.dtype(np.float32),
        lambda add: _read_all(recordings, audio, width, add),
    )
    np.save(draft / "offsets.npy", offsets)
    np.save(draft / "digests.npy", digests)
    return {"width": found}


def _read_all(
    recordings: Recordings, audio: AudioConfig, width: Any, add: Callable[[np.ndarray], object]
) -> tuple[np.ndarray, np.ndarray, int]:
    """Passes the flat features of each file to ``add``; returns offsets, digests and the width."""
    frames, digests = [], []
    for i in tracked(range(len(recordings)), f"reading the recordings of {recordings.name}"):
        features, content = recordings.read(i, audio)
        width = width or features.shape[1]
        if features.shape[1] != width:
            raise _other_width(recordings, i, features.shape[1], width)
        frames.append(len(features))
        digests.append(np.frombuffer(hashlib.sha256(content).digest(), np.uint8))
        add(features.reshape(-1))
    return row_offsets(np.array(frames, np.int64)), np.stack(digests), width


def _other_width(recordings: Recordings, index: int, found: int, wanted: int) -> DataError:
    return DataError(
        f"{recordings.where(index)}{recordings.paths[index]}: frames of {found} values, but "
        f"{wanted} are needed, as in the others and the model"
    )

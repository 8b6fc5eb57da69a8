"""Recordings and their texts: the data of a run, and the listed files as arrays of features."""

import dataclasses
import functools
import hashlib
import os
import pathlib
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float32, Int, UInt8

from transformer_jax.core.config_fields import Amount, Configuration, Range
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.core.storage.copies import local_file
from transformer_jax.core.task_progress import log, tracked
from transformer_jax.data.bad_rows import BadRowPolicy, BadRows
from transformer_jax.data.pairs import Pairs, describe_overlap, hold_out
from transformer_jax.data.preparation import Preparation, ReadSettings
from transformer_jax.data.row_offsets import row_offsets
from transformer_jax.data.speech.audio import AudioConfig
from transformer_jax.data.speech.features import FeatureStatistics, Normalization
from transformer_jax.data.speech.manifest import Recordings, read_manifest
from transformer_jax.data.splits import DataSplits
from transformer_jax.data.store import open_arrays, write_arrays
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
class SpeechReadOptions(ReadSettings):
    """Options for reading recordings and their texts."""

    # Longest recording, in positions of stacked frames, and longest text, in tokens; longer ones
    # are dropped and counted.
    max_length: Annotated[int, Range(2)] = 512
    validation_size: Amount = 1000  # recordings held out if none are given; at most a tenth


@dataclasses.dataclass(frozen=True)
class SpeechData(Configuration, group="data"):
    """Manifests of recordings: paths and texts, as .tsv or .jsonl, also offset and duration."""

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
    pick = lambda pairs: recordings.select([int(i) for i in pairs.targets], recordings.name)
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

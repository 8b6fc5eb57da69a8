"""Features of recordings: read from .wav, .npy or .npz, checked, normalized and stacked."""

import dataclasses
import hashlib
import io
import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from jaxtyping import Float32, Float64

from transformer_jax.core.errors import DataError, plural
from transformer_jax.core.numpy_files import load_arrays
from transformer_jax.data.bad_rows import log_unread
from transformer_jax.data.files import open_file, read_file
from transformer_jax.data.speech.audio import AudioConfig, log_mel_frames, resampled
from transformer_jax.data.speech.wav import WHOLE, Segment, Waveform, read_wav

__all__ = [
    "SUFFIXES",
    "FeatureStatistics",
    "Normalization",
    "check_features",
    "decode_features",
    "is_encoded",
    "read_features",
    "recordings_in",
    "refuse_encoded",
    "waveform_features",
]

SUFFIXES = (".wav", ".npy", ".npz")
_ENCODED = (".mp3", ".flac", ".ogg", ".opus", ".m4a", ".aac", ".webm", ".mp4", ".wma", ".sph")
_LARGEST_FILE = 1 << 31  # bytes: 18 hours of 16 bits at 16,000 samples a second


@dataclasses.dataclass(frozen=True)
class Normalization:
    """Mean and standard deviation of each feature, over all frames of training."""

    mean: tuple[float, ...] = ()  # () is computed from the training data
    std: tuple[float, ...] = ()  # () is computed from the training data

    def __call__(self, features: Float32[np.ndarray, "T F"]) -> Float32[np.ndarray, "T F"]:
        """``(x - mean) / std``.

        Example:
            >>> Normalization((1.0, 0.0), (2.0, 1.0))(np.array([[3.0, 5.0]], np.float32))
            array([[1., 5.]], dtype=float32)
        """
        mean, std = (np.asarray(part, np.float32)[None] for part in (self.mean, self.std))
        return (features - mean) / std


class FeatureStatistics(NamedTuple):
    """Sums over frames, from which mean and standard deviation follow.

    The sums are over differences from the first frame, which are 0 for a constant feature.
    """

    frames: int
    first: Float64[np.ndarray, " F"]
    total: Float64[np.ndarray, " F"]
    squares: Float64[np.ndarray, " F"]

    @classmethod
    def of(cls, features: Iterable[Float32[np.ndarray, "T F"]]) -> "FeatureStatistics":
        """Computes the sums over all frames of recordings.

        Raises:
            DataError: There are no recordings.
        """
        frames, first, sums = 0, None, np.zeros((2, 1))
        for one in features:
            wide = one.astype(np.float64)
            if first is None:
                first, sums = wide[0], np.zeros((2, one.shape[1]))
            away = wide - first[None]
            sums += away.sum(0), np.square(away).sum(0)
            frames += len(one)
        if first is None:
            raise DataError("there are no recordings to compute the mean of features from")
        return cls(frames, first, sums[0], sums[1])

    def normalization(self) -> Normalization:
        """Returns mean and standard deviation; the latter is 1 for a constant feature.

        Example:
            >>> features = np.array([[1.0, 5.0], [3.0, 5.0]], np.float32)
            >>> FeatureStatistics.of([features]).normalization()
            Normalization(mean=(2.0, 5.0), std=(1.0, 1.0))
        """
        away = self.total / self.frames
        variance = self.squares / self.frames - np.square(away)
        # Possible rounding errors if the first frame is far from otherwise equal frames.
        constant = variance <= 1e-14 * self.squares / self.frames
        std = np.where(constant, 1.0, np.sqrt(np.maximum(variance, 0)))
        mean = self.first + away
        return Normalization(tuple(mean.tolist()), tuple(std.tolist()))


def read_features(
    path: str | os.PathLike[str], audio: AudioConfig, where: str = "", segment: Segment = WHOLE
) -> tuple[Float32[np.ndarray, "T F"], bytes]:
    """Reads the features of a recording, and the SHA-256 of its file or of its segment's samples.

    Args:
        path: A ``.wav`` file, whose log-mel frames are computed; or features ``[T, F]`` as
            ``.npy``, or as the only array or the array ``features`` of an ``.npz`` file.
        audio: Settings of frames computed from waveforms.
        where: The line that lists the file, for messages, such as ``train.tsv:3: ``.
        segment: The part of a ``.wav`` file to read; the rest of the file is not loaded.

    Raises:
        DataError: The file is missing, damaged or of another kind, has another sample rate, is
            shorter than a frame or than the segment, or contains NaN or infinity.
    """
    name, suffix = f"{where}{path}", Path(path).suffix.lower()
    if is_encoded(suffix):
        refuse_encoded(str(path), where)
    if suffix not in SUFFIXES:
        raise DataError(f"{name}: the name ends in none of {', '.join(SUFFIXES)}")
    try:
        if segment != WHOLE:
            name = f"{name} ({segment})"
            with open_file(path) as file:
                if not file.seekable():
                    raise DataError(f"{name}: it is a pipe; a file is needed")
                waveform = read_wav(file, name, segment)
            content = waveform.samples.tobytes() + str(waveform.rate).encode()
            return _frames(waveform, audio, name), hashlib.sha256(content).digest()
        content = read_file(path, _LARGEST_FILE)
    except FileNotFoundError:
        raise DataError(f"{name}: no such file (looked from {Path.cwd()})") from None
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {error.strerror or error}") from None
    return decode_features(content, suffix, audio, name), hashlib.sha256(content).digest()


def decode_features(
    content: bytes, suffix: str, audio: AudioConfig, name: str
) -> Float32[np.ndarray, "T F"]:
    """Decodes features from the bytes of a file, see :func:`read_features`."""
    if suffix == ".wav":
        return _frames(read_wav(io.BytesIO(content), name), audio, name)
    return check_features(_array(content, suffix, name), name)


def waveform_features(
    samples: np.ndarray, rate: int, audio: AudioConfig, name: str
) -> Float32[np.ndarray, "T F"]:
    """Returns the features of a waveform: those of a ``.wav`` file with the same samples.

    Args:
        samples: One channel ``[N]``: floating point from -1 to 1, or whole numbers of 8, 16 or 32
            bits, as in WAV files.
        rate: Number of samples in a second.
        audio: Settings of frames, and whether other rates are resampled.
        name: With which messages begin.

    Raises:
        DataError: The array has another shape or type, NaN or infinity, fewer samples than a frame,
            or a rate that is not read.
    """
    scaled = _SCALES.get(samples.dtype.name)
    if samples.ndim != 1 or (scaled is None and not np.issubdtype(samples.dtype, np.floating)):
        raise DataError(
            f"{name}: an array {list(samples.shape)} of {samples.dtype}: a waveform has one axis, "
            f"of floating point from -1 to 1 or of whole numbers of 8, 16 or 32 bits: average its "
            f"channels"
        )
    middle, scale = scaled or (0, 1)
    return _frames(Waveform((samples.astype(np.float32) - middle) / scale, rate), audio, name)


_SCALES = {"uint8": (128, 1 << 7), "int16": (0, 1 << 15), "int32": (0, 1 << 31)}


def recordings_in(paths: Iterable[str]) -> list[str]:
    """Returns the paths of recordings, with those inside a folder in its place, in order.

    A line counts the other files of a folder.

    Raises:
        DataError: A folder has no recordings.
    """
    found = list[str]()
    for path in paths:
        if not os.path.isdir(path):
            found.append(path)
            continue
        files = sorted(str(one) for one in Path(path).rglob("*") if one.is_file())
        inside = [file for file in files if Path(file).suffix.lower() in SUFFIXES]
        others = [file for file in files if Path(file).suffix.lower() not in SUFFIXES]
        if not inside:
            for file in filter(is_encoded, others):
                refuse_encoded(file, "")
            raise DataError(f"{path}: no {', '.join(SUFFIXES)} file in this folder")
        log_unread(path, others)
        found += inside
    return found


def is_encoded(path: str) -> bool:
    """Returns whether a file has encoded samples, such as MP3, which are not decoded here."""
    return path.lower().endswith(_ENCODED)


def refuse_encoded(path: str, where: str) -> NoReturn:
    """Refuses a file with encoded samples, with the command that decodes all of its folder.

    Raises:
        DataError: Always; the message begins with ``where``.
    """
    folder, suffix = shlex.quote(os.path.dirname(path) or "."), Path(path).suffix
    loop = (
        f'for f in {folder}/*{suffix}; do ffmpeg -i "$f" -ac 1 -ar 16000 "${{f%{suffix}}}.wav"; '
        f"done"
    )
    raise DataError(
        f"{where}{path}: {suffix} is not decoded here: make .wav files next to them by `{loop}`, "
        f"with the samples a second of the run; a table may go on naming {suffix} files"
    )


def _frames(waveform: Waveform, audio: AudioConfig, name: str) -> Float32[np.ndarray, "T F"]:
    """Returns the log-mel frames of a waveform, resampled if wanted."""
    samples, rate = waveform
    if rate != audio.sample_rate:
        if not audio.resample:
            raise DataError(
                f"{name}: {rate:,} samples a second, but {audio.sample_rate:,} are needed: "
                f"convert it, or begin a run with --data.audio.resample"
            )
        samples = resampled(samples, rate, audio.sample_rate, name)
    _refuse_nonfinite(samples[:, None], name, "sample")
    if len(samples) < audio.length:
        raise DataError(
            f"{name}: {plural(len(samples), 'sample')}, and a frame has {audio.length:,}: it "
            f"is empty or too short: leave it out"
        )
    return log_mel_frames(samples, audio)


def check_features(features: np.ndarray, name: str) -> Float32[np.ndarray, "T F"]:
    """Returns features as float32, after checking that they are finite ``[T, F]``, with a frame.

    Raises:
        DataError: They are not; the message begins with ``name``.

    Example:
        >>> check_features(np.zeros((0, 80)), "a.npy")
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.DataError: a.npy: no frames: it is empty: leave it out
    """
    real = np.issubdtype(features.dtype, np.floating) or np.issubdtype(features.dtype, np.integer)
    if features.ndim != 2 or not real or not features.shape[1]:
        raise DataError(
            f"{name}: an array {list(features.shape)} of {features.dtype}: numbers [frames, "
            f"features] are needed"
        )
    if not len(features):
        raise DataError(f"{name}: no frames: it is empty: leave it out")
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(features, np.float32)
    _refuse_nonfinite(found, name, "frame")
    return found


def _refuse_nonfinite(rows: np.ndarray, name: str, what: str) -> None:
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise DataError(
            f"{name}: {what} {int(np.argmin(finite)) + 1:,} of {len(rows):,} holds NaN or infinity"
        )


def _array(content: bytes, suffix: str, name: str) -> np.ndarray:
    """Returns the array of a NumPy file."""
    try:
        loaded = load_arrays(io.BytesIO(content))
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            names = loaded.files
            key = "features" if "features" in names else names[0] if len(names) == 1 else None
            if key is not None:
                return np.asarray(loaded[key])
    except Exception as error:  # damaged bytes make the reader raise any error
        reason = (str(error).splitlines() or ["damaged"])[0][:160]
        raise DataError(f"{name}: no {suffix} file that can be read ({reason})") from None
    raise DataError(
        f"{name}: holds the arrays {', '.join(names) or 'none'}: name the one with features "
        f"'features'"
    )

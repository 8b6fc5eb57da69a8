"""Pictures by index, as encoded bytes or as arrays: files and arrays in memory."""

import concurrent.futures
import contextlib
import hashlib
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8

from transformer_jax.core.errors import DataError
from transformer_jax.core.numpy_files import load_arrays
from transformer_jax.core.storage.copies import local_file
from transformer_jax.core.task_progress import tracked
from transformer_jax.data.bad_rows import BadRows
from transformer_jax.data.files import open_file, read_file
from transformer_jax.data.images.pixel_decoding import decode, read_header
from transformer_jax.data.text import refuse_pipe

__all__ = [
    "ArrayPictures",
    "PictureFiles",
    "PictureSource",
    "check_pictures",
    "load_array",
    "open_arrays",
    "pixels_of",
]

_LARGEST_FILE = 1 << 29  # bytes
_THREADS = 8  # files that are open at a time


@runtime_checkable
class PictureSource(Protocol):
    """A sequence of pictures."""

    def __len__(self) -> int:
        """The number of pictures."""

    def __getitem__(self, index: int) -> bytes | UInt8[np.ndarray, "height width C"]:
        """Returns a picture, encoded or as an array."""

    def where(self, index: int) -> str:
        """Returns the place of a picture, with which messages begin."""

    def check(self, index: int, max_pixels: int) -> None:
        """Refuses a picture that is missing or too large, without decoding it."""

    def select(self, indices: Sequence[int]) -> "PictureSource":
        """Returns some of the pictures."""

    def versions(self) -> Iterator[bytes]:
        """Values of all pictures that change with them, found without reading them."""

    def digests(self) -> Iterator[bytes]:
        """The checksums of all pictures, by their content."""


class PictureFiles(Sequence[bytes]):
    """Pictures in files.

    Args:
        paths: The files.
        places: Where each is listed, such as ``captions.csv:3``; empty or None if nowhere.
    """

    def __init__(self, paths: list[str], places: list[str] | None = None):
        self.paths, self._places = paths, places

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> Any:
        path = self.paths[int(index)]
        try:
            return read_file(path, _LARGEST_FILE)
        except OSError as error:
            raise DataError(f"{self.where(index)}: {error.strerror or error}") from None

    def where(self, index: int) -> str:
        """Returns the line that lists a picture, and its file."""
        place = "" if self._places is None else self._places[index]
        return f"{place}: {self.paths[index]}" if place else self.paths[index]

    def check(self, index: int, max_pixels: int) -> None:
        """Checks the format and the size at the beginning of a file.

        Truncation or damage later in a file shows only when it is decoded.

        Raises:
            DataError: The file is missing, not a picture, or has more pixels.
        """
        try:
            with open_file(self.paths[index]) as file:
                read_header(file, self.where(index), max_pixels)
        except OSError as error:
            raise DataError(f"{self.where(index)}: {error.strerror or error}") from None

    def select(self, indices: Sequence[int]) -> "PictureFiles":
        """Returns some of the files."""
        places = None if self._places is None else [self._places[i] for i in indices]
        return PictureFiles([self.paths[i] for i in indices], places)

    def versions(self) -> Iterator[bytes]:
        """Path, size and times of each file; only writing it or its attributes changes the last."""
        for path, status in zip(self.paths, self._statuses(), strict=True):
            times = f"{status.st_mtime_ns}\0{status.st_ctime_ns}"
            yield f"{path}\0{status.st_size}\0{times}".encode(errors="surrogateescape")

    def sizes(self) -> Iterator[bytes]:
        """Path and size of each file, by which earlier versions recognized pictures."""
        for path, status in zip(self.paths, self._statuses(), strict=True):
            yield f"{path}\0{status.st_size}".encode(errors="surrogateescape")

    def _statuses(self) -> Iterator[os.stat_result]:
        for index, path in enumerate(self.paths):
            try:
                yield os.stat(local_file(path))
            except OSError as error:
                raise DataError(f"{self.where(index)}: {error.strerror or error}") from None

    def digests(self) -> Iterator[bytes]:
        """The SHA-256 of each file, several at a time."""
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
            yield from threads.map(self._digest, range(len(self)))

    def _digest(self, index: int) -> bytes:
        try:
            with open_file(self.paths[index]) as file:
                return hashlib.file_digest(file, "sha256").digest()
        except OSError as error:
            raise DataError(f"{self.where(index)}: {error.strerror or error}") from None


class ArrayPictures(Sequence[np.ndarray]):
    """Pictures in one array ``[N height width C]`` of uint8.

    Args:
        array: The pictures; ``[N height width]`` is grey.
        name: Name of the file, for messages.

    Raises:
        DataError: The array has the wrong shape or dtype.
    """

    def __init__(self, array: np.ndarray, name: str):
        if array.ndim == 3:
            array = array[..., None]
        if array.ndim != 4 or array.dtype != np.uint8 or array.shape[-1] not in (1, 3, 4):
            raise DataError(
                f"{name}: an array of {array.dtype} {list(array.shape)}: pictures are uint8 "
                f"[N, height, width] or [N, height, width, channels], with 1, 3 or 4 channels"
            )
        if not array.size:
            raise DataError(f"{name}: no pictures: it is empty")
        self.array, self.name = array, name

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: Any) -> Any:
        return self.array[int(index)]

    def where(self, index: int) -> str:
        """Returns the file, and the index of the picture in it, from 0."""
        return f"{self.name}: picture {index}"

    def check(self, index: int, max_pixels: int) -> None:
        """Refuses pictures with too many pixels.

        Raises:
            DataError: They have more pixels.
        """
        _, height, width, _ = self.array.shape
        if height * width > max_pixels:
            raise DataError(
                f"{self.where(index)}: {width:,} x {height:,} pixels, but at most {max_pixels:,} "
                f"are allowed: make them smaller, or raise data.read.max_pixels"
            )

    def select(self, indices: Sequence[int]) -> "ArrayPictures":
        """Returns some of the pictures, in memory."""
        return ArrayPictures(self.array[np.asarray(indices)], self.name)

    def versions(self) -> Iterator[bytes]:
        """The checksums, which cost no more than anything else that depends on all pixels."""
        return self.digests()

    def digests(self) -> Iterator[bytes]:
        """The SHA-256 of the pixels of each picture."""
        for picture in self.array:
            yield hashlib.sha256(np.ascontiguousarray(picture).data).digest()


def check_pictures(
    source: PictureSource, max_pixels: int, bad: BadRows, *, decoded: bool = False
) -> list[int]:
    """Returns the pictures that can be read; others are added to ``bad``.

    Args:
        source: The pictures.
        max_pixels: Largest number of pixels in a picture.
        bad: Collects pictures that are missing, of unknown format or too large.
        decoded: Whether all pictures are decoded, so that damaged ones are found too.
    """

    def flaw(index: int) -> DataError | None:
        try:
            if decoded:
                pixels_of(source, index, 3, max_pixels)
            else:
                source.check(index, max_pixels)
        except DataError as error:
            return error
        return None

    good, name = [], f"decoding the pictures of {bad.name}"
    # Decoded pictures take memory, and the time of a processor.
    count = min(_THREADS, os.cpu_count() or 1) if decoded else _THREADS
    with concurrent.futures.ThreadPoolExecutor(count) as threads:
        flaws: Iterator[DataError | None] = threads.map(flaw, range(len(source)))
        for index in tracked(range(len(source)), name) if decoded else range(len(source)):
            with bad:
                if (error := next(flaws)) is not None:
                    raise error
                good.append(index)
    return good


def pixels_of(
    source: PictureSource, index: int, channels: int, max_pixels: int
) -> UInt8[np.ndarray, "height width {channels}"]:
    """Returns the pixels of one picture; see :func:`.decode`.

    Raises:
        DataError: The picture cannot be read.

    Example:
        >>> source = ArrayPictures(np.arange(2, dtype=np.uint8).reshape(2, 1, 1), "grey.npy")
        >>> pixels_of(source, 1, 3, 100).tolist()
        [[[1, 1, 1]]]
    """
    picture = source[index]
    if isinstance(picture, bytes):
        return decode(picture, source.where(index), channels, max_pixels)
    return in_channels(np.asarray(picture), channels)


def in_channels(
    pixels: UInt8[np.ndarray, "*shape C"], channels: int
) -> UInt8[np.ndarray, "*shape {channels}"]:
    """Returns pixels with 1 or 3 channels: a fourth is transparency over white.

    Example:
        >>> in_channels(np.array([[[10, 20, 30, 0]]], np.uint8), 3).tolist()
        [[[255, 255, 255]]]
        >>> in_channels(np.array([[[255, 0, 0]]], np.uint8), 1).tolist()
        [[[76]]]
    """
    if pixels.shape[-1] == 4:
        alpha = pixels[..., 3:].astype(np.uint32)
        pixels = ((pixels[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
    if pixels.shape[-1] == channels:
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, axis=-1)
    # ITU-R 601-2, in Pillow's integer arithmetic.
    weights = np.array([19_595, 38_470, 7_471], np.uint32)
    return ((pixels.astype(np.uint32) @ weights + 0x8000) >> 16).astype(np.uint8)[..., None]


@contextlib.contextmanager
def open_arrays(path: str, flag: str = "") -> Iterator[Mapping[str, np.ndarray]]:
    """Opens the arrays of a ``.npz`` file by name, or the array of a ``.npy`` file as ``""``.

    A ``.npy`` file is memory-mapped, and an array of a ``.npz`` file is loaded when it is used.
    Files with Python objects, and those that unpack to far more than they have, are refused.

    Raises:
        DataError: The file cannot be read.
    """
    where = f"{flag} {path}" if flag else path
    with contextlib.ExitStack() as stack:
        try:
            file = local_file(path)
            refuse_pipe(file, flag)
            if zipfile.is_zipfile(file):
                arrays = load_arrays(stack.enter_context(open_file(file)))
                stack.enter_context(arrays)
            else:
                arrays = {"": np.load(file, mmap_mode="r", allow_pickle=False)}
        except OSError as error:
            raise DataError(f"{where}: {error.strerror or error}") from None
        except DataError:
            raise
        except Exception as error:  # of zipfile, pickle and NumPy
            raise DataError(f"{where}: no .npy or .npz file of numbers ({error})") from None
        yield arrays


def load_array(arrays: Mapping[str, np.ndarray], name: str, where: str) -> np.ndarray:
    """Loads an array of a file.

    Args:
        arrays: The file, from :func:`open_arrays`.
        name: Name of the array.
        where: Name of the file, for messages.

    Raises:
        DataError: It is damaged.
    """
    try:
        return arrays[name]
    except Exception as error:  # of zipfile, zlib and NumPy
        raise DataError(f"{where}: {name}: damaged ({error}): get it again") from None

"""Pictures by index, as encoded bytes or as arrays: files and arrays in memory."""

import concurrent.futures
import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8

from transformer_jax.core.errors import DataError
from transformer_jax.core.storage.copies import local_file
from transformer_jax.data.files import open_file, read_file
from transformer_jax.data.images.decoding import SUFFIXES, decode, read_header

__all__ = [
    "ArrayPictures",
    "PictureFiles",
    "PictureSource",
    "find_pictures",
    "load_arrays",
    "pixels_of",
]

_LARGEST_FILE = 1 << 29  # bytes


@runtime_checkable
class PictureSource(Protocol):
    """A sequence of pictures."""

    def __len__(self) -> int:
        """The number of pictures."""

    def __getitem__(self, index: int) -> bytes | UInt8[np.ndarray, "height width C"]:
        """Returns a picture, encoded or as an array."""

    def where(self, index: int) -> str:
        """Returns the place of a picture, with which messages begin."""

    def check(self, max_pixels: int) -> None:
        """Refuses pictures that are missing or too large, without decoding any."""

    def parts(self) -> Iterator[tuple[bytes, bytes]]:
        """The identity of each picture for checksums, and its version, which copying changes."""


class PictureFiles(Sequence[bytes]):
    """Pictures in files.

    Args:
        paths: The files.
        places: Where each is listed, such as ``captions.csv:3: ``; None if nowhere.
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
        place = "" if self._places is None else f"{self._places[index]}: "
        return f"{place}{self.paths[index]}"

    def check(self, max_pixels: int) -> None:
        """Checks the format and the size at the beginning of each file.

        Truncation or damage later in a file shows only when it is decoded.

        Raises:
            DataError: A file is missing, not a picture, or has more pixels.
        """
        with concurrent.futures.ThreadPoolExecutor(max_workers=8) as threads:
            check = lambda index: self._check(index, max_pixels)
            for _ in threads.map(check, range(len(self))):
                pass

    def _check(self, index: int, max_pixels: int) -> None:
        try:
            with open_file(self.paths[index]) as file:
                read_header(file, self.where(index), max_pixels)
        except OSError as error:
            raise DataError(f"{self.where(index)}: {error.strerror or error}") from None

    def parts(self) -> Iterator[tuple[bytes, bytes]]:
        """Path, size and time of each file."""
        for index, path in enumerate(self.paths):
            try:
                status = os.stat(local_file(path))
            except OSError as error:
                raise DataError(f"{self.where(index)}: {error.strerror or error}") from None
            yield f"{path}\0{status.st_size}".encode(), str(status.st_mtime_ns).encode()


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

    def check(self, max_pixels: int) -> None:
        """Refuses pictures with too many pixels.

        Raises:
            DataError: They have more pixels.
        """
        _, height, width, _ = self.array.shape
        if height * width > max_pixels:
            raise DataError(
                f"{self.name}: {width:,} x {height:,} pixels, but at most {max_pixels:,} are "
                f"allowed: make them smaller, or raise data.read.max_pixels"
            )

    def parts(self) -> Iterator[tuple[bytes, bytes]]:
        """The checksum of the pixels of each picture, without versions."""
        for picture in self.array:
            yield hashlib.sha256(np.ascontiguousarray(picture).data).digest(), b""


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


def find_pictures(folder: str) -> list[str]:
    """Returns the pictures in a folder and its subfolders, in the order of their paths.

    Raises:
        DataError: There is no such folder, or it has no pictures.
    """
    if not os.path.isdir(folder):
        raise DataError(f"{folder or repr(folder)}: no such folder of pictures")
    found = sorted(
        os.path.join(parent, name)
        for parent, _, names in os.walk(folder)
        for name in names
        if not name.startswith(".") and name.lower().endswith(SUFFIXES)
    )
    if not found:
        raise DataError(f"{folder}: no pictures: their names end in {', '.join(SUFFIXES)}")
    return found


def load_arrays(path: str, flag: str = "") -> dict[str, np.ndarray]:
    """Loads the arrays of a ``.npz`` file by name, or the array of a ``.npy`` file as ``""``.

    A ``.npy`` file is memory-mapped. Files with Python objects are refused.

    Raises:
        DataError: The file cannot be read.
    """
    where = f"{flag} {path}" if flag else path
    try:
        loaded = np.load(local_file(path), mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"": loaded}
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except OSError as error:
        raise DataError(f"{where}: {error.strerror or error}") from None
    except Exception as error:  # of zipfile, pickle and NumPy
        raise DataError(f"{where}: no .npy or .npz file of numbers ({error})") from None

"""Pictures as squares of one size: decoded once into a memory-mapped array, or on every read.

Both give the same pixels, so a run does not depend on the choice.
"""

import concurrent.futures
import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Iterator
from typing import SupportsInt

import numpy as np
from jaxtyping import Float32, Int, UInt8

from transformer_jax.core.errors import DataError
from transformer_jax.core.task_progress import tracked
from transformer_jax.data.bad_rows import BadRows
from transformer_jax.data.images.augmentation import Augmentation, KeyedRows
from transformer_jax.data.images.picture_sources import (
    ArrayPictures,
    PictureFiles,
    PictureSource,
    pixels_of,
)
from transformer_jax.data.images.preprocessing import Preprocessing
from transformer_jax.data.images.transforms import centre_crop
from transformer_jax.data.store import open_arrays, release_pages, write_arrays

__all__ = ["ImageStore", "Pictures", "build_image_store"]

STORED = 4 << 30
"""Most bytes of pictures that are decoded before training, if the run does not specify it."""

_NAMES = ("pixels",)


@dataclasses.dataclass(frozen=True)
class Pictures:
    """The form in which a model reads pictures.

    Attributes:
        size: Pixels per side.
        channels: 3, or 1 for grey.
        preprocessing: Conversion of a picture to such a square.
        max_pixels: Largest number of pixels in a picture, before resizing.
    """

    size: int
    channels: int = 3
    preprocessing: Preprocessing = Preprocessing()
    max_pixels: int = 50_000_000

    @property
    def side(self) -> int:
        """Pixels per side before cropping.

        Raises:
            DataError: It is smaller than the model's input.
        """
        side = self.preprocessing.resize or self.size
        if side < self.size:
            raise DataError(
                f"preprocessing.resize is {side}: the model reads {self.size} pixels a side, so it "
                f"must be at least that"
            )
        return side

    def square(self, source: PictureSource, index: int) -> UInt8[np.ndarray, "S S C"]:
        """Returns a picture as a square, before cropping.

        Raises:
            DataError: The picture cannot be read.
        """
        pixels = pixels_of(source, index, self.channels, self.max_pixels)
        return self.preprocessing.square(pixels, self.size)


class ImageStore:
    """Pictures as squares of one size, with pixels from 0 to 255.

    Attributes:
        form: The form in which the model reads them.
    """

    def __init__(
        self,
        source: PictureSource,
        form: Pictures,
        array: np.ndarray | None = None,
        name: str = "pictures",
    ):
        self.form, self._source, self._array, self._name = form, source, array, name

    @property
    def decoded(self) -> bool:
        """True if all pictures are decoded."""
        return self._array is not None

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: SupportsInt) -> UInt8[np.ndarray, "S S C"]:
        if self._array is not None:
            return np.asarray(self._array[int(index)])
        return self.form.square(self._source, int(index))

    def batch(
        self,
        rows: Int[np.ndarray, " B"],
        keys: np.ndarray | None = None,
        change: Augmentation | None = None,
    ) -> Float32[np.ndarray, "B height width C"]:
        """Returns normalized pictures, as a model reads them; row -1 is all zeros.

        Args:
            rows: Indices of the pictures.
            keys: A key for each; None makes no random changes.
            change: The random changes.

        Raises:
            DataError: A picture cannot be read.
        """
        form = self.form
        pixels = np.zeros((len(rows), form.size, form.size, form.channels), np.uint8)
        for i, row in enumerate(rows.tolist()):
            if row < 0:
                continue
            if keys is None or change is None:
                pixels[i] = centre_crop(self[row], form.size, form.size)
            else:
                pixels[i] = change(self[row], int(keys[i]), form.size)
        if self._array is not None:
            release_pages(self._array)
        images = form.preprocessing.normalized(pixels)
        images[rows < 0] = 0
        return images

    def of_items(
        self,
        items: KeyedRows | Int[np.ndarray, " B"],
        rows: Int[np.ndarray, " count"],
        change: Augmentation | None = None,
    ) -> tuple[Int[np.ndarray, " B"], Float32[np.ndarray, "B height width C"]]:
        """Returns the examples of a batch, and their pictures.

        Args:
            items: The examples, with or without keys.
            rows: The picture of each example.
            change: The random changes, if there are keys.
        """
        indices, keys = (items.items, items.keys) if isinstance(items, KeyedRows) else (items, None)
        pictures = np.where(indices < 0, -1, rows[np.maximum(indices, 0)])
        return indices, self.batch(pictures, keys, change)

    def parts(self) -> Iterator[UInt8[np.ndarray, " part"]]:
        """Bytes for the checksum of the data: of all pixels, or of the content of all files."""
        if self._array is not None:
            yield np.frombuffer(_digest(self._array), np.uint8)
            return
        digests = self._source.digests()
        for _ in tracked(range(len(self._source)), f"reading the pictures of {self._name}"):
            yield np.frombuffer(next(digests), np.uint8)

    def earlier_parts(self) -> list[UInt8[np.ndarray, " part"]] | None:
        """The same in earlier versions; None if nothing has changed since.

        Pictures that are not decoded before training were known by their paths and sizes.
        """
        if self._array is not None or not isinstance(self._source, PictureFiles):
            return None
        return [np.frombuffer(part, np.uint8) for part in self._source.sizes()]


def build_image_store(
    source: PictureSource,
    form: Pictures,
    *,
    name: str = "pictures",
    cache: str | pathlib.Path | None = None,
    decode: bool | None = None,
) -> ImageStore:
    """Makes squares of one size from the pictures of a source.

    Args:
        source: The pictures.
        form: The form in which a model reads them.
        name: Name for the progress display.
        cache: A folder that keeps the squares, memory-mapped, under a name made from paths, sizes
            and times of files and from ``form``. None keeps them in memory.
        decode: Whether to decode all pictures now, instead of each on reading. None decodes up to
            4 GiB.

    Raises:
        DataError: Pictures decoded now are missing, damaged, truncated, or have too many pixels.
            The message names them.
    """
    shape = (len(source), form.side, form.side, form.channels)
    if isinstance(source, ArrayPictures) and source.array.shape == shape:
        return ImageStore(source, form, source.array, name)  # they are already such squares
    if decode is None:
        decode = int(np.prod(shape, dtype=np.int64)) <= STORED
    if not decode:
        return ImageStore(source, form, None, name)
    if cache is None:
        squares = np.zeros(shape, np.uint8)
        _fill(squares, source, form, name)
        return ImageStore(source, form, squares, name)
    folder = pathlib.Path(cache) / f"pictures-{_key(source, form)}"
    kept = open_arrays(folder, _NAMES)
    if kept is None:

        def fill(draft: pathlib.Path) -> dict[str, int]:
            file = draft / "pixels.npy"
            array = np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=shape)
            _fill(array, source, form, name)
            array.flush()
            return {"pictures": len(source)}

        kept = write_arrays(folder, _NAMES, fill)
    return ImageStore(source, form, kept[0][0], name)


def _fill(array: np.ndarray, source: PictureSource, form: Pictures, name: str) -> None:
    """Decodes all pictures, several at a time."""

    def put(index: int) -> DataError | None:
        try:
            array[index] = form.square(source, index)
        except DataError as error:
            return error
        return None

    bad = BadRows(name, "refuse", "picture")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        done = threads.map(put, range(len(source)))
        for _ in tracked(range(len(source)), f"decoding the pictures of {name}"):
            with bad:
                if (error := next(done)) is not None:
                    raise error
    bad.check(len(source) - bad.count)


def _key(source: PictureSource, form: Pictures) -> str:
    """A name that depends on the pictures and how they are read."""
    prepare = form.preprocessing
    read = (form.side, form.size, form.channels, prepare.fit, prepare.filter)
    digest = hashlib.sha256(repr(read).encode())
    for version in source.versions():
        digest.update(version + b"\0")
    return digest.hexdigest()[:24]


def _digest(array: np.ndarray) -> bytes:
    digest = hashlib.sha256()
    for start in range(0, len(array), 4096):
        digest.update(np.ascontiguousarray(array[start : start + 4096]).data)
    release_pages(array)
    return digest.digest()

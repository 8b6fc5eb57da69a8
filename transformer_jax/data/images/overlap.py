"""Pictures of one part of a data set that also occur in another part."""

import hashlib
import io
import os
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from transformer_jax.core.errors import DataError, plural
from transformer_jax.core.storage.copies import local_file
from transformer_jax.data.images.sources import ArrayPictures, PictureFiles
from transformer_jax.data.images.tables import ImageTable

__all__ = ["overlap"]

Found = TypeVar("Found")

_END = 4096  # bytes at the end of a file, which few files of one size share


def overlap(train: ImageTable, part: ImageTable) -> str:
    """Returns a line about the pictures of a part that also occur in training, or nothing.

    Files with the same bytes are one picture, whatever their names are, and so are arrays with the
    same pixels. Files are compared by size, then by their last bytes, and in full only where both
    agree. Prepared data sets are not compared.

    Args:
        train: The training pictures.
        part: Validation or test pictures.

    Raises:
        DataError: A file cannot be read.
    """
    tables = train, part
    keys = next((keys for kind, keys in _KEYS.items()
                 if all(isinstance(one.pictures, kind) for one in tables)), ())  # fmt: skip
    if not keys:
        return ""
    rows = [sorted(set(one.rows.tolist())) for one in tables]
    for key in keys:
        found = [
            {row: key(one.pictures, row) for row in left}
            for one, left in zip(tables, rows, strict=True)
        ]
        both = set(found[0].values()) & set(found[1].values())
        rows = [[row for row, value in one.items() if value in both] for one in found]
    if not rows[1]:
        return ""
    count = plural(len(set(part.rows.tolist())), "picture")
    return f"{part.name}: {len(rows[1]):,} of {count} are also in the training data"


def _size(pictures: PictureFiles, row: int) -> int:
    return _read(pictures, row, lambda file: file.seek(0, os.SEEK_END))


def _end(pictures: PictureFiles, row: int) -> bytes:
    def read(file: io.BufferedReader) -> bytes:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _END))
        return file.read()

    return _read(pictures, row, read)


def _content(pictures: PictureFiles, row: int) -> bytes:
    return _read(pictures, row, lambda file: hashlib.file_digest(file, "sha256").digest())


def _read(pictures: PictureFiles, row: int, read: Callable[[io.BufferedReader], Found]) -> Found:
    try:
        with open(local_file(pictures.paths[row]), "rb") as file:
            return read(file)
    except OSError as error:
        raise DataError(f"{pictures.where(row)}: {error.strerror or error}") from None


def _pixels(pictures: ArrayPictures, row: int) -> tuple[tuple[int, ...], bytes]:
    pixels = pictures[row]
    return pixels.shape, hashlib.sha256(pixels.tobytes()).digest()


# Values that equal pictures share, the cheapest first; only equal pictures share all of them.
_KEYS: dict[type, tuple[Callable[[Any, int], Hashable], ...]] = {
    PictureFiles: (_size, _end, _content),
    ArrayPictures: (_pixels,),
}

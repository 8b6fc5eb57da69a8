"""Pictures of one part of a data set that also occur in another part."""

import os
from collections.abc import Iterator
from typing import Any

from transformer_jax.core.errors import DataError, plural
from transformer_jax.core.storage.copies import local_file
from transformer_jax.data.images.sources import ArrayPictures, PictureFiles
from transformer_jax.data.images.tables import ImageTable

__all__ = ["overlap"]

_END = 4096  # bytes at the end of a file that, with its size, identify a picture


def overlap(train: ImageTable, part: ImageTable) -> str:
    """Returns a line about the pictures of a part that also occur in training, or nothing.

    Files with the same content are one picture, whatever their names are. Files are compared by
    their sizes and last bytes, arrays by all pixels. Prepared data sets are not compared.

    Args:
        train: The training pictures.
        part: Validation or test pictures.

    Raises:
        DataError: A file cannot be read.
    """
    if not _comparable(train, part):
        return ""
    names = {name for _, name in _coarse(train)} & {name for _, name in _coarse(part)}
    known = {_exact(train, row) for row, name in _coarse(train) if name in names}
    shared = sum(_exact(part, row) in known for row, name in _coarse(part) if name in names)
    if not shared:
        return ""
    count = plural(len(set(part.rows.tolist())), "picture")
    return f"{part.name}: {shared:,} of {count} are also in the training data"


def _comparable(train: ImageTable, part: ImageTable) -> bool:
    kinds = (PictureFiles, ArrayPictures)
    return any(all(isinstance(one.pictures, kind) for one in (train, part)) for kind in kinds)


def _coarse(table: ImageTable) -> Iterator[tuple[int, Any]]:
    """Yields the index of each picture, and a value that equal pictures share."""
    source = table.pictures
    for row in sorted(set(table.rows.tolist())):
        if isinstance(source, ArrayPictures):
            yield row, hash(source[row].tobytes())
        else:
            assert isinstance(source, PictureFiles)
            try:
                yield row, os.path.getsize(local_file(source.paths[row]))
            except OSError as error:
                raise DataError(f"{source.where(row)}: {error.strerror or error}") from None


def _exact(table: ImageTable, row: int) -> Any:
    """Returns a value that only equal pictures share."""
    source = table.pictures
    if isinstance(source, ArrayPictures):
        return source[row].shape, source[row].tobytes()
    assert isinstance(source, PictureFiles)
    try:
        with open(local_file(source.paths[row]), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _END))
            return size, file.read()
    except OSError as error:
        raise DataError(f"{source.where(row)}: {error.strerror or error}") from None

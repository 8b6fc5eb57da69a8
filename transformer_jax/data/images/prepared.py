"""Pictures prepared on disk by TensorFlow Datasets, in the format array_record."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.images.columns import PICTURES, TEXTS, Columns
from transformer_jax.data.images.picture_tables import ImageTable
from transformer_jax.data.images.pixel_decoding import read_header
from transformer_jax.data.tfds import PreparedReader, find_prepared

__all__ = ["ImageReader", "PreparedPictures", "open_images"]


class PreparedPictures(Sequence[bytes]):
    """The encoded pictures of a split."""

    def __init__(self, data: Any, field: str, name: str, records: Sequence[int] | None = None):
        self._data, self._field, self._name = data, field, name
        self._records: Sequence[int] = range(len(data)) if records is None else records
        self._lock = threading.Lock()  # array_record has one position in a file

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: Any) -> Any:
        try:
            with self._lock:
                return self._data[self._records[int(index)]][self._field]
        except Exception as error:  # array_record has no error class of its own
            raise DataError(
                f"{self.where(index)}: cannot be read ({error}): prepare the data set again"
            ) from None

    def where(self, index: int) -> str:
        """Returns the split and the number of the record."""
        return f"{self._name}: record {self._records[index]}"

    def check(self, index: int, max_pixels: int) -> None:
        """Checks the header of a picture.

        Raises:
            DataError: The picture is of unknown format, or has more pixels.
        """
        read_header(self[index], self.where(index), max_pixels)

    def select(self, indices: Sequence[int]) -> "PreparedPictures":
        """Returns some of the pictures."""
        records = [self._records[i] for i in indices]
        return PreparedPictures(self._data, self._field, self._name, records)

    def versions(self) -> Iterator[bytes]:
        """The encoded pictures."""
        for index in range(len(self)):
            yield self[index]

    def digests(self) -> Iterator[bytes]:
        """The encoded pictures."""
        return self.versions()


class ImageReader(PreparedReader):
    """The pictures of a prepared data set with their labels or captions, split by split.

    Args:
        folder: Folder of one version of one configuration.
        columns: The features of pictures and of texts.

    Raises:
        ConfigError: The package is not installed, or a feature is missing or of another type.
        DataError: The folder cannot be read, or is in another format.
    """

    def __init__(self, folder: Path, columns: Columns):
        super().__init__(folder)
        if self.uses_tensorflow:
            raise DataError(
                f"{folder}: prepared as tfrecord, in which a picture cannot be read by its index: "
                f"prepare it with file_format='array_record'"
            )
        kinds = {name: self.info.features[name] for name in self.features}
        wanted = (
            ("image", columns.image, PICTURES, ("Image",)),
            ("text", columns.text, TEXTS[columns.text_kind], ("ClassLabel", "Text")),
        )
        names = []
        for option, given, usual, allowed in wanted:
            names.append(
                next((name for name in ((given,) if given else usual) if name in kinds), "")
            )
            if not names[-1] or type(kinds[names[-1]]).__name__ not in allowed:
                shown = ", ".join(f"{name} ({type(kind).__name__})" for name, kind in kinds.items())
                raise ConfigError(
                    f"data.read.{option} {given or ''}: {self.info.name} has {shown}: name a "
                    f"feature of the type {' or '.join(allowed)}"
                )
        self._image, self._text = names
        self._labels: Any = getattr(kinds[self._text], "names", None)

    def table(self, split: str) -> ImageTable:
        """Returns the pictures of a split and their texts.

        Raises:
            DataError: A shard is missing, cut or damaged, or a record has no label.
        """
        name, encoded = f"{self.folder} {split}", {self._image: _as_encoded()}
        data = self.records(split, encoded)
        texts = []
        for index in range(len(data)):
            value = data[index][self._text]
            if self._labels is not None and int(value) < 0:
                raise DataError(f"{name}: record {index} has no label: choose another data set")
            texts.append(
                value.decode("utf-8") if isinstance(value, bytes) else self._labels[int(value)]
            )
        keys = [str(index) for index in range(len(texts))]
        pictures = PreparedPictures(data, self._image, name)
        return ImageTable(name, pictures, np.arange(len(texts)), texts, keys)


def _as_encoded() -> Any:
    import tensorflow_datasets as tfds

    return tfds.decode.SkipDecoding()


def open_images(name: str, data_dir: str | None, columns: Columns) -> ImageReader:
    """Opens a data set by name; see :func:`.find_prepared` and :class:`ImageReader`."""
    return ImageReader(find_prepared(name, data_dir), columns)

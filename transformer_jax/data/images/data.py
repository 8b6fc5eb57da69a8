"""The pictures of a run: settings, training, validation and test pictures, and their overlap."""

import dataclasses
import hashlib
import io
import os
from collections.abc import Callable, Hashable
from typing import Annotated, Any, TypeVar

import numpy as np

from transformer_jax.core.config_fields import Configuration, Range
from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.core.storage.copies import local_file
from transformer_jax.data.bad_rows import BadRows, log_unread
from transformer_jax.data.images import prepared
from transformer_jax.data.images.columns import Columns, TextKind
from transformer_jax.data.images.folders import entries
from transformer_jax.data.images.picture_sources import ArrayPictures, PictureFiles, check_pictures
from transformer_jax.data.images.picture_tables import (
    TABLES,
    ImageTable,
    is_split_folder,
    read_images,
)
from transformer_jax.data.images.pixel_decoding import MAX_PIXELS
from transformer_jax.data.preparation import Preparation, ReadSettings
from transformer_jax.data.splits import HELD_OUT, DataSplits, held_by_hash, refuse_several
from transformer_jax.data.text import local_data

__all__ = ["ImageData", "ImageReadOptions", "ImageSplits", "open_images", "open_table", "overlap"]

_SPLITS = {"valid": ("valid", "validation", "val"), "test": ("test",)}  # folders next to `train`


@dataclasses.dataclass(frozen=True)
class ImageReadOptions(ReadSettings):
    """Options for reading pictures and their texts."""

    # Column, field or array of pictures, or TFDS feature. None looks for a usual name: file_name,
    # image, images, image_name, file, path, x.
    image: str | None = None
    # The same for labels or captions: label, labels, caption, captions, comment, text, ...
    text: str | None = None
    # Whether the usual names of labels or of captions are tried first.
    text_kind: TextKind = "label"
    # Largest number of pixels in a picture, checked before decoding.
    max_pixels: Annotated[int, Range(1, MAX_PIXELS)] = 50_000_000
    # Fraction of training pictures held out if no validation is given, 0 to 0.5.
    validation_size: Annotated[float, Range(0, 0.5)] = 0.1
    # Decode all pictures before training, into a file of the run. False decodes each when a step
    # needs it; None decodes them first if they need at most 4 GiB.
    decode_first: bool | None = None

    @property
    def columns(self) -> Columns:
        """The columns of pictures and of texts."""
        return Columns(self.image, self.text, self.text_kind)


@dataclasses.dataclass(frozen=True)
class ImageData(Configuration, group="data"):
    """The source of pictures and their texts; set images or tfds."""

    # A folder with one folder per class, or such folders named train, valid and test; a table
    # (.csv, .tsv, .jsonl, .txt, .json) of files and texts; .npz, or .npy with a .txt next to it.
    images: str | None = None
    valid: str | None = None  # the same for validation; without it, a part of training is held out
    test: str | None = None  # the same for tests
    tfds: str | None = None  # a TensorFlow Datasets name, e.g. cifar10, prepared as array_record
    tfds_dir: str | None = None  # its folder; None is TFDS_DATA_DIR or ~/tensorflow_datasets
    read: ImageReadOptions = ImageReadOptions()

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_several(self, "corpus", "images", "tfds")  # captions have a corpus


@dataclasses.dataclass(frozen=True)
class ImageSplits(DataSplits[ImageTable]):
    """All pictures of a run, with the options for reading them."""

    read: ImageReadOptions = ImageReadOptions()

    @property
    def parts(self) -> list[ImageTable]:
        """All tables."""
        return [self.train, *([] if self.valid is None else [self.valid]), *self.tests.values()]


def open_images(data: ImageData) -> ImageSplits:
    """Loads training, validation and test pictures.

    Validation pictures come from ``data.valid``, or from the folder or split of that name next to
    the training pictures, or are held out from training, chosen by a hash of the picture's name,
    with all its texts. Nothing is decoded, but headers are checked, so that a picture that is
    missing, of unknown format or too large is refused before training.

    Raises:
        ConfigError: The settings name no data.
        DataError: A file cannot be read.
    """
    read = data.read
    tests: dict[str, ImageTable] = {}
    if data.tfds is not None:
        train, valid, tests = _prepared(data)
    elif data.images is not None:
        found = _split_folders(data.images)
        train = _read(found["train"], read, "data.images")
        valid = _read(found["valid"], read, "data.images") if "valid" in found else None
        if "test" in found and data.test is None:
            tests["test"] = _read(found["test"], read, "data.images")
    else:
        raise ConfigError(
            "no training pictures: give data.images, a folder with a folder for each class, a "
            "table or an array; or data.tfds"
        )
    if data.valid is not None:
        valid = _read(data.valid, read, "data.valid")
    elif valid is None and read.validation_size > 0:
        train, valid = _hold_out(train, read.validation_size)
    if data.test is not None:
        tests["test"] = _read(data.test, read, "data.test")
    splits = ImageSplits(train, valid, tests, read=read)
    lines = (overlap(train, part) for part in splits.parts[1:])
    return dataclasses.replace(splits, overlaps=tuple(line for line in lines if line))


def open_table(path: str, read: ImageReadOptions, flag: str) -> ImageTable:
    """Returns the pictures of one folder or file, after checking their headers.

    Raises:
        DataError: It cannot be read; or a picture is missing, of unknown format or too large.
    """
    if len(found := _split_folders(path)) > 1:
        raise DataError(
            f"{flag} {path}: it has folders of {plural(len(found), 'split')} "
            f"({', '.join(found.values())}): name one of them"
        )
    return _read(path, read, flag)


def _read(path: str, read: ImageReadOptions, flag: str) -> ImageTable:
    """Reads the rows and checks the pictures of one folder or file."""
    what = "row" if path.lower().endswith(TABLES) else "picture"
    bad = BadRows(path, read.bad_rows, what)
    return _checked(read_images(path, read.columns, flag, Preparation.of(read), bad), read, bad)


def _checked(table: ImageTable, read: ImageReadOptions, bad: BadRows) -> ImageTable:
    """Returns a table without pictures that cannot be read, which are refused or counted."""
    skips = read.bad_rows == "skip"
    good = check_pictures(table.pictures, read.max_pixels, bad, decoded=skips)
    if len(good) < len(table.pictures):
        before, pictures = len(table), len(table.pictures)
        table = table.with_pictures(good)
        if bad.what == "row":  # every row of a bad picture counts
            bad.count += before - len(table) - (pictures - len(good))
    bad.report(len(table))
    return table


def _split_folders(path: str) -> dict[str, str]:
    """The folders of a data set with one folder per split; otherwise the path as training."""
    here = str(local_data(path, "data.images"))
    if not is_split_folder(os.path.join(here, "train")):
        return {"train": path}
    found = {"train": os.path.join(path, "train")}
    for split, names in _SPLITS.items():
        for name in names:
            if is_split_folder(os.path.join(here, name)):
                found.setdefault(split, os.path.join(path, name))
    used = {os.path.basename(folder) for folder in found.values()}
    log_unread(path, [entry.name for entry in entries(here) if entry.name not in used])
    return found


def _hold_out(table: ImageTable, share: float) -> tuple[ImageTable, ImageTable]:
    """Splits pictures into training and validation, about ``share`` of them."""
    rows = table.rows.tolist()
    alone = f"{table.name}: {plural(len(set(rows)), 'picture')}"
    held = np.array(held_by_hash([os.fsencode(table.keys[row]) for row in rows], share, alone))
    train, valid = (np.flatnonzero(part).tolist() for part in (~held, held))
    return table.select(train, table.name), table.select(valid, table.name + HELD_OUT)


def _prepared(data: ImageData) -> tuple[ImageTable, ImageTable | None, dict[str, ImageTable]]:
    assert data.tfds is not None
    reader = prepared.open_images(data.tfds, data.tfds_dir, data.read.columns)
    validation = reader.validation(_SPLITS["valid"])

    def table(split: str) -> ImageTable:
        part = reader.table(split)
        return _checked(part, data.read, BadRows(part.name, data.read.bad_rows, "record"))

    tests = {name: table(name) for name in reader.splits if name.startswith("test")}
    return table("train"), table(validation) if validation else None, tests


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
    return _read_file(pictures, row, lambda file: file.seek(0, os.SEEK_END))


def _end(pictures: PictureFiles, row: int) -> bytes:
    def read(file: io.BufferedReader) -> bytes:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _END))
        return file.read()

    return _read_file(pictures, row, read)


def _content(pictures: PictureFiles, row: int) -> bytes:
    return _read_file(pictures, row, lambda file: hashlib.file_digest(file, "sha256").digest())


def _read_file(
    pictures: PictureFiles, row: int, read: Callable[[io.BufferedReader], Found]
) -> Found:
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

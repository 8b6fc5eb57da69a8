"""Pictures with texts: folders of classes, tables of files, arrays."""

import csv
import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Int

from transformer_jax.core.errors import DataError, plural
from transformer_jax.data.images.decoding import SUFFIXES
from transformer_jax.data.images.sources import (
    ArrayPictures,
    PictureFiles,
    PictureSource,
    load_arrays,
)
from transformer_jax.data.preparation import Preparation
from transformer_jax.data.tables import parse_object, texts_field
from transformer_jax.data.text import local_data, read_lines

__all__ = ["TABLES", "Columns", "ImageTable", "TextKind", "is_split_folder", "read_images"]

TABLES = (".csv", ".tsv", ".jsonl")
# Usual names of columns, fields and arrays of pictures and texts, if none are given.
PICTURES = ("file_name", "image", "images", "file", "path", "x")
_LABELS, _CAPTIONS = ("label", "labels"), ("caption", "captions", "text", "texts")
TextKind = Literal["label", "caption"]
TEXTS: dict[TextKind, tuple[str, ...]] = {
    "label": (*_LABELS, *_CAPTIONS, "y"),
    "caption": (*_CAPTIONS, *_LABELS, "y"),
}
_KEPT_IN_FOLDERS = tuple(f"{name}{end}" for name in ("metadata", "captions") for end in TABLES)


class Columns(NamedTuple):
    """The columns, fields or arrays of pictures and of texts.

    Attributes:
        image: The name for pictures; None looks for a usual name.
        text: The name for texts; None looks for a usual name.
        text_kind: The texts whose usual names are tried first.
    """

    image: str | None = None
    text: str | None = None
    text_kind: TextKind = "label"

    def choose_image(self, names: Iterable[str], where: str, what: str) -> str:
        """Returns the name of the column, field or array of pictures.

        Raises:
            DataError: There is none.
        """
        return _choose(names, self.image, PICTURES, "image", where, what)

    def choose_text(self, names: Iterable[str], where: str, what: str) -> str:
        """Returns the name of the column, field or array of texts.

        Raises:
            DataError: There is none.
        """
        return _choose(names, self.text, TEXTS[self.text_kind], "text", where, what)


_USUAL = Columns()


@dataclasses.dataclass(frozen=True)
class ImageTable:
    """Pictures and their texts: labels or captions.

    Attributes:
        name: Name of the folder or file, for messages.
        pictures: The pictures.
        rows: Index of the picture of each text; several texts may share one.
        texts: The texts.
        keys: A name of each picture that does not change when pictures are added or moved, such as
            its path within the folder.
    """

    name: str
    pictures: PictureSource
    rows: Int[np.ndarray, " count"]
    texts: list[str]
    keys: list[str]

    def __len__(self) -> int:
        return len(self.texts)

    def where(self, index: int) -> str:
        """Returns the place of a text's picture, with which messages begin."""
        return self.pictures.where(int(self.rows[index]))

    def select(self, indices: Sequence[int], name: str) -> "ImageTable":
        """Selects texts, with the same pictures."""
        rows = self.rows[np.asarray(indices, np.int64)]
        texts = [self.texts[i] for i in indices]
        return dataclasses.replace(self, name=name, rows=rows, texts=texts)


def read_images(
    path: str,
    columns: Columns = _USUAL,
    flag: str = "",
    prepare: Preparation = Preparation(),
) -> ImageTable:
    """Reads the pictures of a folder, table or array, and their texts.

    Args:
        path: One of

                - a folder with one folder per class, named by its label, or with a table
                  ``metadata.csv`` or ``captions.csv`` (``.tsv``, ``.jsonl``) next to its pictures;
                - a table: ``.csv`` or ``.tsv`` with a header, or ``.jsonl``; paths of pictures are
                  relative to its folder, and a picture may occur in several lines;
                - ``.npz`` with one array of pictures and one of texts or numbers;
                - ``.npy`` with pictures, and a ``.txt`` of the same name next to it, one text per
                  line.
        columns: The columns, fields or arrays of pictures and texts.
        flag: The setting of the path, for messages.
        prepare: Preparation of texts.

    Raises:
        DataError: It cannot be read, names no pictures or no texts, or a picture is missing.
    """
    here = str(local_data(path, flag))
    if os.path.isdir(here):
        tables = [name for name in _KEPT_IN_FOLDERS if os.path.isfile(os.path.join(here, name))]
        if not tables:
            return _folder(path, here, flag)
        path = os.path.join(path, tables[0])
    suffix = os.path.splitext(path)[1].lower()
    if suffix in TABLES:
        return _table(path, suffix, columns, flag, prepare)
    if suffix in (".npy", ".npz"):
        return _arrays(path, columns, flag, prepare)
    raise DataError(
        f"{flag} {path}: pictures come from a folder with a folder for each class, or from a file "
        f"whose name ends in {', '.join(TABLES)}, .npy or .npz".strip()
    )


def is_split_folder(folder: str) -> bool:
    """Returns whether a folder holds a part of a data set: folders of classes, or a table.

    A folder of pictures alone is a class, even if its label is "train".
    """
    if not os.path.isdir(folder):
        return False
    entries = [entry for entry in os.scandir(folder) if _visible(entry)]
    return any(entry.is_dir() or entry.name in _KEPT_IN_FOLDERS for entry in entries)


def _folder(path: str, here: str, flag: str) -> ImageTable:
    """Reads pictures in folders named by their labels."""
    classes = sorted(entry.name for entry in os.scandir(here) if _visible(entry) and entry.is_dir())
    keys: list[str] = []
    texts: list[str] = []
    for name in classes:
        files = (entry for entry in os.scandir(os.path.join(here, name)) if _visible(entry))
        names = sorted(file.name for file in files if _ends_as(file.name))
        if not names:
            raise DataError(
                f"{flag} {path}/{name}: no pictures: their names end in {', '.join(SUFFIXES)}: "
                f"fill the folder of the class, or remove it".strip()
            )
        keys.extend(f"{name}/{file}" for file in names)
        texts.extend([name] * len(names))
    if not keys:
        raise DataError(
            f"{flag} {path}: no pictures: it has neither a folder for each class nor a table, such "
            f"as metadata.csv".strip()
        )
    pictures = PictureFiles([os.path.join(path, key) for key in keys])
    return ImageTable(path, pictures, np.arange(len(keys)), texts, keys)


def _visible(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith((".", "__MACOSX"))


def _ends_as(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _table(path: str, suffix: str, columns: Columns, flag: str, prepare: Preparation) -> ImageTable:
    """Reads pictures listed in a table."""
    lines = _objects if suffix == ".jsonl" else _rows
    folder, numbers = os.path.dirname(path), dict[str, int]()
    rows, texts, places = [], [], list[str]()
    for number, file, said in lines(path, suffix, columns, flag):
        place = f"{path}:{number}"
        if not file.strip():
            raise DataError(f"{place}: no picture: the line needs the name of a file")
        if file not in numbers:
            numbers[file] = len(numbers)
            places.append(place)
        for one in said:
            if not (prepared := prepare.line(one)):
                raise DataError(f"{place}: no text for {file}: fill it in, or leave the line out")
            rows.append(numbers[file])
            texts.append(prepared)
    if not rows:
        raise DataError(f"{path}: no pictures: it is empty")
    pictures = PictureFiles([os.path.join(folder, file) for file in numbers], places)
    return ImageTable(path, pictures, np.array(rows), texts, list(numbers))


def _rows(
    path: str, suffix: str, columns: Columns, flag: str
) -> Iterator[tuple[int, str, list[str]]]:
    """Yields line, picture and text of each row of a table with a header."""
    if suffix == ".csv":
        reader = csv.reader((line + "\n" for line in read_lines(path, flag)), strict=True)
    else:
        reader = csv.reader(read_lines(path, flag), delimiter="\t", quoting=csv.QUOTE_NONE)
    rows = _numbered(reader, path)
    number, names = next(rows, (1, []))
    names = [name.strip() for name in names]
    choices = (columns.choose_image, columns.choose_text)
    places = [names.index(choose(names, f"{path}:{number}", "column")) for choose in choices]
    for number, cells in rows:
        if not cells:
            continue
        if len(cells) != len(names):
            raise DataError(
                f"{path}:{number}: {plural(len(cells), 'column')}, but {len(names)} are needed, as "
                f"in the first line"
            )
        yield number, cells[places[0]], [cells[places[1]]]


def _numbered(reader: Any, path: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the rows of a table, with the line at which each ends."""
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not CSV: {error}") from None


def _objects(
    path: str, suffix: str, columns: Columns, flag: str
) -> Iterator[tuple[int, str, list[str]]]:
    """Yields line, picture and texts of each JSON object; a field may hold a list of texts."""
    for number, line in enumerate(read_lines(path, flag), 1):
        if not line:
            continue
        row, place = parse_object(line, path, number), f"{path}:{number}"
        picture = columns.choose_image(row, place, "field")
        texts = columns.choose_text(row, place, "field")
        said = row[texts]
        if isinstance(said, int) and not isinstance(said, bool):
            row = row | {texts: str(said)}  # a label that is a number
        hint = "a picture and its text are needed"
        (file,) = texts_field(row, picture, path, number, hint)[:1] or ("",)
        yield number, file, texts_field(row, texts, path, number, hint)


def _choose(
    names: Iterable[str],
    wanted: str | None,
    usual: tuple[str, ...],
    option: str,
    where: str,
    what: str,
) -> str:
    """Chooses the name of a column, field or array."""
    known = list(names)
    for name in (wanted,) if wanted is not None else usual:
        if known.count(name) == 1:
            return name
    missing = repr(wanted) if wanted is not None else "of " + ", ".join(map(repr, usual))
    shown = ", ".join(map(repr, known[:12])) or "none"
    raise DataError(f"{where}: no {what} {missing}, only {shown}: name one with data.read.{option}")


def _arrays(path: str, columns: Columns, flag: str, prepare: Preparation) -> ImageTable:
    """Reads pictures in an array, with their texts."""
    arrays = load_arrays(path, flag)
    if "" in arrays:
        pictures, beside = ArrayPictures(arrays[""], path), os.path.splitext(path)[0] + ".txt"
        texts, source = [prepare.line(line) for line in read_lines(beside, flag)], beside
    else:
        pictures = ArrayPictures(arrays[columns.choose_image(arrays, path, "array")], path)
        name = columns.choose_text(arrays, path, "array")
        texts, source = _as_texts(arrays[name], f"{path}: {name}"), f"{path}: {name}"
    if len(texts) != len(pictures):
        raise DataError(
            f"{source}: {plural(len(texts), 'text')} for {plural(len(pictures), 'picture')}: each "
            f"picture needs one"
        )
    for i, one in enumerate(texts):
        if not one:
            raise DataError(f"{source}: the text of picture {i} is empty: fill it in")
    return ImageTable(
        path, pictures, np.arange(len(texts)), texts, [str(i) for i in range(len(texts))]
    )


def _as_texts(array: np.ndarray, where: str) -> list[str]:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]  # the layout of CIFAR labels in Keras
    if array.ndim != 1 or array.dtype.kind not in "iuUb":
        raise DataError(
            f"{where}: {array.dtype} {list(array.shape)}: one whole number or text for each "
            f"picture is needed"
        )
    return [str(value) for value in array.tolist()]

"""Pictures with texts: folders of classes, tables of files, arrays."""

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from transformer_jax.core.errors import DataError, plural
from transformer_jax.core.storage.urls import is_url
from transformer_jax.core.task_progress import log
from transformer_jax.data.bad_rows import BadRows, Unread, log_unread
from transformer_jax.data.files import listed_path
from transformer_jax.data.images.columns import Columns
from transformer_jax.data.images.folders import check_name, entries, is_folder, scan_folder
from transformer_jax.data.images.picture_sources import (
    ArrayPictures,
    PictureFiles,
    PictureSource,
    load_array,
    open_arrays,
)
from transformer_jax.data.images.pixel_decoding import SUFFIXES
from transformer_jax.data.preparation import Preparation
from transformer_jax.data.tables import cell_rows, json_rows
from transformer_jax.data.text import local_data, numbered_lines, read_lines

__all__ = ["TABLES", "ImageTable", "is_split_folder", "read_images"]

TABLES = (".csv", ".tsv", ".jsonl", ".txt", ".json")
_ROWS = TABLES[:3]
_KEPT_IN_FOLDERS = (
    *(f"{name}{end}" for name in ("metadata", "captions") for end in _ROWS),
    "captions.txt",
)
# Where data sets keep the pictures of a table, if not next to it; {} is COCO's name of the split.
_FOLDERS = ("Images", "images", "Flicker8k_Dataset", "flickr30k_images", "../{}", "../images/{}")


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

    def with_pictures(self, kept: Sequence[int]) -> "ImageTable":
        """Returns the table with some of its pictures, and their texts."""
        numbers = {row: i for i, row in enumerate(kept)}
        used = [i for i, row in enumerate(self.rows.tolist()) if row in numbers]
        return ImageTable(
            self.name,
            self.pictures.select(kept),
            np.array([numbers[int(self.rows[i])] for i in used], np.int64),
            [self.texts[i] for i in used],
            [self.keys[row] for row in kept],
        )

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
    bad: BadRows | None = None,
) -> ImageTable:
    """Reads the pictures of a folder, table or array, and their texts.

    Lines of the log name the files, columns and keys that are not read.

    Args:
        path: One of

                - a folder with one folder per class, named by its label, or with a table
                  ``metadata.csv`` or ``captions.csv`` (``.tsv``, ``.jsonl``) next to its pictures;
                - a table: ``.csv`` or ``.tsv`` with a header, or ``.jsonl``; paths of pictures are
                  relative to its folder, and a picture may occur in several lines;
                - the captions of Flickr8k (``.txt``), Flickr30k (``.csv`` with ``|``), or COCO
                  (``.json``), with pictures next to them or where the data set has them;
                - ``.npz`` with one array of pictures and one of texts or numbers;
                - ``.npy`` with pictures, and a ``.txt`` of the same name next to it, one text per
                  line.
        columns: The columns, fields or arrays of pictures and texts.
        flag: The setting of the path, for messages.
        prepare: Preparation of texts.
        bad: Collects rows that cannot be used, which are left out, and are reported by the caller.

    Raises:
        DataError: It cannot be read, names no pictures or no texts, or has bad rows.
    """
    rows = BadRows(path) if bad is None else bad
    table = _read(path, columns, flag, prepare, rows)
    if bad is None:
        rows.check(len(table))
    return table


def _read(path: str, columns: Columns, flag: str, prepare: Preparation, bad: BadRows) -> ImageTable:
    here = str(local_data(path, flag))
    if os.path.isdir(here):
        tables = [name for name in _KEPT_IN_FOLDERS if os.path.isfile(os.path.join(here, name))]
        if not tables:
            return _folder(path, here, flag, prepare, bad)
        if tables[1:]:
            log(f"{path}: {tables[0]} is read, not {', '.join(tables[1:])}")
        path = os.path.join(path, tables[0])
    suffix = os.path.splitext(path)[1].lower()
    if suffix in TABLES:
        return _table(path, suffix, columns, flag, prepare, bad)
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
    return any(is_folder(entry) or entry.name in _KEPT_IN_FOLDERS for entry in entries(folder))


def _folder(path: str, here: str, flag: str, prepare: Preparation, bad: BadRows) -> ImageTable:
    """Reads pictures in folders named by their labels, and in subfolders of those."""
    found = entries(here)
    classes = [(prepare.line(entry.name), entry) for entry in found if is_folder(entry)]
    others = [entry.name for entry in found if not is_folder(entry)]
    keys: list[str] = []
    texts: list[str] = []
    for label, entry in sorted(classes, key=lambda item: (item[0], item[1].name)):
        check_name(entry)
        if not label:
            raise DataError(f"{flag} {path}: the name of the folder {entry.name!r} is blank")
        _check_link(entry)
        names, more = scan_folder(entry.path, bad)
        if not names:
            raise DataError(
                f"{flag} {path}/{entry.name}: no pictures: their names end in "
                f"{', '.join(SUFFIXES)}: fill the folder of the class, or remove it".strip()
            )
        others.extend(f"{entry.name}/{name}" for name in more)
        keys.extend(f"{entry.name}/{name}" for name in names)
        texts.extend([label] * len(names))
    if not keys:
        raise DataError(
            f"{flag} {path}: no pictures: it has neither a folder for each class nor a table, such "
            f"as metadata.csv".strip()
        )
    log_unread(path, others)
    pictures = PictureFiles([os.path.join(path, key) for key in keys])
    return ImageTable(path, pictures, np.arange(len(keys)), texts, keys)


def _check_link(entry: "os.DirEntry[str]") -> None:
    """Refuses a class that is a link to a folder in which it lies.

    Raises:
        DataError: It is such a link.
    """
    if entry.is_symlink() and Path(entry.path).resolve() in Path(entry.path).absolute().parents:
        raise DataError(f"{entry.path}: a link to a folder that contains it: remove the link")


def _table(
    path: str, suffix: str, columns: Columns, flag: str, prepare: Preparation, bad: BadRows
) -> ImageTable:
    """Reads pictures listed in a table."""
    lines = {".jsonl": _objects, ".txt": _flickr, ".json": _coco}.get(suffix, _rows)
    folder: str | None = None
    numbers = dict[str, int]()
    rows, texts, places, paths = [], [], list[str](), list[str]()
    for place, file, said in lines(path, suffix, columns, flag, bad):
        with bad:
            if not (file := file.strip()):
                raise DataError(f"{place}: no picture: the line needs the name of a file")
            folder = _home(path, file) if folder is None else folder
            listed = listed_path(file, folder, place)
            prepared = [prepare.line(one) for one in said]
            if not all(prepared):
                raise DataError(f"{place}: no text for {file}: fill it in, or leave the line out")
            if file not in numbers:
                numbers[file] = len(numbers)
                places.append(place)
                paths.append(listed)
            rows += [numbers[file]] * len(prepared)
            texts += prepared
    if not rows and not bad.count:
        raise DataError(f"{path}: no pictures: it is empty")
    return ImageTable(
        path, PictureFiles(paths, places), np.array(rows, np.int64), texts, list(numbers)
    )


def _home(path: str, first: str) -> str:
    """Returns the folder of the pictures of a table: its own, or one where the first picture is."""
    own = os.path.dirname(path)
    if is_url(path) or os.path.exists(os.path.join(own, first)):
        return own
    split = Path(path).stem.removeprefix("captions_")
    for name in _FOLDERS:
        folder = os.path.normpath(os.path.join(own, name.format(split)))
        if os.path.exists(os.path.join(folder, first)):
            log(f"{path}: its pictures are in {folder}")
            return folder
    return own


def _flickr(
    path: str, suffix: str, columns: Columns, flag: str, bad: BadRows
) -> Iterator[tuple[str, str, list[str]]]:
    """Yields the rows of ``Flickr8k.token.txt`` (``NAME#0<tab>caption``), or of a CSV table."""
    first = next((line for line in read_lines(path, flag) if line.strip()), "")
    if "\t" not in first:
        yield from _rows(path, ".csv", columns, flag, bad)
        return
    for number, cells in cell_rows(path, "tsv", flag, bad):
        with bad:
            if cells and (len(cells) != 2 or not re.search(r"#\d+$", cells[0])):
                raise DataError(
                    f"{path}:{number}: NAME#NUMBER, a tab and a caption are needed, as in "
                    f"Flickr8k: name a table with a first line of columns .tsv"
                )
            if cells:
                yield f"{path}:{number}", cells[0].rpartition("#")[0], [cells[1]]


def _coco(
    path: str, suffix: str, columns: Columns, flag: str, bad: BadRows
) -> Iterator[tuple[str, str, list[str]]]:
    """Yields the place of each annotation of COCO's captions, its picture and its caption."""
    try:
        whole = json.loads("\n".join(read_lines(path, flag)))
        names = {one["id"]: one["file_name"] for one in whole["images"]}
        said = [(one["image_id"], one["caption"]) for one in whole["annotations"]]
        silent = len(names.keys() - {image for image, _ in said})
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}") from None
    except (KeyError, TypeError):
        raise DataError(
            f"{path}: not COCO's captions: an object with images (id, file_name) and annotations "
            f"(image_id, caption) is needed; one object per line has a name that ends in .jsonl"
        ) from None
    if silent:
        log(f"{path}: {plural(silent, 'picture')} without a caption left out")
    for number, (image, caption) in enumerate(said, 1):
        with bad:
            place = f"{path}: annotation {number}"
            if not isinstance(names.get(image), str) or not isinstance(caption, str):
                raise DataError(f"{place}: no picture {image!r}, or no caption")
            yield place, names[image], [caption]


def _rows(
    path: str, suffix: str, columns: Columns, flag: str, bad: BadRows
) -> Iterator[tuple[str, str, list[str]]]:
    """Yields place, picture and text of each row of a table with a header."""
    every = _cells(path, suffix, flag, bad)
    rows = (row for row in every if any(map(str.strip, row[1])))
    number, names = next(rows, (1, []))
    names = [name.strip() for name in names]
    if len(names) == 1:
        mark = "commas" if suffix == ".csv" else "tabs"
        raise DataError(f"{path}:{number}: one column, {names[0]!r}: separate columns by {mark}")
    choices = (columns.choose_image, columns.choose_text)
    used = [choose(names, f"{path}:{number}", "column") for choose in choices]
    places = [names.index(name) for name in used]
    unread = Unread(path, "column")
    unread.note(names, used)
    unread.report()
    for number, cells in rows:
        with bad:
            if len(cells) != len(names):
                raise DataError(
                    f"{path}:{number}: {plural(len(cells), 'column')}, but {len(names)} are "
                    f"needed, as in the first line"
                )
            columns.refuse_second(dict(zip(names, cells, strict=True)), used, f"{path}:{number}")
            yield f"{path}:{number}", cells[places[0]], [cells[places[1]]]


def _cells(path: str, suffix: str, flag: str, bad: BadRows) -> Iterator[tuple[int, list[str]]]:
    """Yields the rows of a table; bars separate the cells of Flickr30k."""
    if suffix == ".tsv":
        yield from cell_rows(path, "tsv", flag, bad)
        return
    first = next((line for line in read_lines(path, flag) if line.strip()), "")
    if "|" not in first or "," in first:
        yield from cell_rows(path, "csv", flag, bad)
        return
    count = first.count("|")
    for number, line in numbered_lines(path, flag, bad):
        # A caption may have bars of its own: it is the last column.
        yield number, [cell.strip() for cell in line.split("|", count)] if line.strip() else []


def _objects(
    path: str, suffix: str, columns: Columns, flag: str, bad: BadRows
) -> Iterator[tuple[str, str, list[str]]]:
    """Yields place, picture and texts of each JSON object; a field may hold a list of texts."""
    unread = Unread(path, "key")
    for _, row in json_rows(path, flag, bad):
        with bad:
            picture = columns.choose_image(row.fields, row.place, "field")
            text = columns.choose_text(row.fields, row.place, "field")
            row = row.with_text(text)
            hint = "a picture and its text are needed"
            files = row.texts(picture, hint)
            if len(files) != 1:
                raise DataError(
                    f"{row.place}: field {picture!r} holds {plural(len(files), 'picture')}, and "
                    f"one is needed: write a line for each"
                )
            unread.note(row.fields, (picture, text))
            columns.refuse_second(row.fields, (picture, text), row.place)
            yield row.place, files[0], row.texts(text, hint)
    unread.report()


def _arrays(path: str, columns: Columns, flag: str, prepare: Preparation) -> ImageTable:
    """Reads pictures in an array, with their texts."""
    with open_arrays(path, flag) as arrays:
        if "" in arrays:
            pictures, source = ArrayPictures(arrays[""], path), os.path.splitext(path)[0] + ".txt"
            said: Iterable[str] = read_lines(source, flag)
        else:
            image = columns.choose_image(arrays, path, "array")
            text = columns.choose_text(arrays, path, "array")
            unread = Unread(path, "array")
            unread.note(arrays, (image, text))
            unread.report()
            pictures, source = (
                ArrayPictures(load_array(arrays, image, path), path),
                f"{path}: {text}",
            )
            said = _as_texts(load_array(arrays, text, path), source)
    texts = [prepare.line(one) for one in said]
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

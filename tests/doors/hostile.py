"""Hostile files and folders, by the door that reads them.

Each case writes its files into a folder and returns the call that must refuse them.
"""

import dataclasses
import gzip
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.doors import readers, table
from tests.doors.changed_models import DEEP, DIGITS, Prepare
from tests.doors.hostile_folders import FOLDERS
from transformer_jax.data.documents import TextOptions, read_texts
from transformer_jax.data.images.picture_sources import pixels_of
from transformer_jax.data.images.picture_tables import read_images

# --- Readers of data: what is no file, and what is no text of the format -------------------------


def _written(door: table.Door, folder: Path) -> tuple[Path, list[Path]]:
    """Returns what a reader is given, and the files in it that have the texts."""
    given = door.write(folder, ["one", "two", "three"], readers.Form())
    return given, [given] if given.is_file() else [one for one in given.rglob("*") if one.is_file()]


def _instead(door: table.Door, name: str) -> Prepare:
    """The files of a door replaced by what is no file with an end."""

    def prepare(folder: Path) -> Callable[[], object]:
        given, paths = _written(door, folder)
        for path in paths:
            path.unlink()
            if name == "a pipe":
                os.mkfifo(path)
            else:
                path.symlink_to({"a device": "/dev/zero", "a link to itself": path}[name])
        return lambda: door.read(given)

    return prepare


def _content(door: table.Door, content: bytes) -> Prepare:
    """The files of a door with other content."""

    def prepare(folder: Path) -> Callable[[], object]:
        given, paths = _written(door, folder)
        for path in paths:
            path.write_bytes(content)
        return lambda: door.read(given)

    return prepare


def _all(path: Path) -> int:
    """Reads all documents."""
    return sum(1 for _ in read_texts(str(path), TextOptions(documents="line")))


def _packed(
    door: table.Door, line: bytes, megabytes: int, read: Callable[[Path], object] | None = None
) -> Prepare:
    """A small archive of many lines."""

    def prepare(folder: Path) -> Callable[[], object]:
        _, [path] = _written(door, folder)
        packed = path.with_name(f"{path.name}.gz")
        packed.write_bytes(gzip.compress(line * (2**20 // len(line))) * megabytes)
        return lambda: (read or door.read)(packed)

    return prepare


def _decoded(path: Path) -> list[np.ndarray]:
    """Reads pictures, and decodes them as training does."""
    pictures = read_images(str(path)).pictures
    return [pixels_of(pictures, index, 3, 10**6) for index in range(len(pictures))]


def _reader_cases(door: table.Door) -> dict[str, Prepare]:
    if door.name == "pictures in class folders":
        door = dataclasses.replace(door, read=_decoded)
    cases = {name: _instead(door, name) for name in ("a pipe", "a device", "a link to itself")}
    name = door.name.lower()
    if "json" in name or door.name in ("questions", "table of pairs by language"):
        field = '{"text": ' if door.name != "questions" else '{"data": '
        cases["deep JSON"] = _content(door, (field + DEEP + "\n").encode())
        cases["a number of 100,000 digits"] = _content(door, (field + DIGITS + "}\n").encode())
        cases["JSON of another kind"] = _content(door, b"[1, 2]\n")
    else:
        cases["zeros"] = _content(door, bytes(1000))
    return cases


# --- Readers with dangers of their own ------------------------------------------------------------


def _array(header: str) -> bytes:
    """The beginning of a ``.npy`` file."""
    return b"\x93NUMPY\x01\x00\x76\x00" + header.encode().ljust(117) + b"\n"


_VAST = "{'descr': '|u1', 'fortran_order': False, 'shape': (1099511627776, 64, 64, 3), }"
_OBJECTS = "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }"
_TABLE = '{"train": {"de-en": "PATH"}}'
# By the door's name: names of cases, and the content of the file.
_CONTENTS = {
    "word vectors": {
        "a trillion words": b"1000000000000 300\na 1 2\n",
        "a trillion values": b"3 1000000000000\na 1 2\n",
    },
    "table of pairs by language": {
        "a path of an address": _TABLE.replace("PATH", "s3://bucket/x.tsv").encode(),
        "a device": _TABLE.replace("PATH", "/dev/zero").encode(),
        "9 MB": _TABLE.replace("PATH", "a" * 9_000_000).encode(),
    },
    "pictures in arrays": {"a shape of exabytes": _array(_VAST), "objects": _array(_OBJECTS)},
}
_LINE, _LINES = "an archive of a long line", "an archive of many lines"
_ARCHIVES = {
    "pairs as TSV": {_LINE: (b"a", None), _LINES: (b"a\tb\n", None)},
    "documents in lines": {_LINES: (b"a\n", _all)},
    "text for word vectors": {_LINE: (b"ab", None)},
}


def _long_line(door: table.Door) -> Prepare:
    """A file of a line of 200 MB."""

    def prepare(folder: Path) -> Callable[[], object]:
        given, [path] = _written(door, folder)
        with path.open("wb") as file:
            for _ in range(200):
                file.write(10**6 * b"a")
        return lambda: door.read(given)

    return prepare


def _own_cases(door: table.Door) -> dict[str, Prepare]:
    if door.name in ("pairs as JSONL", "labeled texts as TSV"):
        return {"a line of 200 MB": _long_line(door)}
    contents, archives = _CONTENTS.get(door.name, {}), _ARCHIVES.get(door.name, {})
    return {name: _content(door, content) for name, content in contents.items()} | {
        name: _packed(door, line, 1200, read) for name, (line, read) in archives.items()
    }


CASES: dict[str, dict[str, Prepare]] = {
    door.name: _reader_cases(door) | _own_cases(door)
    for door in table.of_kind("reader")
    if door.write is not None
} | FOLDERS
ALL = {f"{door}: {name}": case for door, cases in CASES.items() for name, case in cases.items()}

"""Data sets of Hugging Face: Parquet and Arrow files, and folders of files by split.

A folder is what ``save_to_disk`` writes, or a clone of a repository of the hub. Its splits are
named like files: ``FOLDER/validation``.
"""

import functools
import itertools
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from transformer_jax.core.errors import ConfigError, DataError, install, plural
from transformer_jax.core.storage.urls import is_url
from transformer_jax.core.task_progress import log
from transformer_jax.data.files import open_file, read_file
from transformer_jax.data.text import local_data

if TYPE_CHECKING:
    import pyarrow

__all__ = [
    "class_names",
    "columnar_rows",
    "is_columnar",
    "is_data_set",
    "missing_splits",
    "named_classes",
    "splits_of",
    "table_files",
]

_COLUMNAR = (".parquet", ".arrow")
_TABLES = (*_COLUMNAR, ".jsonl", ".ndjson", ".csv", ".tsv")
# Names of splits in names of files, as the library of the hub knows them.
_SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_WORD = re.compile(rf"(?<![a-z0-9])({'|'.join(itertools.chain(*_SPLITS.values()))})(?![a-z0-9])")
_SPLIT = re.compile(rf"({'|'.join(itertools.chain(*_SPLITS.values()))})([_-][a-z0-9]+)*")
_SHARD = re.compile(r"(?P<split>.+?)-\d{5}-of-\d{5}(-[0-9a-f]+)?")
_STATE, _SAVED, _INFO = "state.json", "dataset_dict.json", "dataset_info.json"
_MOST_FILES, _LARGEST_INFO = 100_000, 8 << 20
_BATCH = 64  # rows
# A table may be so many times as long as its file, which has codes for values that repeat.
_SMALL, _MOST_UNPACKED = 1 << 24, 200

Splits = dict[str, list[Path]]  # the files of each split; "" is the only one of a saved data set
Convert = Callable[[object], object]


def is_columnar(path: str | os.PathLike[str]) -> bool:
    """Returns whether a file is Parquet or Arrow, by its name.

    Example:
        >>> is_columnar("train-00000-of-00001.parquet"), is_columnar("train.jsonl")
        (True, False)
    """
    return os.fspath(path).lower().endswith(_COLUMNAR)


def table_files(path: str | os.PathLike[str], flag: str = "") -> list[str]:
    """Returns the files of a split of a data set's folder; of any other path, the path itself.

    Args:
        path: ``FOLDER/SPLIT``, or a folder, whose split is the one that the setting is for.
        flag: The setting of the path: of validation or test data, of a command, or of training.

    Raises:
        DataError: The folder lacks the split, or has several data sets.
    """
    given, path = [os.fspath(path)], Path(path)
    if not given[0] or is_url(given[0]) or os.path.isfile(path):
        return given
    if os.path.isdir(path):
        splits = _splits(path, flag)
        files = None if splits is None else splits[_chosen(path, splits, flag)]
    elif _SPLIT.fullmatch(path.name) and os.path.isdir(path.parent):
        files = (_splits(path.parent, flag) or {}).get(path.name)
    else:
        return given
    return given if files is None else [*map(str, files)]


def is_data_set(path: str | os.PathLike[str]) -> bool:
    """Returns whether a folder holds a data set, and not texts or pictures with tables beside."""
    folder = Path(path)
    if not os.path.isdir(folder):
        return False
    saved = (folder / name for name in (_STATE, _SAVED))
    return any(one.is_file() for one in saved) or any(map(is_columnar, _walk(folder)))


def missing_splits(data: object, train: str = "train") -> dict[str, Any]:
    """Returns the fields of settings whose splits are in the folder of training data alone.

    Args:
        data: Settings with the paths of training data and of ``valid`` or ``test`` data.
        train: The field of training data.
    """
    path = getattr(data, train)
    found = {} if path is None else splits_of(path)
    return {role: split for role, split in found.items() if getattr(data, role, "") is None}


def splits_of(path: str) -> dict[str, str]:
    """Returns the paths of ``valid`` and ``test`` data in the folder of a data set.

    A line names the splits that are not read.
    """
    splits = _splits(Path(path), "") if os.path.isdir(path) else None
    if splits is None:
        return {}
    roles = {"valid": "validation", "test": "test"}
    found = {role: split for role, name in roles.items() if (split := _named(splits, name))}
    unread = {*splits} - {*found.values(), _named(splits, "train"), ""}
    if unread:
        _say(f"{path}: splits not read: {', '.join(sorted(unread))}")
    return {role: os.path.join(path, split) for role, split in found.items()}


def _named(splits: Splits, role: str) -> str | None:
    """Returns the split of a role, by one of its names."""
    return next((name for name in _SPLITS[role] if name in splits), None)


def _chosen(path: Path, splits: Splits, flag: str) -> str:
    """Returns the split that a setting is for."""
    if len(splits) == 1:
        return next(iter(splits))
    role = next((one for one in ("validation", "test") if one[:5] in flag), "train")
    # A command scores what it reads.
    roles = ("test", "validation") if flag.startswith("--") else (role,)
    found = next((split for role in roles if (split := _named(splits, role))), None)
    if found is None:
        raise DataError(
            f"{flag} {path}: no split for {' or '.join(roles)}, only {', '.join(splits)}: name "
            f"one, such as {path / next(iter(splits))}".lstrip()
        )
    _say(f"{path}: the split {found} is read")
    return found


_say = functools.lru_cache(maxsize=1024)(log)  # once, though a file is opened several times


def _splits(folder: Path, flag: str) -> Splits | None:
    """Returns the files of each split of a folder; None if it has no tables."""
    if (folder / _SAVED).is_file():
        names = _info(folder / _SAVED).get("splits")
        if not isinstance(names, list) or not all(map(_is_name, names)):
            raise DataError(f"{folder / _SAVED}: has no list of splits: damaged?")
        return {name: _saved(folder / name) for name in names}
    if (folder / _STATE).is_file():
        return {"": _saved(folder)}
    found: dict[str, Splits] = {}
    files = list(itertools.islice(_walk(folder), _MOST_FILES + 1))
    for file in files:
        inner = file.relative_to(folder)
        if inner.name.lower().removesuffix(".gz").endswith(_TABLES):
            config, split = _place(inner)
            found.setdefault(config, {}).setdefault(split, []).append(file)
    if not found:
        return None
    if len(files) > _MOST_FILES:
        raise DataError(
            f"{flag} {folder}: more than {plural(_MOST_FILES, 'file')}: name the folder or the "
            f"file of one data set".lstrip()
        )
    if len(found) > 1:
        names = [name or "." for name in found]
        raise DataError(
            f"{flag} {folder}: {len(names)} data sets ({', '.join(sorted(names)[:12])}): name the "
            f"folder or the file of one".lstrip()
        )
    splits = next(iter(found.values()))
    for split, own in splits.items():
        ends = {file.name.lower().removesuffix(".gz").rpartition(".")[2] for file in own}
        if len(ends) > 1 or (len(own) > 1 and ends & {"csv", "tsv"}):
            raise DataError(
                f"{flag} {folder}: {plural(len(own), 'file')} of the split {split} "
                f"({', '.join(file.name for file in own[:3])}): name one".lstrip()
            )
    return splits


def _walk(folder: Path) -> Iterator[Path]:
    """Yields the files of a folder in order, without hidden ones."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(root, name) for name in sorted(names) if not name.startswith("."))


def _place(inner: Path) -> tuple[str, str]:
    """Returns the data set and the split of a file in a folder, by its path."""
    stem = inner.name.split(".")[0]
    shard = _SHARD.fullmatch(stem)
    parents, split = list(inner.parts[:-1]), shard["split"] if shard else None
    if split is None:
        word = _WORD.search(stem.lower())
        split = word[1] if word else None
    for parent in reversed(parents):
        if parent.lower() in itertools.chain(*_SPLITS.values()):
            split = split or parent.lower()
            parents.remove(parent)
    return "/".join(one for one in parents if one != "data"), split or "train"


def _saved(folder: Path) -> list[Path]:
    """Returns the files of a data set that ``save_to_disk`` wrote."""
    files = _info(folder / _STATE).get("_data_files")
    listed = files if isinstance(files, list) else []
    names = [one.get("filename") if isinstance(one, dict) else None for one in listed]
    if not names or not all(map(_is_name, names)):
        raise DataError(f"{folder / _STATE}: has no list of files: damaged?")
    return [folder / str(name) for name in names]


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(name) and name == os.path.basename(name) != ".."


def _info(path: Path) -> dict[str, object]:
    """Returns the object of a JSON file that the library wrote."""
    try:
        found = json.loads(read_file(path, _LARGEST_INFO))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"{path}: not an object: damaged?")
    return found


# --- Rows of Parquet and Arrow --------------------------------------------------------------------


def columnar_rows(name: str, flag: str = "") -> Iterator[dict[str, object]]:
    """Yields the rows of a Parquet or Arrow file, with names in place of the numbers of classes.

    Names are those in the file's own metadata, or else in ``dataset_info.json`` beside it.

    Raises:
        ConfigError: pyarrow is not installed.
        DataError: The file is missing, damaged, or out of proportion to what it holds.
    """
    try:
        import pyarrow
    except ImportError:
        raise ConfigError(
            f"{name}: Parquet and Arrow need pyarrow: {install('parquet')}, or save the table as "
            f"JSONL"
        ) from None
    path = local_data(name, flag)
    try:
        with open_file(path) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError("it is a pipe; a file is needed")
            table = (_parquet if path.suffix.lower() == ".parquet" else _arrow)(file)
            yield from _rows(table, path, max(_SMALL, _MOST_UNPACKED * status.st_size))
    except FileNotFoundError:
        raise DataError(
            f"{flag} {path}: no such file (looked from {Path.cwd()})".lstrip()
        ) from None
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        said = (getattr(error, "strerror", None) or str(error)).splitlines()[0]
        raise DataError(f"{path}: cannot be read: {said}") from None


class _Table(NamedTuple):
    """A table that is read in batches of rows.

    Attributes:
        schema: Its columns.
        batches: Its rows.
        size: Its size in memory, as far as the file says it.
    """

    schema: "pyarrow.Schema"
    batches: "Iterable[pyarrow.RecordBatch]"
    size: int = 0


def _parquet(file: IO[bytes]) -> _Table:
    from pyarrow import parquet

    table = parquet.ParquetFile(file)
    groups = map(table.metadata.row_group, range(table.metadata.num_row_groups))
    size = sum(group.total_byte_size for group in groups)
    return _Table(table.schema_arrow, table.iter_batches(_BATCH), size)


def _arrow(file: IO[bytes]) -> _Table:
    from pyarrow import ipc

    if file.peek(6)[:6] == b"ARROW1":  # type: ignore[attr-defined]
        whole = ipc.open_file(file)
        batches = map(whole.get_batch, range(whole.num_record_batches))
        return _Table(whole.schema, batches)
    stream = ipc.open_stream(file)
    return _Table(stream.schema, stream)


def _rows(table: _Table, path: Path, most: int) -> Iterator[dict[str, object]]:
    held, conversions = table.size, _conversions(table.schema, path)
    batches = iter(table.batches)
    while True:
        if held > most:
            raise DataError(
                f"{path}: unpacks to more than {most >> 20:,} MiB, {_MOST_UNPACKED} times the size "
                f"of the file, which text does not: write it without compression if it is meant to"
            )
        if (batch := next(batches, None)) is None:
            return
        held += batch.nbytes if not table.size else 0
        for start in range(0, batch.num_rows, _BATCH):
            for row in batch.slice(start, _BATCH).to_pylist():
                for name, convert in conversions.items():
                    row[name] = convert(row[name])
                yield row


def _conversions(schema: "pyarrow.Schema", path: Path) -> dict[str, Convert]:
    """Returns how values of columns are read: classes by name, and single precision as written."""
    stored = (schema.metadata or {}).get(b"huggingface")
    info = dict[str, object]()
    if stored is not None:
        try:
            info = json.loads(stored).get("info") or {}
        except (ValueError, RecursionError, AttributeError):
            raise DataError(f"{path}: the description of its columns is damaged") from None
    elif (path.parent / _INFO).is_file():
        info = _info(path.parent / _INFO)
    found = class_names(info.get("features"))
    short = [field.name for field in schema if str(field.type) == "float"]
    names = {*schema.names}
    return dict.fromkeys(short, _single) | {k: v for k, v in found.items() if k in names}


def _single(value: object) -> object:
    return float(str(np.float32(value))) if isinstance(value, float) else value


def class_names(features: object) -> dict[str, Convert]:
    """Returns functions from the numbers of classes to their names, by column.

    Args:
        features: The description of the columns, as JSON or as objects of the library.

    Example:
        >>> features = {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}, "text": {}}
        >>> {name: convert(1) for name, convert in class_names(features).items()}
        {'label': 'pos'}
    """
    if not isinstance(features, Mapping):
        return {}
    found = {str(name): _converter(feature) for name, feature in features.items()}
    return {name: convert for name, convert in found.items() if convert is not None}


def _converter(feature: object) -> Convert | None:
    """Returns the function of a class, or of a list of classes; None for other columns."""
    get = feature.get if isinstance(feature, dict) else functools.partial(_attribute, feature)
    names = get("names")
    if isinstance(names, list) and names:
        return functools.partial(_name, [*map(str, names)])
    inner = feature[0] if isinstance(feature, list) and feature else get("feature")
    convert = None if inner is None else _converter(inner)
    return None if convert is None else functools.partial(_in_list, convert)


def _attribute(feature: object, name: str) -> object:
    return getattr(feature, name, None)


def _name(names: list[str], value: object) -> object:
    """Returns the name of a class; -1, of a class that is withheld, stays."""
    known = isinstance(value, int) and 0 <= value < len(names)
    return names[int(value)] if known else value  # type: ignore[call-overload]


def _in_list(convert: Convert, values: object) -> object:
    return [*map(convert, values)] if isinstance(values, list) else values


def named_classes(rows: Iterable[object]) -> Iterator[object]:
    """Yields rows, with names in place of the numbers of classes if the rows say which.

    Args:
        rows: Objects, such as a ``datasets.Dataset``, whose ``features`` name classes.
    """
    conversions = class_names(getattr(rows, "features", None))
    for row in rows:
        if conversions and isinstance(row, Mapping):
            row = dict(row) | {k: f(row[k]) for k, f in conversions.items() if k in row}
        yield row

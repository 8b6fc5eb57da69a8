"""Files of several language pairs, each named ``de-en=FILE``, and tables of them."""

import dataclasses
import itertools
import json
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.core.json_types import Json
from transformer_jax.core.task_progress import log
from transformer_jax.data import aligned, tables
from transformer_jax.data.bad_rows import BadRows
from transformer_jax.data.files import listed_path, read_file
from transformer_jax.data.languages import Direction
from transformer_jax.data.pairs import Pairs, collect, describe_swapped
from transformer_jax.data.preparation import Preparation
from transformer_jax.data.text import refuse_pipe

__all__ = [
    "Named",
    "is_table",
    "named_files",
    "one_or_several",
    "read_named",
    "read_pair_file",
    "read_table",
]

Named = Mapping[Direction, str]  # one file of both sides, or two with a comma between them
_SPLITS = ("train", "valid", "test")
_LARGEST_TABLE = 8 << 20  # bytes: all directions of 200 languages, with long paths


def one_or_several(pairs: str | Sequence[str] | None, where: str) -> str | tuple[str, ...] | None:
    """Returns a single unnamed file unchanged, and named pairs as a tuple.

    Args:
        pairs: The value of a setting.
        where: Name of the setting, for messages.

    Raises:
        ConfigError: A name is malformed or repeated, or files of several pairs have no name.

    Example:
        >>> one_or_several(["all.tsv"], "data.pairs")
        'all.tsv'
        >>> one_or_several("de-en=a.tsv", "data.pairs")
        ('de-en=a.tsv',)
    """
    given = (pairs,) if isinstance(pairs, str) else pairs
    if given is None or (len(given) == 1 and not _is_named(given[0])):
        return None if given is None else given[0]
    named_files(given, where)
    return tuple(given)


def named_files(pairs: Sequence[str], where: str) -> dict[Direction, str]:
    """Returns the files of named pairs.

    Args:
        pairs: Each ``de-en=FILE``, or ``de-en=FILE,FILE`` for two aligned files.
        where: Name of the setting, for messages.

    Raises:
        ConfigError: A name is malformed or repeated, or a file has no name.

    Example:
        >>> named_files(["de-en=a.tsv"], "data.pairs")
        {Direction(source='de', target='en'): 'a.tsv'}
    """
    found: dict[Direction, str] = {}
    if not pairs:
        raise ConfigError(f"{where} is empty: give files of pairs, such as de-en=train.tsv")
    for item in pairs:
        name, _, files = item.partition("=")
        if not _is_named(item) or not files:
            raise ConfigError(
                f"{where}: {item!r} names no pair of languages and its files: several pairs are "
                f"given as de-en=FILE en-cs=FILE"
            )
        direction = Direction.parse(name, where)
        if direction in found:
            raise ConfigError(
                f"{where}: the pair {direction} is given twice: join its files, or leave one out"
            )
        found[direction] = files
    return found


def is_table(pairs: object) -> bool:
    """Returns whether the value of a setting is a table of pairs.

    Example:
        >>> is_table("pairs.json"), is_table("pairs.jsonl"), is_table(("de-en=a.tsv",))
        (True, False, False)
    """
    return isinstance(pairs, str) and pairs.lower().endswith(".json")


def read_table(path: str, where: str) -> dict[str, tuple[str, ...]]:
    """Returns the named pairs of each split from a table, a JSON file.

    It is an object of files by pair, ``{"de-en": "train.tsv"}``, or of such objects by split:
    ``train``, ``valid`` and ``test``. Two aligned files are a list, or separated by a comma; paths
    are relative to the table.

    Args:
        path: The file.
        where: Name of the setting, for messages.

    Raises:
        DataError: It cannot be read, is larger than 8 MiB, or is not such an object.
    """
    try:
        table = json.loads(read_file(path, _LARGEST_TABLE).decode("utf-8-sig"))
    except OSError as error:
        raise DataError(f"{where} {path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} {path}: not JSON: {error}") from None
    splits = table if isinstance(table, dict) and set(table) <= {*_SPLITS} else {"train": table}
    return {split: _items(part, path, where) for split, part in splits.items()}


def read_named(files: Named, read: Any, where: str, *, every: bool = False) -> Pairs:
    """Returns the pairs of several directions, one direction after another.

    A file holds the sides in the order of the first pair that names it. If it is given for both
    directions, as ``de-en=FILE en-de=FILE``, its sides are swapped for the second. JSONL with
    languages as keys, and two files whose names end in them (``train.de,train.en``), need no order.

    Args:
        files: The files by direction.
        read: Columns and format of files of pairs, and the preparation of lines.
        where: Name of the setting, for messages.
        every: Whether to keep pairs with an empty side, as for data to score.

    Raises:
        ConfigError: A file is given for two pairs of different languages.
        DataError: A file cannot be read, or has no pair with text on both sides.
    """
    parts, first = [], dict[str, Direction]()
    for direction, given in files.items():
        if _place(given) in first:
            for one in given.split(","):
                refuse_pipe(one, where)
        order = first.setdefault(_place(given), direction)
        rows = _rows(direction, order, given, read, where)
        name = f"{where} {direction} ({given})"
        parts.append(collect(rows, name, Preparation.of(read), every=every))
    reasons = sorted({reason for part in parts for reason in part.counts})
    chain = itertools.chain.from_iterable
    pairs = Pairs(
        list(chain(part.sources for part in parts)),
        list(chain(part.targets for part in parts)),
        where,
        {reason: sum(part.counts.get(reason, 0) for part in parts) for reason in reasons},
        [way for way, part in zip(files, parts, strict=True) for _ in range(len(part))],
    )
    for line in describe_swapped(pairs):
        log(line)
    return pairs


def read_pair_file(path: str, read: Any, flag: str) -> Iterator[tuple[str, str]]:
    """Reads the rows of a TSV, CSV or JSONL file of pairs; bad ones are reported at the end.

    Args:
        path: The file.
        read: Its columns or keys, its format, and whether bad rows are skipped.
        flag: Name of the setting, for messages.

    Raises:
        DataError: The file cannot be read, or lines are not pairs.
    """
    bad = BadRows(path, read.bad_rows)
    format = tables.table_format(path, read.format, flag)
    if format == "jsonl":
        return bad.reported(tables.read_jsonl(path, read.fields, flag, rows=bad))
    chosen = read.columns, read.fields
    return bad.reported(tables.read_pairs_of_table(path, format, *chosen, flag, bad))


def _is_named(item: str) -> bool:
    """Returns whether a value begins with a name; a path that contains ``=`` does not."""
    name, equals, _ = item.partition("=")
    return bool(equals) and not {"/", ".", ","} & {*name} and not pathlib.Path(item).exists()


def _items(part: Json, path: str, where: str) -> tuple[str, ...]:
    folder = os.path.dirname(path)
    found = []
    for name, files in part.items() if isinstance(part, dict) else [("", None)]:
        names = files.split(",") if isinstance(files, str) else files
        if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
            raise DataError(
                f'{where} {path}: must be an object of files by pair, such as {{"de-en": '
                f'"train.tsv"}}, or of such objects by split: {", ".join(_SPLITS)}'
            )
        paths = [listed_path(one, folder, f"{where} {path}") for one in names]
        found.append(f"{name}={','.join(paths)}")
    named_files(found, f"{where} {path}")
    return tuple(found)


def _place(files: str) -> str:
    """Returns the same for all names of the same files, compressed or not."""
    return ",".join(os.path.realpath(one).removesuffix(".gz") for one in files.split(","))


def _rows(
    direction: Direction, order: Direction, files: str, read: Any, where: str
) -> Iterable[tuple[str, str]]:
    """Returns the rows of a direction, from files first used for the direction ``order``."""
    both = files.split(",")
    if len(both) == 2 and not pathlib.Path(files).exists():
        rows: Iterable[tuple[str, str]] = aligned.read_aligned(both[0], both[1], (where, where))
        ends = [pathlib.Path(one.removesuffix(".gz")).suffix[1:] for one in both]
        order = Direction(*ends) if {*ends} == {*direction} else order
    elif _has_keys(files, direction, read, f"{where} {direction}"):
        keyed = dataclasses.replace(read, fields=(direction.source, direction.target))
        return read_pair_file(files, keyed, where)
    else:
        rows = read_pair_file(files, read, f"{where} {direction}")
    if direction == order:
        return rows
    if direction != Direction(order.target, order.source):
        raise ConfigError(
            f"{where}: {files} is given for {order} and for {direction}: a file holds one pair of "
            f"languages"
        )
    return ((source, target) for target, source in rows)


def _has_keys(path: str, direction: Direction, read: Any, where: str) -> bool:
    """Returns whether the first line of a file has both languages as keys or names of columns."""
    format = tables.table_format(path, read.format, where)
    if format != "jsonl":
        if not pathlib.Path(path).is_file():
            return False  # a pipe is read once
        return {*direction} <= {cell.strip() for cell in tables.first_cells(path, format, where)}
    row = tables.first_object(path, where)
    texts = row.get("translation")
    return {*direction} <= {*(texts if isinstance(texts, dict) else row)}

"""Labeled texts from files: tab-separated columns, JSONL."""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal

from transformer_jax.core.config_fields import Range
from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.data.bad_rows import BadRows, RowErrors
from transformer_jax.data.preparation import Preparation, ReadSettings
from transformer_jax.data.tables import json_rows, tsv_rows
from transformer_jax.data.text import check_readable
from transformer_jax.data.unread import Unread

__all__ = [
    "LabeledFormat",
    "LabeledOptions",
    "LabeledTask",
    "Sentences",
    "check_number",
    "collect_sentences",
    "has_second",
    "is_number",
    "labeled_format",
    "prepare_label",
    "read_sentences",
]

LabeledTask = Literal["classify", "pair", "regress", "tag", "qa"]
LabeledFormat = Literal["auto", "tsv", "jsonl", "conllu", "columns", "squad"]

# The formats of each task, and their file extensions.
_FORMATS = {
    "classify": ("tsv", "jsonl"),
    "pair": ("tsv", "jsonl"),
    "regress": ("tsv", "jsonl"),
    "tag": ("conllu", "columns", "jsonl"),
    "qa": ("squad",),
}
_ENDINGS = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".conllu": "conllu",
    ".conll": "columns",
    ".json": "squad",
}


@dataclasses.dataclass(frozen=True)
class LabeledOptions(ReadSettings):
    """Options for reading labeled examples."""

    text: str = "text"  # TSV column, by name or number from 1; JSONL key; TFDS feature
    text_pair: str = "second"  # the same for the second sentence, if there are two
    label: str = "label"  # the same for the class, or the number of a regression
    pair: bool = False  # regression on two sentences (task pair always has two)
    header: bool | None = None  # TSV has a line of names; None: if a column is given by name
    # auto: by the extension; columns (.conll): a word and its tag in each line, as in CoNLL-2003.
    format: LabeledFormat = "auto"
    # CoNLL-U column of tags, upos or xpos; JSONL key of a list; for columns a number, default last.
    tag: str = "upos"
    # Fraction of training held out if no validation file is given, 0 to 0.5.
    validation_size: Annotated[float, Range(0, 0.5)] = 0.1


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Sentences or pairs, each with a label as text, even for numbers."""

    name: str
    texts: list[str]
    text_pairs: list[str] | None
    labels: list[str]
    lines: list[int] = dataclasses.field(default_factory=list)  # line numbers, for messages

    def __len__(self) -> int:
        return len(self.texts)


def labeled_format(path: str | pathlib.Path, task: LabeledTask, format: str, flag: str = "") -> str:
    """Returns the format of a file, by its extension if ``format`` is ``auto``.

    Raises:
        ConfigError: The extension is unknown, or the task needs a different format.

    Example:
        >>> labeled_format("train.tsv.gz", "pair", "auto"), labeled_format("a", "tag", "conllu")
        ('tsv', 'conllu')
    """
    suffix = pathlib.Path(str(path).removesuffix(".gz")).suffix.lower()
    found = format if format != "auto" else _ENDINGS.get(suffix)
    allowed = " or ".join(_FORMATS[task])
    if found is None:
        check_readable(pathlib.Path(path), flag)
        endings = ", ".join(end for end, kind in _ENDINGS.items() if kind in _FORMATS[task])
        raise ConfigError(
            f"{flag} {path}: the name does not tell the format (known are {endings}): "
            + (
                "CSV is not read: write tabs between columns, or JSONL"
                if suffix == ".csv"
                else f"give data.read.format, {allowed}"
            )
        )
    if found not in _FORMATS[task]:
        raise ConfigError(
            f"{flag} {path}: the format {found} is not for the task {task}, which needs {allowed}: "
            f"change data.read.format"
        )
    return found


def has_second(task: LabeledTask, read: LabeledOptions) -> bool:
    """Returns whether examples have two sentences.

    Example:
        >>> has_second("pair", LabeledOptions()), has_second("regress", LabeledOptions())
        (True, False)
    """
    if read.pair and task not in ("pair", "regress"):
        raise ConfigError(f"data.read.pair: the task {task} has no second sentence; use task pair")
    return task == "pair" or (task == "regress" and read.pair)


def read_sentences(
    path: str, task: LabeledTask, read: LabeledOptions = LabeledOptions(), where: str = "data.train"
) -> Sentences:
    """Reads the labeled sentences of a TSV or JSONL file. Empty lines are skipped.

    TSV has no quoting or escaping. A line names the columns or keys that are not read.

    Args:
        path: The file.
        task: classify, pair or regress.
        read: Format, and columns or keys.
        where: Name of the setting with ``path``, for messages.

    Raises:
        ConfigError: A column is unknown.
        DataError: A line lacks a column or has more than the first, a text or label is empty, a
            number is invalid, or there are no lines. The message has ``path:line``.
    """
    second = has_second(task, read)
    fields = [("text", read.text), *([("text_pair", read.text_pair)] if second else [])]
    fields.append(("label", read.label))
    kind = labeled_format(path, task, read.format, where)
    bad = BadRows(path, read.bad_rows)
    unused = "" if second else read.text_pair
    if kind == "tsv":
        rows = _tsv(path, fields, unused, read.header, where, bad)
    else:
        rows = _jsonl(path, fields, unused, where, bad)
    return collect_sentences(rows, bad, task, second, Preparation.of(read))


def collect_sentences(
    rows: Iterable[tuple[int, Sequence[str]]],
    bad: BadRows,
    task: LabeledTask,
    second: bool,
    prepare: Preparation,
) -> Sentences:
    """Checks rows of (line, [text, optional second text, label]) and collects them.

    Args:
        rows: The rows.
        bad: Collects bad rows, and has the name of the source.
        task: classify, pair or regress.
        second: Whether rows have a second text.
        prepare: Preparation of texts.

    Raises:
        DataError: A text or label is empty, a number is invalid, or there are no rows.
    """
    lines, texts, seconds, labels = [], [], [], []
    fields = ("text", "text_pair", "label") if second else ("text", "label")
    for line, row in rows:
        with bad:
            place = f"{bad.name}:{line}"
            cells = [*map(prepare.line, row[:-1]), prepare_label(row[-1], prepare)]
            for field, cell in zip(fields, cells, strict=True):
                if not cell:
                    raise DataError(
                        f"{place}: the {field} is empty: fill it in, or remove the line"
                    )
            if task == "regress":
                check_number(cells[-1], place)
            *sides, label = cells
            lines.append(line)
            texts.append(sides[0])
            seconds.append(sides[-1])
            labels.append(label)
    bad.report(len(texts))
    if not texts:
        raise DataError(f"{bad.name}: no examples: it is empty, or has only a header")
    return Sentences(bad.name, texts, seconds if second else None, labels, lines)


@functools.lru_cache(maxsize=4096)
def prepare_label(label: str, prepare: Preparation) -> str:
    """Prepares a class or a tag for comparison: labels keep their case."""
    return dataclasses.replace(prepare, lowercase=False).line(label)


def check_number(label: str, place: str) -> float:
    """Converts the label of a regression to a number.

    Raises:
        DataError: It is not a finite number.

    Example:
        >>> check_number("3.25", "example:1")
        3.25
    """
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(
            f"{place}: the label {label[:40]!r} is not a finite number, which a regression needs "
            f"(as in 3.25): correct it, or name another column with data.read.label"
        )
    return number


def _tsv(
    path: str,
    fields: list[tuple[str, str]],
    unused: str,
    header: bool | None,
    where: str,
    bad: RowErrors,
) -> Iterator[tuple[int, list[str]]]:
    named = [f"data.read.{option} {column}" for option, column in fields if not is_number(column)]
    if header is False and named:
        raise ConfigError(f"{named[0]}: without a header columns have numbers, from 1")
    header = bool(named) if header is None else header
    unread = Unread(path, "column")
    places, most = list[int](), 0
    for number, cells in tsv_rows(path, where, bad):
        if not cells:
            continue
        if not places:
            places, most = _places(cells, fields, f"{path}:{number}"), len(cells)
            names = [name.strip() for name in cells] if header else [""] * len(cells)
            _refuse_second(unused, names, f"{path}:{number}")
            columns = [f"{i} ({name})" if name else f"{i}" for i, name in enumerate(names, 1)]
            unread.note(columns, [columns[i] for i in places if i < most])
            unread.report()
            if header:
                continue
        with bad:
            _check_cells(cells, fields, places, most, header, f"{path}:{number}")
            yield number, [cells[i] for i in places]


def _check_cells(
    cells: list[str],
    fields: list[tuple[str, str]],
    places: list[int],
    most: int,
    header: bool,
    where: str,
) -> None:
    """Refuses a row without a column that is needed, or with other columns than the first line.

    Fewer columns than a header has mean that a tab is missing, so a cell may be another column's.
    """
    for (option, column), place in zip(fields, places, strict=True):
        if place >= len(cells):
            raise DataError(
                f"{where}: {plural(len(cells), 'column')}, and data.read.{option} {column!r} is "
                f"number {place + 1}: correct the line, or choose another column; columns are "
                f"separated by tabs"
            )
    if len(cells) > most:
        raise DataError(
            f"{where}: {plural(len(cells), 'column')}, but the first line has {most}: a text "
            f"cannot contain a tab; correct the line"
        )
    if header and len(cells) < most:
        raise DataError(
            f"{where}: {plural(len(cells), 'column')}, but the header has {most}: a tab is "
            f"missing; an empty cell needs its tab, too"
        )


def _refuse_second(unused: str, names: Iterable[str], where: str) -> None:
    """Refuses a second text for a task that reads one.

    Args:
        unused: The name of the second text; empty if the task reads it.
        names: The columns or keys.
        where: File and line.
    """
    if unused and unused in names:
        raise ConfigError(
            f"{where}: has a second text, {unused!r}, and this task reads one: use the task pair "
            f"(regress with --data.read.pair), or name another column by --data.read.text-pair"
        )


def is_number(column: str) -> bool:
    """Returns whether a column is given as a number: "²" is a digit, but not a number."""
    return column.isdecimal() and len(column) < 10


def _places(header: list[str], fields: list[tuple[str, str]], place: str) -> list[int]:
    """Returns the index of each column; one message names all columns that are missing."""
    names = [name.strip() for name in header]
    places, wrong = [], []
    for option, column in fields:
        if is_number(column):
            if int(column) < 1:
                raise ConfigError(f"data.read.{option} {column}: columns have numbers from 1")
            places.append(int(column) - 1)
        elif names.count(column) == 1:
            places.append(names.index(column))
        else:
            wrong.append((f"data.read.{option}", column, "twice" if column in names else "not"))
    if wrong:
        shown = ", ".join(repr(name[:30]) for name in names[:12])
        columns = " and ".join(f"column {column!r} is {times}" for _, column, times in wrong)
        options = " and ".join(option for option, *_ in wrong)
        tabs = "; columns are separated by tabs" if len(names) < len(fields) else ""
        raise DataError(
            f"{place}: {columns} in the header, which has {shown}: give {options}, a name or a "
            f"number from 1{tabs}"
        )
    return places


def _jsonl(
    path: str, fields: list[tuple[str, str]], unused: str, where: str, bad: RowErrors
) -> Iterator[tuple[int, list[str]]]:
    unread, keys = Unread(path, "key"), [key for _, key in fields]
    for number, row in json_rows(path, where, bad):
        with bad:
            row = row.with_text(keys[-1])
            _refuse_second(unused, row.fields, row.place)
            unread.note(row.fields, keys)
            hint = "name it with data.read."
            yield number, [row.text(key, f"{hint}{option}") for option, key in fields]
    unread.report()

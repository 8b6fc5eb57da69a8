"""Labeled texts from files: tab-separated columns, JSONL."""

import dataclasses
import math
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal

from transformer_jax.core.config_fields import Configuration, Range
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.preparation import Preparation, TextNormalization
from transformer_jax.data.tables import parse_object, text_field
from transformer_jax.data.text import check_readable, read_lines

__all__ = [
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
class LabeledOptions(Configuration, group="data.read"):
    """Options for reading labeled examples."""

    text: str = "text"  # TSV column, by name or number from 1; JSONL key; TFDS feature
    text_pair: str = "second"  # the same for the second sentence, if there are two
    label: str = "label"  # the same for the class, or the number of a regression
    pair: bool = False  # regression on two sentences (task pair always has two)
    header: bool | None = None  # TSV has a line of names; None: if a column is given by name
    # auto: by the extension; columns (.conll): a word and its tag in each line, as in CoNLL-2003.
    format: Literal["auto", "tsv", "jsonl", "conllu", "columns", "squad"] = "auto"
    # CoNLL-U column of tags, upos or xpos; JSONL key of a list; for columns a number, default last.
    tag: str = "upos"
    lowercase: bool = False  # lower-case the text, not the labels
    normalization: TextNormalization = "nfc"  # nfc composes characters; none changes nothing
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

    TSV has no quoting or escaping, and may have more columns than needed.

    Args:
        path: The file.
        task: classify, pair or regress.
        read: Format, and columns or keys.
        where: Name of the setting with ``path``, for messages.

    Raises:
        ConfigError: A column is unknown.
        DataError: A line lacks a column, a text or label is empty, a number is invalid, or there
            are no lines. The message has ``path:line``.
    """
    second = has_second(task, read)
    fields = [("text", read.text), *([("text_pair", read.text_pair)] if second else [])]
    fields.append(("label", read.label))
    kind = labeled_format(path, task, read.format, where)
    rows = (_tsv if kind == "tsv" else _jsonl)(path, fields, read.header, where)
    return collect_sentences(rows, path, task, second, Preparation.of(read))


def collect_sentences(
    rows: Iterable[tuple[int, Sequence[str]]],
    name: str,
    task: LabeledTask,
    second: bool,
    prepare: Preparation,
) -> Sentences:
    """Checks rows of (line, [text, optional second text, label]) and collects them.

    Raises:
        DataError: A text or label is empty, a number is invalid, or there are no rows.
    """
    lines, texts, seconds, labels = [], [], [], []
    fields = ("text", "text_pair", "label") if second else ("text", "label")
    for line, row in rows:
        cells = [*map(prepare.line, row[:-1]), prepare_label(row[-1], prepare)]
        for field, cell in zip(fields, cells, strict=True):
            if not cell:
                raise DataError(
                    f"{name}:{line}: the {field} is empty: fill it in, or remove the line"
                )
        if task == "regress":
            check_number(cells[-1], f"{name}:{line}")
        *sides, label = cells
        lines.append(line)
        texts.append(sides[0])
        seconds.append(sides[-1])
        labels.append(label)
    if not texts:
        raise DataError(f"{name}: no examples: it is empty, or has only a header")
    return Sentences(name, texts, seconds if second else None, labels, lines)


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
    path: str, fields: list[tuple[str, str]], header: bool | None, where: str
) -> Iterator[tuple[int, list[str]]]:
    named = [f"data.read.{option} {column}" for option, column in fields if not is_number(column)]
    if header is False and named:
        raise ConfigError(f"{named[0]}: without a header columns have numbers, from 1")
    header = bool(named) if header is None else header
    places: list[int] = []
    for number, line in enumerate(read_lines(path, where), 1):
        if not line:
            continue
        cells = line.split("\t")
        if not places:
            places = _places(cells, fields, f"{path}:{number}")
            if header:
                continue
        for (option, column), place in zip(fields, places, strict=True):
            if place >= len(cells):
                raise DataError(
                    f"{path}:{number}: {len(cells)} column{'s' * (len(cells) > 1)}, and "
                    f"data.read.{option} {column!r} is number {place + 1}: correct the line, or "
                    f"choose another column; columns are separated by tabs"
                )
        yield number, [cells[i] for i in places]


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
    path: str, fields: list[tuple[str, str]], header: bool | None, where: str
) -> Iterator[tuple[int, list[str]]]:
    del header
    for number, line in enumerate(read_lines(path, where), 1):
        if line:
            row = parse_object(line, path, number)
            label = row.get(fields[-1][1])
            if isinstance(label, bool | int | float):
                row[fields[-1][1]] = str(label)
            yield (
                number,
                [
                    text_field(row, key, path, number, f"name it with data.read.{option}")
                    for option, key in fields
                ],
            )

"""Labeled examples from files: tab-separated columns, JSONL, CoNLL-U."""

import dataclasses
import math
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal

from transformer_jax.core.config_fields import Configuration, Range
from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.data.preparation import Preparation, TextNormalization
from transformer_jax.data.tables import parse_object, text_field
from transformer_jax.data.text import read_lines

__all__ = [
    "LabeledOptions",
    "LabeledTask",
    "Sentences",
    "Tagged",
    "check_number",
    "collect_sentences",
    "has_second",
    "labeled_format",
    "read_sentences",
    "read_tagged",
]

LabeledTask = Literal["classify", "pair", "regress", "tag", "qa"]

# The formats of each task, and their file extensions.
_FORMATS = {
    "classify": ("tsv", "jsonl"),
    "pair": ("tsv", "jsonl"),
    "regress": ("tsv", "jsonl"),
    "tag": ("conllu", "jsonl"),
    "qa": ("squad",),
}
_ENDINGS = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".conllu": "conllu",
    ".json": "squad",
}
_COLUMNS = {"form": 1, "upos": 3, "xpos": 4}  # CoNLL-U columns, from 0


@dataclasses.dataclass(frozen=True)
class LabeledOptions(Configuration, group="data.read"):
    """Options for reading labeled examples."""

    text: str = "text"  # TSV column, by name or number from 1; JSONL key; TFDS feature
    text_pair: str = "second"  # the same for the second sentence, if there are two
    label: str = "label"  # the same for the class, or the number of a regression
    pair: bool = False  # regression on two sentences (task pair always has two)
    header: bool | None = None  # TSV has a line of names; None: if a column is given by name
    format: Literal["auto", "tsv", "jsonl", "conllu", "squad"] = "auto"  # auto: by the extension
    tag: str = "upos"  # CoNLL-U column of tags, upos or xpos; or JSONL key of a list
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


@dataclasses.dataclass(frozen=True)
class Tagged:
    """Sentences as lists of words, with a tag per word."""

    name: str
    words: list[list[str]]
    tags: list[list[str]]
    lines: list[int] = dataclasses.field(default_factory=list)  # first line of each sentence

    def __len__(self) -> int:
        return len(self.words)


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
        endings = ", ".join(end for end, kind in _ENDINGS.items() if kind in _FORMATS[task])
        raise ConfigError(
            f"{flag} {path}: the name does not tell the format (known are {endings}): give "
            f"data.read.format, {allowed}"
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
        cells = [*map(prepare.line, row[:-1]), _label(row[-1], prepare)]
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
        raise DataError(f"{name}: no examples: it is empty")
    return Sentences(name, texts, seconds if second else None, labels, lines)


def _label(label: str, prepare: Preparation) -> str:
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
    named = [f"data.read.{option} {column}" for option, column in fields if not _numbers(column)]
    if header is False and named:
        raise ConfigError(f"{named[0]}: without a header columns have numbers, from 1")
    header = bool(named) if header is None else header
    places: list[int] = []
    for number, line in enumerate(read_lines(path, where), 1):
        if not line:
            continue
        cells = line.split("\t")
        if not places:
            places = [_column(cells, *field, f"{path}:{number}") for field in fields]
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


def _numbers(column: str) -> bool:
    """Returns whether a column is given as a number: "²" is a digit, but not a number."""
    return column.isdecimal() and len(column) < 10


def _column(header: list[str], option: str, column: str, place: str) -> int:
    if _numbers(column):
        if int(column) < 1:
            raise ConfigError(f"data.read.{option} {column}: columns have numbers from 1")
        return int(column) - 1
    names = [name.strip() for name in header]
    if names.count(column) != 1:
        found = "twice" if column in names else "not"
        shown = ", ".join(repr(name[:30]) for name in names[:12])
        raise DataError(
            f"{place}: column {column!r} is {found} in the header, which has {shown}: give "
            f"data.read.{option}, a name or a number from 1"
        )
    return names.index(column)


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


def read_tagged(
    path: str, read: LabeledOptions = LabeledOptions(), where: str = "data.train"
) -> Tagged:
    """Reads the words and tags of a CoNLL-U or JSONL file.

    In CoNLL-U, comments, multi-word ranges (``1-2``) and empty nodes (``1.1``) are skipped. In
    JSONL, ``read.text`` is the key of a list of words and ``read.tag`` of a list of as many tags.

    Raises:
        ConfigError: The column of tags is unknown.
        DataError: A word has no tag, there are more tags than words, or there are no sentences. The
            message has ``path:line``.
    """
    kind = labeled_format(path, "tag", read.format, where)
    rows = (_conllu if kind == "conllu" else _word_lists)(path, read, where)
    lines, words, tags = [], [], []
    prepare = Preparation.of(read)
    for line, sentence, row in rows:
        lines.append(line)
        words.append([prepare.line(word) for word in sentence])
        tags.append([_label(tag, prepare) for tag in row])
    if not words:
        raise DataError(f"{path}: no sentences: it is empty")
    return Tagged(path, words, tags, lines)


def _conllu(
    path: str, read: LabeledOptions, where: str
) -> Iterator[tuple[int, list[str], list[str]]]:
    if read.tag not in ("upos", "xpos"):
        raise ConfigError(f"data.read.tag {read.tag}: CoNLL-U has upos and xpos")
    form, tag = _COLUMNS["form"], _COLUMNS[read.tag]
    begin = 0
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate(read_lines(path, where), 1):
        if not line or line.isspace():
            if words:
                yield begin, words, tags
            words, tags = [], []
            continue
        if line.startswith("#"):
            continue
        cells = line.split("\t")
        if len(cells) != 10:
            raise DataError(
                f"{path}:{number}: {plural(len(cells), 'column')}, but CoNLL-U has 10, separated "
                f"by tabs"
            )
        if "-" in cells[0] or "." in cells[0]:
            continue
        if cells[0] != str(len(words) + 1):
            raise DataError(
                f"{path}:{number}: the word has number {cells[0]!r}, but {len(words) + 1} is "
                f"needed: words count from 1, and an empty line ends a sentence"
            )
        word = cells[form].strip()
        if not word or cells[tag] in ("", "_"):
            what = f"has no {read.tag} tag" if word else "is empty"
            raise DataError(
                f"{path}:{number}: the word {word[:40]!r} {what}: fill it in"
                + (", or choose another column with data.read.tag" if word else "")
            )
        begin = begin if words else number
        words.append(word)
        tags.append(cells[tag])
    if words:
        yield begin, words, tags


def _word_lists(
    path: str, read: LabeledOptions, where: str
) -> Iterator[tuple[int, list[str], list[str]]]:
    for number, line in enumerate(read_lines(path, where), 1):
        if not line:
            continue
        row = parse_object(line, path, number)
        lists = []
        for option, key in (("text", read.text), ("tag", read.tag)):
            found = row.get(key)
            if not isinstance(found, list) or not found:
                keys = ", ".join(map(repr, row)) or "none"
                raise DataError(
                    f"{path}:{number}: field {key!r} is not a list of texts (the fields are "
                    f"{keys}): name it with data.read.{option}"
                )
            for i, item in enumerate(found, 1):
                name = f"{key}, item {i}"
                if not text_field({name: item}, name, path, number, "").strip():
                    raise DataError(f"{path}:{number}: field {name!r} is empty: fill it in")
            lists.append([item.strip() for item in found])
        words, tags = lists
        if len(words) != len(tags):
            raise DataError(
                f"{path}:{number}: {plural(len(words), 'word')} ({read.text!r}) and "
                f"{plural(len(tags), 'tag')} "
                f"({read.tag!r}): each word needs one tag"
            )
        yield number, words, tags

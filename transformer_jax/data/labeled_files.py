"""Labeled texts from files: columns or JSONL; words with tags, also from CoNLL-U."""

import dataclasses
import functools
import itertools
import math
import os
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal, NamedTuple, TypeAlias

from transformer_jax.core.config_fields import Range
from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.core.task_progress import log
from transformer_jax.data.bad_rows import BadRows, RowErrors, Unread
from transformer_jax.data.data_sets import is_columnar, table_files
from transformer_jax.data.languages import listed
from transformer_jax.data.preparation import Preparation, ReadSettings
from transformer_jax.data.tables import (
    CellFormat,
    JsonRow,
    RowSource,
    cell_rows,
    chosen_columns,
    json_rows,
    source_name,
)
from transformer_jax.data.tag_schemes import (
    TagScheme,
    entities,
    marks_entities,
    scheme_of,
    write_entities,
)
from transformer_jax.data.text import check_readable, numbered_lines
from transformer_jax.data.words import blank_words

__all__ = [
    "LabeledFormat",
    "LabeledOptions",
    "LabeledTask",
    "Sentences",
    "TableRow",
    "Tagged",
    "Wanted",
    "check_number",
    "collect_sentences",
    "has_label",
    "has_second",
    "is_number",
    "labeled_format",
    "prepare_label",
    "read_sentences",
    "read_tagged",
    "table_cells",
    "table_rows",
]

LabeledTask = Literal["classify", "pair", "regress", "tag", "qa"]
LabeledFormat = Literal["auto", "tsv", "csv", "jsonl", "conllu", "columns", "squad"]

# The formats of each task, and their file extensions.
_FORMATS = {
    "classify": ("tsv", "csv", "jsonl"),
    "pair": ("tsv", "csv", "jsonl"),
    "regress": ("tsv", "csv", "jsonl"),
    "tag": ("conllu", "columns", "jsonl"),
    "qa": ("squad", "jsonl"),
}
_ENDINGS = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "jsonl",
    ".arrow": "jsonl",
    ".conllu": "conllu",
    ".conll": "columns",
    ".json": "squad",
}
# Usual endings of files of words with tags, which mean something else for other tasks, or nothing.
_COLUMN_ENDINGS = (
    ".tsv", ".tab", ".txt", ".bio", ".iob", ".iob2", ".bioes", ".train", ".testa", ".testb",
    ".gold_conll", ".v4_gold_conll",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class LabeledOptions(ReadSettings):
    """Options for reading labeled examples."""

    text: str = "text"  # column, by name or number from 1; JSONL key; TFDS feature
    text_pair: str = "second"  # the same for the second sentence, if there are two
    label: str = "label"  # the same for the class, or the number of a regression
    pair: bool = False  # regression on two sentences (task pair always has two)
    header: bool | None = None  # a table has a line of names; None: if a column is given by name
    # auto: by the extension; columns (.conll): a word and its tag in each line, as in CoNLL-2003.
    format: LabeledFormat = "auto"
    # CoNLL-U column of tags, upos or xpos; JSONL key of a list; for columns a number, default last.
    tag: str = "upos"
    # Scheme in which tags mark entities: others are converted; given: that of the training file.
    tag_scheme: Literal["given"] | TagScheme = "given"
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


def labeled_format(source: RowSource, task: LabeledTask, format: str, flag: str = "") -> str:
    """Returns the format of a file, by its extension if ``format`` is ``auto``.

    Raises:
        ConfigError: The extension is unknown, or the task needs a different format.

    Example:
        >>> labeled_format("train.tsv.gz", "pair", "auto"), labeled_format("a", "tag", "conllu")
        ('tsv', 'conllu')
    """
    known = _ENDINGS | dict.fromkeys(_COLUMN_ENDINGS, "columns") if task == "tag" else _ENDINGS
    if isinstance(source, str | os.PathLike):
        path = table_files(source, flag)[0]
        suffix = pathlib.Path(path.removesuffix(".gz")).suffix.lower()
        given = format != "auto" and not is_columnar(path)
        found = format if given else known.get(suffix)
    else:
        path, found = source_name(source), "jsonl"
    allowed = " or ".join(_FORMATS[task])
    if found is None:
        check_readable(pathlib.Path(path), flag)
        endings = ", ".join(end for end, kind in known.items() if kind in _FORMATS[task])
        raise ConfigError(
            f"{flag} {path}: the name does not tell the format (known are {endings}): "
            f"give data.read.format, {allowed}"
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
    source: RowSource,
    task: LabeledTask,
    read: LabeledOptions = LabeledOptions(),
    where: str = "data.train",
) -> Sentences:
    """Reads the labeled sentences of a table. Empty lines are skipped.

    TSV has no quoting or escaping; CSV is RFC 4180. A column that is not given and not there is
    chosen by its usual names (:func:`.chosen_columns`). A line names the columns or keys that are
    not read.

    Args:
        source: A TSV, CSV or JSONL file, or other objects (:func:`.object_rows`).
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
    kind = labeled_format(source, task, read.format, where)
    bad = BadRows(source_name(source), read.bad_rows)
    wanted = Wanted.of(fields, task, "" if second else read.text_pair)
    if kind == "jsonl":
        rows = _jsonl(source, wanted, where, bad)
    else:
        format: CellFormat = "csv" if kind == "csv" else "tsv"
        rows = table_cells(source_name(source), format, wanted, read.header, where, bad)
    found = collect_sentences(rows, bad, task, second, Preparation.of(read))
    if kind != "jsonl" and read.header is None and task != "regress":
        _note_first_row(found, fields)
    return found


def _note_first_row(found: Sentences, fields: Sequence[tuple[str, str]]) -> None:
    """Tells that the first row is an example if its class looks like the name of a column."""
    first = found.labels[0]
    if all(is_number(column) for _, column in fields) and first not in found.labels[1:]:
        log(
            f"{found.name}:{found.lines[0]}: read as an example, because columns are given by "
            f"number, and no other has its class {first!r}: if it has their names, say so by "
            f"data.read.header True"
        )


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


# Usual names of columns, for those that are not given.
_USUAL = {
    "text": ("sentence", "sentence1", "sentence_a", "review", "content", "tweet", "message",
             "comment", "utterance", "query", "question1", "premise"),
    "text_pair": ("sentence2", "sentence_b", "question2", "hypothesis"),
    "label": ("labels", "class", "category", "sentiment", "intent", "score", "stars", "rating",
              "similarity", "gold_label", "is_duplicate"),
}  # fmt: skip
# The columns of SICK, which has a number and a class.
_SICK = {"regress": "relatedness_score", "pair": "entailment_judgment"}


class Wanted(NamedTuple):
    """The columns of a table that are wanted.

    Attributes:
        fields: The options and names of those that are read.
        usual: Usual names of columns, for the default names among them.
        unused: The name of a second text that the task does not read; empty if it reads one.
    """

    fields: tuple[tuple[str, str], ...]
    usual: dict[str, tuple[str, ...]]
    unused: str

    @classmethod
    def of(cls, fields: Sequence[tuple[str, str]], task: LabeledTask, unused: str) -> "Wanted":
        """Returns the columns of a task."""
        usual = {}
        for option, column in fields:
            if column == getattr(LabeledOptions, option):
                more = (_SICK[task],) if option == "label" and task in _SICK else ()
                usual[column] = (*_USUAL[option], *more)
        return cls(tuple(fields), usual, unused)

    def among(self, names: Sequence[str], path: str, place: str) -> "Wanted":
        """Returns the columns, those with their default names chosen among the names of a table.

        Raises:
            ConfigError: The table has a second text that is not read.
        """
        _refuse_second(self.unused, map(str.strip, names), place)
        chosen = chosen_columns(names, self.usual, path)
        fields = [(option, chosen.get(column, column)) for option, column in self.fields]
        if self.unused and fields[0] != self.fields[0]:  # a text not named has no second
            for name in map(str.strip, names):
                if name.lower() in _USUAL["text_pair"]:
                    _refuse_second(name, [name], place)
        return self._replace(fields=tuple(fields))


def has_label(names: Iterable[str], label: str) -> bool:
    """Returns whether a column or key is the given label, or has a usual name of labels.

    Example:
        >>> has_label(["sentence1", "Score"], "label"), has_label(["query", "answer"], "label")
        (True, False)
    """
    usual = (*_USUAL["label"], _SICK["regress"]) if label == LabeledOptions.label else ()
    known = {label, *usual}
    return any(name.strip() in known or name.strip().lower() in known for name in names)


class TableRow(NamedTuple):
    """A row of a table.

    Attributes:
        line: Its line, or the first of them.
        names: The names of all columns; empty without a line of names.
        cells: All cells.
        places: The index of each wanted column.
    """

    line: int
    names: list[str]
    cells: list[str]
    places: list[int]


def table_cells(
    path: str, kind: CellFormat, wanted: Wanted, header: bool | None, where: str, bad: RowErrors
) -> Iterator[tuple[int, list[str]]]:
    """Yields the line and the wanted cells of each row; arguments as for :func:`table_rows`."""
    unread = None
    for row in table_rows(path, kind, wanted, header, where, bad):
        if unread is None:
            unread, names = Unread(path, "column"), row.names or [""] * len(row.cells)
            columns = [f"{i} ({name})" if name else f"{i}" for i, name in enumerate(names, 1)]
            unread.note(columns, [columns[i] for i in row.places])
            unread.report()
        yield row.line, [row.cells[i] for i in row.places]


def table_rows(
    path: str, kind: CellFormat, wanted: Wanted, header: bool | None, where: str, bad: RowErrors
) -> Iterator[TableRow]:
    """Yields each row that is not blank.

    Args:
        path: The file.
        kind: Its format.
        wanted: The columns.
        header: Whether there is a line of names; None: if a column is given by name.
        where: Name of the setting with ``path``, for messages.
        bad: Collects bad rows.

    Raises:
        ConfigError: A column is unknown.
        DataError: A row lacks a column, or has more than the first.
    """
    given = [f"data.read.{option} {name}" for option, name in wanted.fields if not is_number(name)]
    if header is False and given:
        raise ConfigError(f"{given[0]}: without a header columns have numbers, from 1")
    header = bool(given) if header is None else header
    names, places, most = list[str](), list[int](), 0
    mark = "comma" if kind == "csv" else "tab"
    for number, cells in cell_rows(path, kind, where, bad):
        if not cells:
            continue
        place = f"{path}:{number}"
        if not places:
            if header:
                names, wanted = [name.strip() for name in cells], wanted.among(cells, path, place)
            places, most = _places(cells, wanted.fields, place, mark), len(cells)
            if header:
                continue
        with bad:
            _check_cells(cells, wanted.fields, places, most, header, place, mark)
            yield TableRow(number, names, cells, places)


def _check_cells(
    cells: list[str],
    fields: Sequence[tuple[str, str]],
    places: list[int],
    most: int,
    header: bool,
    where: str,
    mark: str,
) -> None:
    """Refuses a row without a column that is needed, or with other columns than the first line.

    Fewer columns than a header has mean that a tab or comma is missing, so a cell may be another
    column's.
    """
    for (option, column), place in zip(fields, places, strict=True):
        if place >= len(cells):
            raise DataError(
                f"{where}: {plural(len(cells), 'column')}, and data.read.{option} {column!r} is "
                f"number {place + 1}: correct the line, or choose another column; columns are "
                f"separated by {mark}s"
            )
    if len(cells) > most:
        raise DataError(
            f"{where}: {plural(len(cells), 'column')}, but the first line has {most}: "
            + (
                "a text cannot contain a tab"
                if mark == "tab"
                else "a text with commas needs quotes"
            )
            + "; correct the line"
        )
    if header and len(cells) < most:
        raise DataError(
            f"{where}: {plural(len(cells), 'column')}, but the header has {most}: a {mark} is "
            f"missing; an empty cell needs its {mark}, too"
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
            f"{where}: has a second text, {unused!r}, and one is read: remove the column, name "
            f"another by --data.read.text-pair, or train for pairs (the task pair, or regress with "
            f"--data.read.pair)"
        )


def is_number(column: str) -> bool:
    """Returns whether a column is given as a number: "²" is a digit, but not a number."""
    return column.isdecimal() and len(column) < 10


def _places(
    header: list[str], fields: Sequence[tuple[str, str]], place: str, mark: str
) -> list[int]:
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
        columns = " and ".join(_missing(wrong))
        options = " and ".join(option for option, *_ in wrong)
        hint = f"; columns are separated by {mark}s" if len(names) < len(fields) else ""
        if mark == "comma" and any("\t" in name for name in names):
            hint = "; the first line has tabs: give data.read.format tsv"
        raise DataError(
            f"{place}: {columns} in the header, which has {shown}: give {options}, a name, or a "
            f"number from 1 and data.read.header True{hint}"
        )
    return places


def _missing(wrong: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    """Yields which columns are not in a header, and which are twice."""
    for times in dict.fromkeys(times for *_, times in wrong):
        names = [repr(column) for _, column, found in wrong if found == times]
        many = len(names) > 1
        yield f"column{'s' * many} {' and '.join(names)} {'are' if many else 'is'} {times}"


def _jsonl(
    source: RowSource, wanted: Wanted, where: str, bad: RowErrors
) -> Iterator[tuple[int, list[str]]]:
    name, chosen = source_name(source), None
    unread = Unread(name, "key")
    for number, row in json_rows(source, where, bad):
        chosen = chosen or wanted.among([*row.fields], name, row.place)
        with bad:
            row = row.with_text(chosen.fields[-1][1])
            _refuse_second(wanted.unused, row.fields, row.place)
            unread.note(row.fields, [key for _, key in chosen.fields])
            hint = "name it with data.read."
            yield number, [row.text(key, f"{hint}{option}") for option, key in chosen.fields]
    unread.report()


_COLUMNS = {"form": 1, "upos": 3, "xpos": 4}  # CoNLL-U columns, from 0
_SENTENCE_END = re.compile(r"\s*(-DOCSTART-(\s.*)?)?")
_MARK = re.compile(r"#([^\S\t]|$)")  # begins a comment, or a line of the word "#"
Row: TypeAlias = tuple[str, str]  # a word and its tag


@dataclasses.dataclass(frozen=True)
class Tagged:
    """Sentences as lists of words, with a tag per word."""

    name: str
    words: list[list[str]]
    tags: list[list[str]]
    lines: list[list[int]] = dataclasses.field(default_factory=list)  # the line of each word

    def __len__(self) -> int:
        return len(self.words)

    def in_scheme(self, scheme: TagScheme) -> "Tagged":
        """Returns the sentences with their entities marked in a scheme; a line says so."""
        if not marks_entities(_distinct(self.tags)):
            return self
        tags = [write_entities(row, scheme) for row in self.tags]
        if tags == self.tags:
            return self
        log(f"{self.name}: tags are rewritten from {_shown_scheme(self.tags)} to {scheme.upper()}")
        return dataclasses.replace(self, tags=tags)


def _distinct(tags: Iterable[Iterable[str]]) -> list[str]:
    return list({*itertools.chain.from_iterable(tags)})


def _shown_scheme(tags: list[list[str]]) -> str:
    found = scheme_of(tags)
    return "several schemes at once" if found is None else found.upper()


def read_tagged(
    source: RowSource, read: LabeledOptions = LabeledOptions(), where: str = "data.train"
) -> Tagged:
    """Reads the words and tags of a file in CoNLL-U, in columns, or in JSONL.

    In CoNLL-U, comments, multi-word ranges (``1-2``) and empty nodes (``1.1``) are skipped. In
    columns, each line has a word and its tag, and an empty line ends a sentence (Tjong Kim Sang and
    De Meulder 2003); lines that begin with -DOCSTART- are skipped. If the first line has tabs, they
    separate the columns of the whole file, whose words may have blanks inside; otherwise blanks do,
    except those that forbid a line break (:func:`.blank_words`). A line that begins with ``#`` and
    a blank is a comment, if it has another number of columns than the words, or a tag that no other
    line has. In JSONL, ``read.text`` is the key of a list of words and ``read.tag`` of a list of as
    many tags.

    If the first column of columns counts the words of each sentence, and is not named, words are
    in the second; of two columns of entities after them, as in GermEval 2014 (Benikova et al.
    2014), the first is read. Files that begin with ``#begin document`` are those of CoNLL-2012,
    whose entities are in brackets (Pradhan et al. 2012), and are read in IOB2.

    Raises:
        ConfigError: The column of tags is unknown.
        DataError: A word has no tag, a line has another number of columns than the first, there
            are more tags than words, or there are no sentences. The message has ``path:line``.
    """
    kind, path = labeled_format(source, "tag", read.format, where), source_name(source)
    bad = BadRows(path, read.bad_rows, "row" if kind == "jsonl" else "line")
    if kind == "jsonl":
        rows = _word_lists(source, read, where, bad)
    else:
        rows = _sentences((_conllu if kind == "conllu" else _columns)(path, read, where, bad), bad)
    found, prepare = Tagged(path, [], [], []), Preparation.of(read)
    for numbers, sentence, row in rows:
        with bad:
            words = [prepare.line(word) for word in sentence]
            tags = [prepare_label(tag, prepare) for tag in row]
            if not all((*words, *tags)):
                at = [*map(bool, words), *map(bool, tags)].index(False) % len(numbers)
                raise DataError(f"{path}:{numbers[at]}: a word or its tag is blank: fill it in")
            found.lines.append(numbers)
            found.words.append(words)
            found.tags.append(tags)
    bad.report(len(found))
    if not len(found):
        raise DataError(f"{path}: no sentences: it is empty")
    if marks_entities(_distinct(found.tags)):
        kinds = sorted({kind for row in found.tags for _, _, kind in entities(row)})
        log(f"{path}: entities ({listed(kinds)}) are marked in {_shown_scheme(found.tags)}")
    return found if read.tag_scheme == "given" else found.in_scheme(read.tag_scheme)


def _sentences(
    rows: Iterable[tuple[int, Row | None]], bad: BadRows
) -> Iterator[tuple[list[int], list[str], list[str]]]:
    """Groups numbered words with tags into sentences, each of which ends before a None.

    A sentence with a bad line is left out.
    """
    words, before = list[tuple[int, Row]](), bad.count
    for number, row in itertools.chain(rows, [(0, None)]):
        if row is not None:
            words.append((number, row))
            continue
        if words and bad.count == before:
            tagged = [word for _, word in words]
            yield [n for n, _ in words], [word for word, _ in tagged], [tag for _, tag in tagged]
        words, before = [], bad.count


def _conllu(
    path: str, read: LabeledOptions, where: str, bad: RowErrors
) -> Iterator[tuple[int, Row | None]]:
    """Yields the line of each word with the word and its tag; None at an empty line."""
    if read.tag not in ("upos", "xpos"):
        raise ConfigError(f"data.read.tag {read.tag}: CoNLL-U has upos and xpos")
    form, tag = _COLUMNS["form"], _COLUMNS[read.tag]
    count = 0  # words of the sentence so far
    for number, line in numbered_lines(path, where, bad):
        if not line or line.isspace():
            count = 0
            yield number, None
            continue
        if line.startswith("#"):
            continue
        cells = line.split("\t")
        is_word = not {"-", "."} & {*cells[0]}
        count += is_word
        with bad:
            if len(cells) != 10:
                raise DataError(
                    f"{path}:{number}: {plural(len(cells), 'column')}, but CoNLL-U has 10, "
                    f"separated by tabs: if the lines are words with their tags, give "
                    f"data.read.format columns"
                )
            if not is_word:
                continue
            if cells[0] != str(count):
                needed, count = count, int(cells[0]) if is_number(cells[0]) else count
                raise DataError(
                    f"{path}:{number}: the word has number {cells[0]!r}, but {needed} is needed: "
                    f"words count from 1, and an empty line ends a sentence"
                )
            word = cells[form].strip()
            if not word or cells[tag] in ("", "_"):
                what = f"has no {read.tag} tag" if word else "is empty"
                raise DataError(
                    f"{path}:{number}: the word {word[:40]!r} {what}: fill it in"
                    + (", or choose another column with data.read.tag" if word else "")
                )
            yield number, (word, cells[tag])


def _columns(
    path: str, read: LabeledOptions, where: str, bad: RowErrors
) -> Iterator[tuple[int, Row | None]]:
    """Yields as :func:`_conllu`; a line that begins with -DOCSTART- ends a sentence, too."""
    named = [is_number(read.text), read.tag != LabeledOptions.tag]
    word, tag = (
        int(name) - 1 if is_number(name) and given else None
        for name, given in zip((read.text, read.tag), named, strict=True)
    )
    if (named[1] and tag is None) or -1 in (word, tag) or tag == (word or 0):
        raise _no_tag(read.tag)
    # Lines that are not text are reported in their place among the others.
    flaws = BadRows(path, kept=sys.maxsize)
    lines = dict(numbered_lines(path, where, flaws))
    first = next(filter(str.strip, lines.values()), "")
    if first.startswith("#begin document"):
        tabs = any("\t" in line for line in lines.values() if not line.startswith("#"))
        layout: _Layout = _Brackets(0, 0, tabs, 3, _BRACKETS if tag is None else tag)
        tags = layout.place + 1
        log(f"{path}: begins as files of CoNLL-2012: words are in column 4, tags in {tags}")
    else:
        layout, unread = _Layout.of([*lines.items()], word, tag, path), Unread(path, "column")
        unread.note(layout.unread, ())
        unread.report()
    comments, place, errors = 0, 0, iter(flaws.errors)  # place: of the word in its sentence
    for number in range(1, len(lines) + len(flaws.errors) + 2):
        line = "" if number > len(lines) + len(flaws.errors) else lines.get(number)
        if line is not None and _SENTENCE_END.fullmatch(line):
            with bad:
                layout.end(f"{path}:{number - 1}")
            place = 0
            yield number, None
            continue
        with bad:
            if line is None:
                raise next(errors)
            if layout.is_comment(line, place > 0, f"{path}:{number}"):
                comments += 1
                continue
            place += 1
            yield number, layout.row(line, place, f"{path}:{number}")
    if comments:
        log(f"{path}: {plural(comments, 'line')} that begin with # left out as comments")


def _no_tag(name: object) -> ConfigError:
    return ConfigError(
        f"data.read.tag {name}: columns have numbers, and words are in the first, or in that of "
        f"data.read.text: give a number from 2, or leave it out for the last column"
    )


@dataclasses.dataclass
class _Layout:
    """The columns of a file, as in its first line that can only be a word with its tag.

    Attributes:
        first: The number of that line.
        width: The number of columns.
        tabs: Whether tabs separate them.
        word: Index of the column of words.
        place: Index of the column of tags; -1 is the last.
        begin: The number of the first word of a sentence, if the first column numbers them.
        tags: The tags of all lines that can only be words.
    """

    first: int
    width: int
    tabs: bool
    word: int
    place: int
    begin: int | None = None
    tags: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, lines: list[tuple[int, str]], word: int | None, tag: int | None, path: str
    ) -> "_Layout":
        """Returns the layout of numbered lines, given the columns that are named; says it.

        Raises:
            DataError: Most lines have texts instead of words.
        """
        lines = [(number, line) for number, line in lines if not _SENTENCE_END.fullmatch(line)]
        plain = [(number, line) for number, line in lines if not _MARK.match(line)]
        numbered = [(number, line) for number, line in plain if not line.startswith("#")]
        tabs = bool(plain) and "\t" in (numbered or plain)[0][1].strip()
        rows = [_cells(line, tabs) for _, line in numbered]
        begin, counts = None, [row[0] for row in rows if len(row) > 2 and is_number(row[0])]
        if word is None and 2 * len(counts) > len(rows):
            begin, plain, word = min(int(counts[0]), 1), numbered, 1
        first, example = plain[0] if plain else (0, "")
        width, place = len(_cells(example, tabs)), -1 if tag is None else tag
        every = [_cells(line, tabs) for _, line in plain]
        if begin is not None:
            columns = list(zip(*(row[2:] for row in every if len(row) == width == 4), strict=True))
            inner = bool(columns) and (marks_entities(columns[1]) or {*columns[1]} == {"O"})
            if tag is None and inner and marks_entities(columns[0]):
                place = 2
                log(
                    f"{path}: columns 3 and 4 have entities, as in GermEval 2014: those of 3 are "
                    f"read, the outer ones; give data.read.tag 4 for the inner ones"
                )
            if place == word:
                raise _no_tag(place + 1)
            log(f"{path}: column 1 numbers the words of column 2; tags are in {place % width + 1}")
        texts = sum(" " in row[word or 0].strip() for row in every if len(row) > (word or 0))
        if 2 * texts > len(every):
            raise DataError(
                f"{path}: texts of several words are in column {(word or 0) + 1}, but tag reads a "
                f"word with its tag in each line: classify learns classes of texts"
            )
        most = max(1, place, word or 0)
        tags = frozenset(cells[place] for cells in every if len(cells) > most)
        return cls(first, width, tabs, word or 0, place, begin, tags)

    @property
    def unread(self) -> list[str]:
        """The numbers of the columns that are not read."""
        read = self.word, self.place % max(self.width, 1), 0 if self.begin is not None else -1
        return [str(i + 1) for i in range(self.width) if i not in read]

    def row(self, line: str, place: int, where: str) -> Row:
        """Returns the word and the tag of a line.

        Args:
            line: The line.
            place: The number of its word in the sentence, from 1.
            where: The place of the line, for messages.

        Raises:
            DataError: The number of its columns, or of its word, is wrong.
        """
        cells, needed = _cells(line, self.tabs), max(2, self.word + 1, self.place + 1)
        count = plural(len(cells), "column")
        if len(cells) < needed:
            raise DataError(
                f"{where}: {count}, and the {'word' if needed == self.word + 1 else 'tag'} is in "
                f"column {needed}: correct the line, or name another by data.read.tag"
            )
        if len(cells) != self.width:
            mark = "tabs" if self.tabs else "blanks"
            hint = "" if self.tabs else "; words with blanks inside need tabs between all columns"
            raise DataError(
                f"{where}: {count} separated by {mark}, but line {self.first} has {self.width}: "
                f"correct the line{hint}"
            )
        if self.begin is not None and cells[0] != str(place - 1 + self.begin):
            raise DataError(
                f"{where}: the word has number {cells[0][:40]!r}, but {place - 1 + self.begin} is "
                f"needed: words count from {self.begin}, and an empty line ends a sentence; if "
                f"column 1 has no numbers but words, give data.read.text 1"
            )
        return cells[self.word], cells[self.place]

    def end(self, where: str) -> None:
        """Ends a sentence."""

    def is_comment(self, line: str, inside: bool, where: str) -> bool:
        """Returns whether a line is a comment, such as ``# id 7``, and not the word ``#``.

        Args:
            line: The line.
            inside: Whether the line before belongs to the same sentence.
            where: The place of the line, for messages.

        Raises:
            DataError: It may be either.
        """
        if self.begin is not None:
            return line.startswith("#")
        if not _MARK.match(line):
            return False
        cells = _cells(line, self.tabs)
        if len(cells) != self.width or ("\t" in line and not self.tabs):
            return True
        if cells[self.place] in self.tags:
            return False
        if inside and cells[self.word] == "#":
            raise DataError(
                f"{where}: a comment or the word '#' with the tag {cells[self.place]!r}, which "
                f"occurs nowhere else: move a comment before the sentence, or write a tab after "
                f"the word"
            )
        return True


_BRACKETS = 10  # the column of entities of CoNLL-2012, from 0
_BRACKET = re.compile(r"(?:\((?P<opens>[^()*]+))?\*?(?P<closes>\))?")


@dataclasses.dataclass
class _Brackets(_Layout):
    """The columns of CoNLL-2012, which has entities such as ``(PERSON*`` and ``*)``.

    Attributes:
        inside: The type of the entity that is open; empty outside.
    """

    inside: str = ""

    def row(self, line: str, place: int, where: str) -> Row:
        """Returns the word and the tag of a line, as in the base class, in IOB2.

        Raises:
            DataError: Columns are missing, brackets do not match, or words are left out.
        """
        cells = _cells(line, self.tabs)
        if len(cells) <= max(self.word, self.place):
            raise DataError(
                f"{where}: {plural(len(cells), 'column')}, but CoNLL-2012 has 12 or more"
            )
        if cells[self.word] == "[WORD]":
            raise DataError(f"{where}: '[WORD]': add the words to the file, as OntoNotes describes")
        if self.place != _BRACKETS:
            return cells[self.word], cells[self.place]
        found = _BRACKET.fullmatch(cells[self.place])
        opens, closes = (found["opens"], found["closes"]) if found else (None, None)
        if not found or (opens and self.inside) or (closes and not (opens or self.inside)):
            raise DataError(
                f"{where}: the entity {cells[self.place][:40]!r} inside {self.inside or 'none'!r}: "
                f"entities are (TYPE*, * and *), one after another"
            )
        kind = opens or self.inside
        self.inside = "" if closes else kind
        return cells[self.word], f"{'B' if opens else 'I'}-{kind}" if kind else "O"

    def end(self, where: str) -> None:
        """Ends a sentence.

        Raises:
            DataError: An entity is open.
        """
        kind, self.inside = self.inside, ""
        if kind:
            raise DataError(f"{where}: the entity ({kind}* is not closed in its sentence")

    def is_comment(self, line: str, inside: bool, where: str) -> bool:
        """Returns whether a line begins or ends a document."""
        return line.startswith("#")


def _cells(line: str, tabs: bool) -> list[str]:
    """Returns the cells of a line, separated by tabs or by blanks."""
    if not tabs:
        return blank_words(line)
    return [cell.strip(" ") for cell in line.rstrip(" \t").split("\t")]


# Usual keys of lists of words and tags, for those that are not given.
_LISTS = {"text": ("tokens", "words"), "upos": ("ner_tags", "tags", "pos_tags", "labels")}


def _word_lists(
    source: RowSource, read: LabeledOptions, where: str, bad: RowErrors
) -> Iterator[tuple[list[int], list[str], list[str]]]:
    keys, name = (read.text, read.tag), source_name(source)
    unread, chosen = Unread(name, "key"), None
    for number, row in json_rows(source, where, bad):
        if chosen is None:
            usual = {key: _LISTS[key] for key in keys if key in _LISTS}
            chosen = chosen_columns([*row.fields], usual, name)
            text, tag = (chosen.get(key, key) for key in keys)
        with bad:
            unread.note(row.fields, (text, tag))
            words, tags = _texts(row, text, "data.read.text"), _texts(row, tag, "data.read.tag")
            if len(words) != len(tags):
                raise DataError(
                    f"{row.place}: {plural(len(words), 'word')} ({text!r}) and "
                    f"{plural(len(tags), 'tag')} ({tag!r}): each word needs one tag"
                )
            yield [number] * len(words), words, tags
    unread.report()


def _texts(row: JsonRow, key: str, option: str) -> list[str]:
    """Returns the texts of a list, without blanks at their ends."""
    items, texts = row.fields.get(key), list[str]()
    if not isinstance(items, list) or not items:
        keys = ", ".join(map(repr, row.fields)) or "none"
        raise DataError(
            f"{row.place}: field {key!r} is not a list of texts (the fields are {keys}): name it "
            f"with {option}"
        )
    for i, item in enumerate(items, 1):
        name = f"{key}, item {i}"
        texts.append(JsonRow({name: item}, row.place).text(name, "").strip())
        if not texts[-1]:
            raise DataError(f"{row.place}: field {name!r} is empty: fill it in")
    return texts

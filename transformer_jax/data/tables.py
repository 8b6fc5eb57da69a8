"""Tables: columns separated by tabs or, as CSV, by commas; or objects.

Objects stand one in each line, as JSON, or in Parquet and Arrow files, or are given in Python. The
path of a table may be the folder of a data set (:mod:`.data_sets`).
"""

import csv
import json
import math
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from transformer_jax.core.errors import ConfigError, DataError, pasted, plural
from transformer_jax.core.task_progress import log
from transformer_jax.data.bad_rows import FIRST, BadRows, RowErrors, Unread
from transformer_jax.data.data_sets import columnar_rows, is_columnar, named_classes, table_files
from transformer_jax.data.text import flaw_of, numbered_lines, refuse_pipe

__all__ = [
    "CellFormat",
    "JsonRow",
    "RowSource",
    "TableFormat",
    "cell_rows",
    "chosen_columns",
    "first_cells",
    "first_object",
    "json_kind",
    "json_rows",
    "object_rows",
    "read_jsonl",
    "read_pairs_of_table",
    "source_name",
    "table_format",
    "translation_languages",
]

CellFormat = Literal["tsv", "csv"]
TableFormat = Literal["tsv", "csv", "jsonl"]  # the last stands for all tables of objects
_SUFFIXES: dict[str, TableFormat] = {
    ".tsv": "tsv", ".tab": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".parquet": "jsonl", ".arrow": "jsonl",
}  # fmt: skip
# A file, or objects in Python, such as a ``datasets.Dataset``.
RowSource: TypeAlias = str | os.PathLike[str] | Iterable[object]

# Names of the columns of pairs, by which a line of names is recognized.
_HEADER = {"id", "source", "src", "target", "tgt", "trg", "input", "output", "text", "translation"}
_VARIABLE_LANGUAGES = ("language", "translation")


def source_name(source: RowSource) -> str:
    """Returns the name of a table for messages: its path, or "the rows" of objects in Python.

    Example:
        >>> source_name("train.tsv"), source_name([{"text": "one"}])
        ('train.tsv', 'the rows')
    """
    return os.fspath(source) if isinstance(source, str | os.PathLike) else "the rows"


def table_format(source: RowSource, format: str = "auto", flag: str = "") -> TableFormat:
    """Returns the format of a table, by its extension if ``format`` is ``auto``.

    ``jsonl`` stands for all tables of objects.

    Raises:
        ConfigError: The extension is unknown.

    Example:
        >>> table_format("pairs.tsv.gz"), table_format("a.CSV"), table_format("spa.txt", "tsv")
        ('tsv', 'csv', 'tsv')
    """
    if not isinstance(source, str | os.PathLike):
        return "jsonl"
    path = table_files(source, flag)[0]
    suffix = pathlib.Path(path.removesuffix(".gz")).suffix.lower()
    given = format != "auto" and not is_columnar(path)
    found = _SUFFIXES.get(f".{format}" if given else suffix)
    if found is None:
        raise ConfigError(
            f"{flag} {path}: the name ends in none of .tsv, .csv, .jsonl and .parquet: give "
            f"data.read.format, tsv, csv or jsonl; two aligned files are data.source and "
            f"data.target, or de-en=FILE,FILE in data.pairs"
        )
    return found


def cell_rows(
    path: str | pathlib.Path,
    format: CellFormat,
    flag: str = "",
    rows: RowErrors = FIRST,
) -> Iterator[tuple[int, list[str]]]:
    """Yields the cells of each row of a table, with the number of its first line.

    A blank line has no cells. In ``tsv`` quotes are text; a line of the log counts the lines with
    cells that are quoted as in CSV, with doubled quotes inside. ``csv`` is RFC 4180: commas between
    cells; a cell in quotes may hold commas, doubled quotes and line breaks.

    Args:
        path: The file.
        format: Of the table.
        flag: The setting of the file, for messages.
        rows: Collects the lines that are not text and the rows that are not CSV, which are left
            out.

    Raises:
        DataError: As for :func:`.read_lines`; or a row is not CSV.
    """
    [file] = table_files(path, flag)
    return (_csv_rows if format == "csv" else _tsv_rows)(file, flag, rows)


def _csv_rows(
    path: str | pathlib.Path, flag: str, rows: RowErrors
) -> Iterator[tuple[int, list[str]]]:
    taken = list[int]()  # the lines of the row that is being read

    def lines() -> Iterator[str]:
        for number, line in numbered_lines(path, flag, rows):
            taken.append(number)
            yield line + "\n"

    reader = csv.reader(lines(), strict=True)
    while True:
        taken.clear()
        with rows:
            try:
                cells = next(reader, None)
            except csv.Error as error:
                if "end of data" in str(error) or "field limit" in str(error):
                    opened = f"{path}:{taken[0]}"
                    break
                raise DataError(
                    f"{path}:{taken[0]}: not CSV: {error}: a cell with quotes inside stands in "
                    f"quotes, and those inside are doubled"
                ) from None
            if cells is None:
                return
            if taken[-1] - taken[0] + 1 > len(taken):
                raise DataError(f"{path}:{taken[0]}: a line inside this row is not text")
            yield taken[0], cells if any(map(str.strip, cells)) else []
    # It has taken the rows after it, so none can be left out.
    raise DataError(
        f"{opened}: not CSV: a quote that begins a cell is not closed in the lines up to "
        f"{taken[-1]}, or a cell has more than {plural(csv.field_size_limit(), 'character')}: "
        f"close the quote, double one that belongs to the text, or shorten the text"
    )


def _tsv_rows(
    path: str | pathlib.Path, flag: str, rows: RowErrors
) -> Iterator[tuple[int, list[str]]]:
    quoted = 0
    for number, line in numbered_lines(path, flag, rows):
        cells = line.split("\t") if line.strip() else []
        if '""' in line:
            quoted += any(one[:1] == one[-1:] == '"' and '""' in one[1:-1] for one in cells)
        yield number, cells
    if quoted:
        log(
            f"warning: {path}: {plural(quoted, 'line')} with cells in quotes, which double the "
            f"quotes inside, as in CSV: all quotes are read as text, so write the table without "
            f"them, or name it .csv with commas between cells"
        )


def chosen_columns(
    names: Sequence[str], usual: Mapping[str, Sequence[str]], path: str | pathlib.Path
) -> dict[str, str]:
    """Returns the column of each field that has no column of its own name, chosen by usual names.

    A field is chosen if exactly one of its usual names is a column; a line of the log says so.

    Args:
        names: The header.
        usual: Usual names of the columns of each field.
        path: The file.

    Example:
        >>> usual = {"text": ("review", "sentence"), "label": ("class", "stars")}
        >>> chosen_columns(["id", "review", "label"], usual, "reviews.csv")
        {'text': 'review'}
    """
    known = {name.strip().lower(): name.strip() for name in names}
    chosen = {}
    for field, words in usual.items():
        there = [known[word] for word in words if word in known]
        if field not in map(str.strip, names) and len(there) == 1:
            chosen[field] = there[0]
    if chosen:
        said = " and ".join(f"of {field} is {name!r}" for field, name in chosen.items())
        log(f"{path}: the column {said}")
    return chosen


def read_pairs_of_table(
    path: str | pathlib.Path,
    format: CellFormat = "tsv",
    columns: tuple[int, int] | None = None,
    fields: tuple[str, str] | None = None,
    flag: str = "",
    rows: RowErrors = FIRST,
) -> Iterator[tuple[str, str]]:
    """Reads the pairs of a table; empty lines are empty pairs.

    Columns are chosen by number, or by name in a first line, or are the only two. The first line of
    ``csv`` may have usual names, such as source and target. A line names the columns not read.

    Args:
        path: The file.
        format: Of the table.
        columns: Numbers of the two columns, from 1.
        fields: Names of the two columns; ``tsv`` need not have them.
        flag: The setting of the file, for messages.
        rows: Collects bad rows, which are left out.

    Raises:
        DataError: A line has too few columns, or a different number than the first line; or the
            first line lacks a name.
    """
    unread, places, wanted = Unread(str(path), "column"), (0, 1), 0
    for number, cells in cell_rows(path, format, flag, rows):
        if not cells:
            yield "", ""
            continue
        if not wanted:
            place, names = f"{path}:{number}", [cell.strip() for cell in cells]
            named = None if columns else _named_pair(names, format, fields, place)
            places = named or (columns and (columns[0] - 1, columns[1] - 1)) or (0, 1)
            wanted = len(cells) if named else 2 if columns is None else max(len(cells), *columns)
            shown = names if named else [str(i + 1) for i in range(wanted)]
            unread.note(shown, [shown[i] for i in places])
            unread.report()
            if named:
                continue
            if {name.lower() for name in names} <= _HEADER:
                log(
                    f"warning: {place}: {' and '.join(map(repr, cells))} look like names of "
                    f"columns, and are read as a pair: remove the line if they are"
                )
        with rows:
            if len(cells) != wanted:
                hint = "" if columns or named else "; choose two with data.read.columns"
                raise DataError(
                    f"{path}:{number}: {plural(len(cells), 'column')}, but {wanted} are "
                    f"needed{hint}"
                )
            pair = cells[places[0]], cells[places[1]]
            if any("\n" in text.strip() for text in pair):
                raise DataError(f"{path}:{number}: a cell holds a line break, and a text is a line")
            yield pair


# Usual names of the columns of a pair.
_PAIR = {
    "source": ("source", "src", "input", "article", "document"),
    "target": ("target", "tgt", "trg", "output", "translation", "highlights", "summary"),
}


def _named_pair(
    names: list[str], format: str, fields: tuple[str, str] | None, place: str
) -> tuple[int, int] | None:
    """Returns the indices of the two columns that a first line names; None if it is a pair."""
    wanted = fields
    if wanted is None and format == "csv":
        path = place.rpartition(":")[0]
        known = {name.lower() for name in names}
        if all(len(known & {*usual}) == 1 for usual in _PAIR.values()):
            chosen = chosen_columns(names, _PAIR, path)
            wanted = chosen.get("source", "source"), chosen.get("target", "target")
    if wanted is not None and all(names.count(name) == 1 for name in wanted):
        return names.index(wanted[0]), names.index(wanted[1])
    if fields is None or format == "tsv":
        return None
    raise DataError(
        f"{place}: the first line does not have the columns {' and '.join(map(repr, fields))}, "
        f"each once, but {', '.join(map(repr, names[:12]))}: name two of them with data.read.fields"
    )


def read_jsonl(
    path: RowSource,
    fields: tuple[str, str] | None = None,
    flag: str = "",
    hint: str = "name the two with data.read.fields",
    rows: RowErrors = FIRST,
) -> Iterator[tuple[str, str]]:
    """Reads pairs from a file with one JSON object per line. Empty lines are empty pairs.

    Hugging Face data sets may hold both texts in one field, by language:
    ``{"translation": {"en": "one", "fr": "un"}}``. A line names the keys that are not read.

    Args:
        path: The file.
        fields: Keys of the two texts; None is ``source`` and ``target``, or the two languages of
            the first line in its order.
        flag: The setting of the file, for messages.
        hint: End of the message about a missing key: how to choose another.
        rows: Collects bad rows, which are left out.

    Raises:
        DataError: A line is not a JSON object, or lacks a field, or the field is not text.
    """
    unread = Unread(source_name(path), "key")
    for _, row in object_rows(path, flag, rows):
        if row is None:
            yield "", ""
            continue
        with rows:
            texts = row.fields.get("translation")
            for value in (row.fields, texts):
                _check_single_texts(value, row.place)
            if isinstance(texts, dict):
                unread.note(row.fields, ("translation",))
                row, fields = row._replace(fields=texts), fields or _languages(texts, row.place)
            elif fields is None:
                chosen = chosen_columns(list(row.fields), _PAIR, source_name(path))
                fields = chosen.get("source", "source"), chosen.get("target", "target")
            source, target = (row.text(name, hint) for name in fields)
            for name, text in zip(fields, (source, target), strict=True):
                if "\n" in text.strip():
                    raise DataError(f"{row.place}: field {name!r} holds a line break")
            unread.note(row.fields, fields)
            yield source, target
    unread.report()


def translation_languages(path: RowSource, flag: str = "") -> tuple[str, str] | None:
    """Returns the two languages of the first line of a file of translations, in its order.

    Args:
        path: A file with one JSON object per line.
        flag: The setting of the file, for messages.

    Returns:
        The languages; None if the first line has no ``translation``.

    Raises:
        DataError: The line does not have two languages.
    """
    texts = first_object(path, flag).get("translation")
    return _languages(texts, source_name(path)) if isinstance(texts, dict) else None


def first_object(path: RowSource, flag: str = "") -> dict[str, object]:
    """Returns the first line of a file that is a JSON object; empty if none is.

    Args:
        path: The file.
        flag: The setting of the file, for messages.

    Raises:
        DataError: The file is a pipe, which cannot be read again.
    """
    if isinstance(path, str | os.PathLike):
        refuse_pipe(os.fspath(path), flag)
    elif iter(path) is path:
        raise DataError("the rows are read more than once: give a list, not an iterator")
    for _, row in json_rows(path, flag, BadRows(source_name(path))):
        return row.fields
    return {}


def first_cells(path: str | pathlib.Path, format: CellFormat, flag: str = "") -> list[str]:
    """Returns the cells of the first row of a table that is not blank; arguments as above."""
    return next((cells for _, cells in cell_rows(path, format, flag) if cells), [])


def _check_single_texts(row: object, place: str) -> None:
    """Refuses the lists of ``TranslationVariableLanguages`` of Hugging Face data sets."""
    if isinstance(row, dict) and all(isinstance(row.get(k), list) for k in _VARIABLE_LANGUAGES):
        raise DataError(
            f"{place}: language and translation are lists, of any number of texts, and a pair is "
            f'needed: write one line per pair, such as {{"translation": {{"en": "one", "fr": '
            f'"un"}}}}'
        )


def _languages(texts: dict[str, object], place: str) -> tuple[str, str]:
    """The two languages of a translation."""
    if len(texts) != 2:
        names = f" ({', '.join(texts)})" if texts else ""
        raise DataError(
            f"{place}: translation holds {plural(len(texts), 'language')}{names}, but two are "
            f"needed: name them with data.read.fields"
        )
    first, second = texts
    return first, second


class JsonRow(NamedTuple):
    """The JSON object in one line of a file.

    Attributes:
        fields: Its values by key.
        place: File and line, with which messages begin.
    """

    fields: dict[str, object]
    place: str

    @classmethod
    def parse(cls, line: str, place: str) -> "JsonRow":
        """Parses a line.

        Raises:
            DataError: It is not an object; the message begins with ``place``.

        Example:
            >>> JsonRow.parse('{"text": "one"}', "example:1").fields
            {'text': 'one'}
        """
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{place}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise DataError(f"{place}: a JSON object is needed, found {json_kind(row)}")
        return cls(row, place)

    def text(self, field: str, hint: str) -> str:
        """Returns the text of a field.

        Args:
            field: Its key.
            hint: End of the message if there is no such field: how to choose another.

        Raises:
            DataError: The field is missing, or is not valid text.

        Example:
            >>> JsonRow({"text": "one"}, "example:1").text("text", "name another")
            'one'
        """
        text = self._present(field, hint)
        if not isinstance(text, str):
            raise DataError(f"{self.place}: field {field!r} is {json_kind(text)}; text is needed")
        return self._valid(text, field)

    def texts(self, field: str, hint: str) -> list[str]:
        """Returns the texts of a field with a text or a list; arguments as for :meth:`text`.

        Raises:
            DataError: The field is missing, or is not valid text.

        Example:
            >>> row = JsonRow({"one": "a", "two": ["b", "c"]}, "example:1")
            >>> [row.texts(name, "name another") for name in row.fields]
            [['a'], ['b', 'c']]
        """
        found = self._present(field, hint)
        texts = found if isinstance(found, list) else [found]
        kept = []
        for text in texts:
            if not isinstance(text, str):
                inside = "holds" if texts is found else "is"
                raise DataError(
                    f"{self.place}: field {field!r} {inside} {json_kind(text)}, and text or a list "
                    f"of texts is needed"
                )
            kept.append(self._valid(text, field))
        return kept

    def _present(self, field: str, hint: str) -> object:
        if field not in self.fields:
            there = ", ".join(map(repr, self.fields)) or "none"
            raise DataError(f"{self.place}: no field {field!r}, only {there}: {hint}")
        return self.fields[field]

    def _valid(self, text: str, field: str) -> str:
        if (flaw := flaw_of(text)) is not None:
            raise DataError(f"{self.place}: field {field!r} {flaw}")
        return text

    def with_text(self, field: str) -> "JsonRow":
        """Returns the row with a label as text if it is a number, true or false.

        Args:
            field: Key of the label.

        Raises:
            DataError: It is NaN, as programs write for a missing one.

        Example:
            >>> JsonRow({"label": 3, "n": 1}, "example:1").with_text("label").fields
            {'label': '3', 'n': 1}
        """
        value = self.fields.get(field)
        if not isinstance(value, bool | int | float):
            return self
        if math.isnan(value):
            raise DataError(f"{self.place}: the {field} is NaN: fill it in, or remove the line")
        return self._replace(fields=self.fields | {field: str(value)})


def json_rows(
    source: RowSource, flag: str = "", rows: RowErrors = FIRST
) -> Iterator[tuple[int, JsonRow]]:
    """Yields the objects of a table with their numbers; skips empty lines.

    Arguments and errors are those of :func:`object_rows`.
    """
    for number, row in object_rows(source, flag, rows):
        if row is not None:
            yield number, row


def object_rows(
    source: RowSource, flag: str = "", rows: RowErrors = FIRST
) -> Iterator[tuple[int, JsonRow | None]]:
    """Yields the objects of a table with their numbers from 1; None for an empty line.

    Args:
        source: A file with one JSON object in each line; Parquet or Arrow, whose numbers of classes
            become their names; CSV or TSV, whose first line has the keys; the folder of a data set;
            or objects in Python, such as a ``datasets.Dataset``.
        flag: The setting of the file, for messages.
        rows: Collects bad rows, which are left out.

    Raises:
        DataError: As for :func:`.read_lines`; or a row is not an object.
    """
    if isinstance(source, str | os.PathLike):
        number, name = 0, os.fspath(source)
        files = table_files(source, flag)
        if files == [name]:
            yield from _file_objects(name, flag, rows)
            return
        for file in files:
            for inner, row in _file_objects(file, flag, rows):
                number = max(number + 1, inner)
                yield number, row and row._replace(place=f"{name}:{number}")
        return
    for number, given in enumerate(named_classes(source), 1):
        with rows:
            if not isinstance(given, Mapping):
                raise DataError(
                    f"the rows:{number}: an object is needed, found {json_kind(given)}: of several "
                    f"splits, give one, such as data['train']"
                )
            yield number, JsonRow({str(key): given[key] for key in given}, f"the rows:{number}")


def _file_objects(file: str, flag: str, rows: RowErrors) -> Iterator[tuple[int, JsonRow | None]]:
    """Yields the objects of a file as :func:`object_rows`."""
    format = _SUFFIXES.get(pathlib.Path(file.removesuffix(".gz")).suffix.lower())
    if is_columnar(file):
        for number, fields in enumerate(columnar_rows(file, flag), 1):
            yield number, JsonRow(fields, f"{file}:{number}")
    elif format == "tsv" or format == "csv":
        yield from _objects_of_cells(file, format, flag, rows)
    else:
        for number, line in numbered_lines(file, flag, rows):
            if number == 1 and (line.strip() == "[" or line.lstrip().startswith("[{")):
                raise DataError(
                    f"{file}: one list of objects, and an object in each line is needed, as "
                    f"{pasted('jq', '-c', '.[]', file)} writes them: store its output as .jsonl"
                )
            with rows:
                yield number, JsonRow.parse(line, f"{file}:{number}") if line.strip() else None


def _objects_of_cells(
    file: str, format: CellFormat, flag: str, rows: RowErrors
) -> Iterator[tuple[int, JsonRow | None]]:
    """Yields the rows of a table whose first line has the names of its columns."""
    names, twice = list[str](), dict[str, object]()
    for number, cells in cell_rows(file, format, flag, rows):
        if not cells:
            yield number, None
            continue
        if not names:
            names = [cell.strip() for cell in cells]
            twice = dict.fromkeys((one for one in names if names.count(one) > 1), _Twice())
            continue
        with rows:
            if len(cells) != len(names):
                raise DataError(
                    f"{file}:{number}: {plural(len(cells), 'column')}, but the first line has "
                    f"{len(names)} ({', '.join(map(repr, names[:8]))})"
                )
            fields = dict(zip(names, cells, strict=True)) | twice
            yield number, JsonRow(fields, f"{file}:{number}")


class _Twice:
    """Stands for the value of a column whose name another has, too."""


def json_kind(value: object) -> str:
    """Returns what JSON calls the kind of a value.

    Example:
        >>> [json_kind(value) for value in (None, True, 3, "a", [1], {})]
        ['null', 'true or false', 'a number', 'text', 'a list', 'an object']
    """
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "text"}
    kinds |= {list: "a list", dict: "an object", type(None): "null", _Twice: "in two columns"}
    return kinds.get(type(value), type(value).__name__)

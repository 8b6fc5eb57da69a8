"""Pairs in one file: tab-separated columns, or one JSON object per line."""

import json
import math
import pathlib
from collections.abc import Iterator
from typing import Literal, NamedTuple

from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.core.task_progress import log
from transformer_jax.data.bad_rows import FIRST, BadRows, RowErrors, Unread
from transformer_jax.data.text import flaw_of, numbered_lines, refuse_pipe

__all__ = [
    "JsonRow",
    "first_object",
    "json_kind",
    "json_rows",
    "read_jsonl",
    "read_tsv",
    "table_format",
    "translation_languages",
    "tsv_rows",
]

# Names of the columns of pairs, by which a line of names is recognized.
_HEADER = {"id", "source", "src", "target", "tgt", "trg", "input", "output", "text", "translation"}
_VARIABLE_LANGUAGES = ("language", "translation")


def table_format(
    path: str | pathlib.Path, format: str = "auto", flag: str = ""
) -> Literal["tsv", "jsonl"]:
    """Returns the format of a file of pairs, by its extension if ``format`` is ``auto``.

    Raises:
        ConfigError: The extension is unknown.

    Example:
        >>> table_format("pairs.tsv.gz"), table_format("spa.txt", "tsv")
        ('tsv', 'tsv')
    """
    suffix = pathlib.Path(str(path).removesuffix(".gz")).suffix.lower()
    found = format if format != "auto" else suffix.lstrip(".")
    if found in ("tsv", "tab"):
        return "tsv"
    if found in ("jsonl", "ndjson"):
        return "jsonl"
    raise ConfigError(
        f"{flag} {path}: the name ends in neither .tsv nor .jsonl: give data.read.format, tsv or "
        f"jsonl; two aligned files are data.source and data.target, or de-en=FILE,FILE in "
        f"data.pairs"
    )


def tsv_rows(
    path: str | pathlib.Path, flag: str = "", rows: RowErrors = FIRST
) -> Iterator[tuple[int, list[str]]]:
    """Yields the cells of each line of a tab-separated file, with its number; none if it is blank.

    Quotes are text. A line of the log counts the lines with cells that are quoted as in CSV, with
    doubled quotes inside, as spreadsheets and pandas write them.

    Args:
        path: The file.
        flag: The setting of the file, for messages.
        rows: Collects the lines that are not text, which are left out.

    Raises:
        DataError: As for :func:`.read_lines`.
    """
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
            f"them"
        )


def read_tsv(
    path: str | pathlib.Path,
    columns: tuple[int, int] | None = None,
    flag: str = "",
    rows: RowErrors = FIRST,
) -> Iterator[tuple[str, str]]:
    """Reads the pairs of a tab-separated file, without quoting; empty lines are empty pairs.

    A line names the columns that are not read.

    Args:
        path: The file.
        columns: Numbers of the two columns, from 1; None for a file with exactly two.
        flag: The setting of the file, for messages.
        rows: Collects bad rows, which are left out.

    Raises:
        DataError: A line has too few columns, or a different number than the first line.
    """
    wanted = 2 if columns is None else 0
    first, second = columns or (1, 2)
    unread, begun = Unread(str(path), "column"), False
    for number, cells in tsv_rows(path, flag, rows):
        if not cells:
            yield "", ""
            continue
        if not begun and {cell.strip().lower() for cell in cells} <= _HEADER:
            log(
                f"warning: {path}:{number}: {' and '.join(map(repr, cells))} look like names of "
                f"columns, and are read as a pair: remove the line if they are"
            )
        begun = True
        if not wanted:
            wanted = max(len(cells), first, second)
            unread.note(map(str, range(1, wanted + 1)), (str(first), str(second)))
            unread.report()
        with rows:
            if len(cells) != wanted:
                hint = "; choose two with data.read.columns" if columns is None else ""
                raise DataError(
                    f"{path}:{number}: {plural(len(cells), 'column')}, but {wanted} are "
                    f"needed{hint}"
                )
            yield cells[first - 1], cells[second - 1]


def read_jsonl(
    path: str | pathlib.Path,
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
    unread = Unread(str(path), "key")
    for number, line in numbered_lines(path, flag, rows):
        if not line.strip():
            yield "", ""
            continue
        with rows:
            row = JsonRow.parse(line, f"{path}:{number}")
            texts = row.fields.get("translation")
            for value in (row.fields, texts):
                _check_single_texts(value, row.place)
            if isinstance(texts, dict):
                unread.note(row.fields, ("translation",))
                row, fields = row._replace(fields=texts), fields or _languages(texts, row.place)
            fields = fields or ("source", "target")
            source, target = (row.text(name, hint) for name in fields)
            for name, text in zip(fields, (source, target), strict=True):
                if "\n" in text.strip():
                    raise DataError(f"{row.place}: field {name!r} holds a line break")
            unread.note(row.fields, fields)
            yield source, target
    unread.report()


def translation_languages(path: str | pathlib.Path, flag: str = "") -> tuple[str, str] | None:
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
    return _languages(texts, str(path)) if isinstance(texts, dict) else None


def first_object(path: str | pathlib.Path, flag: str = "") -> dict[str, object]:
    """Returns the first line of a file that is a JSON object; empty if none is.

    Args:
        path: The file.
        flag: The setting of the file, for messages.

    Raises:
        DataError: The file is a pipe, which cannot be read again.
    """
    refuse_pipe(path, flag)
    for _, row in json_rows(path, flag, BadRows(str(path))):
        return row.fields
    return {}


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
    path: str | pathlib.Path, flag: str = "", rows: RowErrors = FIRST
) -> Iterator[tuple[int, JsonRow]]:
    """Yields the JSON objects of a file, one in each line, with their lines; skips empty lines.

    Args:
        path: The file.
        flag: The setting of the file, for messages.
        rows: Collects bad rows, which are left out.

    Raises:
        DataError: As for :func:`.read_lines`; or a line is not a JSON object.
    """
    for number, line in numbered_lines(path, flag, rows):
        if line.strip():
            with rows:
                yield number, JsonRow.parse(line, f"{path}:{number}")


def json_kind(value: object) -> str:
    """Returns what JSON calls the kind of a value.

    Example:
        >>> [json_kind(value) for value in (None, True, 3, "a", [1], {})]
        ['null', 'true or false', 'a number', 'text', 'a list', 'an object']
    """
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "text"}
    kinds |= {list: "a list", dict: "an object", type(None): "null"}
    return kinds.get(type(value), type(value).__name__)

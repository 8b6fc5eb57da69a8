"""Pairs in one file: tab-separated columns, or one JSON object per line."""

import json
import math
import pathlib
from collections.abc import Iterator
from typing import Literal

from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.core.task_progress import log
from transformer_jax.data.bad_rows import FIRST, BadRows, RowErrors
from transformer_jax.data.text import flaw_of, numbered_lines, refuse_pipe
from transformer_jax.data.unread import Unread

__all__ = [
    "TsvCells",
    "first_object",
    "json_kind",
    "numbers_as_text",
    "parse_object",
    "read_jsonl",
    "read_tsv",
    "table_format",
    "text_field",
    "texts_field",
    "translation_languages",
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


class TsvCells:
    r"""Splits the lines of a table at tabs, and counts lines that are quoted as in CSV.

    Spreadsheets and pandas quote cells with quotes in them, and double these.

    Example:
        >>> table = TsvCells("a.tsv")
        >>> table.split('"a ""b"" c"\t1'), table.quoted
        (['"a ""b"" c"', '1'], 1)
    """

    def __init__(self, name: str):
        """Begins with none; ``name`` is the file."""
        self.name, self.quoted = name, 0

    def split(self, line: str) -> list[str]:
        """Returns the cells of a line, with their quotes."""
        cells = line.split("\t")
        if '""' in line:
            quoted = (one for one in cells if one[:1] == one[-1:] == '"')
            self.quoted += any('""' in one[1:-1] for one in quoted)
        return cells

    def report(self) -> None:
        """Logs a line if there are quoted cells."""
        if self.quoted:
            log(
                f"warning: {self.name}: {plural(self.quoted, 'line')} with cells in quotes, which "
                f"double the quotes inside, as in CSV: all quotes are read as text, so write the "
                f"table without them"
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
    unread, table, begun = Unread(str(path), "column"), TsvCells(str(path)), False
    for number, line in numbered_lines(path, flag, rows):
        if not line.strip():
            yield "", ""
            continue
        cells = table.split(line)
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
    table.report()


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
            row = parse_object(line, path, number)
            texts = row.get("translation")
            for value in (row, texts):
                _check_single_texts(value, f"{path}:{number}")
            if isinstance(texts, dict):
                unread.note(row, ("translation",))
                row, fields = texts, fields or _languages(texts, f"{path}:{number}")
            fields = fields or ("source", "target")
            source, target = (text_field(row, name, path, number, hint) for name in fields)
            for name, text in zip(fields, (source, target), strict=True):
                if "\n" in text.strip():
                    raise DataError(f"{path}:{number}: field {name!r} holds a line break")
            unread.note(row, fields)
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
    bad = BadRows(str(path))
    for number, line in numbered_lines(path, flag, bad):
        if line.strip():
            with bad:
                return parse_object(line, path, number)
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


def parse_object(line: str, path: str | pathlib.Path, number: int) -> dict[str, object]:
    """Parses a line as a JSON object.

    Raises:
        DataError: It is not an object; the message has ``path:number``.

    Example:
        >>> parse_object('{"text": "one"}', "example", 1)
        {'text': 'one'}
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}:{number}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise DataError(f"{path}:{number}: a JSON object is needed, found {json_kind(row)}")
    return row


def numbers_as_text(row: dict[str, object], field: str, where: str) -> dict[str, object]:
    """Returns a JSON object in which a label that is a number, true or false is text.

    Args:
        row: The object.
        field: Key of the label.
        where: File and line, with which messages begin.

    Raises:
        DataError: It is NaN, as programs write for a missing one.

    Example:
        >>> numbers_as_text({"label": 3, "n": 1}, "label", "example:1")
        {'label': '3', 'n': 1}
    """
    value = row.get(field)
    if not isinstance(value, bool | int | float):
        return row
    if math.isnan(value):
        raise DataError(f"{where}: the {field} is NaN: fill it in, or remove the line")
    return row | {field: str(value)}


def json_kind(value: object) -> str:
    """Returns what JSON calls the kind of a value.

    Example:
        >>> [json_kind(value) for value in (None, True, 3, "a", [1], {})]
        ['null', 'true or false', 'a number', 'text', 'a list', 'an object']
    """
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "text"}
    kinds |= {list: "a list", dict: "an object", type(None): "null"}
    return kinds.get(type(value), type(value).__name__)


def text_field(
    row: dict[str, object], field: str, path: str | pathlib.Path, number: int, hint: str
) -> str:
    """Returns the text of a field.

    Args:
        row: A JSON object.
        field: Its key.
        path: The file, for messages.
        number: The line.
        hint: End of the message: how to choose another field.

    Raises:
        DataError: The field is missing, or is not valid text.

    Example:
        >>> text_field({"text": "one"}, "text", "example", 1, "name another")
        'one'
    """
    text = _present(row, field, path, number, hint)
    if not isinstance(text, str):
        raise DataError(f"{path}:{number}: field {field!r} is {json_kind(text)}; text is needed")
    return _valid(text, field, path, number)


def texts_field(
    row: dict[str, object], field: str, path: str | pathlib.Path, number: int, hint: str
) -> list[str]:
    """Returns the texts of a field with a text or a list; arguments as for :func:`text_field`.

    Raises:
        DataError: The field is missing, or is not valid text.

    Example:
        >>> row = {"one": "a", "two": ["b", "c"]}
        >>> [texts_field(row, name, "example", 1, "name another") for name in row]
        [['a'], ['b', 'c']]
    """
    found = _present(row, field, path, number, hint)
    texts = found if isinstance(found, list) else [found]
    kept = []
    for text in texts:
        if not isinstance(text, str):
            inside = "holds" if texts is found else "is"
            raise DataError(
                f"{path}:{number}: field {field!r} {inside} {json_kind(text)}, and text or a "
                f"list of texts is needed"
            )
        kept.append(_valid(text, field, path, number))
    return kept


def _present(
    row: dict[str, object], field: str, path: str | pathlib.Path, number: int, hint: str
) -> object:
    if field not in row:
        raise DataError(
            f"{path}:{number}: no field {field!r}, only {', '.join(map(repr, row)) or 'none'}: "
            f"{hint}"
        )
    return row[field]


def _valid(text: str, field: str, path: str | pathlib.Path, number: int) -> str:
    if (flaw := flaw_of(text)) is not None:
        raise DataError(f"{path}:{number}: field {field!r} {flaw}")
    return text

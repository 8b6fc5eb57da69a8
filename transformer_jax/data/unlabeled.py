"""Tables of texts without labels, all of whose columns are kept."""

import json
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.core.task_progress import log
from transformer_jax.data.bad_rows import BadRows
from transformer_jax.data.labeled_files import LabeledOptions, Wanted, is_number, table_rows
from transformer_jax.data.tables import (
    JsonRow,
    RowSource,
    TableFormat,
    json_rows,
    source_name,
    table_format,
)
from transformer_jax.data.text import flaw_of

__all__ = ["TextTable", "as_cell", "read_text_table"]


class TextTable(NamedTuple):
    """The rows of a table.

    Attributes:
        columns: The names of all columns, in the order in which rows have them.
        rows: The cells of each row, as text.
        texts: The text of each row, or both texts of a pair.
        places: File and line of each, for messages.
    """

    columns: tuple[str, ...]
    rows: list[list[str]]
    texts: list[list[str]]
    places: list[str]


class _Row(NamedTuple):
    """A row: its place, its values by column, and its texts."""

    place: str
    values: list[tuple[str, object]]
    texts: list[str]


def as_cell(value: object) -> str:
    """Returns a value as the text of a cell: lists and objects as JSON; none and NaN are empty.

    Example:
        >>> as_cell("one"), as_cell(None), as_cell(["é", 1]), as_cell(1.5)
        ('one', '', '["é", 1]', '1.5')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool | list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def read_text_table(
    source: RowSource, read: LabeledOptions, pairs: bool, where: str = "--data"
) -> TextTable:
    """Reads a table of texts or pairs of texts; a label in it is a column as any other.

    Columns are chosen as in a table with labels: by name, in the first line of CSV and TSV, or by
    number, and then the first line is a row, unless ``read.header`` says otherwise.

    Args:
        source: A CSV, TSV or JSONL file, or one of those that :func:`.object_rows` names.
        read: The columns of the texts, and whether there is a line of names.
        pairs: Whether two texts are read.
        where: Name of the setting with the file, for messages.

    Raises:
        ConfigError: The name of the file ends in no known way, or the table has a second text that
            is not read.
        DataError: Rows cannot be read, have no such column or an empty text, or there are none.
    """
    name, format = source_name(source), _format(source, where)
    fields = [(one, getattr(read, one)) for one in ("text", "text_pair")[: 1 + pairs]]
    wanted = Wanted.of(fields, "pair" if pairs else "classify", "" if pairs else read.text_pair)
    bad, kept = BadRows(name, read.bad_rows), list[_Row]()
    if format == "jsonl":
        rows = _of_objects(source, wanted, where, bad)
    else:
        found = table_rows(name, format, wanted, read.header, where, bad)
        rows = (
            _Row(
                f"{name}:{row.line}",
                [*_named(row.names, row.cells)],
                [row.cells[place] for place in row.places],
            )
            for row in found
        )
    for row in rows:
        with bad:
            for (option, _), text in zip(fields, row.texts, strict=True):
                if not text.strip():
                    raise DataError(
                        f"{row.place}: the {option} is empty: fill it in, or remove the line"
                    )
            for column, value in row.values:
                if flaw := flaw_of(column) or flaw_of(as_cell(value)):
                    raise DataError(f"{row.place}: column {column!r} {flaw}")
            kept.append(row)
    bad.report(len(kept))
    if not kept:
        raise DataError(f"{name}: no texts: it is empty, or has only a header")
    numbered = read.header is None and all(is_number(column) for _, column in fields)
    if format != "jsonl" and numbered:
        log(
            f"{kept[0].place}: read as a text, because columns are given by number: if it has "
            f"their names, say so by --data.read.header True"
        )
    return _table(kept, format)


def _format(source: RowSource, where: str) -> TableFormat:
    """Returns the format of a table by its name.

    Raises:
        ConfigError: It ends in no known way.
    """
    name = source_name(source)
    try:
        return table_format(source, flag=where)
    except ConfigError:
        hint = f"a text in each line is read from standard input, as after < {name}"
        if name == "-":
            hint = f"standard input is read without {where}"
        elif name.lower().endswith(".json"):
            hint = "a list of objects is stored as .jsonl, as jq -c '.[]' writes it"
        raise ConfigError(
            f"{where} {name}: the name ends in none of .csv, .tsv, .jsonl and .parquet; {hint}"
        ) from None


def _of_objects(source: RowSource, wanted: Wanted, where: str, bad: BadRows) -> Iterator[_Row]:
    """Yields the rows of a table of objects, by the keys of the first that has any wanted ones."""
    chosen = None
    for _, row in json_rows(source, where, bad):
        with bad:
            fields = chosen or wanted.among([*row.fields], source_name(source), row.place).fields
            texts = [_text(row, option, key) for option, key in fields]
            chosen = fields
            yield _Row(row.place, [*row.fields.items()], texts)


def _text(row: JsonRow, option: str, key: str) -> str:
    return row.text(key, f"name it with --data.read.{option.replace('_', '-')}")


def _named(names: Sequence[str], cells: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields each cell after the name of its column, or its number."""
    for number, cell in enumerate(cells, 1):
        yield names[number - 1] if names else f"{number}", cell


def _table(rows: Sequence[_Row], format: TableFormat) -> TextTable:
    """Returns the rows with the same columns in each: by key, or as they stand in a file."""
    if format == "jsonl":
        columns = tuple(dict.fromkeys(name for row in rows for name, _ in row.values))
        found = (dict(row.values) for row in rows)
        values = ([fields.get(name) for name in columns] for fields in found)
    else:
        columns = tuple(name for name, _ in max((row.values for row in rows), key=len))
        missing = lambda row: [""] * (len(columns) - len(row.values))
        values = ([*(value for _, value in row.values), *missing(row)] for row in rows)
    cells = [[*map(as_cell, row)] for row in values]
    return TextTable(columns, cells, [row.texts for row in rows], [row.place for row in rows])

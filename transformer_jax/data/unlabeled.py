"""Tables of texts without labels, all of whose columns are kept."""

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.bad_rows import BadRows
from transformer_jax.data.labeled_files import LabeledOptions, Wanted, is_number
from transformer_jax.data.tables import JsonRow, RowSource, json_rows, source_name, table_format

__all__ = ["TextTable", "as_cell", "read_text_table"]


class TextTable(NamedTuple):
    """The rows of a table.

    Attributes:
        places: File and line of each, for messages.
        texts: The text of each, or both texts of a pair.
        rows: The values of each by column.
    """

    places: list[str]
    texts: list[list[str]]
    rows: list[dict[str, object]]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns, in the order in which rows have them."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row))

    def cells(self) -> Iterator[list[str]]:
        """Yields each row as text, a cell for each column.

        A missing value is empty, and any other that is no text is JSON: see :func:`as_cell`.
        """
        columns = self.columns
        for row in self.rows:
            yield [as_cell(row.get(name)) for name in columns]


def as_cell(value: object) -> str:
    """Returns a value as the text of a cell.

    Example:
        >>> as_cell("one"), as_cell(None), as_cell(["é", 1])
        ('one', '', '["é", 1]')
    """
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def read_text_table(
    source: RowSource, read: LabeledOptions, pairs: bool, where: str = "--data"
) -> TextTable:
    """Reads a table of texts or pairs of texts; a label in it is a column as any other.

    The first line of CSV and TSV has the names of the columns.

    Args:
        source: A CSV, TSV or JSONL file, or one of those that :func:`.object_rows` names.
        read: The columns of the texts, by name, or by number from 1.
        pairs: Whether two texts are read.
        where: Name of the setting with the file, for messages.

    Raises:
        ConfigError: The name of the file ends in no known way, or the table has a second text that
            is not read.
        DataError: Rows cannot be read, have no such column or an empty text, or there are none.
    """
    name = source_name(source)
    try:
        table_format(source, flag=where)
    except ConfigError:
        raise ConfigError(
            f"{where} {name}: the name ends in none of .csv, .tsv, .jsonl and .parquet: rename the "
            f"file; texts of a line each are read from standard input, as after < {name}"
        ) from None
    options = ("text", "text_pair") if pairs else ("text",)
    fields = [(option, getattr(read, option)) for option in options]
    wanted = Wanted.of(fields, "pair" if pairs else "classify", "" if pairs else read.text_pair)
    found, bad, chosen = TextTable([], [], []), BadRows(name, read.bad_rows), None
    for _, row in json_rows(source, where, bad):
        if chosen is None:
            chosen = wanted.among([*row.fields], name, row.place).fields
            if read.bad_rows == "refuse":  # one error for all rows
                _texts(row, chosen)
        with bad:
            texts = _texts(row, chosen)
            for (option, _), text in zip(chosen, texts, strict=True):
                if not text.strip():
                    raise DataError(
                        f"{row.place}: the {option} is empty: fill it in, or remove the line"
                    )
            found.places.append(row.place)
            found.texts.append(texts)
            found.rows.append(row.fields)
    bad.report(len(found.rows))
    if not found.rows:
        raise DataError(f"{name}: no texts: it is empty, or has only a header")
    return found


def _texts(row: JsonRow, fields: Iterable[tuple[str, str]]) -> list[str]:
    """Returns the texts of a row by option and column, which may be a number from 1."""
    texts, names = [], [*row.fields]
    for option, column in fields:
        if is_number(column) and column not in names and 0 < int(column) <= len(names):
            column = names[int(column) - 1]
        texts.append(row.text(column, f"name it with --data.read.{option.replace('_', '-')}"))
    return texts

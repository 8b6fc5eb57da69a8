"""The lecture decks, row by row: each slide's content, and its code, test, page and command.

The ledger is ``ledger.toml`` in this folder. ``docs/lectures.md`` links to the pages.
"""

import contextlib
import dataclasses
import functools
import re
import tomllib
import traceback
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from transformer_jax.core.config_fields import nearest
from transformer_jax.core.errors import ConfigError

__all__ = ["DECKS", "Row", "find_rows", "numbers_of", "read_ledger"]

# The letter of each deck, and its title.
DECKS = {
    "L": "INF721, lecture 17: Transformers",
    "U": "UT Dallas CS4391: Transformers I",
    "B": "slides on Bishop and Bishop, Deep Learning: Foundations and Concepts, chapter 12",
    "H": "Harvard CS287r, lecture 10: Transformers: From Self-Attention to Transformers",
    "T": "a teaching assistant's deck: Transformer",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One item shown in a deck.

    Attributes:
        name: Deck letter and number, such as ``B33``.
        shows: The content of the slide.
        functions: Dotted public names of the code.
        tests: Tests of the repository, as ``tests/file.py::test_name``.
        page: Page and anchor below ``docs/``.
        command: Command line that reproduces it.
        exercise: The exercise in which the reader writes it.
        correction: The correct statement, if the slide has an error.
        remark: An addition that is not a correction.
    """

    name: str
    shows: str
    functions: tuple[str, ...]
    tests: tuple[str, ...]
    page: str
    command: str
    exercise: str = ""
    correction: str = ""
    remark: str = ""


@functools.cache
def read_ledger() -> Mapping[str, Row]:
    """Returns all rows by name, deck after deck.

    Example:
        >>> read_ledger()["B34"].functions
        ('transformer_jax.functional.logits.temperature',)
    """
    text = resources.files(__name__).joinpath("ledger.toml").read_text("utf-8")
    return {name: _row(name, table) for name, table in tomllib.loads(text).items()}


def _row(name: str, table: Mapping[str, Any]) -> Row:
    lists = {key: tuple(value) for key, value in table.items() if isinstance(value, list)}
    return Row(name=name, **{**table, **lists})


def find_rows(name: str) -> list[Row]:
    """Returns the row with a name, or all rows of a deck by its letter, ignoring case.

    Args:
        name: A name such as ``B33``, or a letter such as ``B``.

    Raises:
        ConfigError: There is no such row or deck; the message suggests the nearest.

    Example:
        >>> [row.name for row in find_rows("u7")], len(find_rows("U"))
        (['U7'], 15)
    """
    rows, wanted = read_ledger(), name.strip().upper()
    if wanted in DECKS:
        return [row for row in rows.values() if row.name[0] == wanted]
    if wanted in rows:
        return [rows[wanted]]
    near = _nearest_number(wanted)
    hint = f"; did you mean {near}?" if near else nearest(wanted, rows) or ";"
    decks = [[row.name for row in find_rows(deck)] for deck in DECKS]
    ranges = ", ".join(f"{names[0]} to {names[-1]}" for names in decks)
    raise ConfigError(f"no row {name} in the lectures{hint} there are {ranges}")


def _nearest_number(wanted: str) -> str | None:
    """The row of the same deck with the nearest number."""
    if match := re.fullmatch(r"([A-Z])0*(\d{1,9})", wanted):
        deck, number = match[1], int(match[2])
        numbers = [int(name[1:]) for name in read_ledger() if name[0] == deck]
        if numbers:
            return f"{deck}{min(numbers, key=lambda other: abs(other - number))}"
    return None


@contextlib.contextmanager
def numbers_of(section: str) -> Iterator[None]:
    """Encloses the assertions of a section's numbers, which a reader may change.

    What fails inside, an assertion or a comparison of shapes, ends the block and prints one line,
    so a changed cell never ends in a traceback. The site is not built if a line is printed.

    Args:
        section: Row or chapter, as in the line.

    Example:
        >>> with numbers_of("H3"):
        ...     assert round(2.0**0.5, 2) == 1.41
        >>> with numbers_of("H3"):
        ...     assert round(3.0**0.5, 2) == 1.41
        H3: other numbers than on the page, which a changed cell explains (line 2)
    """
    try:
        yield
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[1].lineno
        print(f"{section}: other numbers than on the page, which a changed cell explains"
              f" (line {line})")  # fmt: skip

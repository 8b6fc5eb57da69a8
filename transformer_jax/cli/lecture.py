"""``transformer-jax lecture``: rows of the lecture decks, with code, test, page and command."""

import dataclasses
import shutil
import textwrap

import tyro

from transformer_jax.cli.output import columns
from transformer_jax.core.config_fields import Configuration
from transformer_jax.core.errors import command
from transformer_jax.lectures import DECKS, Row, find_rows

__all__ = ["Lecture"]


@dataclasses.dataclass(frozen=True)
class Lecture(Configuration, group="--"):
    """Print rows of the lecture decks: what the slide shows, its correction, code, test, command.

    lecture lists all rows, lecture B the rows of one deck, and lecture B33 prints a row.
    """

    rows: tyro.conf.Positional[tuple[str, ...]] = ()
    """Rows, such as B33, or letters of decks."""

    def __call__(self) -> int:
        """Prints decks as lists, and rows in full."""
        parts = []
        for name in self.rows or DECKS:
            rows = find_rows(name)
            parts.append(_deck(rows) if name.strip().upper() in DECKS else _row(rows[0]))
        print("\n\n".join(parts))
        return 0


def _deck(rows: list[Row]) -> str:
    """Returns the title of a deck, and a line per row."""
    width = max(shutil.get_terminal_size().columns - 8, 60)
    lines = (
        (row.name, textwrap.shorten(_plain(row.shows), width, placeholder=" …")) for row in rows
    )
    return f"{DECKS[rows[0].name[0]]}\n{columns(lines)}"


def _row(row: Row) -> str:
    """Returns all fields of a row; fields to copy are one per line."""
    said = [("shows", _plain(row.shows)), ("correction", _plain(row.correction)),
            ("remark", _plain(row.remark))]  # fmt: skip
    write = (_plain(command("check", "--blank", row.exercise)),) if row.exercise else ()
    pasted = [("functions", row.functions), ("tests", row.tests), ("page", (f"docs/{row.page}",)),
              ("command", (row.command,)), ("exercise", write)]  # fmt: skip
    width = max(len(name) for name, _ in [*said, *pasted])
    lines = [f"{row.name} of {DECKS[row.name[0]]}"]
    lines.append(columns((f"{name:<{width}}", text) for name, text in said if text))
    for name, values in pasted:
        for label, value in zip((name, *[""] * len(values)), values, strict=False):
            lines.append(f"  {label:<{width}}  {value}")
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Returns Markdown as plain text for the terminal."""
    return text.replace("`", "")

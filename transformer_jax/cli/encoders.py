"""Input lines and result rows, shared by the commands for encoders."""

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.cli.output import waiting
from transformer_jax.core.errors import ConfigError

if TYPE_CHECKING:
    from transformer_jax.inference.encoding.vectors import Layers

__all__ = ["file_lines", "given_lines", "layers_of", "windows", "write"]


def layers_of(text: str) -> "Layers":
    """Parses the value of ``--layers``.

    Raises:
        ConfigError: The value is neither a known name nor a number.

    Example:
        >>> layers_of("concat4"), layers_of("2")
        ('concat4', 2)
    """
    if text.isdecimal():
        return int(text)
    if text in ("last", "all", "sum4", "concat4"):
        return text  # type: ignore[return-value]
    raise ConfigError(f"--layers {text}: allowed are last, all, sum4, concat4 and a number from 0")


def file_lines(path: Path, flag: str = "") -> Iterator[str]:
    """The lines of a file; ``-`` is standard input."""
    from transformer_jax.data.text import decode_lines, read_lines

    if str(path) != "-":
        return read_lines(path, flag)
    waiting("texts")
    return decode_lines(sys.stdin.buffer, "<stdin>")


def given_lines(texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields texts from the command line or standard input, each after a name for messages."""
    for number, text in enumerate(texts, 1):
        yield f"text {number}", text
    if not texts:
        for number, line in enumerate(file_lines(Path("-")), 1):
            yield f"<stdin>:{number}", line


def windows(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yields lists of ``size`` items; of one item at a terminal.

    Example:
        >>> list(windows("abc", 2))
        [['a', 'b'], ['c']]
    """
    remaining = iter(items)
    while window := list(itertools.islice(remaining, 1 if sys.stdin.isatty() else size)):
        yield window


def write(*cells: str) -> None:
    """Prints one row of tab-separated cells in UTF-8, regardless of the locale.

    Tabs and line ends within a cell become blanks.
    """
    blank = str.maketrans("\t\n\r", "   ")
    row = "\t".join(cell.translate(blank) for cell in cells)
    sys.stdout.buffer.write(row.encode() + b"\n")

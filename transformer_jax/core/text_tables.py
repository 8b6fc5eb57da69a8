"""Tables of plain text, and short numbers for them."""

from collections.abc import Sequence

__all__ = ["aligned", "short"]


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Formats a table: the first ``left`` columns aligned left, the remaining ones right.

    Args:
        rows: The cells of each line, of which the first may be the names of the columns.
        left: Number of columns aligned left.

    Example:
        >>> print(aligned([["a", "figure"], ["longer", "1"]]))
        a       figure
        longer       1
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    marks = "<" * left + ">" * (len(widths) - left)
    lines = [
        "  ".join(f"{cell:{marks[i]}{widths[i]}}" for i, cell in enumerate(row)).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def short(number: int | float) -> str:
    """Formats a number with three digits and its SI prefix.

    Example:
        >>> short(63_045_632), short(512), short(1e12), short(999_999)
        ('63.0 M', '512 ', '1.00 T', '1.00 M')
    """
    if number < 999.5:
        return f"{number:.0f} " if number == int(number) else f"{number:.3g} "
    prefixes = "kMGTPE"
    power = next(i for i in range(1, 7) if number < 999.5 * 1000**i or i == 6)
    prefix, number = prefixes[power - 1], number / 1000**power
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f} {prefix}"

"""Rows, columns and files that a reader does not use: refused, left out and counted, or named."""

import collections
import contextlib
import os
from collections.abc import Container, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Literal, TypeAlias, TypeVar

from transformer_jax.core.errors import DataError, ListedError, plural
from transformer_jax.core.task_progress import log
from transformer_jax.data.languages import listed

__all__ = ["FIRST", "BadRowPolicy", "BadRows", "RowErrors", "Unread", "log_unread"]

BadRowPolicy: TypeAlias = Literal["refuse", "skip"]
# The context manager for the reading of one row; a DataError inside is the row's.
RowErrors: TypeAlias = contextlib.AbstractContextManager[object, bool | None]
FIRST: RowErrors = contextlib.nullcontext()  # raises the error of the first bad row

_LISTED = 20  # rows in an error

Item = TypeVar("Item")


class BadRows:
    """The bad rows of a file: a context manager for each row, and a report at the end.

    A ``DataError`` in the context is kept, and the row is left out. ``report`` then lists the first
    twenty in one error, or logs a line with their number if the policy is to skip them.

    Attributes:
        count: Number of bad rows.
        errors: The first errors.

    Example:
        >>> bad = BadRows("ages.txt", "skip")
        >>> ages = []
        >>> for number, line in enumerate(["41", "old", "7"], 1):
        ...     with bad:
        ...         if not line.isdecimal():
        ...             raise DataError(f"ages.txt:{number}: {line!r} is no age")
        ...         ages.append(int(line))
        >>> ages, bad.count, bad.summary
        ([41, 7], 1, '1 bad row left out')
        >>> bad.policy = "refuse"
        >>> bad.check(len(ages))
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ListedError: ages.txt:2: 'old' is no age; or leave out bad ...
    """

    def __init__(
        self,
        name: str,
        policy: BadRowPolicy | None = None,
        what: str = "row",
        offer: str = "--data.read.bad-rows skip",
        kept: int = _LISTED,
    ):
        """Begins with no bad rows.

        Args:
            name: Name of the file, for messages.
            policy: Whether bad rows are refused or skipped; None refuses them without an offer to
                skip them, for commands and calls that have no such setting.
            what: What a row holds, in the singular.
            offer: The flag that skips bad rows.
            kept: Largest number of errors that are kept.
        """
        self.name, self.policy, self.what, self.count = name, policy, what, 0
        self.errors: list[DataError] = []
        self._offer, self._kept = offer, kept

    def __enter__(self) -> "BadRows":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, DataError):
            return False
        self.count += 1
        if len(self.errors) < self._kept:
            self.errors.append(error)
        return True

    @property
    def summary(self) -> str:
        """The number of rows that were left out, in words; empty if there are none."""
        return f"{plural(self.count, f'bad {self.what}')} left out" if self.count else ""

    @property
    def refused(self) -> bool:
        """Returns whether there are bad rows, and they are refused."""
        return bool(self.count) and self.policy != "skip"

    def check(self, good: int) -> None:
        """Refuses bad rows, unless they are to be skipped and others are left.

        Args:
            good: Number of other rows.

        Raises:
            ListedError: There are bad rows.
        """
        if not self.refused and (good or not self.count):
            return
        offer = ""
        if self.policy == "refuse" and good:
            offer = f"leave out bad {self.what}s with {self._offer}"
        if self.count == 1:
            raise ListedError(str(self.errors[0]) + (f"; or {offer}" if offer else ""))
        rest = self.count - len(self.errors)
        more = [f"and {rest:,} more"] if rest else []
        which = "" if good else "all "
        raise ListedError(
            f"{self.name}: {which}{plural(self.count, f'bad {self.what}')}: correct them"
            + (f", or {offer}" if offer else ""),
            [*map(str, self.errors), *more],
        )

    def report(self, good: int) -> None:
        """Refuses bad rows as :meth:`check`, or logs a line about those that were skipped."""
        self.check(good)
        if self.count:
            log(f"{self.name}: {self.summary}, such as {self.errors[0]}")

    def reported(self, rows: Iterable[Item]) -> Iterator[Item]:
        """Yields the rows that are read in this context, and reports the others at the end."""
        good = 0
        for row in rows:
            good += 1
            yield row
        self.report(good)

    def checked(self, rows: Iterable[Item]) -> Iterator[Item]:
        """Yields rows as :meth:`reported`, but nothing after a row that is refused; logs nothing.

        For files that are too large to hold, and are read more than once.
        """
        good = 0
        for row in rows:
            good += 1
            if not self.refused:
                yield row
        self.check(good)


_KEPT = 1000  # names
_KINDS = 8  # kinds of files in a line


class Unread:
    """The columns or keys of a file that are not read.

    Example:
        >>> unread = Unread("train.jsonl", "key")
        >>> unread.note({"text": "one", "id": 1, "url": "x"}, ("text",))
        >>> unread.note({"text": "two", "id": 2}, ("text",))
        >>> unread.summary
        'train.jsonl: keys not read: id, url'
    """

    def __init__(self, name: str, what: str):
        """Begins with none.

        Args:
            name: Name of the file.
            what: What holds a value of a row: column, key.
        """
        self.name, self.what = name, what
        self._names: dict[str, None] = {}
        self._reported = False

    def note(self, row: Iterable[str], used: Container[str]) -> None:
        """Adds the names of a row that are not used."""
        for name in row:
            if name not in used and len(self._names) < _KEPT:
                self._names[name[:40]] = None

    @property
    def summary(self) -> str:
        """A line that names them; empty if there are none."""
        if not self._names:
            return ""
        names = listed(self._names)
        return f"{self.name}: {self.what}{'s' * (len(self._names) > 1)} not read: {names}"

    def report(self) -> None:
        """Logs the line once, however often a file is read."""
        if not self._reported and self.summary:
            self._reported = True
            log(self.summary)


def log_unread(name: str, others: Sequence[str]) -> None:
    """Logs the number of files that are not read, by the ends of their names.

    Args:
        name: Name of the folder.
        others: The files.
    """
    if not others:
        return
    ends = [os.path.splitext(other)[1].lower()[:20] or "no suffix" for other in others]
    kinds = [f"{end} {count:,}" for end, count in collections.Counter(ends).most_common(_KINDS)]
    shown = ", ".join(kinds) + (", ..." if len(set(ends)) > _KINDS else "")
    log(f"{name}: {plural(len(others), 'other file')} not read ({shown}), such as {others[0]}")

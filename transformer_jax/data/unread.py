"""Lines about input that is not read: columns and keys of a file, files of a folder."""

import collections
import os
from collections.abc import Container, Iterable, Sequence

from transformer_jax.core.errors import plural
from transformer_jax.core.task_progress import log
from transformer_jax.data.languages import listed

__all__ = ["Unread", "log_unread"]

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

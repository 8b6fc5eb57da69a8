"""Slices of the test suite, which together cover it.

Each test function belongs to one slice, by its name, with all its cases, since they compile the
same programs; of a function that is marked ``apart``, each case belongs to one, or those with the
same value of the parameters that the mark names. A new test moves no other test to another slice.
"""

import re
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import pytest


class Slice(NamedTuple):
    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Slice":
        """The slice ``"3/8"``, one of 0 to 7."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if not match or int(match[1]) >= int(match[2]):
            raise pytest.UsageError(f"--slice is {text}: it is I/N, I from 0 to N - 1")
        return cls(int(match[1]), int(match[2]))

    def holds(self, nodeid: str, apart: Sequence[object] | None = None) -> bool:
        """Returns whether a test belongs to this slice.

        Args:
            nodeid: Its name.
            apart: Values by which the cases of its function are told apart; empty tells all apart,
                and None none.
        """
        function = nodeid.partition("[")[0]
        name = function if apart is None else f"{function}{[*apart]}" if apart else nodeid
        return zlib.crc32(name.encode()) % self.count == self.index

    def has(self, item: pytest.Item) -> bool:
        """Returns whether a collected test belongs to this slice."""
        mark = item.get_closest_marker("apart")
        values = None if mark is None else [item.callspec.params[name] for name in mark.args]
        return self.holds(item.nodeid, values)

"""Slices of the test suite, which together cover it.

Each test function belongs to one slice, by its name, with all its cases, since they compile the
same programs; of a function that is marked ``apart``, each case belongs to one. A new test moves
no other test to another slice.
"""

import re
import zlib
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

    def holds(self, nodeid: str, apart: bool = False) -> bool:
        """Returns whether a test belongs to this slice, by its function or ``apart``, by itself."""
        name = nodeid if apart else nodeid.partition("[")[0]
        return zlib.crc32(name.encode()) % self.count == self.index

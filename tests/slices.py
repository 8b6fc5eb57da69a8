"""Slices of the test suite, which together cover it.

Each test function belongs to one slice, by its name, with all its cases, since they compile the
same programs. A new test moves no other test to another slice.
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

    def holds(self, nodeid: str) -> bool:
        """Returns whether a test, or its function, belongs to this slice."""
        function = nodeid.partition("[")[0]
        return zlib.crc32(function.encode()) % self.count == self.index

"""A limit on the memory of a test process: many compiled programs are dropped."""

import contextlib
import ctypes
import gc
import os
from pathlib import Path

import jax
import pytest

from tests.lowering import drop_context

# Most bytes of a process after a file of tests, and during one; and how many it may gain after
# programs were dropped, up to a limit. What the libraries hold stays, and dropping takes a second:
# without a gain there is nothing to drop.
MOST_BYTES, MOST_BYTES_IN_A_FILE = 800_000_000, 900_000_000
MOST_GAINED, MOST_WITH_GAIN = 250_000_000, 1_500_000_000


def resident_bytes() -> int:
    """Memory of this process; 0 where the system has no ``/proc``."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def drop_programs() -> None:
    """Forget what is compiled, and give its memory back to the system."""
    jax.clear_caches()
    drop_context()
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # glibc alone has it
        ctypes.CDLL(None).malloc_trim(0)


class MemoryBound:
    """A plugin, since a conftest does not see the docstring examples of the package.

    Objects that outlive a file are frozen: collecting all that a session compiled would take as
    long as its tests.
    """

    def __init__(self) -> None:
        self.held = 0  # bytes of this process when it had dropped its programs

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item, nextitem):
        result = yield
        if nextitem is None:
            return result
        same = nextitem.path == item.path
        if not same:
            gc.unfreeze()
        most = MOST_BYTES_IN_A_FILE if same else MOST_BYTES
        if resident_bytes() > max(most, min(self.held + MOST_GAINED, MOST_WITH_GAIN)):
            drop_programs()
            self.held = resident_bytes()
        if not same:
            gc.freeze()
        return result

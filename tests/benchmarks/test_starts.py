"""Starts are timed to a line of the command, or to its end, in turns."""

import sys

import pytest

from benchmarks.starts import to_line

SAYS = "import sys, time; print('step 1', file=sys.stderr, flush=True); time.sleep({})"


def test_a_command_is_timed_to_its_line_or_to_its_end():
    to_the_line = to_line([sys.executable, "-c", SAYS.format(60)], "step ")
    to_the_end = to_line([sys.executable, "-c", SAYS.format(0.5)], None)
    for cpu, wall in (to_the_line, to_the_end):
        assert 0 < cpu < 30 > wall
    assert to_the_end[1] > 0.5


@pytest.mark.parametrize("begin", [None, "step "])
def test_a_command_that_fails_or_never_says_it_is_an_error(begin):
    with pytest.raises(RuntimeError):
        to_line([sys.executable, "-c", "raise SystemExit(1)"], begin)

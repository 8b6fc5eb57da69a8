"""Every command line that README and docs of version 0.2 showed still parses."""

from pathlib import Path

import pytest

from tests.command_lines import parse

LINES = (Path(__file__).parent / "documented_commands.txt").read_text().splitlines()


@pytest.mark.quick(*map(str, range(0, len(LINES), 12)))
@pytest.mark.parametrize("line", LINES, ids=map(str, range(len(LINES))))
def test_a_documented_command_line_parses(line):
    parse(line)

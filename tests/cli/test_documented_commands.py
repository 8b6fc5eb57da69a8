"""Every command line of README and docs parses, and those that version 0.2 showed still do."""

import re
from pathlib import Path

import pytest

from tests.command_lines import parse
from tests.test_docs import PAGES

LINES = (Path(__file__).parent / "documented_commands.txt").read_text().splitlines()
COMMAND = re.compile(
    r"^(?: {4})?(?:[A-Z_]+=\S+ )*(?:echo .*?\| )?"
    r"((?:transformer-jax|python -m experiments\.\w+) .*)",
    re.MULTILINE,
)


@pytest.mark.quick(*map(str, range(0, len(LINES), 12)))
@pytest.mark.parametrize("line", LINES, ids=map(str, range(len(LINES))))
def test_a_documented_command_line_parses(line):
    parse(line)


@pytest.mark.quick("README.md")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_command_lines_of_a_page_parse(page):
    text = re.sub(r"\\\n\s*", " ", page.read_text())
    for line in COMMAND.findall(text):
        # Patterns are no command lines, and help ends a command.
        if not any(part in line for part in ("...", " NAME", " --help")):
            parse(line)

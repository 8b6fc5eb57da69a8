"""Docstrings look on the site as they are meant: running text is no quotation or definition."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "transformer_jax"
_SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises|Examples?|Notes?):")
_LIST = re.compile(r"([-*] |\d+\. |``[^`]+``$|\.\. )")


def indented_prose(text):
    """The lines of running text that are indented more than the first line of their paragraph."""
    section = False
    for block in re.split(r"\n\s*\n", text):
        first, *rest = block.splitlines()
        section = bool(_SECTION.fullmatch(first.strip())) or (section and first.startswith(" "))
        if not section and not first.startswith(" ") and not _LIST.match(first):
            yield from (line for line in rest if line.startswith(" "))


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("One.\n\nTwo lines\nof text.", 0),
        ("One.\n\nTwo lines\n    of text.", 1),
        ("One.\n\n- an item\n  of two lines\n\n    code\n      more", 0),
        ("One.\n\nArgs:\n    a: Of two\n        lines.\n\n    b: The other.\n\nText\n  in.", 1),
    ],
)
def test_indented_lines_of_running_text_are_found(text, lines):
    assert len([*indented_prose(text)]) == lines


def test_running_text_is_not_indented():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                lines = indented_prose(ast.get_docstring(node) or ".")
                found += [f"{path}: {line.strip()}" for line in lines]
    assert not found

"""Cells of pages import what is documented, and a question stands before their numbers."""

import ast
import re

import pytest

from tests import lecture_pages
from tests.docs.test_pages import DOCS, NAMED

PAGES = [
    page.relative_to(DOCS).as_posix()
    for page in sorted(DOCS.rglob("*.md"))
    if "_build" not in page.parts and "{code-cell}" in page.read_text()
]
MODULES = NAMED["module"] | {"", "lectures"}  # of numbers_of, in hidden cells
NAMES = NAMED["class"] | NAMED["exception"] | NAMED["function"] | NAMED["data"]


def undocumented(code):
    """The names that a cell imports from modules that no page of the API documents.

    Example:
        >>> [*undocumented("from transformer_jax.visual.boxes import draw")]
        ['visual.boxes.draw']
    """
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("transformer_jax"):
            module = node.module.removeprefix("transformer_jax").lstrip(".")
            for one in node.names:
                name = f"{module}.{one.name}".lstrip(".")
                if module not in MODULES and name not in NAMES | MODULES:
                    yield name


@pytest.mark.parametrize("page", PAGES)
def test_cells_import_what_is_documented(page):
    cells = lecture_pages.cells_of((DOCS / page).read_text())
    assert not [name for cell in cells for name in undocumented(cell.code)]


@pytest.mark.parametrize("name", lecture_pages.NAMES)
def test_a_question_stands_before_the_first_number_of_a_section(name):
    question = re.compile(r"<details>\n<summary>[^<]+\?</summary>\n\n.+?\n\n</details>", re.DOTALL)
    missing = [
        anchor
        for anchor, text in lecture_pages.sections(name).items()
        if "```{code-cell}" in text and not question.search(text.partition("```{code-cell}")[0])
    ]
    assert not missing

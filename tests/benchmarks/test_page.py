"""The tables of the page of benchmarks are written from the files of results."""

import re

from benchmarks import page
from benchmarks.harness import TREE

TEXT = (TREE / "docs" / "benchmarks.md").read_text()


def test_the_tables_of_the_page_are_those_of_the_files():
    assert page.filled(TEXT) == TEXT, "run `python -m benchmarks page`"


def test_no_table_is_written_by_hand():
    tables = re.findall(r"(.*)\n\|(?:.*)\n\|-", TEXT)
    assert tables == [f"<!-- {name} -->" for name in page.TABLES]


def test_a_table_that_was_changed_by_hand_is_written_anew():
    assert page.filled(TEXT.replace("3.38 (3.36 to 3.39)", "4.38")) == TEXT

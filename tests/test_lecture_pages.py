"""The cells of the lectures' pages run as plain Python, in their time.

In a process of their own, compiled as a reader's are: tests compile at the quickest.
"""

import json

import pytest

from tests import lecture_pages

# CPU time of a page, in runs of the reference program of `tests/budget.py`, which takes 0.95
# seconds in a process of its own where all pages together may take six minutes.
RUNS = 360 / len(lecture_pages.NAMES) / 0.95


@pytest.mark.apart
@pytest.mark.slow
@pytest.mark.parametrize("name", lecture_pages.NAMES)
def test_the_cells_of_a_page_run(name, tmp_path):
    report = json.loads(lecture_pages.output_of(tmp_path, "tests.lecture_program", name))
    assert report["runs"] < RUNS, f"{name}.md: {report}"
    assert not [*tmp_path.iterdir()], "cells write no files to the current directory"


def test_cells_are_found_and_their_errors_named(tmp_path, monkeypatch):
    monkeypatch.setattr(lecture_pages, "FOLDER", tmp_path)
    page = "# A\n\n(l1)=\n## L1. One\n\n```{code-cell} ipython3\n:tags: [hide-input]\na = 1\n```\n"
    (tmp_path / "inf721.md").write_text(page)
    assert [*lecture_pages.cells("inf721")] == [(8, "a = 1", False)]
    assert lecture_pages.run("inf721")["a"] == 1
    assert lecture_pages.sections("inf721")["l1"].startswith("## L1. One")
    (tmp_path / "cs4391.md").write_text("```{code-cell} ipython3\n1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        lecture_pages.run("cs4391")
    assert caught.traceback[-1].lineno + 1 == 2
    (tmp_path / "cs4391.md").write_text("```text\nno end\n")
    with pytest.raises(AssertionError, match="begins in line 2"):
        [*lecture_pages.cells("cs4391")]


@pytest.mark.apart
@pytest.mark.slow
@pytest.mark.parametrize("name", lecture_pages.NAMES)
def test_a_changed_number_gives_a_new_result(name, tmp_path):
    assert lecture_pages.output_of(tmp_path, "tests.changed_numbers", "0", name) == ""

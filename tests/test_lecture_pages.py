"""The cells of the lectures' pages run as plain Python, without a warning, in their time."""

import time

import jax
import matplotlib
import matplotlib.pyplot as plt
import pytest

from tests import changed_numbers, lecture_pages
from tests.budget import reference_seconds

# CPU time of a page, in runs of the reference program of `tests/budget.py`, which takes 1.1 seconds
# where all pages together may take six minutes.
RUNS = 360 / len(lecture_pages.NAMES) / 1.1


@pytest.mark.apart
@pytest.mark.slow
@pytest.mark.parametrize("name", lecture_pages.NAMES)
def test_the_cells_of_a_page_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    reference, before = reference_seconds(), time.process_time()
    try:
        with jax.numpy_rank_promotion("allow"):  # as by default
            lecture_pages.run(name)
    finally:
        plt.close("all")
    spent = time.process_time() - before
    runs = 2 * spent / (reference + reference_seconds())
    assert runs < RUNS, (
        f"{name}.md takes {spent:.0f} s, or {runs:.0f} runs of the reference program"
    )
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


@pytest.mark.slow
@pytest.mark.parametrize("name", lecture_pages.NAMES)
def test_a_changed_number_gives_a_new_result(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    with jax.numpy_rank_promotion("allow"):
        found = changed_numbers.errors(name, seed=0)
    plt.close("all")
    assert not found, "\n".join(f"{section}: {error}" for section, error in found.items())

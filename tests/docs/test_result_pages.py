"""Pages of results hold every figure of their file."""

import doctest
import itertools
import json

import pytest

from docs._ext import check_site, repository_links, result_pages

PATHS = sorted(result_pages.RESULTS.glob("*.json"))


def figures(value):
    """All numbers of a JSON value; of a list the first that a cell shows."""
    match value:
        case bool() | None | str():
            return
        case int() | float():
            yield value
        case dict():
            for one in value.values():
                yield from figures(one)
        case list():
            rows = value if result_pages.is_table(value) else value[: result_pages.SHOWN]
            for one in rows:
                yield from figures(one)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_page_has_all_figures_of_its_file(path):
    page = result_pages.page(path)
    missing = {result_pages.number(one) for one in figures(json.loads(path.read_text()))}
    assert not {text for text in missing if text not in page}


def test_pages_are_listed_and_pages_of_missing_files_removed(tmp_path):
    (tmp_path / "gone.md").write_text("old")
    result_pages.write(tmp_path)
    names = {path.stem for path in PATHS} | {"index"}
    assert {path.stem for path in tmp_path.iterdir()} == names
    assert {*(tmp_path / "index.md").read_text().split()} >= names - {"index"}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_rows_of_a_table_have_the_columns_of_its_head(path):
    lines = result_pages.page(path).split("\n")
    for head, line in itertools.pairwise(lines):
        if line.startswith("| ") and head.startswith("|"):
            assert line.replace("\\|", "").count("|") == head.replace("\\|", "").count("|")


@pytest.mark.parametrize("module", [check_site, repository_links, result_pages])
def test_examples(module):
    assert doctest.testmod(module).failed == 0

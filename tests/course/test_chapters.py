"""The chapters of the course build course/transformer.py, run, and fill the table of results."""

import ast
import importlib.util
import json
from pathlib import Path

import pytest

from tests import lecture_pages

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/course"
CHAPTERS = sorted(path.stem for path in FOLDER.glob("[0-9]-*.md"))
# CPU time of a chapter, in runs of the reference program of `tests/budget.py`, which takes 0.95
# seconds in a process of its own where a chapter may take 60: the translator of chapter 4 took 46.
RUNS = 60 / 0.95


def shared():
    """Loads the module of sentences and results."""
    spec = importlib.util.spec_from_file_location("course_chapters", ROOT / "course/chapters.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def definitions(text):
    """The functions and classes of a program by name, as text."""
    kinds = ast.FunctionDef, ast.ClassDef
    nodes = [node for node in ast.parse(text).body if isinstance(node, kinds)]
    starts = lambda node: min([node.lineno, *(one.lineno for one in node.decorator_list)])
    lines = text.splitlines()
    return {node.name: "\n".join(lines[starts(node) - 1 : node.end_lineno]) for node in nodes}


@pytest.fixture(autouse=True)
def chapters(monkeypatch):
    monkeypatch.setattr(lecture_pages, "FOLDER", FOLDER)


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_shows_the_files_functions_and_asks_before_it_runs(name):
    file = definitions((ROOT / "course/transformer.py").read_text())
    for cell in lecture_pages.cells(name):
        for one, text in definitions(cell.code).items():
            assert text == file.get(one, text), one
    assert lecture_pages.read(name).count("<summary>Before you run it: ") >= 3


def test_the_chapters_show_the_whole_file():
    shown = {one for name in CHAPTERS for cell in lecture_pages.cells(name)
             for one in definitions(cell.code)}  # fmt: skip
    assert {*definitions((ROOT / "course/transformer.py").read_text())} - {"main"} <= shown


def test_stored_rows_belong_to_chapters_and_are_shown_up_to_a_chapter():
    module = shared()
    rows = module.stored()
    assert {f"{row['chapter']}" for row in rows} <= {name[0] for name in CHAPTERS}
    shown = module.table([{"chapter": 3, "model": "mine", "exact": 0.25}]).splitlines()
    assert len(shown) == 2 + sum(row["chapter"] < 3 for row in rows)
    assert shown[-1].split() == ["3", "mine", "0.250"]


def test_rows_agree_to_the_stated_tolerance(monkeypatch):
    module = shared()
    row = {"chapter": 1, "model": "a", "parameters": 12, "bits per word": 2.0}
    monkeypatch.setattr(module, "stored", lambda: [row, {"chapter": 2, "model": "b"}])
    assert module.agree([row | {"bits per word": 2.1}])
    assert not module.agree([row | {"bits per word": 2.3}])
    assert not module.agree([row | {"parameters": 13}])
    assert not module.agree([row, row])


@pytest.mark.apart
@pytest.mark.slow
@pytest.mark.parametrize("name", CHAPTERS)
def test_the_cells_of_a_chapter_run(name, tmp_path):
    # In a process of its own: tests compile at the quickest, and such programs are slow.
    report = json.loads(lecture_pages.output_of(tmp_path, "tests.course.chapter_program", name))
    assert report["runs"] < RUNS, report
    assert report["agree"]
    assert not [*tmp_path.iterdir()], "cells write no files to the current directory"


@pytest.mark.apart
@pytest.mark.slow
@pytest.mark.parametrize("name", CHAPTERS)
def test_changed_numbers_give_no_error(name, tmp_path):
    assert lecture_pages.output_of(tmp_path, "tests.course.changed_program", name) == ""

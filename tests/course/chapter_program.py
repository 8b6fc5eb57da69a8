"""Runs a chapter in the way of the site: with programs that are compiled to run fast.

python -m tests.course.chapter_program NAME

Prints its CPU seconds, those in runs of the reference program of `tests/budget.py`, and whether
its rows are the stored ones, as JSON. Hidden cells and the chapter itself fail as they do there.
"""

import importlib.util
import json
import sys
from pathlib import Path

from tests import lecture_pages
from tests.lecture_program import measured

ROOT = Path(__file__).parents[2]


def main(name):
    """Runs the chapter, and prints the answers."""
    lecture_pages.FOLDER = ROOT / "docs/course"
    report, names = measured(name)
    spec = importlib.util.spec_from_file_location("course_chapters", ROOT / "course/chapters.py")
    shared = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shared)
    print(json.dumps(report | {"agree": bool(shared.agree(names["rows"]))}))


if __name__ == "__main__":
    main(sys.argv[1])

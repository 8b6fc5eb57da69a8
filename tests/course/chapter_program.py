"""Runs a chapter in the way of the site: with programs that are compiled to run fast.

python -m tests.course.chapter_program NAME

Prints its CPU seconds, those in runs of the reference program of `tests/budget.py`, and whether
its rows are the stored ones, as JSON. Hidden cells and the chapter itself fail as they do there.
"""

import importlib.util
import json
import sys
import time
from pathlib import Path

from tests import lecture_pages
from tests.budget import reference_seconds

ROOT = Path(__file__).parents[2]


def main(name):
    """Runs the chapter, and prints the answers."""
    lecture_pages.FOLDER = ROOT / "docs/course"
    reference, before = reference_seconds(), time.process_time()
    rows = lecture_pages.run(name)["rows"]
    spent = time.process_time() - before
    runs = 2 * spent / (reference + reference_seconds())
    spec = importlib.util.spec_from_file_location("course_chapters", ROOT / "course/chapters.py")
    shared = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shared)
    print(json.dumps({"seconds": spent, "runs": runs, "agree": bool(shared.agree(rows))}))


if __name__ == "__main__":
    main(sys.argv[1])

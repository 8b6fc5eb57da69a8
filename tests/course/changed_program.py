"""Runs a chapter whose numbers are all changed, as a reader changes them.

python -m tests.course.changed_program NAME

A cell that ends in an error ends the program, and its traceback names the chapter and the line.
"""

import sys
from pathlib import Path

from tests import changed_numbers, lecture_pages

if __name__ == "__main__":
    lecture_pages.FOLDER = Path(__file__).parents[2] / "docs/course"
    names = {"__name__": "__main__"}
    for cell in lecture_pages.cells(sys.argv[1]):
        code = cell.code
        for number in [] if cell.hidden else reversed(changed_numbers.numbers(code)):
            code = changed_numbers.changed(code, number)
        lecture_pages.execute(sys.argv[1], cell._replace(code=code), names)

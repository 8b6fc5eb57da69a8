"""Runs a page of the lectures in the way of the site: with programs that are compiled to run fast.

python -W error -m tests.lecture_program NAME

Prints its CPU seconds, and those in runs of the reference program of `tests/budget.py`, as JSON.
Hidden cells and the page itself fail as they do there; signatures of the package are enforced.
"""

import json
import sys
import time
from pathlib import Path

from tests import checked_signatures

checked_signatures.check_signatures(Path(__file__).parents[1])

from tests import lecture_pages
from tests.budget import reference_seconds


def measured(name):
    """Runs the page; returns its CPU seconds, and its names."""
    reference, before = reference_seconds(), time.process_time()
    names = lecture_pages.run(name)
    spent = time.process_time() - before
    runs = 2 * spent / (reference + reference_seconds())
    return {"seconds": spent, "runs": runs}, names


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1])[0]))

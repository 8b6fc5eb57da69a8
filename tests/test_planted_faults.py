"""A fault planted in the formula of a row of the lectures: the row's test or its page fails.

``tests/planted/DECK.toml`` holds the faults: the row, the file, the text and what replaces it, and
whether a test of the row (``by = "test"``) or the cells of its section (``by = "page"``) fail.

    python -m tests.test_planted_faults DECK [ROW ...]    # plants them, and says which are caught
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest

from tests import lecture_pages
from transformer_jax.lectures import read_ledger

ROOT = Path(__file__).parents[1]
COPIED = ("transformer_jax", "tests", "docs/lectures", "docs/concepts", "course", "pyproject.toml")
FAULTS = [
    {"deck": path.stem, **fault}
    for path in sorted((ROOT / "tests" / "planted").glob("*.toml"))
    for fault in tomllib.loads(path.read_text())["fault"]
]
CELLS = """
import sys
import matplotlib
matplotlib.use("Agg")
from tests import changed_numbers, lecture_pages
names, name, row = {"__name__": "__main__"}, *sys.argv[1:]
sections = changed_numbers.sections_of(name)
for anchor in changed_numbers.needed(sections, row):
    for cell in sections[anchor]:
        printed = lecture_pages.execute(name, cell, names)
        assert not (anchor == row and cell.hidden and printed), printed
"""


def planted(fault, folder):
    """Copies the project to a folder, with the fault in it."""
    for name in COPIED:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(source, target, ignore=ignored, symlinks=True)
        else:
            shutil.copy(source, target)
    path = folder / fault["file"]
    text = path.read_text()
    assert text.count(fault["old"]) == 1, f"{fault['file']} has {fault['old']!r} not just once"
    path.write_text(text.replace(fault["old"], fault["new"]))


def outcome(fault, folder):
    """Runs the row's tests, or the cells that its section needs; returns the process."""
    if fault["by"] == "page":
        command = ["-c", CELLS, fault["deck"], fault["row"].lower()]
    else:
        command = ["-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider",
                   "-m", "slow or not slow", *read_ledger()[fault["row"]].tests]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(folder), "JAX_PLATFORMS": "cpu"}
    return subprocess.run([sys.executable, *command], cwd=folder, env=environment, text=True,
                          capture_output=True, timeout=280)  # fmt: skip


def test_faults_are_of_rows_and_of_every_deck():
    ledger = read_ledger()
    assert all(fault["row"] in ledger for fault in FAULTS)
    assert {fault["deck"] for fault in FAULTS} <= {*lecture_pages.NAMES}


@pytest.mark.apart
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault['row']}-{fault['says']}")
def test_a_fault_is_caught(fault, tmp_path):
    planted(fault, tmp_path)
    ended = outcome(fault, tmp_path)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 1, f"not caught: {said[-2000:]}"
    assert fault["by"] == "page" or " failed" in said, said[-2000:]


if __name__ == "__main__":
    deck, *rows = sys.argv[1:]
    for one in FAULTS:
        if one["deck"] == deck and (not rows or one["row"] in rows):
            with tempfile.TemporaryDirectory() as made:
                planted(one, Path(made))
                code = outcome(one, Path(made)).returncode
            caught = "caught" if code == 1 else "MISSED" if code == 0 else f"exit {code}"
            print(f"{one['row']:4} {one['by']:5} {caught}: {one['says']}", flush=True)

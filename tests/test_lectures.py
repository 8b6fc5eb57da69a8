"""Every row of a lecture that tests cite is on the page that lists them; code cites papers."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"\b([LUBHT])(\d+)\b(?:(?:-| to )[LUBHT](\d+)\b)?")
CITED = re.compile(
    r"\b[Rr]ows? ((?:[LUBHT]\d+(?:, | and |-| to |,\s*$|$)?(?:\s*#? *))+)", re.MULTILINE
)


def listed():
    page = (ROOT / "docs/lectures.md").read_text()
    return re.findall(r"^\| ([LUBHT]\d+) \|", page, re.MULTILINE)


def cited(text):
    for found in CITED.finditer(text):
        for deck, first, last in ROW.findall(found[1]):
            yield from (f"{deck}{n}" for n in range(int(first), int(last or first) + 1))


def test_rows_that_are_cited_are_listed():
    known = listed()
    assert len(known) == len(set(known)) == 117
    count = 0
    for path in (ROOT / "tests").rglob("*.py"):
        rows = set(cited(path.read_text()))
        count += len(rows)
        assert rows <= set(known), f"{path.name} cites {rows - set(known)}"
    assert count > 80


def test_code_cites_papers():
    folders = ("transformer_jax", "experiments", "examples", "benchmarks")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    found = [
        f"{path.relative_to(ROOT)}: row {row}" for path in paths for row in cited(path.read_text())
    ]
    assert not found, "\n".join(["cite the paper:", *found])


def test_citations_are_read():
    assert set(cited("see rows B32-B34, H18 and L1; row U7")) == {
        "B32",
        "B33",
        "B34",
        "H18",
        "L1",
        "U7",
    }

"""Figures in tables of results are those of the files that their section names."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIGURE = re.compile(r"(?<![\w.:])(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)(?![\w.]*[a-z])")
# Figures of others, sizes and units that the files do not have, by page.
QUOTED = {
    "results": {
        "1.56": "nats of the 5-gram model, whose file has bits",
        "2,200": "steps of a named run",
        "50": "percent, chance between two classes",
        ".868": "the Keras example's accuracy",
        ".832": "BERT-Tiny's accuracy on SST-2, Turc et al. 2019",
        "18": "million tokens of IMDB",
    },
    "adapters": {"2.5": "gigabytes, mean of both tasks"},
    "laboratory": {"13.56": "mean of the last 40 steps"},
    "benchmarks": {"6": "layers", "384": "width"},
    "encoders": {"1.1": "a version of SQuAD", "0.9": "a value of a flag"},
    "vision": {"83": "minutes of the seconds in the file"},
}


def figures(value):
    """All numbers of a JSON value, those in its texts and names too."""
    match value:
        case bool() | None:
            return
        case int() | float():
            yield float(value)
        case str():
            yield from (float(text.replace(",", "")) for text in FIGURE.findall(value))
        case dict():
            for name, one in value.items():
                yield from figures(name)
                yield from figures(one)
        case list():
            for one in value:
                yield from figures(one)
            if value and all(type(one) in (int, float) for one in value):
                yield sum(value) / len(value)  # of seeds


def is_rounded(text, values):
    """Returns whether a figure rounds a value, a percentage of it, or its millions."""
    plain = text.replace(",", "")
    digits = len(plain.partition(".")[2]) or -(len(plain) - len(plain.rstrip("0")))
    half = 0.5001 * 10.0**-digits
    scaled = (value * by for value in values for by in _scales(value))
    return any(abs(float(plain) - value) <= half for value in scaled)


def _scales(value):
    """The factors that a page may give a value: shares are percentages, large values millions."""
    return (1, 100) if abs(value) <= 1 else (1,) if abs(value) < 1e5 else (1, 1e-6)


def sections(page):
    """The rows of tables below each heading, with the numbers of the files that it names.

    Files that are named before the first heading are those of all headings without files.
    """
    usual = ()
    for part in re.split(r"\n##+ ", page.read_text()):
        names = re.findall(r"benchmarks/results/([\w.]+)\.json", part) or usual
        usual = usual or names if part.startswith("# ") else usual
        paths = [ROOT / "benchmarks" / "results" / f"{name}.json" for name in names]
        values = {one for path in paths for one in figures(json.loads(path.read_text()))}
        _, _, body = part.partition("\n|---")
        yield part.splitlines()[0], values, re.findall(r"^\|.*", body, re.MULTILINE)


def strange_figures(page):
    """The figures of a page's tables that no file has."""
    quoted = QUOTED.get(page.stem, {})
    return [
        f"{heading}: {figure} in {row[:60]}"
        for heading, values, rows in sections(page)
        for row in rows if values
        for figure in FIGURE.findall(re.sub(r"`[^`]*`", "", row))
        if figure not in quoted and not is_rounded(figure, values)
    ]  # fmt: skip


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.stem)
def test_figures_of_tables_are_measured(page):
    assert strange_figures(page) == []


def test_a_figure_that_was_not_measured_is_found(tmp_path):
    text = (ROOT / "docs" / "laboratory.md").read_text()
    (tmp_path / "laboratory.md").write_text(
        text.replace("| tanh | 1.00 | .11 |", "| tanh | 9.87 | .11 |")
    )
    assert len(strange_figures(tmp_path / "laboratory.md")) == 1


def test_what_was_not_measured_is_found():
    assert is_rounded("43.2", {43.21})
    assert is_rounded("33.4", {0.3337})
    assert is_rounded("1.3", {1310208.0})
    assert is_rounded("161,000", {161048.2})
    assert not is_rounded("43.3", {43.21})
    assert not is_rounded("162,000", {161048.2})


def test_figures_of_readme_are_on_the_pages_of_results():
    rows = re.findall(r"^\|.*|^\*\*On a GPU.*", (ROOT / "README.md").read_text(), re.MULTILINE)
    pages = [(ROOT / "docs" / f"{name}.md").read_text() for name in ("results", "benchmarks")]
    there = {figure for page in pages for figure in FIGURE.findall(page)}
    assert {figure for row in rows for figure in FIGURE.findall(row)} <= there

"""Rows of the lectures that tests cite are in the ledger, whose names exist; code cites papers.

The ledger is ``transformer_jax/lectures/ledger.toml``. A row has a section of a page, whose cells
``test_lecture_pages.py`` executes.
"""

import ast
import functools
import importlib
import re
import tomllib
from pathlib import Path

import pytest

from tests import lecture_pages
from tests.command_lines import parse
from transformer_jax.cli.main import main
from transformer_jax.exercises import blanks
from transformer_jax.lectures import DECKS, find_rows, read_ledger

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"\b([LUBHT])(\d+)\b(?:(?:-| to )[LUBHT](\d+)\b)?")
CITED = re.compile(
    r"\b[Rr]ows? ((?:[LUBHT]\d+(?:, | and |-| to |,\s*$|$)?(?:\s*#? *))+)", re.MULTILINE
)
LEDGER = read_ledger()
PAGES = dict(zip(DECKS, lecture_pages.NAMES, strict=True))


def cited(text):
    for found in CITED.finditer(text):
        for deck, first, last in ROW.findall(found[1]):
            yield from (f"{deck}{n}" for n in range(int(first), int(last or first) + 1))


def test_rows_that_are_cited_are_listed():
    assert len(LEDGER) == 117
    count = 0
    for path in (ROOT / "tests").rglob("*.py"):
        rows = set(cited(path.read_text()))
        count += len(rows)
        assert rows <= set(LEDGER), f"{path.name} cites {rows - set(LEDGER)}"
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


@functools.cache
def names_in(path):
    """The names of the tests of a file."""
    return {node.name for node in ast.parse((ROOT / path).read_text()).body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}  # fmt: skip


def is_public(name):
    """Returns whether a dotted name is defined and public in a module of the package."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        first = getattr(module, parts[length], None)
        own = getattr(first, "__module__", None) == module.__name__
        return parts[length] in getattr(module, "__all__", [parts[length]] * own) and all(
            not part.startswith("_") for part in parts
        )
    return False


@functools.cache
def fault_of(command):
    """The reason why a command line does not parse, or None."""
    try:
        parse(command)
    except Exception as error:
        return f"{command}: {error}"
    return None


def faults(row):
    """All that a row names and that does not exist."""
    yield from (f"no function {name}" for name in row.functions if not is_public(name))
    for test in row.tests:
        path, _, name = test.partition("::")
        if not (ROOT / path).exists() or name not in names_in(path):
            yield f"no test {test}"
    if row.page != f"lectures/{PAGES[row.name[0]]}.md#{row.name.lower()}":
        yield f"page {row.page}"
    if fault := fault_of(row.command):
        yield fault
    if row.exercise and row.exercise not in blanks.__all__:
        yield f"exercise {row.exercise}"


@pytest.mark.quick("U")
@pytest.mark.parametrize("deck", DECKS)
def test_all_that_a_row_names_exists(deck):
    found = []
    for row in find_rows(deck):
        assert row.shows
        assert row.functions, row.name
        assert row.tests, row.name
        found += [f"{row.name}: {fault}" for fault in faults(row)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "change",
    [
        {"functions": ["transformer_jax.functional.logits.top_q"]},
        {"functions": ["transformer_jax.functional.nowhere.top_p"]},
        {"functions": ["transformer_jax.functional.logits.jnp"]},
        {"tests": ["tests/functional/test_logits.py::test_none"]},
        {"tests": ["tests/none.py::test_b33_top_p"]},
        {"page": "lectures/bishop.md#b34"},
        {"command": "transformer-jax generate RUN --top-q 0.9"},
        {"command": "transformer-jax train nothing"},
        {"exercise": "top_q"},
    ],
    ids=str,
)
def test_what_does_not_exist_is_found(change):
    row = LEDGER["B33"]
    assert len([*faults(type(row)(**{**vars(row), **change}))]) == 1


def test_every_row_has_a_section_that_names_what_the_ledger_does():
    written = {name: lecture_pages.sections(name) for name in lecture_pages.NAMES}
    for row in LEDGER.values():
        text = written[PAGES[row.name[0]]].get(row.name.lower(), "")
        assert text.startswith(f"## {row.name}. "), row.name
        named = [name for name in row.functions if name.rpartition(".")[2] not in text]
        assert not named, f"{row.name}: the section lacks {named}"
        code = [block for _, _, block in lecture_pages.blocks(text)]
        assert any(row.command in block for block in code), f"{row.name}: shows {row.command}"
        cells = [block for _, kind, block in lecture_pages.blocks(text) if "code-cell" in kind]
        assert cells, f"{row.name}: no cell"
        assert not row.correction or "{admonition} Erratum" in text, f"{row.name}: no erratum"


def test_the_errata_of_the_entry_page_are_the_corrections_of_the_ledger():
    page = (ROOT / "docs" / "lectures.md").read_text()
    errata = re.findall(r"^\| \[([LUBHT]\d+)\]\((\S+)\) \| (.+) \|$", page, re.MULTILINE)
    assert [(name, text) for name, _, text in errata] == [
        (row.name, row.correction) for row in LEDGER.values() if row.correction
    ]
    assert len(errata) == 28
    for name, link, _ in errata:
        start = f"lectures/{PAGES[name[0]]}.md#{name.lower()}-"
        assert link.startswith(start), f"{name} has no link to its section"


def test_the_ledger_of_the_docs_is_that_of_the_package():
    text = (ROOT / "docs" / "lectures.toml").read_text()
    assert [*tomllib.loads(text)] == [*LEDGER]
    for deck in DECKS:
        names = [name for name in LEDGER if name[0] == deck]
        assert names == [f"{deck}{n}" for n in range(1, len(names) + 1)]


def test_the_command_prints_rows_and_decks(capsys):
    assert main(["lecture", "b16", "T"]) == 0
    out, err = capsys.readouterr()
    row, deck = out.split("\n\n")
    assert err == ""
    for said in ("shows       Bishop's form", "correction  The slide", "functions   transformer_"
                 "jax.functional.positions.sinusoidal\n", "::test_row_b16_is_row_l14\n",
                 "page        docs/lectures/bishop.md#b16\n",
                 "command     transformer-jax describe"):  # fmt: skip
        assert said in row
    assert len(deck.splitlines()) == 1 + 16
    assert main(["lecture"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 117 + 5 + 4


@pytest.mark.parametrize(
    ("name", "says"),
    [("B43", "did you mean B42?"), ("l0", "did you mean L1?"), ("B033", "did you mean B33?"),
     ("33B", "did you mean B33?"), ("x", "in the lectures; there are L1 to L19, U1 to U15")],
)  # fmt: skip
def test_a_row_that_is_not_there_is_one_line_with_the_nearest(capsys, name, says):
    assert main(["lecture", name]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert says in err


def test_letters_of_either_case_are_read():
    assert find_rows("h3") == find_rows("H3")

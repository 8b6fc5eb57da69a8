"""The API pages name every public name, and the pages with code run as plain Python."""

import inspect
import re
from pathlib import Path

import pytest

import transformer_jax as tj

DOCS = Path(__file__).parents[2] / "docs"
PACKAGE = DOCS.parent / "transformer_jax"
CONCEPTS = sorted((DOCS / "concepts").glob("*.md"))
EXECUTED = [page for page in CONCEPTS if "{code-cell}" in page.read_text()]
# What the pages of the API document: single names, and all names of a module.
NAMED = {
    directive: set(re.findall(rf"auto{directive}:: transformer_jax\.([\w.]+)", text))
    for text in ["".join(page.read_text() for page in sorted((DOCS / "api").glob("*.md")))]
    for directive in ("class", "exception", "function", "data", "module")
}


def test_every_public_name_has_an_entry():
    for name in {*tj.__all__} - {"__version__"}:
        value = getattr(tj, name)
        module = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", "")
        single = NAMED["class"] | NAMED["function"] | NAMED["data"]
        assert name in single or module.removeprefix("transformer_jax.") in NAMED["module"], name


@pytest.mark.parametrize(
    "module",
    [
        *(f"functional.{path.stem}" for path in sorted((PACKAGE / "functional").glob("[!_]*.py"))),
        *("laws", "training.objectives", "recipes.tasks", "decoding.search"),
    ],
)
def test_every_module_has_an_entry(module):
    assert module in NAMED["module"]


@pytest.mark.slow
@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("page", EXECUTED, ids=lambda page: page.stem)
def test_the_cells_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLA_FLAGS", "")  # which a page sets for its own process
    cells = re.findall(r"```\{code-cell\}.*?\n(.*?)```", page.read_text(), re.DOTALL)
    names = {}
    for cell in cells:
        exec(compile(cell, page.name, "exec"), names)
    assert not [*tmp_path.iterdir()]


def test_the_law_that_is_shown_holds(capsys):
    [code] = re.findall("```python\n(.*?)```", (DOCS / "testing.md").read_text(), re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out == "True Each position reads itself and no later position.\n"

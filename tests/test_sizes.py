"""Functions fit on a screen, and arguments in one hand."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("transformer_jax", "experiments", "examples", "benchmarks")
LINES_OF_A_FUNCTION = 60  # without its docstring
ARGUMENTS = 8  # without self


@pytest.fixture(scope="module")
def sizes():
    """Lines and arguments of each function."""
    functions = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name, tree = path.relative_to(ROOT), ast.parse(path.read_text("utf-8"))
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    where = f"{name}:{node.lineno} {node.name}"
                    functions[where] = screen(node), len(arguments(node))
    return functions


def arguments(node):
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def screen(node):
    """Lines of a function from its ``def`` to its end, without the docstring."""
    first = node.body[0]
    text = ast.get_docstring(node, clean=False) is not None
    return node.end_lineno - node.lineno + 1 - text * (first.end_lineno - first.lineno + 1)


def test_functions_fit_on_a_screen(sizes):
    found = {where: lines for where, (lines, _) in sizes.items()}
    assert not {where: lines for where, lines in found.items() if lines > LINES_OF_A_FUNCTION}


def test_arguments_are_few(sizes):
    # The cases of benchmarks take the fields of a request, which earlier checkouts answer too.
    found = {where: n for where, (_, n) in sizes.items() if "benchmarks" not in where}
    assert not {where: n for where, n in found.items() if n > ARGUMENTS}


def test_what_is_counted():
    [node] = ast.parse(
        'def f(self, a, /, b, *c, d=1, **e):\n    """One.\n\n    Two."""\n    x\n'
    ).body
    assert arguments(node) == ["a", "b", "d"]
    assert screen(node) == 2

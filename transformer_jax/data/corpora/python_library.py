"""``python-library``: Python's own reference, and what its library says of itself."""

import ast
import functools
import pathlib
import sysconfig
import warnings

from transformer_jax.data.corpora.python_docs import Split, once, part, topics

__all__ = ["generate"]

# What is tested, installed beside the library, or drawn.
_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "turtledemo"}
_LEAST = 80, 400  # characters of a docstring, and of all of a module's


def generate(split: Split) -> list[str]:
    """The topics and modules of a split, as of ``python-docs``; five times as much text.

    A module's text is its docstrings of some length, in the order of its source; nothing is
    imported. Each paragraph comes once. It is a function of the version of Python, and of which
    parts of its library are installed.

    Raises:
        DataError: This Python came without its documentation.
    """
    return part(once(topics() | _modules()), split)


@functools.cache  # reading takes seconds, and there are three splits
def _modules() -> dict[str, str]:
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    found = {}
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if not _LEFT_OUT & set(name.parts):
            text = "\n\n".join(_docstrings(path))
            if len(text) >= _LEAST[1]:
                found[name.as_posix()] = text
    return found


def _docstrings(path: pathlib.Path) -> list[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other people's escapes
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return []
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    texts = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
    return [text for text in texts if text and len(text) >= _LEAST[0]]

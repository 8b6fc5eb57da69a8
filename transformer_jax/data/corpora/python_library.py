"""``python-library``: Python's reference, and the docstrings of its library."""

import ast
import functools
import pathlib
import sysconfig
import warnings

from transformer_jax.data.corpora.python_docs import Split, once, part, topics

__all__ = ["generate"]

# Tests, modules installed next to the library, and graphics.
_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "turtledemo"}
_LEAST = 80, 400  # characters of a docstring, and of all docstrings of a module


def generate(split: Split) -> list[str]:
    """The topics and modules of a split, as in ``python-docs``; five times as much text.

    A module's text is its longer docstrings, in source order; nothing is imported. Each paragraph
    occurs once. The result depends on the version of Python, and on which parts of its library are
    installed.

    Raises:
        DataError: This Python has no documentation.
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
            warnings.simplefilter("ignore")  # about invalid escapes in other people's code
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return []
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    texts = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
    return [text for text in texts if text and len(text) >= _LEAST[0]]

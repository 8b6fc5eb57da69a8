"""Signatures are enforced while tests run, and docstrings describe the parameters that exist."""

import ast
import re
from pathlib import Path

import jax.numpy as jnp
import pytest
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import TypeCheckError

from transformer_jax.data.corpora import phrasebook
from transformer_jax.data.plan import Batching
from transformer_jax.functional.layers import linear
from transformer_jax.training.settings import LoopConfig


def test_shapes_are_enforced():
    with pytest.raises(TypeCheckError, match="linear"):
        linear(jnp.ones((2, 3)), jnp.ones((4, 5)))
    with pytest.raises(TypeCheckError, match="Batching"):
        Batching(max_tokens="two")


def test_types_without_shapes_are_enforced():
    with pytest.raises(BeartypeCallHintViolation, match="translate"):
        phrasebook.translate(3)
    with pytest.raises((BeartypeCallHintViolation, TypeCheckError), match="LoopConfig"):
        LoopConfig(best_checkpoint_metric=3)


def described(docstring, section):
    """The names that a section of a Google-style docstring describes."""
    found = re.search(rf"^{section}:\n((?: +.*\n|\n)+)", f"{docstring}\n", re.MULTILINE)
    lines = re.findall(r"^ {4}([^\s:][^:\n]*):", found[1], re.MULTILINE) if found else []
    return {name.strip("*` ") for line in lines for name in re.split(r",| and ", line)}


def fields(node, classes):
    """Names of fields, properties and methods of a class and of its bases in the same file."""
    names = {part.target.id for part in node.body if isinstance(part, ast.AnnAssign)}
    names |= {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and ast.unparse(part.value) == "self":
            names.add(part.attr)
    bases = [classes[base.id] for base in node.bases if getattr(base, "id", "") in classes]
    return names.union(*(fields(base, classes) for base in bases))


def undescribed(tree):
    """Names in docstrings that the function or class does not have, by line."""
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names = {part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)}
            wrong = described(ast.get_docstring(node), "Args") - names
        elif isinstance(node, ast.ClassDef):
            wrong = described(ast.get_docstring(node), "Attributes") - fields(node, classes)
        else:
            continue
        yield from ((node.lineno, name) for name in sorted(wrong))


def test_docstrings_describe_what_is_there():
    root = Path(__file__).parents[1]
    found = [
        f"{path.relative_to(root)}:{line} {name}"
        for path in sorted((root / "transformer_jax").rglob("*.py"))
        for line, name in undescribed(ast.parse(path.read_text("utf-8")))
    ]
    assert not found, found


def test_a_renamed_parameter_is_found_in_its_docstring():
    text = (
        'def f(a, *, b):\n    """F.\n\n    Args:\n        a: One,\n            as: it is.\n'
        '        c: Two.\n    """\n'
        'class G(H):\n    """G.\n\n    Attributes:\n        x, y: Both.\n        z: No.\n    """\n'
        "    y: int\nclass H:\n    x: int\n"
    )
    assert list(undescribed(ast.parse(text))) == [(1, "c"), (9, "z")]

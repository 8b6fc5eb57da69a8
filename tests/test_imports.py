"""Imports point inwards only, and nothing that runs needs another framework."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "transformer_jax"
FILES = sorted(PACKAGE.rglob("*.py"))
# Each ring may import itself and the rings listed: everything else of ours is out of bounds.
RINGS = {
    "functional": {"functional", "errors"},
    "modules": {"functional", "modules", "config", "errors"},
    "models": {"functional", "modules", "models", "config", "errors"},
    "decoding": {
        *("functional", "modules", "models", "decoding", "data"),
        *("config", "errors", "keys", "numerics"),
    },
    "keys": set(),
    "numerics": {"errors"},
    "data": {"data", "errors"},
    "parallel": {"modules", "parallel", "errors"},
}
FORBIDDEN = {"torch", "transformers", "tensorflow", "pickle", "cloudpickle", "dill"}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def test_imports_point_inwards():
    for path in FILES:
        where = path.relative_to(PACKAGE)
        ring = where.parts[0].removesuffix(".py")
        for name in imported(path):
            top, *rest = name.split(".")
            assert top not in FORBIDDEN, f"{where} imports {name}"
            assert top != "experiments", f"{where} imports an entry point"
            if top == "transformer_jax" and rest and ring in RINGS:
                assert rest[0] in RINGS[ring], f"{where}: {ring} must not import {name}"


def test_the_rule_would_notice():
    assert "transformer_jax.functional.masks" in set(imported(PACKAGE / "modules/attention.py"))
    assert len(FILES) > 20

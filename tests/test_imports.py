"""Imports point inwards only, and nothing that runs needs another framework."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "transformer_jax"
FILES = sorted(PACKAGE.rglob("*.py"))
# The order of the rings, from the innermost: each imports itself and earlier ones alone.
ORDER = (
    (
        *("errors", "old_names", "allocator", "compilation_cache", "processes", "output_files"),
        *("keys", "devices", "numpy_files", "picture_fonts", "config_fields", "config_help"),
    ),
    ("storage",),
    (
        "numerics",
        "config",
        "config_groups",
        "config_dict",
        "model_presets",
        "recurrent_config",
        "recurrent_costs",
        "accounting",
        "component_costs",
    ),
    ("functional",),
    ("modules",),
    ("models",),
    ("activation_memory",),
    ("data",),
    ("parallel",),
    ("decoding",),
    ("chat",),
    ("training",),
    ("encoding", "evaluation", "complexity", "word_vectors", "speech"),
    ("visual",),
    ("interop",),
    ("predictors", "tasks", "runs", "recipes"),
    ("launch", "laboratory"),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
# Pure rings know nothing but what is listed, however far inwards more would lie.
RINGS = {
    "functional": {"functional", "errors"},
    "modules": {"functional", "modules", "config", "recurrent_config", "errors"},
    "models": {
        *("functional", "modules", "models", "config", "recurrent_config"),
        *("output_files", "numpy_files", "errors"),
    },
    "decoding": {
        *("functional", "modules", "models", "decoding", "data", "parallel"),
        *("config", "config_fields", "recurrent_config", "devices", "errors", "keys", "numerics"),
    },
    "devices": set(),
    "keys": set(),
    "numerics": {"errors"},
    "processes": set(),
    "output_files": {"output_files", "processes"},
    "storage": {"storage", "output_files", "errors"},
    "data": {"data", "storage", "output_files", "config_fields", "errors"},
    "parallel": {"functional", "modules", "parallel", "config_fields", "errors"},
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
            if top != "transformer_jax" or not rest or ring == "__init__":
                continue
            allowed = LEVEL.get(rest[0], 0) <= LEVEL[ring] and rest[0] in RINGS.get(ring, LEVEL)
            assert allowed or rest[0] not in LEVEL, f"{where}: {ring} must not import {name}"


def test_every_ring_has_its_place():
    there = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES}
    assert there - {"__init__", "__main__"} <= set(LEVEL)


def test_the_rule_would_notice():
    assert LEVEL["interop"] > LEVEL["training"] > LEVEL["models"]
    assert "transformer_jax.functional.masks" in set(
        imported(PACKAGE / "models/layers/attention.py")
    )
    assert len(FILES) > 20


def closure(*modules):
    """The modules that are imported with some, those of functions and of type checkers apart."""
    seen, left = set(), [f"transformer_jax.{name}" for name in modules]
    while left:
        path = PACKAGE.parent / (left.pop().replace(".", "/") + ".py")
        if not path.exists() or path in seen:
            continue
        seen.add(path)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom):
                left += [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
    return {path.relative_to(PACKAGE).as_posix().removesuffix(".py") for path in seen}


def test_training_a_translator_imports_no_other_kind():
    """Neither its recipe nor its task imports what other kinds of training need."""
    found = closure(
        "cli.seq2seq", "recipes.driver", "recipes.translation", "tasks.translation_task"
    )
    assert len(found) > 80
    others = ("speech/", "chat/", "encoding/", "interop/", "models/vision", "models/ngram",
              "training/on_policy", "training/preference_objectives")  # fmt: skip
    assert not [name for name in found if name.startswith(others)]
    recipes = {name for name in found if name.startswith("recipes/")}
    shared = {"checks", "driver", "generation_flags", "inferred", "recipe", "registry"}
    shared |= {"scored_texts", "settings"}
    assert recipes == {f"recipes/{name}" for name in (*shared, "translation")}


HEAVY = {"jax", "flax", "optax", "sacrebleu"}


def test_named_runs_are_listed_without_jax():
    """``train --help`` and tab completion read recipes, which say at once what there is."""
    recipes = ("translation", "language_model", "ngram", "summarization", "denoising", "finetuning",
               "masked_lm", "instruct", "preferences", "reward_model")  # fmt: skip
    for name in closure("cli.families", *(f"recipes.{name}" for name in recipes)):
        for node in ast.parse((PACKAGE / f"{name}.py").read_text()).body:
            modules = [node.module] if isinstance(node, ast.ImportFrom) else []
            modules += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            assert not {module.partition(".")[0] for module in modules} & HEAVY, name

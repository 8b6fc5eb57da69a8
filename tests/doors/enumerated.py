"""Handles that the package itself has: all through which something from outside can come in.

Nothing here is a list by hand: settings come from the recipes, flags from the commands, methods
from the predictors, types from the families, and names of files from the source code.
"""

import ast
import dataclasses
import importlib
import inspect
import pathlib
import pkgutil
import re
import typing

import transformer_jax
from transformer_jax.cli import commands, train_word_vectors
from transformer_jax.inference.base import Predictor
from transformer_jax.inference.pipelines import Pipeline
from transformer_jax.interop.families import FAMILIES
from transformer_jax.recipes.registry import RECIPES, get_recipe

PACKAGE = pathlib.Path(transformer_jax.__file__).parent
# Where code reads the folders and runs of others.
FOLDERS = ("interop", "inference", "runs", "data", "word_vectors")
_FILE = re.compile(r"[A-Za-z][\w.-]*\.(json|model|txt|jinja|safetensors|bin|npz|jsonl)")


def holds_text(hint: object) -> bool:
    """Returns whether a field holds text or a path, and not one of a few words."""
    if typing.get_origin(hint) is typing.Literal:
        return False
    if hint in (str, pathlib.Path):
        return True
    return any(map(holds_text, typing.get_args(hint)))


def text_fields(config: type) -> typing.Iterator[str]:
    """``Class.field`` of each field of text, in a dataclass and those within it."""
    hints = typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from text_fields(hint)
        elif holds_text(hint):
            yield f"{_owner(config, field.name).__name__}.{field.name}"


def _owner(config: type, name: str) -> type:
    """The class that declares a field."""
    return next(
        one for one in reversed(config.__mro__) if name in vars(one).get("__annotations__", ())
    )


def settings() -> set[str]:
    """``Class.field`` of the settings of all recipes, and of word vectors."""
    configs = [get_recipe(name).config for name in RECIPES]
    configs += [train_word_vectors.Train, train_word_vectors.Resume]
    return {name for config in configs for name in text_fields(config)}


def flags() -> set[str]:
    """``command --flag`` of the flags of text, and each ``command``, whose input may be lines."""
    found = set(commands.COMMANDS)
    for name, command in commands.with_flags():
        hints = typing.get_type_hints(command)
        for field in dataclasses.fields(command):
            if holds_text(hints[field.name]):
                found.add(f"{name} --{field.name.replace('_', '-')}")
    return found


def families() -> set[str]:
    """``model_type`` of the folders that are read."""
    return {f"model_type {kind}" for family in FAMILIES for kind in family.types}


def methods() -> set[str]:
    """``Predictor.method`` of all that a user calls on a loaded model or a pipeline."""
    for module in pkgutil.walk_packages([str(PACKAGE / "inference")], "transformer_jax.inference."):
        importlib.import_module(module.name)
    found = set()
    for predictor in _subclasses(Predictor) | _subclasses(Pipeline):
        for name, function in inspect.getmembers(predictor, inspect.isfunction):
            if (name == "__call__" or not name.startswith("_")) and _has_input(function):
                owner = next(one for one in predictor.__mro__ if name in vars(one))
                found.add(f"{owner.__name__}.{name}")
    return found


def _subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(_subclasses, kind.__subclasses__()))


def _has_input(function: object) -> bool:
    parameters = list(inspect.signature(function).parameters.values())[1:]  # type: ignore[arg-type]
    kinds = {one.kind for one in parameters}
    one = inspect.Parameter
    return bool(kinds & {one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.VAR_POSITIONAL})


def files() -> set[str]:
    """Names of files that the source code names, without those of docstrings."""
    found = set()
    for folder in FOLDERS:
        for path in (PACKAGE / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                text = node.value if isinstance(node, ast.Constant) else None
                if isinstance(text, str) and _FILE.fullmatch(text):
                    found.add(f"file {text}")
    return found


def handles() -> set[str]:
    """All of them."""
    return settings() | flags() | families() | methods() | files()

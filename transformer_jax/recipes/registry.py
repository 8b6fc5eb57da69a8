"""The recipes by name, and the recipe of a stored run.

``config.json`` stores the name, by which training, resuming, evaluation, ``transformer_jax.load``
and the commands find the recipe. Modules of recipes are imported on first use.
"""

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.core.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from transformer_jax.recipes.recipe import Recipe

__all__ = [
    "INFERRED",
    "RECIPES",
    "find_run",
    "get_recipe",
    "infer_recipe",
    "named_runs",
    "recipe_name",
    "stored_recipe",
]

# The module of each recipe, by the recipe's name: the only list of them.
RECIPES: dict[str, str] = {
    "translation": "transformer_jax.recipes.translation",
    "recurrent_translation": "transformer_jax.recipes.translation",
    "summarization": "transformer_jax.recipes.summarization",
    "denoising": "transformer_jax.recipes.denoising",
    "speech": "transformer_jax.recipes.speech",
    "recurrent_speech": "transformer_jax.recipes.speech",
    "language_model": "transformer_jax.recipes.language_model",
    "ngram": "transformer_jax.recipes.ngram",
    "instruct": "transformer_jax.recipes.instruct",
    "preferences": "transformer_jax.recipes.preferences",
    "reward_model": "transformer_jax.recipes.reward_model",
    "on_policy": "transformer_jax.recipes.on_policy",
    "masked_lm": "transformer_jax.recipes.masked_lm",
    "finetuning": "transformer_jax.recipes.finetuning",
    "similarity": "transformer_jax.recipes.text_similarity",
    "images": "transformer_jax.recipes.images",
    "captions": "transformer_jax.recipes.captions",
    "clip": "transformer_jax.recipes.clip",
}


def get_recipe(name: str) -> "Recipe[Any, Any]":
    """Returns the recipe by its name.

    Raises:
        CheckpointError: There is none.
        ConfigError: The module in the registry does not define the recipe.
    """
    from transformer_jax.recipes.recipe import Recipe

    if name not in RECIPES:
        raise CheckpointError(
            f"unknown recipe {name}; there are {', '.join(RECIPES)}: written by another version? "
            f"A recipe of your own needs its module: --import MODULE with any command"
        )
    module = importlib.import_module(RECIPES[name])
    classes: dict[str, Any] = {
        vars(one)["name"]: one
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, Recipe) and "name" in vars(one)
    }
    if name not in classes:
        raise ConfigError(
            f"{module.__file__}: defines no recipe {name}, but RECIPES in {__file__} "
            f"names it; there are {', '.join(classes) or 'none'}"
        )
    return _recipe(classes[name])


@functools.cache
def _recipe(kind: Any) -> "Recipe[Any, Any]":
    made: Recipe[Any, Any] = kind()
    return made


def recipe_name(fields: Mapping[str, Any]) -> str | None:
    """Returns the recipe's name for the fields of ``config.json``; None if no recipe wrote it.

    For runs of earlier versions and Hugging Face folders, the name is inferred from the fields.

    Example:
        >>> recipe_name({"recipe": "summarization"}), recipe_name({"model": {}, "chat": {}})
        ('summarization', 'instruct')
    """
    stored = fields.get("recipe")
    return infer_recipe(fields) if stored is None else str(stored)


def stored_recipe(fields: Mapping[str, Any], file: Path) -> "Recipe[Any, Any]":
    """Returns the recipe of the fields of a ``config.json``.

    Args:
        fields: The fields.
        file: The path of the file, for messages.

    Raises:
        CheckpointError: The fields name an unknown recipe, or do not describe a model of this
            library.
    """
    name = recipe_name(fields)
    if name is None:
        from transformer_jax.runs.run_directory import NOT_OURS

        raise CheckpointError(f"{file}: {NOT_OURS}")
    try:
        return get_recipe(name)
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}") from None


def find_run(name: str, recipes: Iterable[str]) -> tuple[str, Any] | None:
    """Returns the description and the settings of a named run; None if no recipe has it.

    Recipes are imported one by one, up to the one that has the run.

    Args:
        name: The run.
        recipes: Names of recipes.

    Raises:
        ConfigError: The run has the settings of another recipe.
    """
    owners = (recipe for recipe in map(get_recipe, recipes) if name in recipe.runs)
    return next((_named_run(recipe, name) for recipe in owners), None)


def named_runs(*recipes: str) -> dict[str, tuple[str, Any]]:
    """Returns the named runs of recipes with one-line descriptions.

    Raises:
        ConfigError: A run has the settings of another recipe.
    """
    known = map(get_recipe, recipes)
    return {name: _named_run(recipe, name) for recipe in known for name in recipe.runs}


def _named_run(recipe: "Recipe[Any, Any]", name: str) -> tuple[str, Any]:
    about, run = recipe.runs[name]
    if type(run) is not recipe.config:
        raise ConfigError(
            f"{RECIPES[recipe.name]}: the named run {name} of the recipe {recipe.name} has the "
            f"settings {type(run).__name__}: make it a {recipe.config.__name__}"
        )
    return about, run


# --- Stored runs without the name of a recipe -----------------------------------------------------
# No other module infers the kind of a run from the keys of its config.json.

Fields = Mapping[str, Any]


def _at(fields: Fields, *path: str) -> Any:
    value: Any = fields
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _reads(fields: Fields, name: str) -> bool:
    return name in (_at(fields, "data", "read") or ())


def _is_recurrent(fields: Fields) -> bool:
    return bool(_at(fields, "model", "kind") == "recurrent")


def _has_features(fields: Fields) -> bool:
    return bool(_at(fields, "model", "features", "num_features"))


# The first match counts. A new recipe needs no row: all its runs have its name.
_TABLE: tuple[tuple[str, Callable[[Fields], Any]], ...] = (
    ("ngram", lambda f: _at(f, "model", "kind") == "ngram"),
    ("clip", lambda f: "contrast" in f),
    ("captions", lambda f: _at(f, "encoder", "image", "image_size")),
    ("images", lambda f: _at(f, "model", "image", "image_size")),
    ("recurrent_speech", lambda f: _has_features(f) and _is_recurrent(f)),
    ("speech", _has_features),
    ("on_policy", lambda f: "reward" in f),
    ("reward_model", lambda f: _at(f, "align", "method") == "reward"),
    ("preferences", lambda f: "align" in f),
    ("instruct", lambda f: "chat" in f),
    ("finetuning", lambda f: "task" in f),
    ("denoising", lambda f: "noise" in f),
    ("masked_lm", lambda f: "masking" in f),
    ("recurrent_translation", _is_recurrent),
    ("masked_lm", lambda f: _at(f, "model", "decoder_layers") == 0),
    ("language_model", lambda f: _at(f, "model", "encoder_layers") == 0),
    # Settings for pairs have columns and fields; settings for recordings have neither.
    ("summarization", lambda f: _reads(f, "fields") and not _reads(f, "columns")),
    ("translation", lambda f: True),
)


INFERRED = frozenset(name for name, _ in _TABLE)  # recipes of earlier versions


def infer_recipe(fields: Fields) -> str | None:
    """Infers the recipe's name for a ``config.json`` without one; None if it describes no model.

    Example:
        >>> infer_recipe({"model": {"encoder_layers": 0, "decoder_layers": 2}, "chat": {}})
        'instruct'
    """
    if not isinstance(fields.get("model"), Mapping):
        return None
    return next(name for name, holds in _TABLE if holds(fields))

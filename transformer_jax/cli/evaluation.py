"""The command ``evaluate``: its flags depend on the recipe of the run."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import tyro

from transformer_jax.cli.flags import check_flags, flags_of
from transformer_jax.cli.help import kinds_help
from transformer_jax.cli.output import check_file, wrote
from transformer_jax.cli.run_flags import parse_flags
from transformer_jax.cli.support.run_command import PredictionCommand
from transformer_jax.core.config_fields import OutputPath
from transformer_jax.core.errors import CheckpointError, ConfigError, no_such_run
from transformer_jax.core.runtime import prepare_process
from transformer_jax.core.storage.urls import url_of
from transformer_jax.recipes.recipe import Recipe
from transformer_jax.recipes.registry import RECIPES, get_recipe

__all__ = ["Evaluate", "evaluate", "evaluation_kinds"]


@dataclasses.dataclass(frozen=True)
class Evaluate(PredictionCommand):
    """Evaluate a run; its recipe adds the flags for the data."""

    run: tyro.conf.Positional[str]
    """The run directory."""
    output: OutputPath | None = None
    """Output file: texts, one per line, or scores as JSON; .csv has a row for each prediction;
    .png, .svg or .html is the confusion matrix of classes."""


@functools.cache
def evaluation_flags(recipe: str) -> type:
    """Returns the dataclass of the flags of ``evaluate`` for a recipe."""
    flags = get_recipe(recipe).evaluation
    assert flags is not None
    command = type(
        "Evaluate", (flags, Evaluate), {"__doc__": flags.__doc__, "__module__": flags.__module__}
    )
    return dataclasses.dataclass(frozen=True)(command)


def evaluation_kinds(recipes: Sequence[str]) -> dict[str, type]:
    """Returns the flags of ``evaluate`` as dataclasses, by the title of their recipe."""
    evaluable = [recipe for recipe in map(get_recipe, recipes) if recipe.evaluation is not None]
    return {recipe.title: evaluation_flags(recipe.name) for recipe in evaluable}


def evaluate(program: str, arguments: Sequence[str], recipes: Sequence[str]) -> int:
    """Evaluates a run with the flags of its recipe.

    Args:
        program: The command, for messages.
        arguments: The run directory and flags.
        recipes: Names of all recipes of the program.

    Raises:
        ConfigError: A flag is for runs of another kind, or the run has no evaluation.
        CheckpointError: The run does not exist.
    """
    from transformer_jax.inference.facts import Opening
    from transformer_jax.inference.pretrained import read_facts

    paths = [one for one in arguments if not one.startswith("-")]
    path = next((one for one in paths if url_of(one) or Path(one).is_dir()), None)
    if path is None:
        if {"-h", "--help"} & {*arguments}:
            print(kinds_help(program, evaluation_kinds(recipes)))
            return 0
        if not paths:
            raise ConfigError("evaluate needs a run directory, such as runs/NAME")
        _parse_by_any(recipes, arguments, program)
        raise CheckpointError(no_such_run(paths[0]))
    facts = read_facts(path, opening=Opening("allow-changed-config" in _flags_in(arguments)))
    recipe = get_recipe(facts.recipe)
    if recipe.evaluation is None:
        raise ConfigError(
            f"{path}: the run of {recipe.title}, which has no evaluation: its scores are in "
            f"results.json"
        )
    _refuse_flags_of_others(path, recipe, arguments)
    request = parse_flags(evaluation_flags(recipe.name), program, arguments)
    check_file("--output", request.output)
    prepare_process()
    facts = dataclasses.replace(facts, checkpoint=request.checkpoint, opening=request.opening())
    code = recipe.evaluate(request, facts)
    from transformer_jax.parallel.mesh import is_main_process

    if request.output is not None and not code and is_main_process():
        wrote(request.output)
    return code


def _parse_by_any(recipes: Sequence[str], arguments: Sequence[str], program: str) -> None:
    """Parses flags with the first recipe that has all of them, which refuses wrong values."""
    flags = _flags_in(arguments)
    for recipe in map(get_recipe, recipes):
        if recipe.evaluation and flags <= {*flags_of(evaluation_flags(recipe.name))}:
            parse_flags(evaluation_flags(recipe.name), program, arguments)
            return
    known = {flag for kind in evaluation_kinds(recipes).values() for flag in flags_of(kind)}
    check_flags("evaluate", sorted(known), arguments, program)


def _flags_in(arguments: Sequence[str]) -> set[str]:
    return {one.partition("=")[0][2:].replace("_", "-") for one in arguments if one[:2] == "--"}


def _refuse_flags_of_others(path: str, recipe: Recipe, arguments: Sequence[str]) -> None:
    """Refuses flags of other recipes; the message names those recipes and the valid flags."""
    known = flags_of(evaluation_flags(recipe.name))
    for flag in sorted(_flags_in(arguments) - {*known}):
        titles = [
            other.title
            for other in map(get_recipe, RECIPES)
            if other.evaluation is not None and flag in flags_of(other.evaluation)
        ]
        if titles:
            assert recipe.evaluation is not None
            valid = [f"--{one}" for one in flags_of(recipe.evaluation) if "no-" not in one[:3]]
            raise ConfigError(
                f"--{flag} is for {' or '.join(dict.fromkeys(titles))}, and {path} is the run of "
                f"{recipe.title}: leave it out; there are {', '.join(valid)}"
            )

"""Training commands of ``transformer-jax``, such as ``train``, dispatched to the family of the run.

``train``, ``pretrain`` and ``finetune`` find the family by the name of the run, or by the file of
``--config``; ``resume`` and ``evaluate`` find it by the run directory.
"""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_jax.cli import resuming, training
from transformer_jax.cli.commands import COMMANDS as _TEXTS
from transformer_jax.cli.commands import PROGRAM
from transformer_jax.cli.errors import guarded
from transformer_jax.cli.evaluation import evaluation_kinds
from transformer_jax.cli.help import kinds_help, runs_help
from transformer_jax.cli.run_flags import config_file, near
from transformer_jax.core.errors import CheckpointError, ConfigError, no_such_run
from transformer_jax.core.errors import command as command_line
from transformer_jax.core.old_names import RUNS
from transformer_jax.core.storage.urls import url_of
from transformer_jax.recipes.recipe import Recipe
from transformer_jax.recipes.registry import named_runs, recipe_of

__all__ = ["COMMANDS", "family_of", "flag_kinds", "main", "training_runs"]

# Training commands with their families.
COMMANDS = {
    "train": ("seq2seq", "decoder_only", "encoder_only"),
    "pretrain": ("encoder_only", "seq2seq"),
    "train-speech": ("seq2seq",),
    "finetune": ("encoder_only", "seq2seq"),
    "instruct": ("decoder_only",),
    "align": ("decoder_only",),
    "resume": ("seq2seq", "decoder_only", "encoder_only"),
    "evaluate": ("seq2seq", "decoder_only", "encoder_only"),
    "glue": ("encoder_only",),
}
_CLI = "transformer_jax.cli"
_TITLES = {
    "seq2seq": "encoder-decoders",
    "decoder_only": "language models",
    "encoder_only": "encoders",
}


def main(arguments: Sequence[str]) -> int:
    """Runs a training command; returns its exit code."""
    given = list(arguments)
    if given[1:2] in (["-h"], ["--help"]) and given[0] != "glue":
        return guarded(lambda: print(_help(given[0])))
    return training.main(lambda: family_of(given[0], given[1:]), given)


def training_runs(command: str) -> dict[str, tuple[str, Any]]:
    """Returns the named runs of a command, each with a one-line description.

    Args:
        command: A training command; only one that starts runs has any.
    """
    return {name: run for runs in _runs(command).values() for name, run in runs.items()}


def flag_kinds(command: str) -> dict[str, Any]:
    """Returns the flags of a command that takes a run as dataclasses, by the kind of run.

    Args:
        command: A training command; one that starts runs has none.
    """
    if command == "resume":
        return {"runs": resuming.resume_flags()}
    if command != "evaluate":
        return {}
    return evaluation_kinds([name for one in COMMANDS[command] for name in _family(one).recipes])


def _runs(command: str) -> dict[str, dict[str, tuple[str, Any]]]:
    """Returns the named runs of a command by the model that they train."""
    found = {}
    for module in COMMANDS[command]:
        if recipes := _family(module).commands.get(command):
            found[_TITLES[module]] = named_runs(*recipes)
    return found


def _help(command: str) -> str:
    program = f"{PROGRAM} {command}"
    if runs := _runs(command):
        return f"{_TEXTS[command]}\n\n{runs_help(program, runs)}"
    return f"{_TEXTS[command]}\n\n{kinds_help(program, flag_kinds(command))}"


def family_of(command: str, arguments: list[str]) -> training.TrainingProgram:
    """Returns the family that a command trains, under the name of this program.

    Args:
        command: A training command.
        arguments: Its arguments.

    Raises:
        ConfigError: No family has the named run.
        CheckpointError: There is no such run directory.
    """
    modules = COMMANDS[command]
    if command not in ("resume", "evaluate", "glue"):
        return _by_config(command, arguments) or _by_name(command, arguments, modules)
    if len(modules) == 1:
        return _family(modules[0])
    for argument in arguments:
        path = Path(argument)
        if not argument.startswith("-") and (url_of(argument) or path.is_dir()):
            return _family(_of_run(path))
    named = next((argument for argument in arguments if not argument.startswith("-")), None)
    if named is not None:
        raise CheckpointError(no_such_run(named))
    raise ConfigError(f"{command} needs a run directory, such as runs/NAME")


def _family(module: str) -> training.TrainingProgram:
    family = importlib.import_module(f"{_CLI}.{module}").FAMILY
    found: training.TrainingProgram = family._replace(program=PROGRAM)
    return found


def _by_config(command: str, arguments: list[str]) -> training.TrainingProgram | None:
    """Returns the family of the settings in the file after --config; None without the flag.

    Raises:
        ConfigError: Another command starts this kind of run; the message names it.
    """
    _, file = config_file(arguments)
    if file is None:
        return None
    recipe = _recipe_of(file)
    family = _family(_module_of(file, recipe))
    if recipe.name in family.commands.get(command, ()):
        return family
    own = next(own for own, begun in family.commands.items() if recipe.name in begun)
    raise ConfigError(
        f"--config {file}: the settings of {recipe.title}, which {command} does not start: use "
        f"{command_line(own, '--config', file)}"
    )


def _by_name(
    command: str, arguments: list[str], modules: Sequence[str]
) -> training.TrainingProgram:
    """Returns the family with the named run in the first argument."""
    families = [_family(module) for module in modules]
    name = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if name is not None:
        name = RUNS.get(command, {}).get(name, name)
        # Recipes are imported one by one, up to the one that has the named run.
        for family in families:
            if any(name in named_runs(recipe) for recipe in family.commands[command]):
                return family
    known = named_runs(*(recipe for family in families for recipe in family.commands[command]))
    if name is not None:
        raise ConfigError(
            f"unknown configuration {name}: {near(name, known, f'{PROGRAM} {command}')}"
        )
    raise ConfigError(
        f"{command} needs the name of a configuration first, or --config FILE; there are "
        f"{', '.join(known)}"
    )


def _of_run(path: Path) -> str:
    """Returns the family of the run in a directory."""
    return _module_of(path, _recipe_of(path))


def _recipe_of(path: Path) -> Recipe:
    """Returns the recipe of the run in a directory or a ``config.json``.

    A file that was changed after training is accepted here; opening the run refuses it, unless that
    is allowed.
    """
    from transformer_jax.inference.pretrained import open_directory
    from transformer_jax.runs.run_directory import ConfigFile

    run = open_directory(path) if url_of(path) or path.is_dir() else ConfigFile(path)
    return recipe_of(run, check=False)


def _module_of(path: Path, recipe: Recipe) -> str:
    """Returns the family of a recipe; ``path`` is for the message if it has none."""
    for module in COMMANDS["resume"]:
        if recipe.name in _family(module).recipes:
            return module
    raise ConfigError(f"{path}: no command trains or evaluates {recipe.title}")

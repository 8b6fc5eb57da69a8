"""Run settings from the command line: a named run or a file, changed by flags."""

import dataclasses
import difflib
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.cli.commands import NOTE
from transformer_jax.cli.flags import check_flags, flags_of, parse
from transformer_jax.cli.help import runs_help, usual_help
from transformer_jax.core.errors import CheckpointError, ConfigError, pasted
from transformer_jax.core.errors import command as command_line
from transformer_jax.core.old_names import RUNS, current_config, current_flags
from transformer_jax.recipes.registry import (
    RECIPES,
    find_run,
    get_recipe,
    named_runs,
    stored_recipe,
)

__all__ = ["AskedRun", "asked_run", "near", "parse_flags"]

log = logging.getLogger(__name__)


# Flags that are no settings, and taken before the others: suggested for a misspelled one.
_OF_EVERY_RUN = ("config", "plan", "resume")
_LISTED = 8  # allowed words that an error lists

Commands = Mapping[str, Sequence[str]]


class AskedRun(NamedTuple):
    """A requested run.

    Attributes:
        name: The name of the run.
        run: The settings of the run.
        named: The settings before flags changed them.
        given: Names of the settings set by flags, such as ``model.d_model``.
    """

    name: str
    run: Any
    named: Any
    given: frozenset[str]


def asked_run(program: str, commands: Commands, arguments: Sequence[str]) -> AskedRun:
    """Parses the run that arguments describe.

    Args:
        program: The command up to the name, for messages.
        commands: Names of recipes by the command that starts their runs.
        arguments: A name, ``--config FILE`` or both, and flags.

    Raises:
        ConfigError: A name, a flag, a value or a file is invalid.
    """
    words, file = _config_file(list(arguments))
    command = program.rpartition(" ")[2]
    unnamed = not words or words[0].startswith("-")
    if file is not None:
        about, named = f"The run described by {file}.", _stored_run(command, commands, file)
        if unnamed:
            words = [_name_of(file), *words]
    elif words[:1] in (["-h"], ["--help"]):
        print(runs_help(program, {"named runs": named_runs(*commands[command])}))
        raise SystemExit(0)
    if file is None or not unnamed:
        words, found = _named_run(program, commands[command], words)
        if file is None:
            about, named = found
    name, *words = words
    known, see = flags_of(type(named)), f"{program} {name}"
    words = current_flags(command, words, known)
    check_flags(f"{command} {name}", [*known, *_OF_EVERY_RUN], words, see, _recipes_with)
    if {"-h", "--help"} & {*words}:
        about = f"{about}\n\n{usual_help([named])}"
    run = parse(type(named), see, words, named, about)
    if run.output is not None and not run.output.strip():
        raise ConfigError("--output is empty: name a run directory, or leave it out")
    run = dataclasses.replace(run, output=run.output or f"runs/{name}")
    given, training = _settings(words), getattr(run, "training", run)
    if "training.epochs" in given and training.epochs is not None:
        if "training.steps" not in given:  # they would end the run, not the epochs
            run = dataclasses.replace(run, training=dataclasses.replace(training, steps=None))
        elif training.steps is not None:
            log.warning("training.steps ends the run: training.epochs is not used")
    return AskedRun(name, run, named, given)


def _named_run(
    program: str, recipes: Sequence[str], words: list[str]
) -> tuple[list[str], tuple[str, Any]]:
    """Returns the words with the current name of the run first, and its description and settings.

    Raises:
        ConfigError: The first word is no name of a run.
    """
    command = program.rpartition(" ")[2]
    if words and (current := RUNS.get(command, {}).get(words[0])):
        log.warning("%s is now %s", words[0], current)
        words = [current, *words[1:]]
    if words and (found := find_run(words[0], recipes)) is not None:
        return words, found
    known = named_runs(*recipes)
    if not words or words[0].startswith("-"):
        raise ConfigError(
            f"{command} needs the name of a configuration first, or --config FILE; there are "
            f"{', '.join(known)}"
        )
    raise ConfigError(f"unknown configuration {words[0]}: {near(words[0], known, program)}")


def _stored_run(command: str, commands: Commands, file: Path) -> Any:
    """Returns the run described by a ``config.json``, without its output and what its data set.

    Raises:
        ConfigError: The file does not describe a run, or another command starts this kind of run;
            the message names it.
    """
    from transformer_jax.recipes import driver
    from transformer_jax.recipes.settings import Trained
    from transformer_jax.runs.run_directory import read_object

    try:
        fields = current_config(read_object(file))
        recipe = stored_recipe(fields, file)
    except CheckpointError as error:
        raise ConfigError(f"--config {error}") from None
    if recipe.name not in commands[command]:
        own = [other for other, begun in commands.items() if recipe.name in begun]
        use = f"use {command_line(own[0], '--config', file)}" if own else (
            f"{command_line('--help')} lists the commands that do"
        )  # fmt: skip
        raise ConfigError(
            f"--config {file}: the settings of {recipe.title}, which {command} does not start: "
            f"{use}"
        )
    try:
        run = driver.settings_in(fields, file)
    except CheckpointError as error:
        raise ConfigError(f"--config {error}") from None
    run = dataclasses.replace(run, output=None, overwrite=False)
    return run.without_derived() if isinstance(run, Trained) else run


def _recipes_with(flag: str) -> str:
    """Returns what the recipes that have a flag train; empty if none has it."""
    recipes = map(get_recipe, RECIPES)
    return " or ".join(recipe.title for recipe in recipes if flag in flags_of(recipe.config))


def _settings(arguments: Sequence[str]) -> frozenset[str]:
    """Returns the names of the settings that flags set.

    Example:
        >>> sorted(_settings(["--model.d-model", "8", "--model.compute.no-scan-layers"]))
        ['model.compute.scan_layers', 'model.d_model']
    """
    flags = (argument[2:].partition("=")[0] for argument in arguments if argument[:2] == "--")
    return frozenset(re.sub(r"(^|\.)no-", r"\1", flag).replace("-", "_") for flag in flags)


def parse_flags(kind: Any, program: str, arguments: Sequence[str], default: Any = None) -> Any:
    """Parses the flags of a command.

    Args:
        kind: The dataclass of its flags.
        program: The command, for messages.
        arguments: The arguments of the command.
        default: Values of the flags that are absent.

    Raises:
        ConfigError: A flag or a value is invalid.
    """
    command, known = program.rpartition(" ")[2], flags_of(kind)
    arguments = current_flags(command, arguments, known)
    check_flags(command, known, arguments, program)
    try:
        return parse(kind, program, arguments, default)
    except SystemExit:  # of --help
        print(f"\n{NOTE}.")
        raise


def near(word: str, known: Iterable[str], program: str) -> str:
    """Returns a hint for an unknown word: the nearest known words, and where all of them are.

    Args:
        word: The unknown word.
        known: The allowed words, which the hint lists if they are few.
        program: The command whose help lists them.

    Example:
        >>> near("trian", ["train", "resume"], "transformer-jax")
        'did you mean train? there are train, resume'
        >>> near("trian", ["train", *"abcdefgh"], "transformer-jax")
        'did you mean train? `transformer-jax --help` lists them all'
    """
    words = list(known)
    nearest = difflib.get_close_matches(word, words, 3, 0.5)
    alike = [one for one in nearest if _likeness(word, one) > _likeness(word, nearest[0]) - 0.1]
    hint = f"did you mean {' or '.join(alike)}? " if alike else ""
    if len(words) <= _LISTED:
        return f"{hint}there are {', '.join(words)}"
    return f"{hint}{pasted(*program.split(), '--help')} lists them all"


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _config_file(arguments: list[str]) -> tuple[list[str], Path | None]:
    """Returns the arguments without ``--config FILE``, and the file.

    Raises:
        ConfigError: The flag has no file.
    """
    for i, argument in enumerate(arguments):
        flag, given, value = argument.partition("=")
        if flag != "--config":
            continue
        rest = arguments[i + 1 :]
        if not given:
            if not rest or rest[0].startswith("-"):
                raise ConfigError("--config needs a file: --config runs/NAME/config.json")
            value, *rest = rest
        return [*arguments[:i], *rest], Path(value)
    return arguments, None


def _name_of(file: Path) -> str:
    """Returns the name of a run from its settings file or the run directory of the file.

    Example:
        >>> _name_of(Path("runs/pt-en/config.json")), _name_of(Path("large.json"))
        ('pt-en', 'large')
    """
    return file.resolve().parent.name if file.stem == "config" else file.stem

"""Run settings from the command line: a named run or a file, changed by flags."""

import dataclasses
import difflib
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.cli.checks import check_values
from transformer_jax.cli.field_flags import parse
from transformer_jax.cli.flags import check_flags, flags_of, together
from transformer_jax.cli.help import runs_help, usual_help
from transformer_jax.core.errors import CheckpointError, ConfigError, pasted
from transformer_jax.core.errors import command as command_line
from transformer_jax.core.old_names import RUNS, current_flags
from transformer_jax.recipes.registry import RECIPES, get_recipe

__all__ = ["NOTE", "AskedRun", "asked_run", "config_file", "near", "parse_flags"]

log = logging.getLogger(__name__)

NOTE = "--import MODULE imports your Python module first; --version prints the version."

# Flags that are no settings, and taken before the others: suggested for a misspelled one.
_OF_EVERY_RUN = ("config", "plan", "resume")
_LISTED = 8  # allowed words that an error lists

Runs = Mapping[str, tuple[str, Any]]


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


def asked_run(
    program: str,
    runs: Runs,
    arguments: Sequence[str],
) -> AskedRun:
    """Parses the run that arguments describe.

    Args:
        program: The command up to the name, for messages.
        runs: Named runs with one-line descriptions.
        arguments: A name, ``--config FILE`` or both, and flags.

    Raises:
        ConfigError: A name, a flag, a value or a file is invalid.
    """
    given, file = config_file(list(arguments))
    command = program.rpartition(" ")[2]
    if file is not None:
        config = _configured(command, runs, file)
        if not given or given[0].startswith("-"):
            runs = {**runs, _name_of(file): ("", config)}
            given = [_name_of(file), *given]
    name = _named(command, runs, given)
    if file is not None:
        from transformer_jax.recipes.driver import reset_derived

        runs = {name: (f"The run described by {file}.", reset_derived(config))}
    if name in ("-h", "--help"):
        print(runs_help(program, {"named runs": runs}))
        raise SystemExit(0)
    about, named = runs[name]
    known = flags_of(type(named))
    given = [name, *current_flags(command, given[1:], known)]
    see = f"{program} {name}"
    check_flags(f"{command} {name}", [*known, *_OF_EVERY_RUN], given[1:], see, _recipes_with)
    given = [name, *together(type(named), given[1:])]
    described = about
    if {"-h", "--help"} & {*given}:
        described = f"{about}\n\n{usual_help([named])}"
    run = parse(type(named), f"{program} {name}", given[1:], named, described)
    check_values(run)
    if run.output is not None and not run.output.strip():
        raise ConfigError("--output is empty: name a run directory, or leave it out")
    run = dataclasses.replace(run, output=run.output or f"runs/{name}")
    return AskedRun(name, run, named, _settings(given[1:]))


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
    arguments = together(kind, arguments)
    request = parse(kind, program, arguments, default)
    check_values(request)
    return request


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


def _named(command: str, runs: Runs, arguments: Sequence[str]) -> str:
    if arguments and (current := RUNS.get(command, {}).get(arguments[0])):
        log.warning("%s is now %s", arguments[0], current)
        return current
    if arguments and (arguments[0] in runs or arguments[0] in ("-h", "--help")):
        return arguments[0]
    known = ", ".join(runs)
    if not arguments or arguments[0].startswith("-"):
        raise ConfigError(
            f"{command} needs the name of a configuration first, or --config FILE; there are "
            f"{known}"
        )
    raise ConfigError(f"unknown configuration {arguments[0]}: {near(arguments[0], runs, command)}")


def config_file(arguments: list[str]) -> tuple[list[str], Path | None]:
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


def _configured(command: str, runs: Runs, file: Path) -> Any:
    """Returns the run described by a ``config.json``."""
    from transformer_jax.recipes.driver import read
    from transformer_jax.runs.run_directory import ConfigFile

    try:
        run = read(ConfigFile(file))
    except CheckpointError as error:
        raise ConfigError(f"--config {error}") from None
    if type(run) not in {type(named) for _, named in runs.values()}:
        title = get_recipe(run.recipe).title
        raise ConfigError(
            f"--config {file}: the settings of {title}, which {command} does not start: "
            f"{command_line('--help')} lists the commands that do"
        )
    # Do not take over the other run's output directory.
    return dataclasses.replace(run, output=None, overwrite=False)


def _name_of(file: Path) -> str:
    """Returns the name of a run from its settings file or the run directory of the file.

    Example:
        >>> _name_of(Path("runs/pt-en/config.json")), _name_of(Path("large.json"))
        ('pt-en', 'large')
    """
    return file.resolve().parent.name if file.stem == "config" else file.stem

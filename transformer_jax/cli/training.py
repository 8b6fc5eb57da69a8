"""The training program of a family: train, resume and further commands."""

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from transformer_jax import __version__
from transformer_jax.cli.errors import guarded, run_and_leave, run_log, terminated
from transformer_jax.cli.evaluation import evaluate
from transformer_jax.cli.resuming import agree, has_begun, resume, resume_as_asked, writing_alone
from transformer_jax.cli.run_flags import NOTE, asked_run, near
from transformer_jax.cli.user_modules import import_modules
from transformer_jax.core.errors import ConfigError
from transformer_jax.core.runtime import enable_compilation_cache, retain_freed_memory
from transformer_jax.recipes import registry
from transformer_jax.recipes.registry import RECIPES, named_runs

__all__ = ["Command", "TrainingProgram", "main", "run_as_program", "take_plan"]

Command = Callable[[Sequence[str]], int]
Other = Callable[[Sequence[str], str], int]


class TrainingProgram(NamedTuple):
    """The training program of some recipes. Slow imports come after the flags are checked.

    Attributes:
        program: The command, for messages.
        doc: The text of ``--help``.
        commands: Names of recipes by the command that starts their runs.
        others: Further commands by name.
    """

    program: str
    doc: str
    commands: Mapping[str, Sequence[str]]
    others: Mapping[str, Other] = {}

    @property
    def recipes(self) -> list[str]:
        """The names of all recipes."""
        return [name for names in self.commands.values() for name in names]


def _train(family: TrainingProgram, command: str, arguments: Sequence[str]) -> int:
    """Starts a run and trains it to the end; with ``--plan``, only compiles it.

    With ``--resume``, an existing run is resumed with its own settings.
    """
    target, as_json, arguments = take_plan(arguments)
    resumes, arguments = "--resume" in arguments, [one for one in arguments if one != "--resume"]
    name, run, named, given = asked_run(
        f"{family.program} {command}",
        named_runs(*family.commands[command]),
        arguments,
    )
    if target is not None and named is not None:
        from transformer_jax.cli.plan import plan_run

        return plan_run(name, run, named, target, as_json)
    if resumes and run.overwrite:
        raise ConfigError(
            "--resume and --overwrite exclude each other: one keeps an existing run, one deletes it"
        )
    # Slow imports follow; the process number is unknown before them.
    if not run.distributed.process_id:
        print(f"{command} {name}: starting", file=sys.stderr, flush=True)
    from transformer_jax.parallel.mesh import broadcast_json, initialize

    initialize(run.distributed)
    agree(command, run)
    if resumes and broadcast_json(has_begun(run.output)) and hasattr(run, "loop"):
        return resume_as_asked(run, named)
    from transformer_jax.recipes.checks import check_room
    from transformer_jax.recipes.given import settings_given
    from transformer_jax.recipes.settings import start_config

    if start_config(run).init_from is None:  # otherwise checked once the model is known
        check_room(run)
    # Refuse it before reading the data, which takes minutes; `begin` checks again.
    with writing_alone(run.output, lambda: _check_output(run)), settings_given(given):
        from transformer_jax.recipes import driver

        run, directory, data = driver.begin(run, named)
        run_log(directory.log)
        return driver.train(run, directory, data)


def _check_output(run: Any) -> None:
    from transformer_jax.runs.run_directory import RunDirectory

    RunDirectory.check_free(run.output, overwrite=run.overwrite)


def _check_registered(family: TrainingProgram) -> None:
    for command, names in family.commands.items():
        for name in names:
            if name not in RECIPES:
                raise ConfigError(
                    f"{family.program}: {command} starts the recipe {name}, but RECIPES in "
                    f"{registry.__file__} does not name it: there are {', '.join(RECIPES)}"
                )


def _other(command: Other, program: str, arguments: Sequence[str]) -> int:
    return command(arguments, program)


def _run(family: TrainingProgram, arguments: list[str]) -> int:
    _check_registered(family)
    commands: dict[str, Command] = {
        **{name: functools.partial(_train, family, name) for name in family.commands},
        "resume": functools.partial(resume, family.program),
        "evaluate": functools.partial(
            evaluate, family.recipes, program=f"{family.program} evaluate"
        ),
        **{
            name: functools.partial(_other, command, f"{family.program} {name}")
            for name, command in family.others.items()
        },
    }
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"{family.doc.rstrip()}\n\n{NOTE}")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"{family.program} {__version__}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in commands:
        raise ConfigError(f"unknown command {name}: {near(name, commands, family.program)}")
    retain_freed_memory()
    enable_compilation_cache()
    return commands[name](rest)


def main(
    family: TrainingProgram | Callable[[], TrainingProgram], arguments: Sequence[str] | None = None
) -> int:
    """Runs the command of ``arguments``, or of the command line; returns its exit code.

    Args:
        family: The training program, or a function that finds it or raises.
        arguments: A command and its flags; None is those of this process.
    """
    find = (lambda: family) if isinstance(family, TrainingProgram) else family
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with terminated(
            "stopped by a signal before or after training: the command resume continues a run that "
            "has begun"
        ):
            return guarded(lambda: _run(find(), import_modules(given)))
    finally:
        run_log(None)


def run_as_program(family: TrainingProgram) -> None:
    """Runs the command line and exits with its code."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    run_and_leave(lambda: main(family))


def take_plan(arguments: Sequence[str]) -> tuple[str | None, bool, list[str]]:
    """Returns the target of ``--plan``, whether ``--plan-json`` is given, and other arguments.

    Raises:
        ConfigError: ``--plan`` has no target, is given twice or with ``--resume``, or
            ``--plan-json`` is given without ``--plan``.

    Example:
        >>> take_plan(["gpt2-small", "--plan", "h200:8", "--mesh.fsdp", "8"])
        ('h200:8', False, ['gpt2-small', '--mesh.fsdp', '8'])
    """
    rest, target, as_json, words = [], None, False, iter(arguments)
    for word in words:
        if word == "--plan-json":
            as_json = True
        elif word == "--plan" or word.startswith("--plan="):
            if target is not None:
                raise ConfigError("--plan is given twice: plan for one kind of device at a time")
            target = word.partition("=")[2] or next(words, "")
            if not target or target.startswith("-"):
                raise ConfigError(
                    "--plan needs devices: --plan h200:8, a TPU slice such as --plan v5e:2x4, or "
                    "the memory of a device, such as --plan 80GiB"
                )
        else:
            rest.append(word)
    if as_json and target is None:
        raise ConfigError("--plan-json is the output format of --plan: add --plan h200:8")
    if target is not None and "--resume" in rest:
        raise ConfigError("--plan and --resume exclude each other: leave --resume out")
    return target, as_json, rest

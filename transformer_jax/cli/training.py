"""Training programs: commands that begin runs, resume, evaluate.

``transformer-jax`` has all of these commands, and a program such as
``python -m experiments.seq2seq`` the ones for one kind of model.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer_jax import __version__
from transformer_jax.cli import commands, resuming
from transformer_jax.cli.commands import NOTE, PROGRAM, import_modules
from transformer_jax.cli.evaluation import evaluate, evaluation_kinds
from transformer_jax.cli.help import kinds_help, runs_help
from transformer_jax.cli.process import guarded, run_and_leave, run_log, terminated
from transformer_jax.cli.run_flags import asked_run, near, parse_flags
from transformer_jax.core.errors import ConfigError
from transformer_jax.core.runtime import prepare_process
from transformer_jax.recipes import registry
from transformer_jax.recipes.registry import RECIPES, named_runs

if TYPE_CHECKING:
    from transformer_jax.recipes.settings import RunSettings

__all__ = [
    "COMMANDS",
    "EVERY",
    "STARTS",
    "TrainingProgram",
    "commands_for",
    "every_kind",
    "flag_kinds",
    "main",
    "run",
    "run_as_program",
    "take_plan",
    "training_runs",
]

# The recipes whose runs a command starts, by the kind of model.
STARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "train": {
        "encoder-decoders": ("translation", "recurrent_translation", "captions"),
        "language models": ("language_model", "ngram"),
        "encoders": ("images", "clip"),
    },
    "train-speech": {"encoder-decoders": ("speech", "recurrent_speech")},
    "pretrain": {"encoders": ("masked_lm",), "encoder-decoders": ("denoising",)},
    "finetune": {"encoders": ("finetuning", "similarity"), "encoder-decoders": ("summarization",)},
    "instruct": {"language models": ("instruct",)},
    "align": {"language models": ("preferences", "reward_model", "on_policy")},
}
COMMANDS = (*STARTS, "resume", "evaluate")
_HELP = ("-h", "--help")


class TrainingProgram(NamedTuple):
    """The training program of some recipes. Slow imports come after the flags are checked.

    Attributes:
        program: The command, for messages.
        doc: The text of ``--help``.
        commands: Names of recipes by the command that starts their runs.
        others: The dataclasses of further commands by name.
    """

    program: str
    doc: str
    commands: Mapping[str, Sequence[str]]
    others: Mapping[str, type] = {}

    @property
    def recipes(self) -> list[str]:
        """The names of all recipes."""
        return [name for names in self.commands.values() for name in names]


def commands_for(model: str) -> dict[str, tuple[str, ...]]:
    """Returns the recipes of a kind of model by the command that starts their runs.

    Args:
        model: A key of ``STARTS``.

    Example:
        >>> commands_for("encoders")["pretrain"]
        ('masked_lm',)
    """
    return {command: kinds[model] for command, kinds in STARTS.items() if model in kinds}


EVERY = TrainingProgram(
    PROGRAM,
    "",
    {command: tuple(name for names in kinds.values() for name in names)
     for command, kinds in STARTS.items()},
)  # fmt: skip


def every_kind() -> TrainingProgram:
    """Returns the program of all kinds; its ``train`` also starts those of imported modules."""
    train = (*EVERY.commands["train"], *_imported())
    return EVERY._replace(commands={**EVERY.commands, "train": train})


def _imported() -> list[str]:
    return [name for name in RECIPES if name not in EVERY.recipes]


def run(arguments: Sequence[str]) -> int:
    """Runs a training command of ``transformer-jax``; returns its exit code."""
    if arguments[1:2] and arguments[1] in _HELP:
        print(_help(arguments[0]))
        return 0
    return _run(every_kind(), arguments)


def main(program: TrainingProgram, arguments: Sequence[str] | None = None) -> int:
    """Runs a command of a program; returns its exit code.

    Args:
        program: The program.
        arguments: A command and its flags; None is the command line of this process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    return guarded(lambda: _run(program, import_modules(given)))


def run_as_program(program: TrainingProgram) -> None:
    """Runs the command line and exits with its code."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    run_and_leave(lambda: main(program))


def _run(program: TrainingProgram, arguments: Sequence[str]) -> int:
    _check_registered(program)
    if not arguments or arguments[0] in _HELP:
        print(f"{program.doc.rstrip()}\n\n{NOTE}; --version prints the version.")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"{program.program} {__version__}")
        return 0
    name, rest = arguments[0], arguments[1:]
    with terminated(
        "stopped by a signal before or after training: the command resume continues a run that has "
        "begun"
    ):
        if name in program.commands:
            return _train(program, name, rest)
        if name == "resume":
            return resuming.resume(f"{program.program} resume", rest)
        if name == "evaluate":
            return evaluate(f"{program.program} evaluate", rest, program.recipes)
        if name in program.others:
            code: int = parse_flags(program.others[name], f"{program.program} {name}", rest)()
            return code
    known = [*program.commands, "resume", "evaluate", *program.others]
    raise ConfigError(f"unknown command {name}: {near(name, known, program.program)}")


def _train(program: TrainingProgram, command: str, arguments: Sequence[str]) -> int:
    """Starts a run and trains it to the end; with ``--plan``, only compiles it.

    With ``--resume``, an existing run is resumed with its own settings.
    """
    target, as_json, words = take_plan(arguments)
    resumes, words = "--resume" in words, [word for word in words if word != "--resume"]
    name, run, named, given = asked_run(f"{program.program} {command}", program.commands, words)
    prepare_process()
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
    from transformer_jax.parallel.coordinator import initialize
    from transformer_jax.parallel.mesh import broadcast_json

    initialize(run.distributed)
    resuming.agree(command, run)
    if resumes and broadcast_json(resuming.has_begun(run.output)) and hasattr(run, "loop"):
        return resuming.resume_as_asked(run, named)
    from transformer_jax.recipes.checks import check_room
    from transformer_jax.recipes.explicit_settings import Given
    from transformer_jax.recipes.settings import start_config

    if start_config(run).init_from is None:  # otherwise checked once the model is known
        check_room(run)
    # Refuse it before reading the data, which takes minutes; `create_run` checks again.
    with resuming.writing_alone(run.output, lambda: _check_output(run)):
        from transformer_jax.recipes import driver

        run, directory, data = driver.create_run(run, Given(named, given))
        run_log(directory.log)
        return driver.train(run, directory, data)


def _check_output(run: "RunSettings") -> None:
    from transformer_jax.runs.run_directory import RunDirectory

    assert run.output is not None
    RunDirectory.check_free(run.output, overwrite=run.overwrite)


def _check_registered(program: TrainingProgram) -> None:
    for command, names in program.commands.items():
        for name in names:
            if name not in RECIPES:
                raise ConfigError(
                    f"{program.program}: {command} starts the recipe {name}, but RECIPES in "
                    f"{registry.__file__} does not name it: there are {', '.join(RECIPES)}"
                )


def training_runs(command: str) -> dict[str, tuple[str, Any]]:
    """Returns the named runs of a command, each with a one-line description.

    Args:
        command: A training command; only one that starts runs has any.
    """
    return named_runs(*EVERY.commands.get(command, ()))


def flag_kinds(command: str) -> dict[str, Any]:
    """Returns the flags of a command that takes a run as dataclasses, by the kind of run.

    Args:
        command: A training command; one that starts runs has none.
    """
    if command == "resume":
        return {"runs": resuming.resume_flags()}
    if command != "evaluate":
        return {}
    models = STARTS["train"]  # in the order of the kinds of model
    return evaluation_kinds(
        [name for model in models for names in commands_for(model).values() for name in names]
    )


def _help(command: str) -> str:
    program = f"{PROGRAM} {command}"
    if kinds := STARTS.get(command):
        runs = {model: named_runs(*recipes) for model, recipes in kinds.items()}
        if command == "train" and (own := _imported()):
            runs["kinds of --import"] = named_runs(*own)
        return f"{commands.COMMANDS[command]}\n\n{runs_help(program, runs)}"
    return f"{commands.COMMANDS[command]}\n\n{kinds_help(program, flag_kinds(command))}"


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

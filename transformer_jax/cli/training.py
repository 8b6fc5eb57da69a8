"""The training program of a family: train, resume and further commands."""

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tyro

from transformer_jax import __version__
from transformer_jax.cli.errors import guarded, run_and_leave, run_log, terminated
from transformer_jax.cli.evaluation import evaluate
from transformer_jax.cli.flags import flags_of
from transformer_jax.cli.run_command import RunCommand
from transformer_jax.cli.run_flags import NOTE, asked_run, near, parse_flags
from transformer_jax.core.errors import ConfigError
from transformer_jax.core.errors import command as command_line
from transformer_jax.core.old_names import current_flags
from transformer_jax.core.runtime import enable_compilation_cache, retain_freed_memory
from transformer_jax.core.storage.urls import working_copy
from transformer_jax.recipes import registry
from transformer_jax.recipes.registry import RECIPES, get_recipe, named_runs

__all__ = ["Command", "TrainingProgram", "main", "resume_flags", "run_as_program", "take_plan"]

Command = Callable[[Sequence[str]], int]
# Lists of tokens that a run extends by the tokens of its chat template.
_GROWS = ("add_special_tokens", "trainable_tokens")
# Settings that may change each time a run is resumed.
_MAY_CHANGE = ("loop", "mesh", "distributed", "output", "overwrite", "cache")
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
    _check_same(command, run)
    if resumes and broadcast_json(_has_begun(run.output)) and hasattr(run, "loop"):
        return _resume_as_asked(run, named)
    from transformer_jax.recipes.given import settings_given
    from transformer_jax.recipes.settings import start_config

    if start_config(run).init_from is None:  # otherwise checked once the model is known
        _check_room(run)
    # Refuse it before reading the data, which takes minutes; `begin` checks again.
    with _writing_alone(run.output, lambda: _check_output(run)), settings_given(given):
        from transformer_jax.recipes import driver

        run, directory, data = driver.begin(run, named)
        run_log(directory.log)
        return driver.train(run, directory, data)


def _check_same(command: str, asked: Any) -> None:
    """Refuses processes of one run with different commands or versions."""
    import jax

    from transformer_jax.parallel.agreement import check_same
    from transformer_jax.runs.config_guard import leaves

    settings = leaves(dataclasses.asdict(asked))
    settings.pop("distributed.process_id", None)
    versions = {"transformer_jax": __version__, "jax": jax.__version__}
    check_same(
        {"the command": command, **settings}
        | {f"the version of {k}": v for k, v in versions.items()},
        "start every process with the same command and versions",
    )


def _has_begun(path: str) -> bool:
    from transformer_jax.runs.run_directory import RunDirectory

    return RunDirectory(path).has_begun()


def _check_room(run: Any) -> None:
    from transformer_jax.recipes.checks import check_room

    check_room(run)


def _check_output(run: Any) -> None:
    from transformer_jax.runs.run_directory import RunDirectory

    RunDirectory.check_free(run.output, overwrite=run.overwrite)


@contextlib.contextmanager
def _writing_alone(path: str, check: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Context manager: holds the lock of a run directory in process 0, after ``check``."""
    from transformer_jax.core.task_progress import log
    from transformer_jax.parallel.mesh import is_main_process, sync_global_devices
    from transformer_jax.runs.lock import RunLock, is_locked
    from transformer_jax.runs.shared_directory import check_shared

    folder = working_copy(path)
    with contextlib.ExitStack() as held:
        if is_main_process():
            # Leave no file in other folders; for a run in progress, its own error is raised.
            if not is_locked(folder):
                check()
            held.enter_context(RunLock(path, say=log))
            check()
        sync_global_devices("run is locked")
        check_shared(folder)
        yield


@functools.cache
def resume_flags() -> Any:
    """Returns the dataclass of the flags of ``resume``."""
    from transformer_jax.parallel.settings import DistributedConfig, MeshConfig
    from transformer_jax.training.settings import LoopConfig

    @dataclasses.dataclass(frozen=True)
    class Resume(RunCommand):
        """Resume a run; settings without a flag are unchanged."""

        run: tyro.conf.Positional[str]
        """The run directory."""
        loop: LoopConfig = LoopConfig()
        mesh: MeshConfig = MeshConfig()
        distributed: DistributedConfig = DistributedConfig()

    return Resume


def _resume(family: TrainingProgram, arguments: Sequence[str]) -> int:
    """Resumes a run from its newest good checkpoint, on any mesh."""
    from transformer_jax.inference.runs import open_directory
    from transformer_jax.parallel.mesh import initialize
    from transformer_jax.parallel.settings import DistributedConfig
    from transformer_jax.runs.config_guard import changed_config

    Resume = resume_flags()
    if not arguments:
        raise ConfigError("resume needs a run directory: resume runs/NAME")
    prog = f"{family.program} resume"
    # Current names for both passes below, so that an earlier name causes one warning.
    arguments = current_flags("resume", arguments, flags_of(Resume))
    # Absent flags keep the run's values, so parse first to find the run.
    plain = [argument for argument in arguments if argument not in ("-h", "--help")]
    helped = len(plain) < len(arguments)
    try:
        first = parse_flags(Resume, prog, plain)
    except ConfigError:
        if not helped:
            raise
        first = None
    with changed_config(first is not None and first.allow_changed_config):
        default = None
        if first is not None:
            run = _unfinished(open_directory(first.run))
            default = Resume(first.run, run.loop, run.mesh, DistributedConfig())
        asked = parse_flags(Resume, prog, arguments, default)
    assert asked is not None
    with changed_config(asked.allow_changed_config):
        initialize(asked.distributed)
        _check_same("resume", asked)
        changes = {name: getattr(asked, name) for name in ("loop", "mesh", "distributed")}
        return _continue(asked.run, lambda run: dataclasses.replace(run, **changes))


def _continue(path: str, change: Callable[[Any], Any]) -> int:
    """Trains an existing run to the end, with some settings changed."""
    from transformer_jax.core.task_progress import log
    from transformer_jax.recipes import driver
    from transformer_jax.runs.manifest import steps
    from transformer_jax.runs.run_directory import RunDirectory

    with _writing_alone(path):
        directory = RunDirectory.open(path)
        run_log(directory.log)
        run = change(_unfinished(directory))
        if not steps(directory.checkpoints):
            log(f"{path}: has no checkpoint yet: training begins at step 0")
        _check_room(run)
        return driver.train(run, directory, driver.open_data(run))


def _resume_as_asked(asked: Any, named: Any) -> int:
    """Resumes the run that ``train --resume`` would otherwise start.

    Intervals, mesh and processes are taken from the current flags.

    Raises:
        ConfigError: The run is of another kind, or a flag differs from its setting.
    """
    from transformer_jax.runs.config_guard import leaves

    before = leaves(dataclasses.asdict(named))
    flags = {
        name: value
        for name, value in leaves(dataclasses.asdict(asked)).items()
        if before.get(name) != value
    }

    def change(stored: Any) -> Any:
        if stored.recipe != asked.recipe:
            there, begun = (get_recipe(run.recipe).title for run in (stored, asked))
            raise ConfigError(
                f"--output {asked.output}: contains the run of {there}, not of {begun}: "
                f"choose another --output, or continue that run with "
                f"{command_line('resume', asked.output)}"
            )
        kept = leaves(dataclasses.asdict(stored))
        for name, value in flags.items():
            has = kept.get(name)
            if name.endswith(_GROWS) and isinstance(has, list | tuple):
                has = tuple(has[: len(value)])  # the run's own tokens follow the given ones
            if name.partition(".")[0] not in _MAY_CHANGE and has != value:
                raise ConfigError(
                    f"--{name.replace('_', '-')} {value}: the run {asked.output} has "
                    f"{kept.get(name)}: leave the flag out, or choose another --output"
                )
        loop = {name[5:]: value for name, value in flags.items() if name.startswith("loop.")}
        return dataclasses.replace(
            stored,
            loop=dataclasses.replace(stored.loop, **loop),
            mesh=asked.mesh,
            distributed=asked.distributed,
        )

    return _continue(asked.output, change)


def _unfinished(directory: Any) -> Any:
    """Returns the settings of a run that is trained in steps."""
    from transformer_jax.recipes.driver import read
    from transformer_jax.runs.config_guard import refuse_weights_alone

    refuse_weights_alone(directory.path)
    if directory.begun_by_program():
        raise ConfigError(
            f"{directory.path}: was begun by a program with a Trainer, which has its data: run "
            f"that program again to continue it"
        )
    run = read(directory)
    if not hasattr(run, "loop"):
        raise ConfigError(
            f"{directory.path}: an n-gram model is trained in one pass: there is nothing to resume"
        )
    return run


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
        "resume": functools.partial(_resume, family),
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
        raise ConfigError(f"unknown command {name}: {near(name, commands)}")
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
            return guarded(lambda: _run(find(), given))
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

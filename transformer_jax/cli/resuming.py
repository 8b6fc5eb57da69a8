"""The command ``resume``, and ``--resume`` of the commands that begin runs."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tyro

from transformer_jax import __version__
from transformer_jax.cli.flags import flag_of, flags_of
from transformer_jax.cli.process import run_log
from transformer_jax.cli.run_flags import parse_flags
from transformer_jax.cli.support.run_command import RunCommand
from transformer_jax.core.config_fields import Configuration, Count
from transformer_jax.core.errors import ConfigError
from transformer_jax.core.errors import command as command_line
from transformer_jax.core.old_names import current_flags
from transformer_jax.core.runtime import prepare_process
from transformer_jax.core.storage.reach import remember_buckets
from transformer_jax.core.storage.urls import working_copy
from transformer_jax.recipes.registry import get_recipe

__all__ = ["agree", "has_begun", "resume", "resume_as_asked", "resume_flags", "writing_alone"]

# Lists of tokens that a run extends by the tokens of its chat template.
_GROWS = ("add_special_tokens", "trainable_tokens")
# Settings that may change each time a run is resumed.
_MAY_CHANGE = ("loop", "mesh", "distributed", "output", "overwrite", "cache")

_LENGTHS = ("training.steps", "training.epochs")


def agree(command: str, asked: Any) -> None:
    """Refuses processes of one run with different commands or versions."""
    import jax

    from transformer_jax.parallel.process_consistency import check_same
    from transformer_jax.runs.config_guard import leaves

    settings = leaves(dataclasses.asdict(asked))
    settings.pop("distributed.process_id", None)
    versions = {"transformer_jax": __version__, "jax": jax.__version__}
    check_same(
        {"the command": command, **settings}
        | {f"the version of {k}": v for k, v in versions.items()},
        "start every process with the same command and versions",
    )


def has_begun(path: str) -> bool:
    """Returns whether training of the run has begun."""
    from transformer_jax.runs.run_directory import RunDirectory

    return RunDirectory(path).has_begun()


@contextlib.contextmanager
def writing_alone(path: str, check: Callable[[], None] = lambda: None) -> Iterator[None]:
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


@dataclasses.dataclass(frozen=True)
class Longer(Configuration, group="training"):
    """A later end than the run began with; one of these."""

    steps: Count | None = None  # last step, counted from the beginning; None is the run's
    epochs: Count | None = None  # passes over the training data; None is the run's


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
        training: Longer = Longer()
        loop: LoopConfig = LoopConfig()
        mesh: MeshConfig = MeshConfig()
        distributed: DistributedConfig = DistributedConfig()

    return Resume


def resume(program: str, arguments: Sequence[str]) -> int:
    """Resumes a run from its newest good checkpoint, on any mesh.

    Args:
        program: The command, for messages.
        arguments: The run directory and flags.
    """
    from transformer_jax.inference.pretrained import open_directory
    from transformer_jax.parallel.coordinator import initialize

    Resume = resume_flags()
    if not arguments:
        raise ConfigError("resume needs a run directory, such as runs/NAME")
    # Current names for both passes below, so that an earlier name causes one warning.
    arguments = current_flags("resume", arguments, flags_of(Resume))
    # Absent flags keep the run's values, so parse first to find the run.
    plain = [argument for argument in arguments if argument not in ("-h", "--help")]
    helped = len(plain) < len(arguments)
    try:
        first = parse_flags(Resume, program, plain)
    except ConfigError:
        if not helped:
            raise
        first = None
    default = None
    if first is not None:
        run = unfinished(open_directory(first.run, first.allow_changed_config))
        default = Resume(first.run, loop=run.loop, mesh=run.mesh)
    asked = parse_flags(Resume, program, arguments, default)
    prepare_process()
    initialize(asked.distributed)
    agree("resume", asked)
    changes = {name: getattr(asked, name) for name in ("loop", "mesh", "distributed")}
    change = lambda run: dataclasses.replace(run, **changes)
    return _continue(asked.run, change, asked.training, asked.allow_changed_config)


def _continue(
    path: str,
    change: Callable[[Any], Any],
    longer: Longer = Longer(),
    allow_changed: bool | None = None,
) -> int:
    """Trains an existing run to the end, or to a later one, with some settings changed."""
    from transformer_jax.core.task_progress import log
    from transformer_jax.recipes import driver
    from transformer_jax.recipes.checks import check_room
    from transformer_jax.recipes.longer import lengthen, store_length
    from transformer_jax.recipes.publishing import note_export
    from transformer_jax.runs.manifest import steps
    from transformer_jax.runs.run_directory import RunDirectory

    with writing_alone(path):
        directory = RunDirectory.open(path, allow_changed)
        run_log(directory.log)
        run = change(unfinished(directory))
        if not steps(directory.checkpoints):
            log(f"{path}: has no checkpoint yet: training begins at step 0")
        check_room(run)
        note_export(get_recipe(run.recipe), run, allow_changed)
        begun = run
        if longer != Longer():
            run = lengthen(run, directory, longer.steps, longer.epochs)
        data = driver.open_data(run)
        if run is not begun:
            store_length(run, directory)
        return driver.train(run, directory, data)


def resume_as_asked(asked: Any, named: Any) -> int:
    """Resumes the run that ``train --resume`` would otherwise start.

    Intervals, mesh and processes are taken from the current flags.

    Raises:
        ConfigError: The run is of another kind, or a flag differs from its setting.
    """
    from transformer_jax.runs.config_guard import leaves

    remember_buckets(dataclasses.asdict(asked))
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
                flag = f"--{_flag_of(asked, name)}"
                longer = ""
                if name in _LENGTHS and has is not None and value > has:
                    line = command_line("resume", asked.output, flag, str(value))
                    longer = f"train longer with {line}, "
                raise ConfigError(
                    f"{flag} {value}: the run {asked.output} has {kept.get(name)}: {longer}leave "
                    f"the flag out, or choose another --output"
                )
        loop = {name[5:]: value for name, value in flags.items() if name.startswith("loop.")}
        return dataclasses.replace(
            stored,
            loop=dataclasses.replace(stored.loop, **loop),
            mesh=asked.mesh,
            distributed=asked.distributed,
        )

    return _continue(asked.output, change)


def _flag_of(run: object, name: str) -> str:
    """Returns the flag of a setting, such as ``init-from`` of ``task.init_from``."""
    *groups, last = name.split(".")
    for group in groups:
        run = getattr(run, group)
    prefix = "".join(f"{group.replace('_', '-')}." for group in groups)
    return flag_of(type(run), last, prefix)


def unfinished(directory: Any) -> Any:
    """Returns the settings of a run that is trained in steps.

    Args:
        directory: The run directory.

    Raises:
        ConfigError: There is nothing to resume, or not by this command.
        CheckpointError: ``config.json`` is damaged, or changed after training.
    """
    from transformer_jax.recipes.driver import read
    from transformer_jax.runs.config_guard import refuse_weights_alone

    by_program = directory.begun_by_program()
    published = by_program and "published" in directory.read_config()
    refuse_weights_alone(directory.path, published=published)
    if by_program:
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

"""A run that is resumed for more steps than it began with."""

import dataclasses
from typing import Any

from transformer_jax.core.errors import CheckpointError, ConfigError, plural
from transformer_jax.core.task_progress import log
from transformer_jax.parallel.mesh import is_main_process, sync_global_devices
from transformer_jax.recipes.settings import Run, Trained
from transformer_jax.runs import manifest
from transformer_jax.runs.lock import check_lock
from transformer_jax.runs.run_directory import RunDirectory
from transformer_jax.training.settings import FALLING, ScheduleConfig, check_warmup

__all__ = ["depends_on_length", "lengthen", "store_length"]


def depends_on_length(schedule: ScheduleConfig) -> bool:
    """Returns whether the learning rates of a schedule depend on the number of steps of the run.

    Example:
        >>> [depends_on_length(ScheduleConfig(kind)) for kind in ("noam", "linear")]
        [False, True]
        >>> depends_on_length(ScheduleConfig("constant", warmup_steps=0.1))
        True
    """
    warmup = schedule.warmup_steps
    return schedule.kind in FALLING or warmup is None or 0 < warmup < 1


def lengthen(run: Run, directory: RunDirectory, steps: int | None, epochs: int | None) -> Run:
    """Returns the settings of a run with a later last step; the same settings if it is there.

    If its learning rates do not depend on the number of steps, the longer run is bit for bit the
    run that began with it; otherwise a line tells where they change.

    Args:
        run: The settings.
        directory: Of the run.
        steps: The last step; None leaves it to ``epochs``.
        epochs: Passes over the training data; None leaves them to ``steps``.

    Raises:
        ConfigError: Both are given, the run is longer, or the warmup does not fit.
    """
    if steps is not None and epochs is not None:
        raise ConfigError("--training.steps and --training.epochs: give one of them")
    training, done = run.training, max(manifest.steps(directory.checkpoints), default=0)
    asked, name = (steps, "steps") if steps is not None else (epochs, "epochs")
    assert asked is not None
    has = getattr(training, name) or 0
    if name == "epochs" and training.steps is not None:
        raise ConfigError(
            f"--training.epochs {asked}: the run has {plural(training.steps, 'step')}: give "
            f"--training.steps instead"
        )
    if asked < has or (name == "steps" and asked < done):
        raise ConfigError(
            f"--training.{name} {asked}: the run has {max(has, done * (name == 'steps')):,}: give "
            f"more to train longer, or leave the flag out"
        )
    if asked == has:
        return run  # as when the same command is given again
    if steps is not None:
        check_warmup(run.optimizer.schedule, steps)
    if done and depends_on_length(run.optimizer.schedule):
        log(
            f"the {run.optimizer.schedule.kind} schedule depends on the length of the run, now "
            f"{asked:,} {name}: after step {done} learning rates continue it, and differ from "
            f"those of a run that began with this length"
        )
    length: Any = {name: asked}
    return dataclasses.replace(run, training=dataclasses.replace(training, **length))


def store_length(run: Trained, directory: RunDirectory) -> None:
    """Writes the length to ``config.json`` and to the manifests that it is compared with.

    Args:
        run: The settings, from :func:`lengthen`.
        directory: Of the run.

    Raises:
        CheckpointError: The run cannot be written.
    """
    given = {name: getattr(run.training, name) for name in ("steps", "epochs")}
    lengths = {name: value for name, value in given.items() if value is not None}
    if is_main_process():
        fields = directory.read_config()
        check_lock(directory.path)
        fields["training"] |= lengths
        for step in manifest.steps(directory.checkpoints):
            path = directory.checkpoints / manifest.checkpoint_name(step)
            try:
                said = manifest.read(path)
                said["config"]["training"] |= lengths
                manifest.rewrite(path, said)
            except (CheckpointError, KeyError, TypeError):
                continue  # damaged: set aside when it is read
            except OSError as error:
                raise CheckpointError(f"{path}: cannot be written: {error.strerror}") from None
        directory.write(directory.config, fields)
    sync_global_devices("lengthened")

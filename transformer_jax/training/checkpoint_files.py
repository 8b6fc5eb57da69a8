"""Checkpoints as folders on the disk: their names, and whether their files are as written."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.errors import CheckpointError, no_such_run
from transformer_jax.training import manifest

__all__ = [
    "DAMAGED",
    "FROZEN",
    "SCRATCH",
    "check_checkpoint",
    "check_frozen",
    "checkpoint_name",
    "checkpoints_of",
    "steps",
]

PREFIX = "step_"
SCRATCH = ".orbax-checkpoint-tmp"  # what Orbax adds to the name of a directory in the making
DAMAGED = "damaged_"
FROZEN = "frozen"  # where a run keeps the parameters that it does not train


def checkpoint_name(step: int) -> str:
    """The name of the directory that holds a step.

    Example:
        >>> checkpoint_name(42)
        'step_00000042'
    """
    return f"{PREFIX}{step:08d}"


def steps(directory: Path) -> list[int]:
    """The steps that have a checkpoint directory, newest first, verified or not."""
    try:
        names = [path.name for path in directory.iterdir() if path.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be read: {error.strerror}") from None
    found = (re.fullmatch(rf"{PREFIX}(\d+)", name) for name in names)
    return sorted((int(match[1]) for match in found if match), reverse=True)


def check_checkpoint(
    path: Path, item: str | None = None
) -> tuple[dict[str, Any] | None, str | None]:
    """The manifest of a checkpoint and what is wrong with its files, if anything.

    Args:
        path: The checkpoint.
        item: The one of its items, such as ``params``, whose files are checked; None is all, and
            an empty name none: the manifest alone.

    Raises:
        UnreadableError: A file cannot be read now, so that nothing is known of it.
    """
    try:
        fields = manifest.read(path)
        if path.name != checkpoint_name(int(fields["step"])):
            return fields, f"{path} says that it is step {fields['step']}"
        problem = manifest.find_corruption(path, fields, item)
    except manifest.UnreadableError as error:
        raise manifest.UnreadableError(
            f"{error}: make it readable, or move {path} away to do without this checkpoint"
        ) from None
    except CheckpointError as error:
        return None, str(error)
    return fields, None if problem is None else f"{path}: {problem}"


def checkpoints_of(run: str | os.PathLike[str]) -> Path:
    """The folder of the checkpoints of a run.

    Raises:
        CheckpointError: There is none.
    """
    path = Path(run).absolute()
    if not os.path.isdir(path):
        raise CheckpointError(no_such_run(run))
    if not manifest.exists(path / "checkpoints") or not os.path.isdir(path / "checkpoints"):
        raise CheckpointError(f"{run}: not a run directory (it has no checkpoints/)")
    return path / "checkpoints"


def check_frozen(run: Path, fields: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str | None]:
    """The manifest of the frozen parameters whose digest ``fields`` has, and what is wrong."""
    path = run / FROZEN / checkpoint_name(0)
    if not manifest.exists(path):
        why = "holds what the run does not train: copy it from where the run was trained"
        return None, f"frozen parameters: {path}: is missing, which {why}"
    kept, problem = check_checkpoint(path)
    if problem is None and kept is not None and kept["digest_of_arrays"] != fields["frozen"]:
        problem = f"{path}: its parameters are not those that the run began with"
    return kept, None if problem is None else f"frozen parameters: {problem}"

"""What can be said of the checkpoints of a run without loading any of them into a model."""

import os
from pathlib import Path
from typing import NamedTuple

from transformer_jax.training.published import DAMAGED, SCRATCH
from transformer_jax.training.stored import (
    FROZEN,
    check_checkpoint,
    check_frozen,
    checkpoint_name,
    checkpoints_of,
    not_finite,
    steps,
)

__all__ = ["VerifyResult", "verify"]


class VerifyResult(NamedTuple):
    """What ``verify`` says of one checkpoint."""

    path: Path
    step: int | None
    problem: str | None


def verify(run: str | os.PathLike[str]) -> list[VerifyResult]:
    """What can be said of every checkpoint of a run, newest first; nothing is changed.

    Raises:
        CheckpointError: Not a run directory.
    """
    directory = checkpoints_of(run)
    findings, trained = [], None
    for step in steps(directory):
        path = directory / checkpoint_name(step)
        fields, problem = check_checkpoint(path)
        if problem is None and fields is not None:
            problem, trained = not_finite(path, fields), trained or fields
        if problem is None or path.exists():  # training removes old ones meanwhile
            findings.append(VerifyResult(path, step, problem))
    if trained is not None and "frozen" in trained:
        kept = directory.parent / FROZEN / checkpoint_name(0)
        fields, problem = check_frozen(directory.parent, trained)
        if problem is None and fields is not None:
            problem = not_finite(kept, fields)
        findings.append(VerifyResult(kept.parent, 0, problem))
    for path in sorted(directory.iterdir()):
        if SCRATCH in path.name:
            findings.append(VerifyResult(path, None, f"{path}: a save that did not finish"))
        elif path.name.startswith(DAMAGED):
            findings.append(VerifyResult(path, None, f"{path}: was found damaged and set aside"))
    return findings

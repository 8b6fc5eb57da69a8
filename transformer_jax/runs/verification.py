"""Checks the checkpoints of a run without loading them into a model."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from transformer_jax.core.errors import CheckpointError
from transformer_jax.runs.checkpoint_reader import not_finite
from transformer_jax.runs.checkpoint_score import PROGRESS
from transformer_jax.runs.manifest import (
    DAMAGED,
    FROZEN,
    SCRATCH,
    Manifest,
    UnreadableError,
    check_checkpoint,
    check_frozen,
    checkpoint_name,
    checkpoints_of,
    exists,
    steps,
)
from transformer_jax.runs.run_directory import RunDirectory

__all__ = ["VerifyResult", "verify"]


class VerifyResult(NamedTuple):
    """The result of ``verify`` for one checkpoint.

    Attributes:
        path: The path of the checkpoint, even if missing.
        step: The step; None for leftovers that are never loaded.
        problem: A description of the damage; None if it is good.
        unreadable: Whether it cannot be read now, so its state is unknown.
    """

    path: Path
    step: int | None
    problem: str | None
    unreadable: bool = False


def verify(run: str | os.PathLike[str]) -> list[VerifyResult]:
    """Returns one result per checkpoint of a run, newest first, without changing anything.

    The newest checkpoint and ``results.json`` determine what else must exist: the last and the best
    checkpoint, and frozen parameters.

    Raises:
        CheckpointError: The path is not a run directory, or cannot be listed.
    """
    directory = checkpoints_of(run)
    findings, sound = [], {}
    for step in steps(directory):
        path = directory / checkpoint_name(step)
        found, fields = _checked(path, step)
        if found.problem is None and fields is not None:
            sound[step] = fields
        if found.problem is None or exists(path):  # unless training just removed it
            findings.append(found)
    trained = next(iter(sound.values()), None)
    if trained is not None and "frozen" in trained:
        findings.append(_frozen(directory, trained))
    findings += _missing_checkpoints(directory, sound)
    for path in sorted(directory.iterdir()):
        if SCRATCH in path.name:
            findings.append(VerifyResult(path, None, f"{path}: a save that did not finish"))
        elif path.name.startswith(DAMAGED):
            findings.append(VerifyResult(path, None, f"{path}: was found damaged and set aside"))
    return findings


def _checked(path: Path, step: int) -> tuple[VerifyResult, Manifest | None]:
    try:
        fields, problem = check_checkpoint(path)
    except UnreadableError as error:
        return VerifyResult(path, step, str(error), unreadable=True), None
    if problem is None and fields is not None:
        problem = not_finite(path, fields)
    return VerifyResult(path, step, problem), fields


def _frozen(directory: Path, trained: Manifest) -> VerifyResult:
    kept = directory.parent / FROZEN / checkpoint_name(0)
    try:
        fields, problem = check_frozen(directory.parent, trained)
    except UnreadableError as error:
        return VerifyResult(kept.parent, 0, str(error), unreadable=True)
    if problem is None and fields is not None:
        problem = not_finite(kept, fields)
    return VerifyResult(kept.parent, 0, problem)


def _missing_checkpoints(directory: Path, sound: Mapping[int, Manifest]) -> Iterator[VerifyResult]:
    """Returns the best and the last checkpoint, if their folders are missing."""
    there = steps(directory)
    newest, best = next(iter(sound), None), None
    if newest is not None and there[:1] == [newest]:  # else training has continued
        best = sound[newest].get(PROGRESS, {}).get("best_step", 0)
        if best and best not in there:
            yield _missing(directory, best, f"the best checkpoint according to step {newest}")
    run = RunDirectory(directory.parent)
    try:
        results = run.read_results() if exists(run.results) else {}
    except CheckpointError as error:
        yield VerifyResult(run.results, 0, str(error))
        return
    last, best_score = results.get("steps"), results.get("best")
    if not isinstance(last, int) or (there and there[0] > last):
        return
    if last not in there:
        yield _missing(directory, last, "the last checkpoint according to results.json")
    named = results.get("best_step")
    if isinstance(named, int):
        if named not in (best, last, *there):
            yield _missing(directory, named, "the best checkpoint according to results.json")
    elif (
        isinstance(best_score, dict)
        and sound.keys() == set(there)
        and all(fields.get("score") != best_score for fields in sound.values())
    ):
        shown = f"{best_score.get('name')} {best_score.get('value')}"
        what = f"{run.results}: the checkpoint of its best score, {shown}, is missing"
        yield VerifyResult(run.results, 0, what)


def _missing(directory: Path, step: int, why: str) -> VerifyResult:
    path = directory / checkpoint_name(step)
    return VerifyResult(path, step, f"{path}: is missing, {why}")

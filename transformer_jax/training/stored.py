"""Checkpoints as they lie on the disk: found, verified, read, averaged; nothing is written here."""

import contextlib
import functools
import gc
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.training import manifest, trees

__all__ = [
    "DAMAGED",
    "SCRATCH",
    "Finding",
    "Loaded",
    "Score",
    "checkpoint_name",
    "dispose",
    "examined",
    "explained",
    "load_params",
    "orbax",
    "read_item",
    "score_of",
    "steps",
    "verify",
]

log = logging.getLogger(__name__)

PREFIX = "step_"
SCRATCH = ".orbax-checkpoint-tmp"  # what Orbax adds to the name of a directory in the making
DAMAGED = "damaged_"


class Score(NamedTuple):
    """How good the parameters of a checkpoint are."""

    name: str
    value: float
    better: Literal["lower", "higher"] = "lower"

    def beats(self, other: "Score | None") -> bool:
        """Whether this is better than ``other``; anything is better than nothing or not a number.

        Example:
            >>> Score("loss", 1.0).beats(Score("loss", 2.0))
            True
            >>> Score("sacrebleu", 1.0, "higher").beats(Score("sacrebleu", 2.0, "higher"))
            False
        """
        if not np.isfinite(self.value):
            return False
        if other is None or not np.isfinite(other.value):
            return True
        return self.value < other.value if self.better == "lower" else self.value > other.value


class Loaded(NamedTuple):
    """Parameters for using a model, as nested dictionaries of NumPy arrays."""

    params: dict[Any, Any]
    step: int
    score: Score | None


class Finding(NamedTuple):
    """What ``verify`` says of one checkpoint."""

    path: Path
    step: int | None
    problem: str | None


class _OrbaxRecords(logging.Filter):
    """Keeps Orbax's own log records out of the terminal; failures reach the user as errors."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is someone else's."""
        return "orbax" not in record.pathname and "async_serialize" not in record.getMessage()


def orbax() -> Any:
    """Orbax, imported late (it takes a second) and with its log silenced."""
    import orbax.checkpoint as ocp

    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]
    if not any(isinstance(entry, _OrbaxRecords) for entry in loggers[0].filters):
        for logger in loggers:
            logger.addFilter(_OrbaxRecords())
        sys.unraisablehook = functools.partial(_unless_abandoned, sys.unraisablehook)
    return ocp


def _unless_abandoned(hook: Callable[[Any], Any], unraisable: Any) -> None:
    # After a failed write every other write of the same save reports to an event loop that is
    # gone: up to thousands of tracebacks that say nothing.
    writes = "async_serialize" in repr(unraisable.object)
    if not writes and str(unraisable.exc_value) != "Event loop is closed":
        hook(unraisable)


def dispose(error: BaseException | None) -> None:
    """Ends what a failed save left behind now and quietly, not with a flood at the very end."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
    gc.collect()


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


def score_of(fields: Mapping[str, Any]) -> Score | None:
    """The score that a manifest holds."""
    return Score(**fields["score"]) if fields.get("score") else None


def explained(error: BaseException, what: str) -> CheckpointError:
    """One line out of whatever Orbax, TensorStore or the system raised."""
    number = getattr(error, "errno", None)
    found = re.search(r"(?:os_error_code='|Errno )(\d+)", str(error))
    if number is None and found:
        number = int(found[1])
    if number is None and "RESOURCE_EXHAUSTED" in str(error):
        number = 28
    reason = os.strerror(number) if number else f"{type(error).__name__}: {str(error)[:200]}"
    return CheckpointError(f"{what}: {' '.join(reason.split())}")


def examined(path: Path) -> tuple[dict[str, Any] | None, str | None]:
    """The manifest of a checkpoint and what is wrong with it, if anything."""
    try:
        fields = manifest.read(path)
        if path.name != checkpoint_name(int(fields["step"])):
            return fields, f"{path} says that it is step {fields['step']}"
        problem = manifest.problem(path, fields)
    except CheckpointError as error:
        return None, str(error)
    return fields, None if problem is None else f"{path}: {problem}"


def read_item(directory: Path, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Named leaves out of one Orbax item, in NumPy or with the sharding that each template has.

    Where all are in NumPy, a process of several reads them by itself.
    """
    ocp = orbax()
    told: dict[str, Any] = {}
    placed = [leaf for leaf in leaves.values() if getattr(leaf, "sharding", None) is not None]
    if jax.process_count() > 1 and not placed:
        # By default Orbax waits for the other processes, which may never come here.
        me = jax.process_index()
        told["multiprocessing_options"] = ocp.options.MultiprocessingOptions(
            primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"alone_{me}"
        )

    def arguments(leaf: Any) -> Any:
        sharding = getattr(leaf, "sharding", None)
        if sharding is None:
            return ocp.RestoreArgs(restore_type=np.ndarray)
        return ocp.ArrayRestoreArgs(sharding=sharding, global_shape=leaf.shape, dtype=leaf.dtype)

    handler = ocp.PyTreeCheckpointHandler(**told)
    with contextlib.closing(ocp.Checkpointer(handler, **told)) as reader:
        tree = reader.restore(
            directory,
            args=ocp.args.PyTreeRestore(
                trees.nested(leaves, numbers=False),
                restore_args=trees.nested(
                    {name: arguments(leaf) for name, leaf in leaves.items()}, numbers=False
                ),
            ),
        )
    return trees.named(tree)


def _checkpoints(run: str | os.PathLike[str]) -> Path:
    path = Path(run).absolute()
    if not path.is_dir():
        raise CheckpointError(f"{run}: no such run directory")
    if not (path / "checkpoints").is_dir():
        raise CheckpointError(f"{run}: not a run directory (it has no checkpoints/)")
    return path / "checkpoints"


def load_params(
    run: str | os.PathLike[str],
    which: int | Literal["best", "last"] = "best",
    *,
    average: int = 1,
) -> Loaded:
    """Parameters alone, verified, in host memory: all that using a model needs.

    One checkpoint yields its running average where training kept one; several yield the mean of
    their parameters. A damaged checkpoint is named in the log and the one before it is used.

    Args:
        run: A run directory.
        which: A step, the newest, or the best; the newest where none was scored.
        average: How many checkpoints to average: the chosen one and those before it.

    Raises:
        CheckpointError: Not a run directory, no such step, or nothing that verifies.
    """
    if average < 1:
        raise ConfigError(f"average is {average}: at least 1 checkpoint is needed")
    directory = _checkpoints(run)
    good = _candidates(directory, which)
    if len(good) < average:
        raise CheckpointError(
            f"{run}: {average} checkpoints are to be averaged, but only {len(good)} good ones are "
            f"there: ask for fewer, or keep more while training"
        )
    chosen = good[:average]
    total: dict[str, Any] = {}
    for fields in chosen:
        names = {name for name in fields["tree"] if name.startswith("average/")}
        item = "average" if average == 1 and names else "params"
        leaves = {
            name.removeprefix(item + "/"): jax.ShapeDtypeStruct(leaf["shape"], leaf["dtype"])
            for name, leaf in fields["tree"].items()
            if name.startswith(item + "/")
        }
        path = directory / checkpoint_name(fields["step"])
        try:
            values = read_item(path / item, leaves)
        except Exception as error:
            raise explained(error, f"{path}: verified, but could not be read") from error
        if average == 1:
            total = values
        elif total and {k: v.shape for k, v in total.items()} != {
            k: v.shape for k, v in values.items()
        }:
            raise CheckpointError(f"{path}: differs in shape from the others to be averaged")
        else:
            total = {
                name: total.get(name, 0.0) + value.astype(np.float64) / average
                for name, value in values.items()
            }
    newest = chosen[0]
    params = {
        name: np.asarray(value, newest["tree"].get(f"params/{name}", {}).get("dtype"))
        for name, value in total.items()
    }
    return Loaded(trees.nested(params), newest["step"], score_of(newest))


def _candidates(directory: Path, which: int | Literal["best", "last"]) -> list[dict[str, Any]]:
    """The manifests of good checkpoints, the chosen one first, then those before it."""
    good = []
    problems = []
    for step in steps(directory):
        if isinstance(which, int) and step > which:
            continue
        fields, problem = examined(directory / checkpoint_name(step))
        if problem is None and fields is not None:
            good.append(fields)
        elif problem is not None:
            problems.append(problem)
            log.warning("damaged checkpoint: %s", problem)
            if step == which:
                raise CheckpointError(f"damaged checkpoint: {problem}")
    if isinstance(which, int) and (not good or good[0]["step"] != which):
        there = ", ".join(map(str, reversed(steps(directory)))) or "none"
        raise CheckpointError(f"{directory}: no checkpoint of step {which}: there are {there}")
    if not good:
        reason = "; ".join(problems) or "none was written"
        raise CheckpointError(f"{directory}: no checkpoint can be used: {reason}")
    if which == "best":
        best = 0
        for place, fields in enumerate(good):
            score, top = score_of(fields), score_of(good[best])
            if score is not None and (top is None or not top.beats(score)):
                best = place
        good = good[best:]
    return good


def verify(run: str | os.PathLike[str]) -> list[Finding]:
    """What can be said of every checkpoint of a run, newest first; nothing is changed.

    Raises:
        CheckpointError: Not a run directory.
    """
    directory = _checkpoints(run)
    findings = []
    for step in steps(directory):
        path = directory / checkpoint_name(step)
        findings.append(Finding(path, step, examined(path)[1]))
    for path in sorted(directory.iterdir()):
        if SCRATCH in path.name:
            findings.append(Finding(path, None, f"{path}: a save that did not finish"))
        elif path.name.startswith(DAMAGED):
            findings.append(Finding(path, None, f"{path}: was found damaged and set aside"))
    return findings

"""Reads checkpoints: finds, verifies, loads and averages them, without writing."""

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from jaxtyping import PyTree

from transformer_jax.core import trees
from transformer_jax.core.errors import CheckpointError, ConfigError, command, plural
from transformer_jax.core.numerics import all_finite
from transformer_jax.core.trees import Nested, flatten_dict
from transformer_jax.models.partition import overlay
from transformer_jax.runs import manifest
from transformer_jax.runs.checkpoint_items import explained, read_arrays
from transformer_jax.runs.checkpoint_score import CheckpointScore, score_of
from transformer_jax.runs.manifest import (
    FROZEN,
    Manifest,
    check_checkpoint,
    check_frozen,
    checkpoint_name,
    checkpoints_of,
    steps,
)

__all__ = [
    "Loaded",
    "check_parameters",
    "load_all_parts",
    "load_params",
    "load_parts",
    "not_finite",
    "weights_digest",
]

log = logging.getLogger(__name__)

T = TypeVar("T")
_TRIES = 20  # attempts to read a checkpoint of a run in progress, which removes old ones


class Loaded(NamedTuple):
    """Parameters for using a model, as nested dictionaries of NumPy arrays."""

    params: Nested
    step: int
    score: CheckpointScore | None
    manifest: Manifest  # manifest of the newest checkpoint used, if any
    frozen: Nested  # frozen parameters, if stored separately from checkpoints


def load_params(
    run: str | os.PathLike[str], which: int | Literal["best", "last"] = "best", *, average: int = 1
) -> Loaded:
    """Loads verified parameters, without optimizer state, into host memory.

    For one checkpoint, these are the moving average (EMA) if there is one; for several, the mean of
    their parameters. Adapters are merged into the weights that they change
    (:func:`transformer_jax.models.lora.merged`), and separately trained token rows are inserted
    into their tables. A damaged checkpoint is logged, and the previous one is used. Only the
    required files are read, and training may continue at the same time.

    Args:
        run: A run directory.
        which: A step, the newest, or the best checkpoint, which is the newest if none was scored.
        average: Number of checkpoints to average: the chosen one and its predecessors.

    Raises:
        CheckpointError: The path is not a run directory, the step does not exist, or no checkpoint
            verifies.
    """
    loaded = load_parts(run, which, average=average)
    if not loaded.frozen:
        return loaded
    merge = loaded.manifest.get("merge")
    if merge == "overlay":
        return loaded._replace(params=overlay(loaded.frozen, loaded.params), frozen={})
    if not isinstance(merge, dict):
        raise CheckpointError(
            f"{run}: its model needs more than its parameters: load it with its task "
            f"(transformer_jax.load(path, task))"
        )
    from transformer_jax.models.lora import merged
    from transformer_jax.models.trainable_tokens import put_in, split_rows

    params, rows = split_rows(loaded.params, loaded.frozen)
    plain = put_in(loaded.frozen, rows, merge.get("tokens", ()))
    scale = merge["lora"]["scale"] if "lora" in merge else 1.0
    return loaded._replace(params=merged(params, plain, scale), frozen={})


def weights_digest(
    run: str | os.PathLike[str], which: int | Literal["best", "last"] = "best", *, average: int = 1
) -> str:
    """Returns a checksum of the parameters that :func:`load_params` would return.

    Checkpoints are verified but not loaded.

    Raises:
        CheckpointError: The path is not a run directory, the step does not exist, or no checkpoint
            verifies.
    """
    directory = checkpoints_of(run)
    chosen = _unpruned(directory, lambda: _chosen(directory, which, average))
    said = json.dumps([(_item(one, average), one) for one in chosen], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()


def load_parts(
    run: str | os.PathLike[str], which: int | Literal["best", "last"] = "best", *, average: int = 1
) -> Loaded:
    """Loads trained and frozen parameters separately, but otherwise like :func:`load_params`.

    The reference of a policy is omitted.

    Raises:
        CheckpointError: The path is not a run directory, the step does not exist, or no checkpoint
            verifies.
    """
    return _policy_alone(load_all_parts(run, which, average=average))


def load_all_parts(
    run: str | os.PathLike[str], which: int | Literal["best", "last"] = "best", *, average: int = 1
) -> Loaded:
    """Loads like :func:`load_parts`, including the reference and the reward model of a policy.

    Raises:
        CheckpointError: The path is not a run directory, the step does not exist, or no checkpoint
            verifies.
    """
    if average < 1:
        raise ConfigError(f"average is {average}: at least 1 checkpoint is needed")
    directory = checkpoints_of(run)
    return _unpruned(directory, lambda: _load(directory, which, average))


def _policy_alone(loaded: Loaded) -> Loaded:
    """Removes the reference and reward model of a policy, and the checksum of frozen parameters."""
    how = loaded.manifest.get("merge")
    if not isinstance(how, Mapping) or "policy" not in how:
        return loaded
    fields: Manifest = {**loaded.manifest, "merge": how["policy"]}  # type: ignore[typeddict-item]
    del fields["frozen"]
    return loaded._replace(manifest=fields, frozen=loaded.frozen.get("policy", {}))


def _unpruned(directory: Path, read: Callable[[], T]) -> T:
    """Returns the result of ``read``, retried while training removes the files that it reads.

    Raises:
        CheckpointError: Training removes the files every time.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(_Pruned):
            return read()
    raise CheckpointError(f"{directory}: checkpoints were removed while being read: try again")


class _Pruned(Exception):  # noqa: N818  (the training of the run did what it should)
    """A checkpoint was removed before it was read."""


def _load(directory: Path, which: int | Literal["best", "last"], average: int) -> Loaded:
    chosen = _chosen(directory, which, average)
    total: dict[str, np.ndarray] = {}
    for fields in chosen:
        item = _item(fields, average)
        path = directory / checkpoint_name(fields["step"])
        values = _finite_item(path, fields, item)
        if average == 1:
            total = values
        elif total and {k: v.shape for k, v in total.items()} != {
            k: v.shape for k, v in values.items()
        }:
            raise CheckpointError(f"{path}: differs in shape from other checkpoints to average")
        else:
            total = {
                name: total.get(name, 0.0) + value.astype(np.float64) / average
                for name, value in values.items()
            }
    newest = chosen[0]
    known = newest["tree"]
    params = {
        name: np.asarray(value, known[item]["dtype"] if item in known else None)
        for name, value in total.items()
        for item in [f"params/{name}"]
    }
    return Loaded(
        trees.unflatten_dict(params),
        newest["step"],
        score_of(newest),
        newest,
        _frozen(directory, newest),
    )


def _frozen(directory: Path, fields: Manifest) -> Nested:
    """Loads the frozen parameters that a run stores next to its checkpoints."""
    if "frozen" not in fields:
        return {}
    kept, problem = check_frozen(directory.parent, fields)
    if problem is not None or kept is None:
        raise CheckpointError(problem)
    path = directory.parent / FROZEN / checkpoint_name(0)
    return trees.unflatten_dict(_finite_item(path, kept, "params"))


def _item(fields: Manifest, average: int) -> str:
    """Returns the item with the requested parameters."""
    kept = any(name.startswith("ema_params/") for name in fields["tree"])
    return "ema_params" if average == 1 and kept else "params"


def _chosen(directory: Path, which: int | Literal["best", "last"], average: int) -> list[Manifest]:
    """Returns the manifests of the checkpoints to read, all verified, the requested one first."""
    problems: dict[int, str] = {}
    verified: set[int] = set()
    while True:
        chosen = _candidates(directory, which, problems, average)
        unseen = [fields for fields in chosen if fields["step"] not in verified]
        for fields in unseen:
            problem = _problem(directory, fields["step"], _item(fields, average))[1]
            if problem is not None:
                problems[fields["step"]] = problem
                break
            verified.add(fields["step"])
        else:
            break
    if len(chosen) < average:
        raise CheckpointError(
            f"{directory.parent}: {plural(average, 'checkpoint')} are to be averaged, but there "
            f"are only {len(chosen)} good ones: average fewer, or keep more during training"
        )
    for problem in problems.values():
        log.warning("damaged checkpoint: %s; step %d is used", problem, chosen[0]["step"])
    return chosen


def _problem(directory: Path, step: int, item: str) -> tuple[Manifest | None, str | None]:
    path = directory / checkpoint_name(step)
    try:
        fields, problem = check_checkpoint(path, item)
    except manifest.UnreadableError:
        if manifest.exists(path):
            raise
        raise _Pruned from None
    if problem is not None and not manifest.exists(path):
        raise _Pruned
    return fields, problem


def _finite_item(path: Path, fields: Manifest, item: str) -> dict[str, np.ndarray]:
    """Reads the NumPy arrays of one item of a verified checkpoint.

    Raises:
        CheckpointError: The arrays cannot be read, or contain NaN or infinity.
    """
    names = [
        name.removeprefix(f"{item}/") for name in fields["tree"] if name.startswith(f"{item}/")
    ]
    try:
        values = read_arrays(path / manifest.item_directory(fields, item), names)
    except Exception as error:
        if not path.exists():
            raise _Pruned from error
        raise explained(error, f"{path}: verified, but could not be read") from error
    for name, value in values.items():
        if not all_finite(value):
            raise CheckpointError(
                f"{path}: parameter {name} contains NaN or infinity: use another checkpoint "
                f"(--checkpoint STEP)"
            )
    return values


def not_finite(path: Path, fields: Manifest) -> str | None:
    """Names the non-finite values of a verified checkpoint; None if all are finite."""
    try:
        for item in {name.split("/")[0] for name in fields["tree"]} & {"params", "ema_params"}:
            _finite_item(path, fields, item)
    except (CheckpointError, _Pruned) as error:
        return str(error)
    return None


def _candidates(
    directory: Path, which: int | Literal["best", "last"], problems: dict[int, str], count: int
) -> list[Manifest]:
    """Returns manifests of up to ``count`` good checkpoints: the chosen one, then older ones.

    Only the best needs the manifests of all checkpoints.
    """
    there = steps(directory)
    readable: list[Manifest] = []
    for step in there:
        if isinstance(which, int) and step > which:
            continue
        if which != "best" and len(readable) == count:
            break
        if step not in problems:
            fields, problem = _problem(directory, step, "")
            if problem is None and fields is not None:
                readable.append(fields)
                continue
            problems[step] = str(problem)
        if step == which:
            raise CheckpointError(f"damaged checkpoint: {problems[step]}")
    if isinstance(which, int) and (not readable or readable[0]["step"] != which):
        known = ", ".join(map(str, reversed(there))) or "none"
        raise CheckpointError(f"{directory}: no checkpoint of step {which}: there are {known}")
    if not readable:
        if not problems:
            resume = command("resume", directory.parent)
            raise CheckpointError(
                f"{directory}: the run has no checkpoint yet: wait for the first, or {resume}"
            )
        reason = "; ".join(problems.values())
        raise CheckpointError(f"{directory}: no checkpoint can be used: {reason}")
    first = _best(readable) if which == "best" else 0
    return readable[first : first + count]


def _best(manifests: list[Manifest]) -> int:
    """Returns the index of the best: on ties the oldest; the newest if none was scored."""
    best = 0
    for place, fields in enumerate(manifests):
        score, top = score_of(fields), score_of(manifests[best])
        if score is not None and (top is None or not top.beats(score)):
            best = place
    return best


def check_parameters(
    path: str | os.PathLike[str], expected: PyTree, found: PyTree, otherwise: str
) -> None:
    """Refuses parameters whose names or shapes differ from the model's.

    Args:
        path: The run, for the message.
        expected: The model's parameters, real or abstract.
        found: The parameters of a checkpoint.
        otherwise: End of the message: the source of the expected parameters, and the conclusion.

    Raises:
        CheckpointError: A parameter differs; the message names the first.
    """
    expected, found = (
        {name: tuple(leaf.shape) for name, leaf in flatten_dict(tree).items()}
        for tree in (expected, found)
    )
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise CheckpointError(
                f"{Path(path)}: parameter {name} is {_shape(found.get(name))} in the checkpoint "
                f"and {_shape(expected.get(name))} {otherwise}"
            )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else str(list(shape))

"""Checkpoints as they lie on the disk: found, verified, read, averaged; nothing is written here."""

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import PyTree

from transformer_jax.core import trees
from transformer_jax.core.errors import CheckpointError, ConfigError, command, plural
from transformer_jax.core.numerics import all_finite
from transformer_jax.core.trees import flatten_dict
from transformer_jax.models.partition import overlay
from transformer_jax.runs import manifest
from transformer_jax.runs.checkpoint_items import explained, read_item
from transformer_jax.runs.checkpoint_score import CheckpointScore, score_of
from transformer_jax.runs.manifest import (
    FROZEN,
    check_checkpoint,
    check_frozen,
    checkpoint_name,
    checkpoints_of,
    steps,
)

if TYPE_CHECKING:
    pass

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
_TRIES = 20  # to read a checkpoint of a run in progress, which removes old ones


class Loaded(NamedTuple):
    """Parameters for using a model, as nested dictionaries of NumPy arrays."""

    params: dict[Any, Any]
    step: int
    score: CheckpointScore | None
    manifest: Mapping[str, Any] = {}  # of the newest checkpoint among them, where it has one
    frozen: Mapping[Any, Any] = {}  # what was not trained, where checkpoints do not hold it


def load_params(
    run: str | os.PathLike[str],
    which: int | Literal["best", "last"] = "best",
    *,
    average: int = 1,
) -> Loaded:
    """Parameters alone, verified, in host memory: all that using a model needs.

    One checkpoint yields its moving average (EMA) where training kept one; several yield the
    mean of their parameters. Adapters are merged into the weights that they change
    (:func:`transformer_jax.models.lora.merged`), and rows of tokens that were trained alone are
    put into their tables. A damaged checkpoint is named in the log and the one before it is used.
    Only the files of what is returned are read, and training may continue meanwhile.

    Args:
        run: A run directory.
        which: A step, the newest, or the best; the newest where none was scored.
        average: How many checkpoints to average: the chosen one and those before it.

    Raises:
        CheckpointError: Not a run directory, no such step, or nothing that verifies.
    """
    loaded = load_parts(run, which, average=average)
    if not loaded.frozen:
        return loaded
    merge = loaded.manifest.get("merge")
    if merge == "overlay":
        return loaded._replace(params=overlay(loaded.frozen, loaded.params), frozen={})
    if not isinstance(merge, dict):
        raise CheckpointError(
            f"{run}: its model is not made of its parameters alone: load it with its task "
            f"(transformer_jax.load(path, task))"
        )
    from transformer_jax.models.lora import merged
    from transformer_jax.models.trainable_tokens import put_in, split_rows

    params, rows = split_rows(loaded.params, loaded.frozen)
    plain = put_in(loaded.frozen, rows, merge.get("tokens", ()))
    scale = merge["lora"]["scale"] if "lora" in merge else 1.0
    return loaded._replace(params=merged(params, plain, scale), frozen={})


def weights_digest(
    run: str | os.PathLike[str],
    which: int | Literal["best", "last"] = "best",
    *,
    average: int = 1,
) -> str:
    """A checksum that changes with the parameters that :func:`load_params` returns.

    Checkpoints are verified and not loaded.

    Raises:
        CheckpointError: Not a run directory, no such step, or nothing that verifies.
    """
    directory = checkpoints_of(run)
    chosen = _unpruned(directory, lambda: _chosen(directory, which, average))
    said = json.dumps([(_item(one, average), one) for one in chosen], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()


def load_parts(
    run: str | os.PathLike[str],
    which: int | Literal["best", "last"] = "best",
    *,
    average: int = 1,
) -> Loaded:
    """Loads trained and frozen parameters apart; otherwise like :func:`load_params`.

    The reference that a policy was trained beside is left out.

    Raises:
        CheckpointError: Not a run directory, no such step, or nothing that verifies.
    """
    return _policy_alone(load_all_parts(run, which, average=average))


def load_all_parts(
    run: str | os.PathLike[str], which: int | Literal["best", "last"] = "best", *, average: int = 1
) -> Loaded:
    """Loads like :func:`load_parts`, with the reference and the reward model of a policy.

    Raises:
        CheckpointError: Not a run directory, no such step, or nothing that verifies.
    """
    if average < 1:
        raise ConfigError(f"average is {average}: at least 1 checkpoint is needed")
    directory = checkpoints_of(run)
    return _unpruned(directory, lambda: _load(directory, which, average))


def _policy_alone(loaded: Loaded) -> Loaded:
    """Without what lies beside a policy; its manifest then has no checksum of what was frozen."""
    how = loaded.manifest.get("merge")
    if not isinstance(how, Mapping) or "policy" not in how:
        return loaded
    fields = {name: value for name, value in loaded.manifest.items() if name != "frozen"}
    fields["merge"] = how["policy"]
    return loaded._replace(manifest=fields, frozen=loaded.frozen.get("policy", {}))


def _unpruned(directory: Path, read: Callable[[], T]) -> T:
    """Returns the result of ``read``, repeated while training removes the files that it reads.

    Raises:
        CheckpointError: Training always does.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(_Pruned):
            return read()
    raise CheckpointError(f"{directory}: checkpoints vanish while they are read: try again")


class _Pruned(Exception):  # noqa: N818  (the training of the run did what it should)
    """A checkpoint was removed between finding and reading it."""


def _load(directory: Path, which: int | Literal["best", "last"], average: int) -> Loaded:
    chosen = _chosen(directory, which, average)
    total: dict[str, Any] = {}
    for fields in chosen:
        item = _item(fields, average)
        path = directory / checkpoint_name(fields["step"])
        values = _finite_item(path, fields, item)
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
    return Loaded(
        trees.unflatten_dict(params),
        newest["step"],
        score_of(newest),
        newest,
        _frozen(directory, newest),
    )


def _frozen(directory: Path, fields: Mapping[str, Any]) -> dict[Any, Any]:
    """Loads the parameters that a partly trained run keeps next to its checkpoints."""
    if "frozen" not in fields:
        return {}
    kept, problem = check_frozen(directory.parent, fields)
    if problem is not None or kept is None:
        raise CheckpointError(problem)
    path = directory.parent / FROZEN / checkpoint_name(0)
    return trees.unflatten_dict(_finite_item(path, kept, "params"))


def _item(fields: Mapping[str, Any], average: int) -> str:
    """Returns the item that holds the requested parameters."""
    kept = any(name.startswith("ema_params/") for name in fields["tree"])
    return "ema_params" if average == 1 and kept else "params"


def _chosen(
    directory: Path, which: int | Literal["best", "last"], average: int
) -> list[dict[str, Any]]:
    """The manifests of the checkpoints to read, all verified, the one asked for first."""
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
            f"{directory.parent}: {plural(average, 'checkpoint')} are to be averaged, but only "
            f"{len(chosen)} good ones are there: ask for fewer, or keep more while training"
        )
    for problem in problems.values():
        log.warning("damaged checkpoint: %s; step %d is used", problem, chosen[0]["step"])
    return chosen


def _problem(directory: Path, step: int, item: str) -> tuple[dict[str, Any] | None, str | None]:
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


def _finite_item(path: Path, fields: Mapping[str, Any], item: str) -> dict[str, Any]:
    """The arrays of one item of a verified checkpoint, in NumPy.

    Raises:
        CheckpointError: They cannot be read, or hold NaN or infinity.
    """
    leaves = {
        name.removeprefix(item + "/"): jax.ShapeDtypeStruct(leaf["shape"], leaf["dtype"])
        for name, leaf in fields["tree"].items()
        if name.startswith(item + "/")
    }
    try:
        values = read_item(path / manifest.item_directory(fields, item), leaves)
    except Exception as error:
        if not path.exists():
            raise _Pruned from error
        raise explained(error, f"{path}: verified, but could not be read") from error
    for name, value in values.items():
        if not all_finite(value):
            raise CheckpointError(
                f"{path}: parameter {name} holds NaN or infinity: use another checkpoint "
                f"(--checkpoint STEP)"
            )
    return values


def not_finite(path: Path, fields: Mapping[str, Any]) -> str | None:
    """Names the values of a verified checkpoint that are not finite; None if all are."""
    try:
        for item in {name.split("/")[0] for name in fields["tree"]} & {"params", "ema_params"}:
            _finite_item(path, fields, item)
    except (CheckpointError, _Pruned) as error:
        return str(error)
    return None


def _candidates(
    directory: Path, which: int | Literal["best", "last"], problems: dict[int, str], count: int
) -> list[dict[str, Any]]:
    """The manifests of ``count`` checkpoints without ``problems``: the chosen one, then older ones.

    There may be fewer. The best is known by all manifests, others without those of older ones.
    """
    there = steps(directory)
    readable: list[dict[str, Any]] = []
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


def _best(manifests: list[dict[str, Any]]) -> int:
    """The place of the best of them: the oldest among equals, the newest if none was scored."""
    best = 0
    for place, fields in enumerate(manifests):
        score, top = score_of(fields), score_of(manifests[best])
        if score is not None and (top is None or not top.beats(score)):
            best = place
    return best


def check_parameters(
    path: str | os.PathLike[str], expected: PyTree, found: PyTree, otherwise: str
) -> None:
    """Refuses parameters of other names or shapes than a model has.

    Args:
        path: The run, for the message.
        expected: The model's parameters, real or abstract.
        found: Those of a checkpoint.
        otherwise: End of the message: where the expected ones come from, and what that means.

    Raises:
        CheckpointError: It names the first that differs.
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

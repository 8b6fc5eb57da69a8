"""Frozen parameters: stored once per run, next to the checkpoints of trainable ones."""

import shutil
from pathlib import Path

import jax
import numpy as np
import optax
from jax.sharding import NamedSharding
from jaxtyping import PyTree

from transformer_jax.core.errors import CheckpointError
from transformer_jax.core.trees import flatten_dict
from transformer_jax.models.partition import Partition, overlay
from transformer_jax.parallel.mesh import is_main_process, sync_global_devices
from transformer_jax.parallel.sharding import replicated
from transformer_jax.runs.checkpoint import Checkpointer, Restored
from transformer_jax.runs.config_guard import latest_manifest
from transformer_jax.runs.manifest import FROZEN, check_frozen
from transformer_jax.training.state import TrainState, digest

__all__ = ["describe", "restore", "write"]


def describe(checkpointer: Checkpointer, frozen: PyTree, partition: Partition) -> None:
    """Records the checksum of the frozen parameters in every new manifest."""
    if jax.tree.leaves(frozen):
        checkpointer.describe["frozen"] = digest(frozen)
        if partition.stored is not None:
            checkpointer.describe["merge"] = partition.stored


def write(run: Path, frozen: PyTree) -> None:
    """Writes the frozen parameters of a run, before its first step.

    Raises:
        CheckpointError: The parameters cannot be written.
    """
    if not jax.tree.leaves(frozen):
        return
    if is_main_process():
        shutil.rmtree(run / FROZEN, ignore_errors=True)
    sync_global_devices("frozen parameters are cleared")
    writer = Checkpointer(run / FROZEN, describe={"digest_of_arrays": digest(frozen)})
    try:
        writer.save(0, _as_state(frozen))
    finally:
        writer.close()


def _as_state(frozen: PyTree) -> TrainState:
    where = jax.tree.leaves(frozen)[0].sharding
    # Several processes can only write and read arrays on the devices of all processes.
    where = replicated(where.mesh) if isinstance(where, NamedSharding) else where
    return TrainState(jax.device_put(np.zeros((), np.int32), where), frozen, {})


def restore(
    checkpointer: Checkpointer, run: Path, shapes: TrainState, frozen: PyTree
) -> tuple[Restored, PyTree] | None:
    """Restores the newest good checkpoint of a run, and its frozen parameters, or None.

    Runs of earlier versions have the frozen parameters in each checkpoint; these are read, and then
    stored once.

    Args:
        checkpointer: Checkpointer of the run.
        run: Directory of the run.
        shapes: The state to restore, as ``jax.ShapeDtypeStruct`` with shardings.
        frozen: The same for the frozen parameters.

    Raises:
        CheckpointError: All checkpoints are damaged or belong to another model, or the frozen
            parameters are missing or damaged.
    """
    if not jax.tree.leaves(frozen):
        restored = checkpointer.restore(shapes)
        return None if restored is None else (restored, frozen)
    manifest = latest_manifest(run)
    if manifest is not None and "frozen" not in manifest:
        return _earlier(checkpointer, run, shapes, frozen)
    restored = checkpointer.restore(shapes)
    if restored is None:
        return None
    _, problem = check_frozen(run, restored.manifest)
    if problem is not None:
        raise CheckpointError(problem)
    reader = Checkpointer(run / FROZEN)
    try:
        found = reader.restore(_as_state(frozen))
    finally:
        reader.close()
    assert found is not None
    return restored, found.state.params


def _earlier(
    checkpointer: Checkpointer, run: Path, shapes: TrainState, frozen: PyTree
) -> tuple[Restored, PyTree] | None:
    """Restores a checkpoint with all parameters, split into trainable and frozen."""
    whole = lambda part: None if part is None else overlay(frozen, part)
    template = shapes._replace(
        params=whole(shapes.params),
        opt_state=optax.MaskedState(shapes.opt_state),
        ema_params=whole(shapes.ema_params),
    )
    restored = checkpointer.restore(template)
    if restored is None:
        return None
    state = restored.state
    state = state._replace(
        params=_like(shapes.params, state.params),
        opt_state=state.opt_state.inner_state,
        ema_params=None
        if shapes.ema_params is None
        else _like(shapes.ema_params, state.ema_params),
    )
    still = _like(frozen, restored.state.params)
    write(run, still)
    return restored._replace(state=state), still


def _like(shapes: PyTree, params: PyTree) -> PyTree:
    """Returns the part of ``params`` with the structure of ``shapes``."""
    leaves = flatten_dict(params)
    return jax.tree.unflatten(
        jax.tree.structure(shapes), [leaves[name] for name in flatten_dict(shapes)]
    )

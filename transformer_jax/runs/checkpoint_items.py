"""Training states as named arrays in items of Orbax checkpoints; Orbax is imported late."""

import contextlib
import functools
import gc
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np
from jaxtyping import PyTree

from transformer_jax.core import trees
from transformer_jax.core.errors import CheckpointError
from transformer_jax.runs.manifest import ArrayRecord, Manifest

if TYPE_CHECKING:
    from orbax.checkpoint import RestoreArgs

__all__ = [
    "check_fit",
    "device_count",
    "dispose",
    "explained",
    "is_utf8",
    "items_of",
    "orbax",
    "read_arrays",
    "read_item",
    "state_of",
    "tree_of",
]

_INDEX = 100_000_000  # bytes
_WRITES = re.compile("_serialize|orbax")  # in the names of Orbax's coroutines and their files


# An array, or what is known of one before it is read.
Leaf: TypeAlias = jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct


class _OrbaxRecords(logging.Filter):
    """Keeps Orbax's log records out of the terminal; failures are raised as errors."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a record is not from Orbax."""
        return "orbax" not in record.pathname and not _WRITES.search(record.getMessage())


def orbax() -> Any:
    """Imports Orbax, which takes a second, and silences its log."""
    import orbax.checkpoint as ocp

    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]
    if not any(isinstance(entry, _OrbaxRecords) for entry in loggers[0].filters):
        for logger in loggers:
            logger.addFilter(_OrbaxRecords())
        sys.unraisablehook = functools.partial(_unless_abandoned, sys.unraisablehook)
    return ocp


def _unless_abandoned(
    hook: "Callable[[sys.UnraisableHookArgs], object]", unraisable: "sys.UnraisableHookArgs"
) -> None:
    # After a failed write, all other writes of the same save report to a closed event loop: up to
    # thousands of useless tracebacks.
    if (
        not _WRITES.search(repr(unraisable.object))
        and str(unraisable.exc_value) != "Event loop is closed"
    ):
        hook(unraisable)


def dispose(error: BaseException | None) -> None:
    """Finalizes the leftovers of a failed save now, without tracebacks at exit."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
    gc.collect()


def explained(error: BaseException, what: str) -> CheckpointError:
    """Formats an exception of Orbax, TensorStore or the system as one line."""
    number = getattr(error, "errno", None)
    found = re.search(r"(?:os_error_code='|Errno )(\d+)", str(error))
    if number is None and found:
        number = int(found[1])
    if number is None and "RESOURCE_EXHAUSTED" in str(error):
        number = 28
    told = getattr(error, "strerror", None)  # for an object store, more informative than the number
    known = told or (os.strerror(number) if number else None)
    reason = known or f"{type(error).__name__}: {str(error)[:200]}"
    return CheckpointError(f"{what}: {' '.join(reason.split())}")


def is_utf8(path: Path) -> bool:
    """Returns whether a path is UTF-8, as Orbax needs."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


@contextlib.contextmanager
def _in_utf8(directory: Path) -> Iterator[Path]:
    """Context manager: a path of an existing folder in UTF-8, without ``..``.

    Orbax needs the one, TensorStore both.
    """
    directory = directory.resolve()
    if is_utf8(directory):
        yield directory
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        yield Path(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)


def read_arrays(directory: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Reads arrays of one Orbax item by name, without Orbax, whose import takes longer.

    An item in another layout than Orbax's own of today is read by Orbax.
    """
    import tensorstore

    layout = json.loads((directory / "_METADATA").read_text())
    if not layout.get("use_ocdbt") or layout.get("use_zarr3"):
        return read_item(directory, dict.fromkeys(names, np.zeros(())))
    # The index, which all arrays share, is read once.
    context = tensorstore.Context({"cache_pool": {"total_bytes_limit": _INDEX}})
    with _in_utf8(directory) as path:
        base = {"driver": "file", "path": f"{path}/"}
        arrays = {
            name: tensorstore.open(
                {
                    "driver": "zarr",
                    "kvstore": {
                        "driver": "ocdbt",
                        "base": base,
                        "path": f"{name.replace('/', '.')}/",
                    },
                },
                context=context,
                open=True,
                read=True,
            )
            for name in names
        }
        read = {name: array.result().read() for name, array in arrays.items()}
        return {name: values.result() for name, values in read.items()}


def read_item(directory: Path, leaves: Mapping[str, Leaf]) -> dict[str, PyTree]:
    """Reads the leaves of one Orbax item, as NumPy arrays or with the sharding of each template.

    One of several processes can read NumPy arrays alone.
    """
    ocp = orbax()
    options: dict[str, object] = {}
    placed = [leaf for leaf in leaves.values() if getattr(leaf, "sharding", None) is not None]
    if jax.process_count() > 1 and not placed:
        # By default, Orbax waits for the other processes, which may never get here.
        me = jax.process_index()
        options["multiprocessing_options"] = ocp.options.MultiprocessingOptions(
            primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"alone_{me}"
        )

    def arguments(leaf: Leaf) -> "RestoreArgs":
        sharding = getattr(leaf, "sharding", None)
        if sharding is None:
            return ocp.RestoreArgs(restore_type=np.ndarray)
        return ocp.ArrayRestoreArgs(sharding=sharding, global_shape=leaf.shape, dtype=leaf.dtype)

    handler = ocp.PyTreeCheckpointHandler(**options)
    opened = contextlib.closing(ocp.Checkpointer(handler, **options))
    with opened as reader, _in_utf8(directory) as path:
        tree = reader.restore(
            path,
            args=ocp.args.PyTreeRestore(
                trees.unflatten_dict(leaves, numbers=False),
                restore_args=trees.unflatten_dict(
                    {name: arguments(leaf) for name, leaf in leaves.items()}, numbers=False
                ),
            ),
        )
    return trees.flatten_dict(tree)


def items_of(state: PyTree) -> dict[str, dict[str, Leaf]]:
    """Returns a state as Orbax items of named leaves.

    Parameters are a separate item, so that they can be read alone.
    """
    items = {
        "params": trees.flatten_dict(state.params),
        "optimizer": trees.flatten_dict({"step": state.step, "state": state.opt_state}),
    }
    if state.ema_params is not None:
        items["ema_params"] = trees.flatten_dict(state.ema_params)
    return items


def state_of(template: PyTree, items: Mapping[str, Mapping[str, jax.Array]]) -> PyTree:
    """Returns ``template`` with the leaves of Orbax items."""
    rest = trees.with_leaves(
        {"step": template.step, "state": template.opt_state}, items["optimizer"]
    )
    ema = template.ema_params
    return template._replace(
        step=rest["step"],
        params=trees.with_leaves(template.params, items["params"]),
        opt_state=rest["state"],
        ema_params=None if ema is None else trees.with_leaves(ema, items["ema_params"]),
    )


def device_count(leaf: Leaf) -> int:
    """Returns the number of devices that hold a leaf."""
    return len(leaf.sharding.device_set) if isinstance(leaf, jax.Array) else 1


def tree_of(items: Mapping[str, Mapping[str, Leaf]]) -> dict[str, ArrayRecord]:
    """Returns shape and type of every leaf, for a manifest."""
    return {
        f"{item}/{name}": {"shape": list(leaf.shape), "dtype": str(np.dtype(leaf.dtype))}
        for item, leaves in items.items()
        for name, leaf in leaves.items()
    }


def check_fit(path: Path, fields: Manifest, items: Mapping[str, Mapping[str, Leaf]]) -> None:
    """Refuses a checkpoint whose leaves differ from ``items``.

    Args:
        path: The checkpoint, for the message.
        fields: The manifest of the checkpoint.
        items: The state to restore, as :func:`items_of` returns it.

    Raises:
        CheckpointError: A leaf is missing or unexpected, or has another shape or type.
    """
    stored = fields["tree"]
    wanted = tree_of(items)
    for name, leaf in wanted.items():
        if name not in stored:
            raise CheckpointError(
                f"{path}: has no {name}: it was written with another model or optimizer"
            )
        if stored[name] != leaf:
            was = f"{stored[name]['dtype']}{stored[name]['shape']}"
            raise CheckpointError(
                f"{path}: {name} is {was}, but this model has {leaf['dtype']}{leaf['shape']}"
            )
    extra = [name for name in stored if name.split("/")[0] in items and name not in wanted]
    if extra:
        raise CheckpointError(
            f"{path}: unexpected {extra[0]}: saved with another model or optimizer"
        )

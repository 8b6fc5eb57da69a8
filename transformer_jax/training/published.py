"""What of a run is kept where its directory is: all but locks, drafts and caches."""

import os

from transformer_jax.storage.copies import EXPORTS, Storage, storage_of
from transformer_jax.training.stored import DAMAGED, SCRATCH

__all__ = ["run_storage"]

DELETING = "deleting_"  # what a checkpoint is called while it is deleted
_CACHES = ("store", "launch-logs", *EXPORTS)


def _private(name: str) -> bool:
    """Whether a path below a run directory is of this machine alone.

    Example:
        >>> [_private(n) for n in ("lock.json", "store/a", "checkpoints/step_1/manifest.json")]
        [True, True, False]
    """
    first, *_ = parts = name.split("/")
    return (
        first in (*_CACHES, "lock.json")
        or name.endswith(".tmp")
        or any(part.startswith((".", DELETING, DAMAGED)) or SCRATCH in part for part in parts)
    )


def run_storage(folder: str | os.PathLike[str]) -> Storage:
    """Where the run in a folder is kept.

    Example:
        >>> type(run_storage("runs/base")).__name__
        'LocalStorage'
    """
    return storage_of(folder, _private)

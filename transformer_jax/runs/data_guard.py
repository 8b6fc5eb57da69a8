"""Compares the data of a resumed run with the checksums in its checkpoints' manifests."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.core.errors import DataError

__all__ = ["refuse_changed_data"]


def refuse_changed_data(
    run: Path, said: Mapping[str, Any], fingerprints: Sequence[str], inputs: Mapping[str, str]
) -> None:
    """Refuses to resume a run on other data than it began with, however they are read.

    Args:
        run: The run directory, for the message.
        said: The manifest's ``data``; manifests of earlier versions have no ``inputs``.
        fingerprints: Checksums of the training data, in this version and in earlier ones.
        inputs: Checksums of all else that the run reads, by name, such as "the validation data".

    Raises:
        DataError: One of the checksums differs.

    Example:
        >>> data = {"fingerprint": "a", "inputs": {"the validation data": "b"}}
        >>> refuse_changed_data(Path("runs/a"), data, ["a"], {"the validation data": "c"})
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.DataError: runs/a: the validation data have changed since the \
run began: restore them, or begin a new run
    """
    was = said["fingerprint"]
    checked = [("the training data", was, was if was in fingerprints else fingerprints[0])]
    checked += [(name, was, inputs.get(name, was)) for name, was in said.get("inputs", {}).items()]
    for name, was, now in checked:
        if was != now:
            raise DataError(
                f"{run}: {name} have changed since the run began: restore them, or begin a new run"
            )

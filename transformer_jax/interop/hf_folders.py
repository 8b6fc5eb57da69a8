"""Folders of Hugging Face checkpoints, told from runs of this library."""

import os
from pathlib import Path

from transformer_jax.core.errors import CheckpointError
from transformer_jax.interop.config_reader import read_config
from transformer_jax.interop.tensor_files import INDEX, WEIGHTS

__all__ = ["is_hf_checkpoint"]


def is_hf_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Returns whether a folder is a Hugging Face checkpoint rather than a run.

    It has weights, or a configuration that names its family.

    Raises:
        CheckpointError: Its configuration cannot be read.
    """
    folder = Path(path)
    if not os.path.isfile(folder / "config.json"):  # also where no path can be so long
        return False
    weights = any((folder / name).exists() for name in (WEIGHTS, INDEX))
    try:
        values = read_config(folder / "config.json").values
    except CheckpointError:
        if weights:
            raise
        return False  # errors in the configuration of a run are reported when it is read
    # A run that was made of one remembers its configuration within its own.
    return not isinstance(values.get("model"), dict) and (weights or "model_type" in values)

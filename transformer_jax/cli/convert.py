"""``transformer-jax convert``: Hugging Face checkpoints as run directories."""

import dataclasses
from pathlib import Path

import tyro

from transformer_jax.cli.output import wrote
from transformer_jax.core.config_fields import Configuration
from transformer_jax.core.errors import plural

__all__ = ["Convert"]


@dataclasses.dataclass(frozen=True)
class Convert(Configuration, group="--"):
    """Convert a Hugging Face checkpoint (config.json, model.safetensors) to a run directory.

    Every command also accepts the folder itself; a run directory is verified whenever it is used.
    """

    folder: tyro.conf.Positional[Path]
    """Folder of the checkpoint."""
    run: tyro.conf.Positional[Path]
    """Run directory to create, on a local disk."""
    overwrite: bool = False
    """Replace an existing run."""

    def __call__(self) -> int:
        """Converts the checkpoint and prints a summary line."""
        from transformer_jax.core.storage.copies import fetched
        from transformer_jax.interop.hf_checkpoint import open_hf_checkpoint
        from transformer_jax.interop.hf_run_directory import convert

        source = fetched(self.folder)
        folder = open_hf_checkpoint(source)
        count = convert(source, self.run, overwrite=self.overwrite)
        kind = f"{folder.fields.values['model_type']}, {folder.model.kind}"
        size = f"{plural(count, 'parameter')} ({count / 1e6:.2f} M)"
        tensors = plural(len(folder.tensors.entries), "tensor")
        wrote(self.run, what=f"{kind}: {size} of {tensors}")
        return 0

"""``transformer-jax convert``: a published checkpoint as a run directory."""

import dataclasses
import sys
from pathlib import Path

import tyro

__all__ = ["Convert"]


@dataclasses.dataclass(frozen=True)
class Convert:
    """Make a run directory of a published checkpoint (config.json and model.safetensors).

    Every command also takes the folder itself; a run directory is verified whenever it is used.
    """

    folder: tyro.conf.Positional[Path]
    """The folder of the published checkpoint."""
    run: tyro.conf.Positional[Path]
    """The run directory to make."""
    overwrite: bool = False
    """Whether a run that is there already is deleted."""

    def __call__(self) -> int:
        """Says what was converted."""
        from transformer_jax.interop.folder import open_folder
        from transformer_jax.interop.runs import convert

        folder = open_folder(self.folder)
        count = convert(self.folder, self.run, overwrite=self.overwrite)
        print(
            f"{folder.fields.values['model_type']}, {folder.model.kind}: {count:,} parameters "
            f"({count / 1e6:.2f} M) of {len(folder.tensors.entries)} tensors",
            file=sys.stderr,
        )
        print(f"run: {self.run}")
        return 0

"""``transformer-jax merge``: adapters merged into their base as a run of plain weights."""

import dataclasses
from pathlib import Path

import tyro

from transformer_jax.cli.output import wrote
from transformer_jax.cli.support.run_command import CheckpointCommand
from transformer_jax.core.config_fields import OutputPath
from transformer_jax.core.errors import ConfigError, plural

__all__ = ["Merge"]


@dataclasses.dataclass(frozen=True)
class Merge(CheckpointCommand):
    """Merge adapters into the weights that they change, or extract the base of a run."""

    run: tyro.conf.Positional[Path]
    """Run directory with adapters (trained with --lora.rank). With --adapter: the base, a run or a
    Hugging Face folder."""
    output: OutputPath
    """Run directory to create, with equivalent plain weights."""
    adapter: Path | None = None
    """Adapter to merge into the base: a folder in PEFT's format, or a run trained on that base."""
    unmerge: bool = False
    """Write the base without the adapters instead, bit for bit as it was."""
    overwrite: bool = False
    """Replace an existing run."""

    def __call__(self) -> int:
        """Merges, and prints a summary line."""
        if self.adapter is not None and self.unmerge:
            raise ConfigError("--unmerge and --adapter exclude each other: give one of them")
        from transformer_jax.inference.merging import write_merged, write_with_adapter

        if self.adapter is not None:
            done = write_with_adapter(
                self.run,
                self.adapter,
                self.output,
                self.checkpoint,
                overwrite=self.overwrite,
                opening=self.opening(),
            )
        else:
            done = write_merged(
                self.run,
                self.output,
                self.checkpoint,
                unmerge=self.unmerge,
                overwrite=self.overwrite,
                opening=self.opening(),
            )
        what = "the base of" if self.unmerge else "merged:"
        wrote(self.output, what=f"{what} {plural(done, 'adapter')}")
        return 0

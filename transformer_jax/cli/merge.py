"""``transformer-jax merge``: a run with adapters as a run of plain weights."""

import dataclasses
from pathlib import Path

import tyro

from transformer_jax.cli.output import wrote
from transformer_jax.cli.run_command import RunCommand
from transformer_jax.errors import plural

__all__ = ["Merge"]


@dataclasses.dataclass(frozen=True)
class Merge(RunCommand):
    """Merge the adapters of a run into its weights, or take its base out again."""

    run: tyro.conf.Positional[Path]
    """Run directory with adapters (trained with --lora.rank)."""
    output: Path
    """Run directory to create: plain weights that compute the same."""
    checkpoint: str = "best"
    """Checkpoint: best, last, a step number, or average:N (mean of the last N)."""
    unmerge: bool = False
    """Write the base without the adapters instead, as it was before, bit for bit."""
    overwrite: bool = False
    """Replace an existing run."""

    def __call__(self) -> int:
        """Merges and prints a line about it."""
        from transformer_jax.predictors.adapters import write_merged

        done = write_merged(
            self.run,
            self.output,
            self.checkpoint,
            unmerge=self.unmerge,
            overwrite=self.overwrite,
        )
        what = "the base of" if self.unmerge else "merged:"
        wrote(self.output, what=f"{what} {plural(done, 'adapter')}")
        return 0

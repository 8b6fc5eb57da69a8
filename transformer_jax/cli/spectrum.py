"""``transformer-jax spectrum``: the singular values of adapters' weight changes."""

import dataclasses
from pathlib import Path

import tyro

from transformer_jax.cli.output import check_file, writing, wrote
from transformer_jax.cli.support.run_command import CheckpointCommand
from transformer_jax.core.config_fields import OutputPath

__all__ = ["Spectrum"]


@dataclasses.dataclass(frozen=True)
class Spectrum(CheckpointCommand):
    """Print and draw the singular values of the weight changes by a run's adapters."""

    run: tyro.conf.Positional[Path]
    """Run directory with adapters (trained with --lora.rank)."""
    output: OutputPath | None = None
    """Output file of the picture: .png, .svg or .html."""

    def __call__(self) -> int:
        """Prints a line per linear map, and writes the picture."""
        from transformer_jax.visual.figures import SUFFIXES

        check_file("--output", self.output, SUFFIXES)
        from transformer_jax.inference.merging import kernel_changes
        from transformer_jax.visual.charts import plot_spectra, spectra

        changes, rank = kernel_changes(self.run, self.checkpoint, self.opening())
        found = spectra(changes, rank)
        for name, values in found.items():
            print(name, *(f"{value:.4g}" for value in values))
        if self.output is not None:
            with writing("--output", self.output):
                plot_spectra(found, self.output, title=f"Changes of weights by {self.run}")
            wrote(self.output)
        return 0

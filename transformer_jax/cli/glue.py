"""The command ``glue``: GLUE's table, with the scores of runs."""

import dataclasses

import tyro

from transformer_jax.core.config_fields import Configuration

__all__ = ["Glue"]


@dataclasses.dataclass(frozen=True)
class Glue(Configuration, group="--"):
    """Print GLUE's table, with the scores of runs as a row."""

    runs: tyro.conf.Positional[tuple[str, ...]] = ()
    """COLUMN=RUN, such as SST-2=runs/sst."""

    def __call__(self) -> int:
        """Prints the published rows and the row of the runs."""
        from transformer_jax.recipes import glue_table

        print(glue_table.glue(self.runs))
        return 0

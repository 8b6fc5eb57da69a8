"""``transformer-jax verify``: are the files of a run what they were when they were written?"""

import dataclasses
import sys
from pathlib import Path

import tyro

from transformer_jax.errors import CheckpointError

__all__ = ["Verify"]


@dataclasses.dataclass(frozen=True)
class Verify:
    """Check every checkpoint of a run against its manifest; exit code 4 if any is damaged."""

    run: tyro.conf.Positional[Path]
    """The run directory."""

    def __call__(self) -> int:
        """One line for each checkpoint, newest first; 4 if one is damaged or there is none."""
        from transformer_jax.training.run_directory import RunDirectory
        from transformer_jax.training.stored import verify

        run = RunDirectory.open(self.run)
        run.read_config()
        findings = verify(self.run)
        for finding in findings:
            said = "ok" if finding.problem is None else finding.problem
            print(f"{finding.path.name}\t{said}")
        sys.stdout.flush()
        # What a stopped save left over, and what was set aside before, is not used by anything.
        checked = [finding for finding in findings if finding.step is not None]
        damaged = [finding.path.name for finding in checked if finding.problem]
        if damaged:
            raise CheckpointError(
                f"{self.run}: {len(damaged)} of {len(checked)} checkpoints damaged: "
                f"{', '.join(damaged)}"
            )
        if not checked:
            raise CheckpointError(f"{self.run}: there is no checkpoint")
        return 0

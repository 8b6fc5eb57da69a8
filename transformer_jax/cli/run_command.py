"""What all commands have in common that use a run."""

import dataclasses

__all__ = ["RunCommand"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunCommand:
    """A command that uses a run, which refuses one whose configuration is not its own."""

    allow_changed_config: bool = False
    """Use a run whose config.json was changed after training."""

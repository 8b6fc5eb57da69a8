"""The flags that all commands with a run share."""

import dataclasses

__all__ = ["RunCommand"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunCommand:
    """A command that uses a run; it refuses a changed ``config.json``."""

    allow_changed_config: bool = False
    """Use a run whose config.json was changed after training."""

"""The flags that all commands with a run share."""

import dataclasses
from typing import TYPE_CHECKING, Literal

from transformer_jax.core.config_fields import Configuration, Count
from transformer_jax.core.errors import ConfigError

if TYPE_CHECKING:
    from transformer_jax.inference.facts import Opening

__all__ = ["CheckpointCommand", "MeshFlags", "PictureFlags", "PredictionCommand", "RunCommand"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunCommand(Configuration, group="--"):
    """A command that uses a run; it refuses a changed ``config.json``."""

    allow_changed_config: bool = False
    """Use a run whose config.json was changed after training."""

    def opening(self) -> "Opening":
        """Returns how the command opens its models."""
        from transformer_jax.inference.facts import Opening

        return Opening(self.allow_changed_config)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointCommand(RunCommand):
    """A command that reads the parameters of a run."""

    checkpoint: str = "best"
    """Checkpoint: best, last, a step number, or average:N (mean of the last N)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PictureFlags(Configuration, group="--"):
    """The flags of commands that may read pictures."""

    skip_bad_pictures: bool = False
    """Leave out pictures that cannot be read, and name them, instead of refusing them."""

    def refuse_skipping(self, what: str) -> None:
        """Refuses the flag for a model or input without pictures.

        Args:
            what: The input.

        Raises:
            ConfigError: The flag is given.
        """
        if self.skip_bad_pictures:
            raise ConfigError(f"--skip-bad-pictures is for pictures, not {what}: leave it out")


@dataclasses.dataclass(frozen=True)
class MeshFlags(Configuration, group="mesh"):
    """Numbers of devices among which the model and each batch are divided."""

    data: Literal[-1] | Count = 1
    """Number of groups of devices that each compute their own rows; -1 uses all devices."""
    fsdp: Count = 1
    """Number of devices that compute their own rows and also shard the parameters."""
    tensor: Count = 1
    """Number of devices that shard heads, feed-forward layers and the vocabulary."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictionCommand(CheckpointCommand):
    """A command that computes with the model of a run, on one device or on a mesh."""

    mesh: MeshFlags = MeshFlags()

    def opening(self) -> "Opening":
        """Returns how the command opens its models, with their devices.

        Raises:
            ConfigError: The mesh needs more devices than there are.
        """
        if self.mesh == MeshFlags():
            return super().opening()
        from transformer_jax.parallel.placement import inference_mesh
        from transformer_jax.parallel.settings import MeshConfig

        mesh = inference_mesh(MeshConfig(**dataclasses.asdict(self.mesh)))
        return super().opening()._replace(mesh=mesh)

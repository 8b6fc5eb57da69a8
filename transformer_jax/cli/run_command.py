"""The flags that all commands with a run share."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Literal

from transformer_jax.core.config_fields import Configuration, Count

__all__ = ["MeshFlags", "PredictionCommand", "RunCommand"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunCommand(Configuration, group="--"):
    """A command that uses a run; it refuses a changed ``config.json``."""

    allow_changed_config: bool = False
    """Use a run whose config.json was changed after training."""

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Context in which the command's runs are loaded."""
        from transformer_jax.runs.config_guard import changed_config

        with changed_config(self.allow_changed_config):
            yield


@dataclasses.dataclass(frozen=True)
class MeshFlags(Configuration, group="mesh"):
    """Numbers of devices that share the model and the rows of each batch."""

    data: Literal[-1] | Count = 1
    """Groups of devices that each compute their own rows; -1 is as many as there are devices
    for."""
    fsdp: Count = 1
    """Devices that compute their own rows and also split the parameters between them."""
    tensor: Count = 1
    """Devices that split heads, feed-forward layers and the vocabulary between them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictionCommand(RunCommand):
    """A command that computes with the model of a run, on one device or on a mesh of several."""

    mesh: MeshFlags = MeshFlags()

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Context in which the command's runs are loaded onto its mesh.

        Raises:
            ConfigError: There are not so many devices.
        """
        with super().loading():
            if self.mesh == MeshFlags():
                yield
                return
            from transformer_jax.parallel.inference import inference_mesh, loading_on
            from transformer_jax.parallel.settings import MeshConfig

            with loading_on(inference_mesh(MeshConfig(**dataclasses.asdict(self.mesh)))):
                yield

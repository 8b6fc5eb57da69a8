"""Settings of devices and processes. Needs no JAX."""

import dataclasses
from typing import Literal

from transformer_jax.core.config_fields import Amount, Configuration, Count

__all__ = ["DistributedConfig", "MeshConfig"]


@dataclasses.dataclass(frozen=True)
class MeshConfig(Configuration, group="mesh"):
    """Numbers of devices that share each kind of work; their product is the number of devices."""

    data: (
        Literal[-1] | Count
    ) = -1  # groups that each read their own rows; -1 uses all remaining devices
    fsdp: Count = 1  # devices that share rows and split the parameters
    tensor: Count = 1  # devices that split heads, feed-forward and vocabulary
    context: Count = 1  # devices that split the positions of each text


@dataclasses.dataclass(frozen=True)
class DistributedConfig(Configuration, group="distributed"):
    """The place of this process among several; None uses the launcher's variables."""

    coordinator_address: str | None = None  # host:port of process 0
    num_processes: Count | None = None  # number of processes
    process_id: Amount | None = None  # number of this process, from 0
    num_local_devices: Count | None = None  # devices that a process uses; None is all of them
    heartbeat_timeout_seconds: Count = 30  # seconds of silence after which a process counts as dead
    initialization_timeout_seconds: Count = 300  # seconds within which all processes must join

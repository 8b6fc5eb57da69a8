"""Devices of arrays."""

import jax
import numpy as np
from jaxtyping import PyTree

__all__ = ["default_device", "device_of"]


def default_device() -> jax.Device:
    """The device of arrays that nobody places elsewhere."""
    [device] = jax.device_put(np.zeros(())).devices()
    return device


def device_of(tree: PyTree) -> jax.Device:
    """The first device that holds the arrays of a tree; NumPy arrays go to the default device.

    Example:
        >>> device_of({"a": np.zeros(2), "b": jax.device_put(1.0, jax.devices()[0])}).id
        0
    """
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array):
            return min(leaf.devices(), key=lambda device: device.id)
    return default_device()

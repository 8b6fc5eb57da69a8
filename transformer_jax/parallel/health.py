"""A check of devices before a run: that they communicate, and compute the same."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from transformer_jax.core.errors import NumericsError, plural
from transformer_jax.parallel.mesh import gather_to_host

__all__ = ["check_devices"]

_SIZE, _ROUNDS = 128, 4


def check_devices(mesh: Mesh) -> None:
    """Sums ones over all devices of the mesh, and compares a computation between them.

    Every process calls it together. With one device there is nothing to compare.

    Raises:
        NumericsError: The sum is not the number of devices, or some results differ from most
            others.
    """
    if mesh.size == 1:
        return
    found = gather_to_host(_program(mesh)())
    check_answers(found, [str(device) for device in mesh.devices.flat])


def check_answers(found: np.ndarray, names: list[str]) -> None:
    """Refuses answers ``[devices, 2]`` that differ: the sum over devices, and a checksum.

    Raises:
        NumericsError: Names the devices.

    Example:
        >>> check_answers(np.array([[2, 7], [2, 7]]), ["cpu:0", "cpu:1"])
    """
    count = len(names)
    wrong = [name for name, (total, _) in zip(names, found, strict=True) if total != count]
    if wrong:
        raise NumericsError(
            f"a sum of ones over {plural(count, 'device')} is wrong on {', '.join(wrong)}: check "
            f"the connection of the devices"
        )
    values, counts = np.unique(found[:, 1], return_counts=True)
    most = values[np.argmax(counts)]
    odd = [name for name, (_, value) in zip(names, found, strict=True) if value != most]
    if odd:
        raise NumericsError(
            f"{', '.join(odd)} computed a different result than the other devices of {count}: "
            f"exclude the machine, or run its diagnostics"
        )


@functools.lru_cache
def _program(mesh: Mesh) -> Callable[[], Array]:
    axes = mesh.axis_names

    def part() -> Array:
        place = jnp.arange(_SIZE * _SIZE, dtype=jnp.float32).reshape(_SIZE, _SIZE)
        x = start = jnp.sin(place)
        for _ in range(_ROUNDS):
            x = jnp.tanh(x @ start)
        # The bits of the result, so that any difference counts.
        bits = lax.bitcast_convert_type(x, jnp.int32).sum()
        return jnp.stack([lax.psum(jnp.int32(1), axes), bits])[None]

    return jax.jit(jax.shard_map(part, mesh=mesh, in_specs=(), out_specs=P(axes), check_vma=False))

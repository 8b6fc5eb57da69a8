"""Meshes of devices, and the rows that each process holds."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import AxisType, Mesh
from jax.tree_util import DictKey, KeyPath
from jax.typing import ArrayLike
from jaxtyping import Int, PyTree

from transformer_jax.core.arguments import checked_arguments
from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.parallel.settings import DistributedConfig, MeshConfig
from transformer_jax.parallel.sharding import batch_sharding, num_batch_shards

__all__ = [
    "broadcast_json",
    "devices_of",
    "gather_to_host",
    "is_main_process",
    "local_rows",
    "make_mesh",
    "mesh_shape",
    "shard_batch",
    "sync_global_devices",
]

T = TypeVar("T")


def devices_of(config: DistributedConfig) -> list[jax.Device]:
    """Returns the devices that a run may use: ``num_local_devices`` in a single process.

    Several processes use all devices that :func:`initialize` assigned to them.

    Raises:
        ConfigError: The process has fewer devices.

    Example:
        >>> len(devices_of(DistributedConfig(num_local_devices=1)))
        1
    """
    devices, number = jax.devices(), config.num_local_devices
    if number is None or jax.process_count() > 1:
        return devices
    if not 1 <= number <= len(devices):
        raise ConfigError(
            f"distributed.num_local_devices is {number}: this process has {len(devices)}; "
            f"allowed are 1 to {len(devices)}, and None for all"
        )
    return devices[:number]


@checked_arguments
def make_mesh(
    config: MeshConfig = MeshConfig(), devices: Sequence[jax.Device] | None = None, **sizes: int
) -> Mesh:
    """Arranges devices as ``data x fsdp x context x tensor``; the compiler distributes the work.

    Args:
        config: The size of each axis.
        devices: The devices; None is all of every process.
        sizes: ``data``, ``fsdp``, ``context`` and ``tensor``, overriding ``config``.

    Raises:
        ConfigError: An unknown axis, or the product of the sizes is not the number of devices.

    Example:
        >>> make_mesh(devices=jax.devices()[:1], fsdp=1).axis_names
        ('data', 'fsdp', 'context', 'tensor')
    """
    for name in sizes:
        if name not in (axes := [field.name for field in dataclasses.fields(MeshConfig)]):
            raise ConfigError(f"a mesh has no axis {name}: there are {', '.join(axes)}")
    config = dataclasses.replace(config, **sizes)
    devices = jax.devices() if devices is None else devices
    if not devices:
        raise ConfigError("devices is empty: give some of jax.devices(), or leave it out")
    shape = mesh_shape(config, len(devices))
    # An axis may be a part of a physical axis of a TPU slice: otherwise most meshes of a v6e-16 are
    # refused.
    grid = mesh_utils.create_device_mesh(
        tuple(shape.values()), devices, allow_split_physical_axes=True
    )
    return Mesh(grid, tuple(shape), axis_types=(AxisType.Auto,) * 4)


def mesh_shape(config: MeshConfig, number: int) -> dict[str, int]:
    """Returns the size of each axis of a mesh with this number of devices.

    Raises:
        ConfigError: The product of the sizes is not the number of devices.

    Example:
        >>> mesh_shape(MeshConfig(tensor=2), 8)
        {'data': 4, 'fsdp': 1, 'context': 1, 'tensor': 2}
    """
    n, data = number, config.data
    inner = {"fsdp": config.fsdp, "context": config.context, "tensor": config.tensor}
    product = math.prod(inner.values())
    # Axes with one device are not mentioned in messages.
    named = {name: size for name, size in inner.items() if size > 1 or name != "context"}
    if n % product:
        split = {name: size for name, size in inner.items() if size > 1}
        raise ConfigError(
            f"{_mesh_flags(split)} needs a multiple of {plural(product, 'device')}, and there "
            f"{'is' if n == 1 else 'are'} {n}: write {_mesh_flags(_nearest_sizes(split, n))}"
        )
    rest = n // product
    if data not in (-1, rest):
        others = [f"mesh.{name} {size}" for name, size in named.items()]
        raise ConfigError(
            f"mesh {' x '.join(str(size) for size in (data, *named.values()))} = "
            f"{plural(data * product, 'device')}, but there are {n}: with "
            f"{', '.join(others[:-1])} and {others[-1]}, mesh.data must be {rest} (or -1)"
        )
    return {"data": rest, **inner}


def _mesh_flags(sizes: Mapping[str, int]) -> str:
    return " ".join(f"--mesh.{name} {size}" for name, size in sizes.items())


def _nearest_sizes(sizes: Mapping[str, int], number: int) -> dict[str, int]:
    """Returns the largest sizes up to the given ones whose product divides ``number``."""
    nearest = {}
    for name, size in sizes.items():
        nearest[name] = next(part for part in range(size, 0, -1) if number % part == 0)
        number //= nearest[name]
    return nearest


def is_main_process() -> bool:
    """Returns whether this process is the one that writes and prints."""
    return jax.process_index() == 0


def sync_global_devices(name: str) -> None:
    """Waits until every process has reached the same ``name``."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def gather_to_host(tree: PyTree) -> PyTree:
    """Gathers all arrays of a tree in host memory; every process calls it and gets them."""
    if jax.process_count() > 1:
        tree = multihost_utils.process_allgather(tree, tiled=True)
    return jax.device_get(tree)


def broadcast_json(value: T) -> T:
    """Returns the value of the first process on every process; all call it together.

    Args:
        value: A JSON value; only the first process's matters.
    """
    if jax.process_count() == 1:
        return value
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int64(len(text))))
    held = np.zeros(size, np.uint8)
    if is_main_process():
        held[:] = text
    return json.loads(np.asarray(multihost_utils.broadcast_one_to_all(held)).tobytes())


def local_rows(mesh: Mesh, rows: int) -> Int[np.ndarray, " R"]:
    """Returns the rows of a batch that the devices of this process hold, in order.

    The mesh decides: with a tensor axis across processes, several need the same rows.

    Raises:
        ConfigError: The mesh does not divide the rows.

    Example:
        >>> local_rows(make_mesh(MeshConfig(), jax.devices()[:1]), 3)
        array([0, 1, 2])
    """
    parts = num_batch_shards(mesh)
    if rows % parts:
        raise ConfigError(
            f"a batch of {plural(rows, 'row')} does not divide by {parts} (mesh data x fsdp): "
            f"choose a multiple of {parts}"
        )
    held = batch_sharding(mesh).addressable_devices_indices_map((rows,)).values()
    return np.unique(np.concatenate([np.arange(rows)[index] for index in held]))


def shard_batch(
    batch: Mapping[str, PyTree], mesh: Mesh, rows: int | None = None
) -> dict[str, PyTree]:
    """Places a batch on the devices of the mesh, split by rows.

    Args:
        batch: Arrays, or dictionaries of them, with either all rows or only those of
            :func:`local_rows`.
        mesh: The mesh.
        rows: Rows of the complete batch; None is the rows of the arrays, in a single process.

    Raises:
        ConfigError: The mesh does not divide the rows, or an array has neither all rows nor the
            local ones.
    """
    is_array = lambda node: not isinstance(node, dict)
    if rows is None:
        if jax.process_count() > 1:
            raise ConfigError("shard_batch in several processes needs the rows of the whole batch")
        rows = len(jax.tree.leaves(dict(batch), is_leaf=is_array)[0])
    sharding, held = batch_sharding(mesh), local_rows(mesh, rows)
    # The index of each row of the complete batch within an array of local rows.
    place = np.zeros(rows, np.int64)
    place[held] = np.arange(len(held))

    def put(path: KeyPath[DictKey], x: ArrayLike) -> jax.Array:
        x, name = np.asarray(x), "/".join(str(entry.key) for entry in path)
        if len(x) not in (rows, len(held)):
            raise ConfigError(
                f"batch[{name!r}] has {len(x)} rows: allowed are all {rows} or the {len(held)} "
                f"that this process holds"
            )
        where = np.arange(rows) if len(x) == rows else place

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            lines = where[index[0] if index else slice(None)]
            # Contiguous rows are one slice, which is not a copy.
            if len(lines) and lines[-1] - lines[0] + 1 == len(lines):
                return x[lines[0] : lines[-1] + 1]
            return x[lines]

        return jax.make_array_from_callback((rows, *x.shape[1:]), sharding, part)

    return jax.tree_util.tree_map_with_path(put, dict(batch), is_leaf=is_array)

"""Sharding: the logical axes that parameters declare, mapped to mesh axes by one table."""

import re
from collections.abc import Hashable, Mapping

import jax
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.tree_util import KeyPath
from jaxtyping import Array, PyTree

from transformer_jax.core.errors import ConfigError
from transformer_jax.core.trees import path_name
from transformer_jax.functional.partitioning import LOGICAL_AXIS_RULES, MeshAxes, partition_spec
from transformer_jax.models.layers.parameters import Parameters, declared_axes

__all__ = [
    "batch_sharding",
    "num_batch_shards",
    "replicated",
    "shardings",
    "shardings_like",
]


def shardings(
    params: Parameters,
    mesh: Mesh | AbstractMesh,
    rules: Mapping[str, MeshAxes] = LOGICAL_AXIS_RULES,
) -> PyTree:
    """The sharding of each parameter, from the axes that it declares.

    A parameter without axes, such as that of a Flax layer, is whole on every device. It is refused
    on a mesh that splits parameters.

    Args:
        params: Parameters with their declarations, real or abstract
            (:func:`transformer_jax.models.layers.parameters.parameters`).
        mesh: The mesh.
        rules: Logical axis to mesh axis.

    Raises:
        ConfigError: A parameter that does not declare an axis for each dimension; or none, on a
            mesh whose ``fsdp`` or ``tensor`` is above 1.

    Example:
        >>> import jax.numpy as jnp
        >>> up = {"kernel": nnx.Param(jnp.zeros((4, 6)), axes=("embed", "mlp"))}
        >>> mesh = jax.sharding.AbstractMesh((1, 2, 2), ("data", "fsdp", "tensor"))
        >>> tuple(shardings(up, mesh)["kernel"].spec)
        ('fsdp', 'tensor')
    """

    def of(path: KeyPath[Hashable], param: nnx.Param[Array]) -> NamedSharding:
        name = path_name(path)
        axes = _checked_axes(name, param, mesh)
        # Layers differ only by index, and do not each need a line in the log.
        what = re.sub(r"/\d+/", "/*/", name)
        return NamedSharding(
            mesh, partition_spec(axes, param.shape, mesh.shape, rules=rules, what=what)
        )

    is_param = lambda node: isinstance(node, nnx.Variable)
    return jax.tree_util.tree_map_with_path(of, params, is_leaf=is_param)


def _checked_axes(
    name: str, param: nnx.Param[Array], mesh: Mesh | AbstractMesh
) -> tuple[str | None, ...]:
    axes = declared_axes(param)
    what = f"parameter {name} of shape {list(param.shape)} declares"
    how = "one axis of LOGICAL_AXIS_RULES or None per dimension"
    if len(axes) != param.ndim:
        raise ConfigError(f"{what} the axes {axes}: give {how}")
    if param.get_metadata("axes", None) is None and mesh.shape["fsdp"] * mesh.shape["tensor"] > 1:
        raise ConfigError(
            f"{what} no axes, and the mesh splits parameters: create it with nnx.Param(value, "
            f"axes=(...)), or a layer of Flax with kernel_metadata={{'axes': (...)}}, {how}; or "
            f"take a mesh with fsdp 1 and tensor 1"
        )
    return axes


def shardings_like(
    tree: PyTree, params: PyTree, shardings: PyTree, mesh: Mesh | AbstractMesh
) -> PyTree:
    """The shardings of a tree with copies of the parameters, such as an optimizer's state.

    A leaf is sharded like the parameter whose path its own path ends with, if their shapes are
    equal; any other leaf (a count, a factored row) is replicated.

    Args:
        tree: Arrays or ``jax.ShapeDtypeStruct``.
        params: The parameters.
        shardings: The parameters' shardings.
        mesh: The mesh.
    """
    known = {
        tuple(path_name(path).split("/")): (leaf.shape, sharding)
        for (path, leaf), sharding in zip(
            jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(shardings), strict=True
        )
    }

    def of(path: KeyPath[Hashable], leaf: Array | jax.ShapeDtypeStruct) -> NamedSharding:
        words = tuple(path_name(path).split("/"))
        for start in range(len(words)):
            shape, sharding = known.get(words[start:], (None, None))
            if shape == leaf.shape:
                return sharding
        return replicated(mesh)

    return jax.tree_util.tree_map_with_path(of, tree)


def replicated(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """The sharding that replicates an array on every device."""
    return NamedSharding(mesh, P())


def num_batch_shards(mesh: Mesh | AbstractMesh) -> int:
    """Returns the number of device groups that a batch's rows are split over."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def batch_sharding(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """The sharding of a batch's arrays, whatever their rank: rows over ``data`` and ``fsdp``."""
    return NamedSharding(mesh, P(("data", "fsdp")))

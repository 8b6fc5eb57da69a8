"""Where every array lives: two tables, parameter path to axis names, axis name to mesh axis."""

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import PyTree

from transformer_jax.errors import ConfigError

__all__ = [
    "LOGICAL_AXIS_RULES",
    "NAMES",
    "batch_sharding",
    "logical_names",
    "make_placer",
    "num_batch_shards",
    "param_shardings",
    "partition_spec",
    "path_name",
    "replicated",
    "shardings_like",
    "unshard_fsdp",
]

log = logging.getLogger(__name__)

Names = tuple[str | None, ...]

# The names of the last dimensions of each parameter; any before them, such as a scanned stack's
# layer axis, stay whole. The first pattern that matches the end of a path wins. Columns of
# query, key and value kernels lie head by head: a tensor axis that divides the heads leaves every
# head in one place. One that divides only heads * head size is as right and communicates more.
NAMES: tuple[tuple[str, Names], ...] = (
    (r"(\w+_)?embedding/table", ("vocab", "width")),
    (r"embedding/kernel", ("vector", "width")),
    (r"embedding/bias", ("vector",)),
    (r"(positions|segments)/table", ("position", "width")),
    (r"relative/table", ("bucket", "head")),
    (r"(query|key|value)/kernel", ("width", "heads")),
    (r"(query|key|value)/bias", ("heads",)),
    (r"out/kernel", ("heads", "width")),
    (r"(up|gate)/kernel", ("width", "hidden")),
    (r"(up|gate)/bias", ("hidden",)),
    (r"down/kernel", ("hidden", "width")),
    (r"(out|down)/bias", ("vector",)),
    (r"(\w+_)?norm(_\w+)?/(gain|bias)", ("vector",)),
    (r"(pooler|projection|transform|next_sentence|detector|labels)/kernel", ("width", "vector")),
    (r"(pooler|projection|transform|next_sentence|detector|labels)/bias", ("vector",)),
    (r"head/table", ("vocab", "width")),
    (r"head/bias", ("vocab",)),
)

# Vectors as long as the width stay whole: they are small, and every device needs all of them.
LOGICAL_AXIS_RULES: Mapping[str, str | tuple[str, ...] | None] = {
    "rows": ("data", "fsdp"),
    "vocab": "tensor",
    "heads": "tensor",
    "hidden": "tensor",
    "width": "fsdp",
    "position": None,
    "bucket": None,
    "head": None,
    "vector": None,
}

_said: set[str] = set()


def path_name(path: Sequence[object]) -> str:
    """A tree path in words: ``(DictKey('up'), DictKey('kernel'))`` as ``'up/kernel'``.

    Example:
        >>> path_name((jax.tree_util.DictKey("blocks"), jax.tree_util.SequenceKey(0)))
        'blocks/0'
    """
    return "/".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path)


def logical_names(name: str, ndim: int, table: Sequence[tuple[str, Names]] = NAMES) -> Names:
    """The axis names of the parameter at path ``name``, one for each of its dimensions.

    Args:
        name: The path, as :func:`path_name` writes it.
        ndim: How many dimensions the parameter has.
        table: Patterns of path ends and the names of the last dimensions.

    Raises:
        ConfigError: No pattern matches; silence here would cost memory later.

    Example:
        >>> logical_names("encoder/blocks/0/feed_forward/up/kernel", 2)
        ('width', 'hidden')
        >>> logical_names("encoder/blocks/feed_forward/up/kernel", 3)  # a scanned stack
        (None, 'width', 'hidden')
    """
    for pattern, names in table:
        if re.search(rf"(^|/){pattern}$", name) and len(names) <= ndim:
            return (None,) * (ndim - len(names)) + names
    raise ConfigError(
        f"no sharding rule for parameter {name} with {ndim} dimensions: "
        f"add a pattern for it to transformer_jax.parallel.sharding.NAMES"
    )


def partition_spec(
    names: Sequence[str | None],
    shape: Sequence[int],
    sizes: Mapping[str, int],
    *,
    axes: Mapping[str, str | tuple[str, ...] | None] = LOGICAL_AXIS_RULES,
    what: str = "an array",
) -> P:
    """Which mesh axes each dimension is split over.

    A mesh axis of size 1 drops out, none is used twice, and a dimension that does not divide
    stays whole, which is logged once.

    Args:
        names: One axis name, or None, for each dimension.
        shape: The array's shape.
        sizes: Mesh axis to its size, i.e. ``mesh.shape``.
        axes: Axis name to mesh axis.
        what: Whose shape this is, for the log.

    Raises:
        ConfigError: An axis name that ``axes`` does not have.

    Example:
        >>> tuple(partition_spec(("vocab", "width"), (10, 8), {"data": 1, "fsdp": 2, "tensor": 4}))
        (None, 'fsdp')
    """
    out: list[str | tuple[str, ...] | None] = []
    used: set[str] = set()
    for name, size in zip(names, shape, strict=True):
        if name is not None and name not in axes:
            raise ConfigError(f"unknown axis name {name}: known are {', '.join(axes)}")
        mapped = None if name is None else axes[name]
        wanted = (mapped,) if isinstance(mapped, str) else mapped or ()
        wanted = tuple(a for a in wanted if sizes[a] > 1 and a not in used)
        parts = math.prod(sizes[a] for a in wanted)
        if size % parts:
            _say(f"{what}: dimension {name} of {size} does not divide by {parts}, so stays whole")
            wanted = ()
        used.update(wanted)
        out.append(wanted[0] if len(wanted) == 1 else wanted or None)
    return P(*out)


def _say(message: str) -> None:
    if message not in _said:
        _said.add(message)
        log.warning(message)


def param_shardings(
    params: PyTree, mesh: Mesh, table: Sequence[tuple[str, Names]] = NAMES
) -> PyTree:
    """The sharding of each parameter, from its path and shape alone.

    Args:
        params: Arrays or ``jax.ShapeDtypeStruct``.
        mesh: Where they will live.
        table: Patterns of path ends and axis names.

    Raises:
        ConfigError: A parameter that no pattern matches.
    """

    def of(path: tuple, leaf) -> NamedSharding:
        name = path_name(path)
        names = logical_names(name, leaf.ndim, table)
        # Layers differ in their index alone, and need no line each in the log.
        what = re.sub(r"/\d+/", "/*/", name)
        return NamedSharding(mesh, partition_spec(names, leaf.shape, mesh.shape, what=what))

    return jax.tree_util.tree_map_with_path(of, params)


def make_placer(
    mesh: Mesh, table: Sequence[tuple[str, Names]] = NAMES
) -> Callable[[str, np.ndarray], jax.Array]:
    """A function from a parameter's path and values to its parts on the devices of ``mesh``.

    Each process puts what its own devices hold; no device ever holds more.

    Raises:
        ConfigError: When called with a parameter that no pattern matches.
    """

    def place(name: str, array: np.ndarray) -> jax.Array:
        names = logical_names(name, array.ndim, table)
        what = re.sub(r"/\d+/", "/*/", name)
        sharding = NamedSharding(mesh, partition_spec(names, array.shape, mesh.shape, what=what))
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return place


def shardings_like(tree: PyTree, params: PyTree, shardings: PyTree, mesh: Mesh) -> PyTree:
    """The shardings of a tree that holds copies of the parameters, such as an optimizer's state.

    A leaf lives like the parameter whose path its own path ends with, if their shapes are equal
    too; any other leaf (a count, a factored row) is whole on every device.

    Args:
        tree: Arrays or ``jax.ShapeDtypeStruct``.
        params: The parameters.
        shardings: The parameters' shardings.
        mesh: Where they live.
    """
    known = {
        tuple(path_name(path).split("/")): (leaf.shape, sharding)
        for (path, leaf), sharding in zip(
            jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(shardings), strict=True
        )
    }

    def of(path: tuple, leaf) -> NamedSharding:
        words = tuple(path_name(path).split("/"))
        for start in range(len(words)):
            shape, sharding = known.get(words[start:], (None, None))
            if shape == leaf.shape:
                return sharding
        return replicated(mesh)

    return jax.tree_util.tree_map_with_path(of, tree)


def unshard_fsdp(shardings: PyTree) -> PyTree:
    """How parameters that live as ``shardings`` are used: whole over ``fsdp``, split over the rest.

    The parameters of a scanned stack, which have three dimensions, stay as they are: the scan
    gathers one layer at a time.

    Example:
        >>> mesh = jax.sharding.AbstractMesh((1, 2, 2), ("data", "fsdp", "tensor"))
        >>> tuple(unshard_fsdp(NamedSharding(mesh, P("fsdp", "tensor"))).spec)
        (None, 'tensor')
    """

    def of(sharding: NamedSharding) -> NamedSharding:
        if len(sharding.spec) > 2:
            return sharding
        kept = (None if entry == "fsdp" else entry for entry in sharding.spec)
        return NamedSharding(sharding.mesh, P(*kept))

    return jax.tree.map(of, shardings)


def replicated(mesh: Mesh) -> NamedSharding:
    """Whole on every device."""
    return NamedSharding(mesh, P())


def num_batch_shards(mesh: Mesh) -> int:
    """How many groups of devices share a batch's rows; the number of rows is a multiple of it."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of a batch's arrays, whatever their rank: rows over ``data`` and ``fsdp``."""
    return NamedSharding(mesh, P(("data", "fsdp")))

"""Layouts of arrays on the mesh that a program is traced for, by logical axes and one table.

A training step or an evaluation on many devices is traced inside :func:`on_mesh`. The functions
here read that mesh; outside it, and on one device, they change nothing.
"""

import contextlib
import functools
import logging
import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PyTree, Shaped

from transformer_jax.core.errors import ConfigError
from transformer_jax.functional.array_arguments import real_arguments
from transformer_jax.functional.reduce_scatter import reduce_scatter

__all__ = [
    "LOGICAL_AXIS_RULES",
    "Axes",
    "MeshAxes",
    "axis_size",
    "constrain",
    "constrain_rows",
    "current_mesh",
    "on_mesh",
    "partition_spec",
    "take_rows",
    "unshard_fsdp",
    "unshard_fsdp_again",
]

log = logging.getLogger(__name__)


MeshAxes = str | tuple[str, ...] | None
Axes = tuple[str | None, ...]

# Logical axis, as declared by parameters, to mesh axis. Columns of query, key and value kernels are
# ordered by head: a tensor axis that divides the heads leaves every head on one device. One that
# divides only heads * head size is correct too, but communicates more.
_ELSEWHERE: Mapping[str | None, str] = {"vocab": "embed"}  # fallback axis if a size does not divide
LOGICAL_AXIS_RULES: Mapping[str, MeshAxes] = {
    "batch": ("data", "fsdp"),
    "sequence": "context",
    "vocab": "tensor",
    "heads": "tensor",
    "mlp": "tensor",
    "embed": "fsdp",
    "layers": None,
    "head": None,
    "head_dim": None,
    "position": None,
    "token_type": None,
    "trained_row": None,
    "bucket": None,
    "label": None,
}


def partition_spec(
    axes: Sequence[str | None],
    shape: Sequence[int],
    sizes: Mapping[str, int],
    *,
    rules: Mapping[str, MeshAxes] = LOGICAL_AXIS_RULES,
    what: str | None = None,
) -> P:
    """Returns the mesh axes that split each dimension.

    A mesh axis of size 1 is dropped, and none is used twice. A dimension that does not divide is
    not split; the mesh axis of a vocabulary then splits the width of its table. Vectors of the
    model's width are not split: they are small, and every device needs all of them.

    Args:
        axes: One logical axis, or None, for each dimension.
        shape: The array's shape.
        sizes: Mesh axis to its size, i.e. ``mesh.shape``.
        rules: Logical axis to mesh axis.
        what: The array's name; if given, a dimension that does not divide is logged, once.

    Raises:
        ConfigError: A logical axis that is not in ``rules``.

    Example:
        >>> tuple(partition_spec(("vocab", "embed"), (10, 8), {"data": 1, "fsdp": 2, "tensor": 4}))
        (None, ('tensor', 'fsdp'))
    """
    is_vector = [axis for axis in axes if axis != "layers"] == ["embed"]
    out: list[str | tuple[str, ...] | None] = []
    used: set[str] = set()
    left: list[tuple[str | None, int, tuple[str, ...]]] = []
    for name, size in zip(axes, shape, strict=True):
        if name is not None and name not in rules:
            of = "an array" if what is None else what
            raise ConfigError(f"unknown axis {name} of {of}: known are {', '.join(rules)}")
        mapped = None if name is None or is_vector else rules[name]
        over = (mapped,) if isinstance(mapped, str) else mapped or ()
        over = tuple(a for a in over if sizes.get(a, 1) > 1 and a not in used)
        parts = math.prod(sizes[a] for a in over)
        if size % parts:
            left.append((name, size, over))
            # The mesh axis may still split another dimension of the array.
            used.update(over if _elsewhere(name, axes) is not None else ())
            over = ()
        used.update(over)
        out.append(over[0] if len(over) == 1 else over or None)
    for name, size, over in left:
        place = _elsewhere(name, axes)
        there = () if place is None else _as_tuple(out[place])
        if place is None or shape[place] % math.prod(sizes[a] for a in (*over, *there)):
            if what is not None:
                _log_once(what, name, size, math.prod(sizes[a] for a in over))
        else:
            out[place] = (*over, *there) if there else over[0]
    return P(*out)


def _elsewhere(name: str | None, axes: Sequence[str | None]) -> int | None:
    """The dimension that a mesh axis splits if it does not divide its own."""
    other = _ELSEWHERE.get(name)
    return None if other is None or other not in axes else axes.index(other)


def _as_tuple(over: MeshAxes) -> tuple[str, ...]:
    return (over,) if isinstance(over, str) else over or ()


@functools.lru_cache
def _log_once(what: str, name: str | None, size: int, parts: int) -> None:
    log.warning(f"{what}: dimension {name} of {size} is not divisible by {parts}, so not split")


def on_mesh(mesh: Mesh | AbstractMesh) -> contextlib.AbstractContextManager[object]:
    """Context manager: sets the mesh for programs traced inside; one device changes nothing.

    Example:
        >>> names, types = ("data", "fsdp", "tensor"), (AxisType.Auto,) * 3
        >>> with on_mesh(AbstractMesh((1, 2, 4), names, axis_types=types)):
        ...     axis_size("tensor")
        4
    """
    if mesh.size == 1:
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh)


def current_mesh() -> AbstractMesh | None:
    """The mesh of :func:`on_mesh` over which the compiler distributes work.

    None on one device, inside ``jax.shard_map``, where each device has its own arrays, and on a
    mesh with explicit axes, where the user lays out arrays.

    Example:
        >>> current_mesh() is None
        True
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1 or any(t != AxisType.Auto for t in mesh.axis_types):
        return None
    return mesh


def axis_size(name: str) -> int:
    """Returns the number of devices along an axis of the current mesh; 1 without a mesh.

    Example:
        >>> axis_size("tensor")
        1
    """
    mesh = current_mesh()
    return 1 if mesh is None else mesh.shape.get(name, 1)


def constrain(x: Shaped[Array, "..."], axes: Axes) -> Shaped[Array, "..."]:
    """``x``, laid out on the current mesh according to its logical axes.

    Example:
        >>> constrain(jnp.ones((2, 3)), ("batch", None)).shape
        (2, 3)
    """
    mesh = current_mesh()
    if mesh is None:
        return x
    return lax.with_sharding_constraint(x, partition_spec(axes, x.shape, mesh.shape))


def constrain_rows(tree: PyTree) -> PyTree:
    """Splits the first axis of each array of a tree, the rows of a batch, over the current mesh.

    The layout of all other axes does not change.

    Example:
        >>> constrain_rows({"lengths": jnp.array([2, 3])})["lengths"].shape
        (2,)
    """
    if (mesh := current_mesh()) is None:
        return tree

    def split(x: Array) -> Array:
        if not jnp.ndim(x):
            return x
        rows = partition_spec(("batch",), x.shape[:1], mesh.shape)
        return lax.with_sharding_constraint(x, P(*rows, *[P.UNCONSTRAINED] * (x.ndim - 1)))

    return jax.tree.map(split, tree)


def unshard_fsdp(
    x: Float[Array, "..."], axes: Axes | None, dtype: DTypeLike
) -> Float[Array, "..."]:
    """Returns a parameter for a product: in ``dtype``, gathered over ``fsdp``, else split.

    The cast comes first, so that devices exchange values of the compute dtype. Its derivative sums
    the gradient over devices in that dtype too; layers and the fused loss have their own backward
    passes, which do not.

    Args:
        x: The parameter as stored.
        axes: Its logical axes; None if every device has all of it.
        dtype: Dtype of the product.

    Example:
        >>> unshard_fsdp(jnp.ones((2, 3)), ("embed", "mlp"), jnp.bfloat16).dtype
        dtype(bfloat16)
    """
    x = x.astype(dtype)
    mesh = current_mesh()
    if mesh is None or axes is None or mesh.shape.get("fsdp", 1) == 1:
        return x
    stored = partition_spec(axes, x.shape, mesh.shape)
    used = P(*(None if "fsdp" in _as_tuple(over) else over for over in stored))
    if used == stored:
        return x
    # Both are needed: the first keeps the cast on the device that stores the values.
    x = lax.with_sharding_constraint(x, stored)
    return lax.with_sharding_constraint(x, used)


def unshard_fsdp_again(
    x: Float[Array, "..."], axes: Axes | None, dtype: DTypeLike, g: Float[Array, "..."]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Repeats :func:`unshard_fsdp` in a backward pass, after the cotangent ``g``; returns both.

    Without the barrier, the compiler would find the same gather in the forward pass and keep its
    result until here: the gathered parameters of all layers would be in memory at once.

    Example:
        >>> unshard_fsdp_again(jnp.ones(2), None, jnp.float32, jnp.ones(1))[0].shape
        (2,)
    """
    if axes is not None and axis_size("fsdp") > 1:
        x, g = lax.optimization_barrier((x, g))
    return unshard_fsdp(x, axes, dtype), g


@real_arguments
def take_rows(
    table: Float[Array, "V D"],
    indices: Int[Array, "*where"],
    axes: Axes | None = None,
    dtype: DTypeLike | None = None,
) -> Float[Array, "*where D"]:
    """Looks up rows of a table, rounded to ``dtype`` but in the table's dtype.

    An index beyond the table returns the last row. The gradient is summed in the table's dtype.
    On a mesh the table stays where it is stored, and parts of the rows are exchanged.

    Args:
        table: One row per index.
        indices: The rows to look up.
        axes: Logical axes of the table; None if every device has all of it.
        dtype: Dtype of the rows in transit between devices; None is the table's.

    Example:
        >>> take_rows(jnp.eye(2), jnp.array([1, 0]))
        Array([[0., 1.],
               [1., 0.]], dtype=float32)
    """
    dtype = table.dtype if dtype is None else jnp.dtype(dtype)
    mesh = current_mesh()
    if mesh is None or axes is None or indices.ndim < 1:
        return _rounded(jnp.take(table, indices, axis=0, mode="clip"), dtype)
    stored = partition_spec(axes, table.shape, mesh.shape)
    rows = partition_spec(("batch", "sequence")[: indices.ndim], indices.shape[:2], mesh.shape)
    over = tuple(axis for dimension in rows for axis in _as_tuple(dimension))
    if not any(stored) or not over or ("fsdp" in _as_tuple(stored[1]) and "fsdp" not in over):
        return _rounded(jnp.take(table, indices, axis=0, mode="clip"), dtype)
    rest = tuple(axis for axis in over if axis not in _as_tuple(stored[1]))
    take = functools.partial(_take_parts, stored, rest, dtype)
    found = jax.shard_map(take, in_specs=(stored, rows), out_specs=rows)(table, indices)
    return found.astype(table.dtype)


def _rounded(x: Array, dtype: DTypeLike) -> Array:
    return x if x.dtype == dtype else x.astype(dtype).astype(x.dtype)


def _take_parts(
    stored: P, rest: tuple[str, ...], dtype: DTypeLike, table: Array, indices: Array
) -> Array:
    """Looks up rows at this device's indices in a table whose parts are spread over all devices.

    ``rest`` are the mesh axes along which indices differ but the parts of the table do not.
    """
    vocab, columns = stored[0], _as_tuple(stored[1])
    # Exchange the smaller of the two: the table or the rows.
    moves = "fsdp" in columns and indices.size < len(table)
    if moves:
        # Each device looks up its columns for all indices, and receives all columns for its own.
        indices = lax.all_gather(indices, "fsdp", tiled=True)
    elif "fsdp" in columns:
        table = lax.pcast(table, rest, to="varying") if rest else table
        table = _whole_rows("fsdp", dtype, table)
    if vocab is not None:
        indices = jnp.clip(indices, 0, len(table) * lax.axis_size(vocab) - 1)
        indices = indices - lax.axis_index(vocab) * len(table)
    rows = jnp.take(table, indices, axis=0, mode="clip").astype(dtype)
    if vocab is not None:
        here = (indices >= 0) & (indices < len(table))
        rows = lax.psum(jnp.where(here[..., None], rows, 0), vocab)
    if moves:
        rows = lax.all_to_all(rows, "fsdp", 0, rows.ndim - 1, tiled=True)
    if "tensor" in columns:
        # A sum is known to be the same on every device; the result of a gather is not.
        width = rows.shape[-1]
        wide = jnp.zeros((*rows.shape[:-1], width * lax.axis_size("tensor")), rows.dtype)
        start = lax.axis_index("tensor") * width
        rows = lax.psum(lax.dynamic_update_slice_in_dim(wide, rows, start, -1), "tensor")
    return rows


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _whole_rows(over: str, dtype: DTypeLike, table: Array) -> Array:
    """Gathers a table whose columns are split over the devices along ``over``, in ``dtype``."""
    return lax.all_gather(table.astype(dtype), over, axis=1, tiled=True).astype(table.dtype)


def _whole_rows_forward(over: str, dtype: DTypeLike, table: Array) -> tuple[Array, None]:
    return _whole_rows(over, dtype, table), None


def _whole_rows_backward(over: str, dtype: DTypeLike, _: None, g: Array) -> tuple[Array]:
    return (reduce_scatter(g, over, 1),)


_whole_rows.defvjp(_whole_rows_forward, _whole_rows_backward)

"""The training state as a tree of arrays, and its creation on a mesh."""

import contextlib
import hashlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, PyTree

from transformer_jax.core.arguments import check_values
from transformer_jax.core.keys import key_for
from transformer_jax.core.trees import Nested, default_device, path_name
from transformer_jax.models.layers.parameters import Parameters, map_parameters, parameters, values
from transformer_jax.models.layers.surgery import with_attention_kernels
from transformer_jax.models.partition import EVERYTHING, Graph, Partition
from transformer_jax.parallel.sharding import shardings, shardings_like
from transformer_jax.training.updates import evaluated_parameters, optimizer_state

__all__ = [
    "TrainState",
    "abstract_parts",
    "abstract_state",
    "create_state",
    "digest",
    "new_state",
    "split",
]


class TrainState(NamedTuple):
    """The training state; ``step`` alone determines the batches and keys of a run."""

    step: PyTree  # a scalar
    params: PyTree
    opt_state: PyTree
    # The parameters that are evaluated: a moving average, or the optimizer's own; None is `params`.
    ema_params: PyTree | None = None

    @classmethod
    def create(
        cls, params: PyTree, tx: optax.GradientTransformation, *, ema: bool = False
    ) -> "TrainState":
        """Returns the state at step 0.

        Args:
            params: Trainable arrays in nested dictionaries.
            tx: The optimizer.
            ema: Whether to keep a moving average of the parameters; it starts at the parameters.
                Optimizers that evaluate other parameters than they train, such as
                ``schedule_free``, always keep these.

        Example:
            >>> state = TrainState.create({"w": jnp.ones(2)}, optax.sgd(0.1), ema=True)
            >>> int(state.step), state.ema_params["w"].tolist()
            (0, [1.0, 1.0])
        """
        check_values("TrainState.create: ", {"ema": bool}, {"ema": ema})
        opt_state = optimizer_state(tx, params)
        own = evaluated_parameters(opt_state, params) is not None
        kept = jax.tree.map(jnp.copy, params) if ema or own else None
        return cls(jnp.zeros((), jnp.int32), params, opt_state, kept)


def split(model: nnx.Module) -> tuple[Graph, Nested]:
    """Splits a model into its static graph and a nested dict of parameters.

    ``nnx.merge(graph, params)`` restores the model, inside or outside ``jax.jit``.

    Raises:
        ConfigError: The model holds other state than parameters, such as random keys.

    Example:
        >>> graph, params = split(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        >>> {name: leaf.shape for name, leaf in params.items()}
        {'bias': (3,), 'kernel': (2, 3)}
        >>> nnx.merge(graph, params)(jnp.ones((1, 2))).shape
        (1, 3)
    """
    check_values("split: ", {"model": nnx.Module}, {"model": model})
    return nnx.graphdef(model), values(parameters(model))


def abstract_state(
    make_model: Callable[[], nnx.Module],
    tx: optax.GradientTransformation,
    mesh: Mesh,
    *,
    ema: bool = False,
    partition: Partition = EVERYTHING,
    seed: int = 0,
) -> tuple[Graph, TrainState, TrainState, PyTree]:
    """Returns the graph, and shapes and shardings of the state, without allocating memory.

    Args:
        make_model: Creates the model, from its own seed.
        tx: The optimizer.
        mesh: Mesh of the state.
        ema: Whether to keep a moving average of the parameters.
        partition: Split of the parameters; the state has only the trainable ones.
        seed: Random seed of parameters that the partition adds.

    Returns:
        ``(graph, shapes, shardings, frozen)``: the model's static graph, a :class:`TrainState` of
        ``jax.ShapeDtypeStruct`` with shardings (the template for restoring), a :class:`TrainState`
        of shardings, and the shapes of the frozen parameters.

    Raises:
        ConfigError: A parameter does not declare the axes that the mesh needs.
    """
    model = with_attention_kernels(nnx.eval_shape(make_model), mesh.devices.flat[0])
    graph = nnx.graphdef(model)
    declared = abstract_parts(make_model, partition, seed)
    params, frozen = (map_parameters(_shape, part) for part in declared)
    shapes = jax.eval_shape(lambda params: TrainState.create(params, tx, ema=ema), params)
    of_params, of_frozen = (shardings(part, mesh) for part in declared)
    placed = TrainState(
        step=NamedSharding(mesh, P()),
        params=of_params,
        opt_state=shardings_like(shapes.opt_state, params, of_params, mesh),
        ema_params=None if shapes.ema_params is None else of_params,
    )
    return graph, _with_shardings(shapes, placed), placed, _with_shardings(frozen, of_frozen)


def abstract_parts(
    make_model: Callable[[], nnx.Module], partition: Partition = EVERYTHING, seed: int = 0
) -> tuple[Parameters, Parameters]:
    """Returns the shapes of trainable and frozen parameters, with their metadata."""
    return jax.eval_shape(lambda: _split(parameters(make_model()), partition, seed))


def _split(params: PyTree, partition: Partition, seed: int) -> tuple[PyTree, PyTree]:
    return partition.split(params, nnx.Rngs(key_for(seed, "partition")))


def _drawn(
    make_model: Callable[[], nnx.Module], partition: Partition, seed: int
) -> tuple[PyTree, PyTree]:
    """Returns trainable and frozen parameters, newly initialized."""
    trained, frozen = _split(parameters(make_model()), partition, seed)
    return values(trained), values(frozen)


def _shape(param: nnx.Param[Array]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(param.shape, param.dtype)


def _with_shardings(shapes: PyTree, shardings: PyTree) -> PyTree:
    return jax.tree.map(
        lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), shapes, shardings
    )


def create_state(
    make_model: Callable[[], nnx.Module],
    tx: optax.GradientTransformation,
    mesh: Mesh,
    *,
    ema: bool = False,
    params: PyTree | None = None,
    partition: Partition = EVERYTHING,
    seed: int = 0,
) -> tuple[Graph, TrainState, TrainState, PyTree]:
    """Returns a new state, with each array created sharded, so that no device holds all of it.

    Args:
        make_model: Creates the model, from its own seed.
        tx: The optimizer.
        mesh: Mesh of the state.
        ema: Whether to keep a moving average of the parameters; it starts at the parameters.
        params: Initial parameters, e.g. of a Hugging Face model; None initializes them by
            ``make_model``.
        partition: Split of the parameters; the state has only the trainable ones.
        seed: Random seed of parameters that the partition adds.

    Returns:
        ``(graph, state, shardings, frozen)``; the shardings fix the compiled step's inputs and
        outputs, and ``frozen`` has the frozen parameters.

    Raises:
        ConfigError: A parameter does not declare the axes that the mesh needs.
    """
    graph, _, placed, kept = abstract_state(
        make_model, tx, mesh, ema=ema, partition=partition, seed=seed
    )
    state, frozen = new_state(
        make_model, tx, placed, kept, ema=ema, params=params, partition=partition, seed=seed
    )
    return graph, state, placed, frozen


def new_state(
    make_model: Callable[[], nnx.Module],
    tx: optax.GradientTransformation,
    placed: TrainState,
    kept: PyTree,
    *,
    ema: bool = False,
    params: PyTree | None = None,
    partition: Partition = EVERYTHING,
    seed: int = 0,
) -> tuple[TrainState, PyTree]:
    """Returns state and frozen parameters of :func:`create_state`, from those of abstract_state."""
    mesh = placed.step.mesh
    of_frozen = jax.tree.map(lambda shape: shape.sharding, kept)

    def finish(params: PyTree) -> TrainState:
        return TrainState.create(params, tx, ema=ema)

    if params is None and mesh.size == 1:
        # On a single device, separate initializers compile once per shape, in a third of the time
        # of one program for all parameters.
        device = mesh.devices.item()
        # Programs of another setting would be compiled again, even those of the same device.
        with contextlib.nullcontext() if device == default_device() else jax.default_device(device):
            parts = _drawn(make_model, partition, seed)
        params, frozen = jax.device_put(parts, (placed.params, of_frozen))
        done = jax.jit(finish, out_shardings=placed, donate_argnums=0)
        return done(params), frozen
    if params is None:

        def draw() -> tuple[TrainState, PyTree]:
            params, frozen = _drawn(make_model, partition, seed)
            return finish(params), frozen

        return jax.jit(draw, out_shardings=(placed, of_frozen))()
    is_param = lambda node: isinstance(node, nnx.Variable)
    declared = jax.tree.map(
        lambda param, value: param.replace(np.asarray(value)),
        parameters(nnx.eval_shape(make_model)), params, is_leaf=is_param,
    )  # fmt: skip
    parts = tuple(values(part) for part in _split(declared, partition, seed))
    params, frozen = jax.tree.map(
        lambda a, s: _place(np.asarray(a), s), parts, (placed.params, of_frozen)
    )
    return jax.jit(finish, out_shardings=placed)(params), frozen


def _place(array: np.ndarray, sharding: NamedSharding) -> Array:
    # Every process has the complete host array and copies the shards of its devices.
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def digest(tree: PyTree) -> str:
    """Returns the SHA-256 of a tree: of paths, types, shapes and all bits, in order of paths.

    It does not depend on the sharding. Arrays spread over processes are gathered, so all processes
    must call it.

    Example:
        >>> digest({"a": jnp.zeros(2)}) == digest({"a": np.zeros(2, np.float32)})
        True
        >>> digest({"a": jnp.zeros(2)}) == digest({"a": -jnp.zeros(2)})
        False
    """
    total = hashlib.sha256()
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    for name, leaf in sorted((path_name(path), leaf) for path, leaf in leaves):
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            leaf = multihost_utils.process_allgather(leaf, tiled=True)
        array = np.asarray(leaf)
        total.update(f"{name} {array.dtype} {array.shape}\n".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()

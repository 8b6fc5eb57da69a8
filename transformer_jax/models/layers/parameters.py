"""Parameters that declare their logical axes and depth at creation.

A parameter is created as ``nnx.Param(value, axes=("embed", "heads"))``: one logical axis name, or
None, per dimension. Sharding, weight decay, Muon and layer-wise learning rates read these
declarations, and never parameter paths. Code that stacks modules declares their depth with
:func:`at_depth`. Layers of Flax declare no axes: each of their dimensions has the axis None.
"""

from collections.abc import Callable
from typing import TypeAlias, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Key, PyTree

from transformer_jax.core.errors import ArgumentError, ConfigError
from transformer_jax.core.trees import Nested, path_name

__all__ = [
    "INDEX_AXES",
    "LAYERS",
    "Parameters",
    "Shapes",
    "at_depth",
    "declared_axes",
    "initial",
    "is_matrix",
    "is_projection",
    "layer_depths",
    "logical_axes",
    "map_parameters",
    "parameters",
    "raise_depth",
    "stacked",
    "unstacked",
    "values",
]

# Nested dictionaries by path. Their leaves are `nnx.Param` with declarations; the same dictionaries
# with arrays as leaves are trained and stored.
Parameters = Nested

Model = TypeVar("Model", bound=nnx.Module)

LAYERS = "layers"  # the leading axis of parameters stacked for a scan

# Axes that count things, such as tokens or classes; all other axes are vector components.
INDEX_AXES = frozenset({"vocab", "trained_row", "position", "token_type", "bucket", "label"})


def parameters(model: nnx.Module) -> Parameters:
    """The parameters of a model, real or abstract, by path, with their declarations.

    Raises:
        ConfigError: The model holds other state, such as random keys.

    Example:
        >>> made = lambda: nnx.Dict(gain=nnx.Param(jax.numpy.ones(3), axes=("embed",)))
        >>> parameters(nnx.eval_shape(made))["gain"].get_metadata("axes")
        ('embed',)
    """
    params = nnx.to_pure_dict(nnx.state(model), extract_fn=lambda param: param)
    for path, variable in jax.tree_util.tree_leaves_with_path(params, is_leaf=_is_variable):
        _refuse_other_state(path_name(path), variable)
    return cast(Parameters, params)


def _is_variable(node: object) -> bool:
    return isinstance(node, nnx.Variable)


def _refuse_other_state(name: str, variable: object) -> None:
    if isinstance(variable, nnx.Param):
        return
    instead = "keep other state, such as the averages of nnx.BatchNorm, out of it"
    if isinstance(variable, nnx.RngState):
        instead = "make nnx.Dropout(rate) without rngs, and call it with rngs=key"
    raise ConfigError(
        f"{name} is {type(variable).__name__}, and a model that is trained holds parameters "
        f"(nnx.Param) alone: {instead}"
    )


def map_parameters(function: Callable[[nnx.Param[Array]], PyTree], params: Parameters) -> PyTree:
    """Applies ``function`` to each parameter of a tree.

    Example:
        >>> params = {"bias": nnx.Param(jax.numpy.zeros(3), axes=("mlp",))}
        >>> map_parameters(lambda param: param.shape, params)
        {'bias': (3,)}
    """
    return jax.tree.map(function, params, is_leaf=_is_variable)


def values(params: Parameters) -> PyTree:
    """The same nested dictionaries, with arrays as leaves.

    Example:
        >>> values({"bias": nnx.Param(jax.numpy.zeros(2), axes=("mlp",))})
        {'bias': Array([0., 0.], dtype=float32)}
    """
    return map_parameters(lambda param: param.get_value(), params)


def logical_axes(param: nnx.Variable[Array]) -> tuple[str | None, ...] | None:
    """The axes that a parameter declares, without ``layers`` for one layer of a stack.

    Example:
        >>> layer = nnx.Param(jax.numpy.zeros((4, 3)), axes=("layers", "embed", "mlp"))
        >>> logical_axes(layer)
        ('embed', 'mlp')
    """
    axes = param.get_metadata("axes", None)
    if axes is not None and len(axes) > param.ndim and axes[0] == LAYERS:
        axes = axes[1:]
    return axes


def declared_axes(param: nnx.Param[Array]) -> tuple[str | None, ...]:
    """The axes that a parameter declares; None for each dimension where it declares none.

    Example:
        >>> declared_axes(nnx.eval_shape(lambda: nnx.Linear(4, 3, rngs=nnx.Rngs(0))).kernel)
        (None, None)
    """
    axes = param.get_metadata("axes", None)
    return (None,) * param.ndim if axes is None else axes


def is_matrix(param: nnx.Param[Array]) -> bool:
    """Returns whether a parameter has at least two axes besides ``layers``.

    Example:
        >>> is_matrix(nnx.Param(jax.numpy.zeros((4, 3)), axes=("layers", "mlp")))  # stacked biases
        False
    """
    return sum(axis != LAYERS for axis in declared_axes(param)) > 1


def is_projection(param: nnx.Param[Array]) -> bool:
    """Returns whether a parameter is a matrix that maps vectors to vectors, as Muon requires.

    Embedding tables and classification heads are not, since their axes count tokens or classes.

    Example:
        >>> is_projection(nnx.Param(jax.numpy.zeros((4, 3)), axes=("embed", "mlp")))
        True
        >>> is_projection(nnx.Param(jax.numpy.zeros((4, 3)), axes=("embed", "label")))
        False
    """
    return is_matrix(param) and not INDEX_AXES & set(declared_axes(param))


def at_depth(module: nnx.Module, depth: int | tuple[int, ...]) -> None:
    """Declares how far a module's parameters are from the input: 0 for embeddings, then blocks.

    A parameter without a depth counts as above all blocks, like a head.

    Args:
        module: A newly created module.
        depth: The depth, or a tuple with one depth per layer of stacked parameters.

    Example:
        >>> block = nnx.Dict(gain=nnx.Param(jax.numpy.ones(3), axes=("embed",)))
        >>> at_depth(block, 2)
        >>> layer_depths(parameters(block))
        {'gain': 2}
    """
    for _, param in nnx.iter_graph(module):
        if isinstance(param, nnx.Variable):
            param.set_metadata(depth=depth)


def raise_depth(module: nnx.Module, below: nnx.Module) -> None:
    """Declares that the blocks of ``module`` are above those of ``below``; embeddings stay at 0.

    Example:
        >>> make = lambda: nnx.Dict(gain=nnx.Param(jax.numpy.ones(3), axes=("embed",), depth=1))
        >>> encoder, decoder = make(), make()
        >>> raise_depth(decoder, encoder)
        >>> layer_depths(parameters(decoder))
        {'gain': 2}
    """
    by = _highest(parameters(below))
    for _, param in nnx.iter_graph(module):
        if isinstance(param, nnx.Variable) and (depth := param.get_metadata("depth", None)):
            raised = tuple(d + by for d in depth) if isinstance(depth, tuple) else depth + by
            param.set_metadata(depth=raised)


def layer_depths(params: Parameters) -> PyTree:
    """The depth of each parameter; for stacked layers, an array along the first axis.

    Example:
        >>> table = nnx.Param(jax.numpy.ones((2, 3)), axes=("vocab", "embed"), depth=0)
        >>> up = nnx.Param(jax.numpy.ones((2, 3, 4)), axes=("layers", "embed", "mlp"), depth=(1, 2))
        >>> head = nnx.Param(jax.numpy.ones(3), axes=("vocab",))
        >>> depths = layer_depths({"embedding": table, "up": up, "head": head})
        >>> depths["embedding"], depths["up"].shape, depths["head"]
        (0, (2, 1, 1), 3)
    """
    top = 1 + _highest(params)

    def of(param: nnx.Param[Array]) -> np.ndarray | int:
        depth = param.get_metadata("depth", None)
        if isinstance(depth, tuple):
            return np.array(depth).reshape(-1, *(1,) * (param.ndim - 1))
        return top if depth is None else depth

    return map_parameters(of, params)


def _highest(params: Parameters) -> int:
    declared = map_parameters(lambda param: np.max(param.get_metadata("depth", None) or 0), params)
    return int(max(jax.tree.leaves(declared), default=0))


def stacked(make: Callable[[nnx.Rngs], Model], layers: int, rngs: nnx.Rngs) -> Model:
    """Makes one module with the parameters of ``layers`` modules along a leading axis.

    The parameters declare this axis as ``layers``.

    Example:
        >>> make = lambda rngs: nnx.Dict(gain=nnx.Param(jax.numpy.ones(3), axes=("embed",)))
        >>> stacked(make, 2, nnx.Rngs(0))["gain"].get_metadata("axes")
        ('layers', 'embed')
    """
    metadata = {nnx.PARTITION_NAME: None, "axes": LAYERS}
    return nnx.vmap(make, transform_metadata=metadata)(rngs.split(layers))


def unstacked(module: Model, layers: int) -> list[Model]:
    """Splits a module made by :func:`stacked` into modules with their own axes and depths.

    Example:
        >>> make = lambda rngs: nnx.Dict(gain=nnx.Param(jax.numpy.ones(3), axes=("embed",)))
        >>> first, second = unstacked(stacked(make, 2, nnx.Rngs(0)), 2)
        >>> second["gain"].shape, second["gain"].get_metadata("axes")
        ((3,), ('embed',))
    """
    return [_layer(module, i) for i in range(layers)]


def _layer(module: Model, i: int) -> Model:
    layer = jax.tree.map(lambda a: a[i], module)
    for _, param in nnx.iter_graph(layer):
        if isinstance(param, nnx.Variable):
            if axes := param.get_metadata("axes", None):
                param.set_metadata(axes=axes[1:])
            depth = param.get_metadata("depth", None)
            if isinstance(depth, tuple):
                param.set_metadata(depth=depth[i])
    return layer


class Shapes(nnx.Rngs):
    """Random streams for a model of which only the shapes are needed: nothing is drawn.

    ``nnx.eval_shape`` would trace the random numbers of every parameter, for most of its time.

    Example:
        >>> initial(jax.nn.initializers.normal(), Shapes(0), (1, 2))
        Array([[0., 0.]], dtype=float32)
    """


Streams: TypeAlias = nnx.Rngs | nnx.RngStream
Initializer = Callable[[Key[Array, ""], tuple[int, ...], DTypeLike], Array]


def initial(init: Initializer, rngs: object, shape: tuple[int, ...]) -> Array:
    """Returns the initial value of a parameter, in float32; zeros for :class:`Shapes`.

    Raises:
        ArgumentError: ``rngs`` is not random streams but, for example, a seed.

    Example:
        >>> initial(jax.nn.initializers.ones, 0, (2, 3))
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ArgumentError: rngs is 0: random streams are needed, ...
    """
    if isinstance(rngs, Shapes):
        return jnp.zeros(shape, jnp.float32)
    if not isinstance(rngs, Streams):
        seed = rngs if isinstance(rngs, int) else 0
        raise ArgumentError(f"rngs is {rngs!r}: random streams are needed, flax.nnx.Rngs({seed})")
    key = rngs() if isinstance(rngs, nnx.RngStream) else rngs.params()
    return init(key, shape, jnp.float32)

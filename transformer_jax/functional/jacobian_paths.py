"""Programs as traced: dependence of outputs on inputs, sequential depth, FLOPs of products."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jax.interpreters import partial_eval
from jaxtyping import Array, Bool, Float, Key, PyTree

from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.array_arguments import real_arguments

__all__ = [
    "copies_needed", "dependence", "gradient_norms", "path_length", "product_flops",
    "sequential_depth",
]  # fmt: skip

AT_ONCE = 16  # rows of the Jacobian
PRODUCTS = ("dot_general", "conv_general_dilated")


@real_arguments
def dependence(layer: Callable[[Array], Array], x: Float[Array, "n d"]) -> Bool[np.ndarray, "n n"]:
    """Marks the blocks of the Jacobian that are not zero: output ``t`` changes with input ``s``.

    Args:
        layer: Function from vectors ``[n d]`` to vectors at the same number of positions.
        x: Point of differentiation; random values, because special ones may hide a dependence.

    Example:
        >>> dependence(lambda x: jnp.cumsum(x, axis=0), jnp.ones((3, 1))).astype(int)
        array([[1, 0, 0],
               [1, 1, 0],
               [1, 1, 1]])
    """

    def jacobian(x: Array) -> Array:
        y, pull = jax.vjp(layer, x)

        def row(i: Array) -> Array:
            one = jnp.zeros(y.size, y.dtype).at[i].set(1)
            return jnp.abs(pull(one.reshape(y.shape))[0]).max(axis=1)

        rows = lax.map(row, jnp.arange(y.size), batch_size=AT_ONCE)  # never [n e n d] at once
        return rows.reshape(y.shape[0], -1, x.shape[0]).max(axis=1)

    return np.asarray(jax.jit(jacobian)(x) > 0)


def path_length(
    layers: Iterable[Bool[np.ndarray, "n n"]], among: Bool[np.ndarray, "n n"] | None = None
) -> int | None:
    """Returns the number of layers until every output depends on every input; None if never.

    Vaswani et al. 2017, table 1: the longest path between two positions.

    Args:
        layers: The :func:`dependence` of each layer, in order.
        among: The pairs of an output and an input that count; None is all. For causal layers,
            ``np.tri(n, dtype=bool)``: no output depends on a later input.

    Example:
        >>> neighbours = np.abs(np.subtract.outer(np.arange(5), np.arange(5))) <= 1
        >>> path_length([neighbours] * 9), path_length([np.eye(5, dtype=bool)] * 9)
        (4, None)
        >>> before = np.tri(5, dtype=bool) & neighbours
        >>> path_length([before] * 9), path_length([before] * 9, np.tri(5, dtype=bool))
        (None, 4)
    """
    reached = None
    for number, layer in enumerate(layers, 1):
        reached = layer if reached is None else _composed(layer, reached)
        if _all(reached, among):
            return number
    return None


def copies_needed(
    layer: Bool[np.ndarray, "n n"], among: Bool[np.ndarray, "n n"] | None = None
) -> int | None:
    """The :func:`path_length` of copies of one layer, with logarithmically many products.

    Args:
        layer: The :func:`dependence` of each copy.
        among: The pairs of an output and an input that count; None is all.

    Raises:
        ArgumentError: A position does not depend on itself: more copies might reach less.

    Example:
        >>> neighbours = np.abs(np.subtract.outer(np.arange(64), np.arange(64))) <= 1
        >>> copies_needed(neighbours), copies_needed(np.eye(64, dtype=bool))
        (63, None)
    """
    if not layer.diagonal().all():
        raise ArgumentError("copies_needed: a position of the layer does not depend on itself")
    powers = [layer]  # of 1, 2, 4, ... copies
    while not _all(powers[-1], among):
        powers.append(_composed(powers[-1], powers[-1]))
        if (powers[-1] == powers[-2]).all():
            return None
    # The most copies that do not suffice, found from the highest binary digit down.
    count, reached = 0, np.eye(len(layer), dtype=bool)
    for digit in reversed(range(len(powers) - 1)):
        more = _composed(powers[digit], reached)
        if not _all(more, among):
            count, reached = count + 2**digit, more
    return count + 1


def _composed(
    layer: Bool[np.ndarray, "n n"], below: Bool[np.ndarray, "n n"]
) -> Bool[np.ndarray, "n n"]:
    """The dependence of a layer composed with the layers below it; float32 products are fast."""
    return layer.astype(np.float32) @ below.astype(np.float32) > 0


def _all(reached: Bool[np.ndarray, "n n"], among: Bool[np.ndarray, "n n"] | None) -> bool:
    return bool(reached.all() if among is None else reached[among].all())


def sequential_depth(function: Callable[..., PyTree], *inputs: PyTree) -> int:
    """Returns the longest chain of matrix products and convolutions that wait for one another.

    Vaswani et al. 2017, table 1: the minimum number of sequential operations. It is read from the
    traced program; nothing is computed. Each step of a scan counts.

    Args:
        function: The function to trace.
        inputs: Its arguments: arrays, or shapes.

    Raises:
        ArgumentError: The program has a loop whose length depends on data.

    Example:
        >>> x = jnp.ones((4, 4))
        >>> sequential_depth(lambda x: (x @ x) + (x @ x), x)
        1
        >>> sequential_depth(lambda x: x @ x @ x, x)
        2
    """
    program = jax.make_jaxpr(function)(*inputs)
    return max(_depths(program.jaxpr, [0] * len(program.jaxpr.invars)), default=0)


def _depths(program: core.Jaxpr, inputs: Sequence[int]) -> list[int]:
    """The depth of each output of a program, from the depths of its inputs."""
    known = dict(zip(program.invars, inputs, strict=True))
    # Literals have no variables; constants wait for nothing.
    depth = lambda x: 0 if hasattr(x, "val") else known.get(x, 0)
    for equation in program.eqns:
        found = _outputs(equation, [depth(x) for x in equation.invars])
        known.update(zip(equation.outvars, found, strict=True))
    return [depth(x) for x in program.outvars]


def _outputs(equation: core.JaxprEqn, inputs: list[int]) -> list[int]:
    """The depths of the outputs of an equation."""
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        return _scanned(equation, inputs)
    if name == "while":
        raise ArgumentError("sequential_depth: a loop has no fixed number of steps")
    if name == "cond":
        branches = [_depths(branch.jaxpr, inputs[1:]) for branch in params["branches"]]
        return [max(inputs[0], *each) for each in zip(*branches, strict=True)]
    for inner in [one for value in params.values() for one in _programs(value)]:
        return _depths(inner, inputs)  # a function that is called
    return [max(inputs, default=0) + (name in PRODUCTS)] * len(equation.outvars)


def _scanned(equation: core.JaxprEqn, inputs: list[int]) -> list[int]:
    """The depths of a scan's final carry and of its stacked outputs."""
    body, shape = equation.params["jaxpr"].jaxpr, lambda x: x.aval.shape
    # The carry has one shape inside and outside; scanned and stacked arrays have one axis more.
    same = lambda outside, inside: sum(
        shape(x) == shape(y) for x, y in zip(outside, inside, strict=True)
    )
    carries = same(equation.outvars, body.outvars)
    consts = same(equation.invars, body.invars) - carries
    fixed, carry, rest = (
        inputs[:consts],
        inputs[consts : consts + carries],
        inputs[consts + carries :],
    )
    stacked = [0] * (len(body.outvars) - carries)
    for _ in itertools.repeat(None, equation.params["length"]):
        found = _depths(body, [*fixed, *carry, *rest])
        carry = found[:carries]
        stacked = [max(pair) for pair in zip(stacked, found[carries:], strict=True)]
    return [*carry, *stacked]


def product_flops(function: Callable[..., PyTree], *inputs: PyTree) -> float:
    """Counts the FLOPs of all matrix products and convolutions: ``2 m k n`` of [m, k] by [k, n].

    They are read from the traced program; nothing is compiled. Unlike in XLA's cost analysis, each
    step of a scan counts, and so does each program of a Pallas kernel and each device of a
    ``shard_map``. A loop whose length depends on data counts once, and a condition as its dearest
    branch. Repetitions by ``jax.checkpoint`` count; kernels of libraries, such as cuDNN's, do not.

    Args:
        function: The function to trace.
        inputs: Its arguments: arrays, or shapes.

    Example:
        >>> x = jnp.ones((4, 4))
        >>> product_flops(lambda x: lax.scan(lambda y, _: (y @ y, None), x, length=3)[0], x)
        384.0
    """
    program = jax.make_jaxpr(function)(*inputs).jaxpr
    # Without what no output needs, such as the value of a function whose gradient is asked for.
    return float(_flops(partial_eval.dce_jaxpr(program, [True] * len(program.outvars))[0]))


def _flops(program: core.Jaxpr) -> int:
    return sum(_flops_of(equation) for equation in program.eqns)


def _flops_of(equation: core.JaxprEqn) -> int:
    name, params, shape = equation.primitive.name, equation.params, lambda x: x.aval.shape
    if name in PRODUCTS:
        right, out = shape(equation.invars[1]), math.prod(shape(equation.outvars[0]))
        if name == "dot_general":
            (_, summed), _ = params["dimension_numbers"]
            return 2 * out * math.prod(right[axis] for axis in summed)
        outputs = right[params["dimension_numbers"].rhs_spec[0]]
        # A dilated input is mostly zeros.
        return 2 * out * math.prod(right) // outputs // math.prod(params["lhs_dilation"])
    inner = [_flops(one) for value in params.values() for one in _programs(value)]
    match name:
        case "cond":
            return max(inner)
        case "scan":
            return params["length"] * sum(inner)
        case "shard_map":
            return params["mesh"].size * sum(inner)
        case "pallas_call":
            return math.prod(params["grid_mapping"].grid) * sum(inner)
    return sum(inner)


def _programs(value: PyTree) -> list[core.Jaxpr]:
    """The programs in a parameter of an equation."""
    several = value if isinstance(value, tuple | list) else [value]
    inner = (getattr(one, "jaxpr", one) for one in several)
    return [one for one in inner if isinstance(one, core.Jaxpr)]


@real_arguments
def gradient_norms(
    last: Callable[[Array], Array], x: Float[Array, "B T d"], key: Key[Array, ""]
) -> Float[Array, "B T"]:
    """Returns the influence of each input on the last output: ``‖∂(u · last(x)) / ∂x_t‖``.

    ``u`` is a random direction of length 1, drawn for each text. The root mean square over many
    directions is the Frobenius norm of the Jacobian, divided by the root of the size of ``last``.

    Pascanu et al. 2013: in a recurrent network it decays or grows exponentially with the distance
    from the end.

    Args:
        last: Function from vectors ``[B T d]`` to one vector per text, ``[B e]``.
        x: Point of differentiation.
        key: Random key of the directions.

    Example:
        >>> halved = lambda x: jnp.einsum("BTd,T->Bd", x, 0.5 ** jnp.arange(3)[::-1])
        >>> gradient_norms(halved, jnp.ones((1, 3, 2)), jax.random.key(0)).round(4)
        Array([[0.25, 0.5 , 1.  ]], dtype=float32)
    """
    y, pull = jax.vjp(last, x)
    u = jax.random.normal(key, y.shape, y.dtype)
    [gradient] = pull(u / jnp.linalg.norm(u, axis=-1, keepdims=True))
    # Squares of the gradients at long distances would underflow.
    largest = jnp.abs(gradient).max(axis=-1, keepdims=True)
    scaled = gradient / jnp.where(largest > 0, largest, 1)
    return largest[..., 0] * jnp.linalg.norm(scaled, axis=-1)

"""Recurrence over the positions of texts: cells, and a scan with one product for all inputs.

A cell computes the next state from the previous one and from ``projected``, the products of the
inputs at all positions, ``x W + b``, which need no recurrence. Wherever a cell multiplies by its
recurrent kernel ``U``, the product is added to columns of ``projected``, so the gradient of ``U``
follows from that of ``projected`` by one product over all positions instead of one per position.

States are float32, whatever the dtype of ``projected``.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.array_arguments import real_arguments

__all__ = ["CELLS", "Add", "Cell", "State", "recur", "reverse_texts", "stop_at_multiples"]

State = tuple[Array, ...]  # [B D] each; the first is the output
Outputs = tuple[Array, State]  # outputs [B T D], and the final state
# (operand [B D], index of its first block of columns, and one past its last)
# -> projected[:, columns] + operand U[:, columns], in float32
Add = Callable[[Array, int, int], Array]


class Cell(NamedTuple):
    """A recurrent cell of size D.

    Attributes:
        inputs: Number of blocks of D columns in ``projected``.
        products: Number of blocks of D columns in the recurrent kernel; they come first in
            ``projected``.
        states: Number of arrays in the state.
        step: Computes the next state from the previous one.
    """

    inputs: int
    products: int
    states: int
    step: Callable[[Add, State], State]


def _vanilla(activation: Callable[[Array], Array], add: Add, state: State) -> State:
    return (activation(add(state[0], 0, 1)),)


def _lstm(add: Add, state: State) -> State:
    h, c = state
    i, f, g, o = jnp.split(add(h, 0, 4), 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _gru(add: Add, state: State) -> State:
    (h,) = state
    r, z = jnp.split(jax.nn.sigmoid(add(h, 0, 2)), 2, axis=-1)
    n = jnp.tanh(add(r * h, 2, 3))
    return (z * h + (1 - z) * n,)


def _gru_reset_after(add: Add, state: State) -> State:
    (h,) = state
    r, z, hidden = jnp.split(add(h, 0, 3), 3, axis=-1)
    r, z = jax.nn.sigmoid(r), jax.nn.sigmoid(z)
    n = jnp.tanh(add(h, 3, 4) + r * hidden)
    return (z * h + (1 - z) * n,)


# tanh, relu: h' = f(x W + h U + b), Elman 1990.
# lstm: c' = σ(f) c + σ(i) tanh(g), h' = σ(o) tanh(c'), blocks i, f, g, o; Hochreiter and
# Schmidhuber 1997 with the forget gate of Gers et al. 2000.
# gru: n = tanh(x W + (r h) U), h' = z h + (1 - z) n, blocks r, z, n; Cho et al. 2014.
# gru_reset_after: n = tanh(x W + r (h U + b')), blocks r, z, h U + b', x W: as in cuDNN and
# PyTorch, which apply the gate to the product.
CELLS = {
    "tanh": Cell(1, 1, 1, functools.partial(_vanilla, jnp.tanh)),
    "relu": Cell(1, 1, 1, functools.partial(_vanilla, jax.nn.relu)),
    "lstm": Cell(4, 4, 2, _lstm),
    "gru": Cell(3, 3, 1, _gru),
    "gru_reset_after": Cell(4, 3, 1, _gru_reset_after),
}


@real_arguments
def recur(
    cell: Cell,
    projected: Float[Array, "B T X"],
    kernel: Float[Array, "D P"],
    state: State,
    lengths: Int[Array, " B"] | None = None,
    truncate: int | None = None,
    begins: Bool[Array, "B T"] | None = None,
) -> tuple[Float[Array, "B T D"], State]:
    """The outputs of a cell at every position, and its final state; reverse mode only.

    Args:
        cell: One of :data:`CELLS`.
        projected: ``x W + b`` of all inputs, a block of D columns for each of ``cell.inputs``.
        kernel: ``U``, in the compute dtype.
        state: The state before the first position.
        lengths: Tokens in each row: beyond them outputs are 0 and the state is kept; None is all.
        truncate: Gradients go back at most this many positions, and never past a multiple of it.
            None is no limit.
        begins: True where a text begins, in rows that hold several: the state before it is zero.

    Raises:
        ArgumentError: A size does not fit the cell, or ``truncate`` is below 1.

    Example:
        >>> summed = Cell(1, 1, 1, lambda add, state: (add(state[0], 0, 1),))
        >>> x, start = jnp.array([[[1.0], [2.0], [4.0]]]), (jnp.zeros((1, 1)),)
        >>> y, (last,) = recur(summed, x, jnp.ones((1, 1)), start, jnp.array([2]))
        >>> y[0, :, 0], last[0]
        (Array([1., 3., 0.], dtype=float32), Array([3.], dtype=float32))
    """
    D = kernel.shape[0]
    sizes = {
        "projected": (projected.shape[2], cell.inputs * D),
        "kernel": (kernel.shape[1], cell.products * D),
        "state": (len(state), cell.states),
    }
    for name, (found, wanted) in sizes.items():
        if found != wanted:
            raise ArgumentError(f"recur: {name} has {found} columns or arrays, the cell {wanted}")
    if truncate is not None and truncate < 1:
        raise ArgumentError(f"recur: truncate is {truncate}: at least 1")
    if lengths is None:
        lengths = jnp.full(projected.shape[0], projected.shape[1])
    state = tuple(one.astype(jnp.float32) for one in state)
    return _recur(cell, truncate, projected, kernel, state, (lengths, begins))


@real_arguments
def reverse_texts(
    x: Float[Array, "B T D"], lengths: Int[Array, " B"] | None = None
) -> Float[Array, "B T D"]:
    """Reverses the tokens of each row; padding stays in place.

    Example:
        >>> reverse_texts(jnp.array([[[1.0], [2.0], [9.0]]]), jnp.array([2]))[0, :, 0]
        Array([2., 1., 9.], dtype=float32)
    """
    if lengths is None:
        return x[:, ::-1]
    places, last = jnp.arange(x.shape[1])[None], lengths[:, None] - 1
    places = jnp.where(places <= last, last - places, places)
    return jnp.take_along_axis(x, places[:, :, None], axis=1)


def stop_at_multiples(state: PyTree, place: Int[Array, ""], truncate: int | None) -> PyTree:
    """Blocks the gradient of a state at positions that are multiples of ``truncate``.

    Truncated backpropagation through time, Williams and Peng 1990.

    Args:
        state: Arrays of the state before the position.
        place: The position, from 0.
        truncate: Positions between two stops; None never stops.

    Example:
        >>> grad = jax.grad(lambda x, place: stop_at_multiples(x, place, 2))
        >>> [float(grad(1.0, jnp.int32(place))) for place in range(5)]
        [1.0, 1.0, 0.0, 1.0, 0.0]
    """
    if truncate is None:
        return state
    cut = (place % truncate == 0) & (place > 0)
    return jax.tree.map(lambda one: jnp.where(cut, lax.stop_gradient(one), one), state)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _recur(
    cell: Cell,
    truncate: int | None,
    projected: Array,
    kernel: Array,
    state: State,
    texts: tuple[Array, Array | None],
) -> Outputs:
    return _scan(cell, truncate, projected, kernel, state, texts)[0]


def _scan(
    cell: Cell,
    truncate: int | None,
    projected: Array,
    kernel: Array,
    state: State,
    texts: tuple[Array, Array | None],
) -> tuple[Outputs, tuple[Array, ...]]:
    """The outputs and the final state, and the operands of the kernel at each position."""
    D, (lengths, begins) = kernel.shape[0], texts

    def body(
        state: State, step: tuple[Array, Array, Array | None]
    ) -> tuple[State, tuple[Array, tuple[Array, ...]]]:
        place, now, begin = step
        met = []

        def add(operand: Array, start: int, stop: int) -> Array:
            columns = now[:, start * D : stop * D].astype(jnp.float32)
            if start >= cell.products:
                return columns
            met.append(operand := operand.astype(kernel.dtype))
            part = kernel[:, start * D : stop * D]
            return columns + jnp.matmul(operand, part, preferred_element_type=jnp.float32)

        if begin is not None:
            state = tuple(jnp.where(begin[:, None], 0, one) for one in state)
        state = stop_at_multiples(state, place, truncate)
        inside = (place < lengths)[:, None]
        new = cell.step(add, state)
        kept = tuple(jnp.where(inside, a, b) for a, b in zip(new, state, strict=True))
        return kept, (jnp.where(inside, new[0], 0).astype(projected.dtype), tuple(met))

    begins = None if begins is None else begins.T
    steps = (jnp.arange(projected.shape[1]), projected.swapaxes(0, 1), begins)
    last, (outputs, met) = lax.scan(body, state, steps)
    return (outputs.swapaxes(0, 1), last), met


def _recur_forward(
    cell: Cell,
    truncate: int | None,
    projected: Array,
    kernel: Array,
    state: State,
    texts: tuple[Array, Array | None],
) -> tuple[Outputs, PyTree]:
    scan = lambda projected, state: _scan(cell, truncate, projected, kernel, state, texts)
    found, pull, met = jax.vjp(scan, projected, state, has_aux=True)
    return found, (pull, met, kernel)


def _recur_backward(
    cell: Cell, truncate: int | None, kept: PyTree, gradients: Outputs
) -> tuple[Array, Array, State, None]:
    del truncate
    pull, met, kernel = kept
    projected, state = pull(gradients)
    return projected, _kernel_gradient(cell, met, projected, kernel), state, None


def _kernel_gradient(cell: Cell, met: tuple[Array, ...], gradient: Array, kernel: Array) -> Array:
    """Returns the gradient of the kernel: transposed operands of all positions times gradients."""
    D = kernel.shape[0]
    widths, start, parts = _widths(cell), 0, []
    for operand, width in zip(met, widths, strict=True):
        columns = gradient[:, :, start * D : (start + width) * D].swapaxes(0, 1)
        parts.append(
            jnp.einsum("TBD,TBP->DP", operand, columns, preferred_element_type=jnp.float32)
        )
        start += width
    return jnp.concatenate(parts, axis=1).astype(kernel.dtype)


def _widths(cell: Cell) -> list[int]:
    """Returns the number of blocks of the kernel in each product of a step, in order."""
    found = []

    def add(operand: Array, start: int, stop: int) -> Array:
        if start < cell.products:
            found.append(stop - start)
        return jnp.zeros((1, stop - start))

    jax.eval_shape(lambda: cell.step(add, tuple(jnp.zeros((1, 1)) for _ in range(cell.states))))
    return found


_recur.defvjp(_recur_forward, _recur_backward)

"""Recurrent layers: cells over texts in one or both directions, in stacks."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_jax.functional.layers import dropout, linear
from transformer_jax.functional.partitioning import unshard_fsdp
from transformer_jax.functional.recurrent import CELLS, State, recur, reverse_texts
from transformer_jax.models.config import CellName
from transformer_jax.models.layers.basic import Linear
from transformer_jax.models.layers.module import Module
from transformer_jax.models.layers.parameters import at_depth, initial, logical_axes

__all__ = ["Recurrent", "RecurrentLayer"]

_AXES = ("embed", None)  # of the kernels: every device has all columns, since gates combine them


class RecurrentLayer(Module):
    """A cell that runs over the positions of texts in one direction.

    Recurrent kernels are orthogonal in each block (Saxe et al. 2013), input kernels Glorot-uniform,
    and biases 0, except 1 for forget gates (Jozefowicz et al. 2015).
    """

    def __init__(self, inputs: int, size: int, cell: CellName = "lstm", *, rngs: nnx.Rngs):
        kind = CELLS[cell]
        self.cell, self.size = cell, size
        # The product that the gate of gru_reset_after multiplies has its own bias and no input.
        blocks = kind.inputs - (cell == "gru_reset_after")
        self.inputs = Linear(inputs, blocks * size, _AXES, rngs=rngs)
        if cell == "lstm" and self.inputs.bias is not None:
            ones = self.inputs.bias[...].at[size : 2 * size].set(1.0)
            self.inputs.bias = nnx.Param(ones, axes=_AXES[1:])
        orthogonal = jax.nn.initializers.orthogonal()
        blocks_of = [initial(orthogonal, rngs, (size, size)) for _ in range(kind.products)]
        self.kernel = nnx.Param(jnp.concatenate(blocks_of, axis=1), axes=_AXES)
        reset_after = cell == "gru_reset_after"
        self.bias = nnx.Param(jnp.zeros(size), axes=(None,)) if reset_after else None

    def __call__(
        self,
        x: Float[Array, "B T I"],
        lengths: Int[Array, " B"] | None = None,
        state: State | None = None,
        truncate: int | None = None,
        begins: Bool[Array, "B T"] | None = None,
    ) -> tuple[Float[Array, "B T D"], State]:
        """Returns the outputs at every position, and the last state.

        Args:
            x: The inputs.
            lengths: Number of tokens in each row; None is all. Beyond them outputs are 0.
            state: The state before the first position; None is zero.
            truncate: See :func:`.functional.recurrent.recur`.
            begins: True where a text begins, in rows that hold several.
        """
        kernel = unshard_fsdp(self.kernel[...], _AXES, x.dtype)
        state = self.init_state(x.shape[0]) if state is None else state
        projected = self.projected(x)
        return recur(CELLS[self.cell], projected, kernel, state, lengths, truncate, begins)

    def projected(self, x: Float[Array, "B T I"], first: int = 0) -> Float[Array, "B T X"]:
        """Projects the inputs of all positions to the form that the cell reads.

        Inputs may be given in parts, where ``x`` starts at channel ``first``: their products add up
        to the product of all, with the biases in the product of the first part.
        """
        kernel, bias = self.inputs.kernel, self.inputs.bias
        rows = kernel[...][first : first + x.shape[-1]]
        if first or bias is None:
            y = linear(x, rows, None, logical_axes(kernel))
        else:
            y = linear(x, rows, bias[...], logical_axes(kernel))
        if self.bias is None:
            return y
        gates, new = jnp.split(y, [2 * self.size], axis=-1)
        of_product = jnp.zeros_like(self.bias[...]) if first else self.bias[...]
        inserted = jnp.broadcast_to(of_product.astype(y.dtype), new.shape)
        return jnp.concatenate([gates, inserted, new], axis=-1)

    def next_state(self, projected: Float[Array, "B X"], state: State) -> State:
        """Returns the state after one more position, given its :meth:`projected` inputs."""
        kernel = unshard_fsdp(self.kernel[...], _AXES, projected.dtype)
        return recur(CELLS[self.cell], projected[:, None], kernel, state)[1]

    def init_state(self, rows: int) -> State:
        """A state of zeros."""
        return tuple(jnp.zeros((rows, self.size)) for _ in range(CELLS[self.cell].states))


class Recurrent(Module):
    """``depth`` layers of a cell, each of which reads the outputs of the layer before it.

    If bidirectional, the outputs of a layer are those of both directions side by side; the backward
    direction starts at the last token of each text. Inputs have size ``width``, a state of one
    direction ``size``, and outputs ``outputs``.
    """

    def __init__(
        self,
        inputs: int,
        size: int,
        cell: CellName = "lstm",
        *,
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        truncate: int | None = None,
        rngs: nnx.Rngs,
    ):
        """Makes the layers.

        Args:
            inputs: Size of an input.
            size: Size of a state, per direction.
            cell: One of ``tanh``, ``relu``, ``lstm``, ``gru`` (Cho et al. 2014) and
                ``gru_reset_after`` (cuDNN, PyTorch).
            layers: Number of layers.
            bidirectional: Whether each layer also reads the text backwards.
            dropout: Dropout rate of the outputs between layers.
            truncate: Number of positions that gradients go back at most; None is no limit. See
                :func:`.functional.recurrent.recur`.
            rngs: Random streams of the parameters.
        """
        self.truncate = truncate
        self.width, self.size, self.depth, self.dropout = inputs, size, layers, dropout
        self.cell = cell
        self.outputs = (1 + bidirectional) * size
        widths = [inputs] + [self.outputs] * (layers - 1)

        def of() -> list[RecurrentLayer]:
            made = [RecurrentLayer(width, size, cell, rngs=rngs) for width in widths]
            for depth, layer in enumerate(made, 1):
                at_depth(layer, depth)
            return made

        self.forward = nnx.List(of())
        self.backward = nnx.List(of()) if bidirectional else None

    def __call__(
        self,
        x: Float[Array, "B T I"],
        lengths: Int[Array, " B"] | None = None,
        states: tuple[State, ...] | None = None,
        *,
        key: Key[Array, ""] | None = None,
    ) -> tuple[Float[Array, "B T O"], tuple[State, ...]]:
        """Returns the outputs of the last layer at every position, and each layer's last state.

        Args:
            x: The inputs.
            lengths: Number of tokens in each row; None is all. Padding changes nothing and gives 0.
            states: Initial states, in the returned form; None is zero.
            key: Random key of dropout; None is no dropout.
        """
        layers, truncate = self.depth, self.truncate
        keys: Sequence[None] | Array = (
            [None] * layers if key is None else jax.random.split(key, layers)
        )
        found = []
        for i in range(layers):
            x = x if i == 0 else dropout(x, self.dropout, keys[i])
            begin = lambda at: None if states is None else states[at]
            if self.backward is None:
                x, last = self.forward[i](x, lengths, begin(i), truncate)
                found.append(last)
                continue
            ahead, last = self.forward[i](x, lengths, begin(2 * i), truncate)
            turned = reverse_texts(x, lengths)
            back, first = self.backward[i](turned, lengths, begin(2 * i + 1), truncate)
            x = jnp.concatenate([ahead, reverse_texts(back, lengths)], axis=-1)
            found += [last, first]
        return x, tuple(found)

    def next_states(
        self,
        projected: Float[Array, "B X"],
        states: tuple[State, ...],
        key: Key[Array, ""] | None = None,
    ) -> tuple[Float[Array, "B D"], tuple[State, ...]]:
        """Returns the output of the last layer after one more position, and all layers' states.

        Args:
            projected: The inputs from ``forward[0].projected``; only for one direction.
            states: The state of every layer before the position.
            key: Random key of dropout; None is no dropout.
        """
        keys: Sequence[None] | Array = (
            [None] * self.depth if key is None else jax.random.split(key, self.depth)
        )
        found: list[State] = []
        for i in range(self.depth):
            if i:
                x = dropout(found[-1][0].astype(projected.dtype), self.dropout, keys[i])
                inputs = self.forward[i].projected(x[:, None])[:, 0]
            else:
                inputs = projected
            found.append(self.forward[i].next_state(inputs, states[i]))
        return found[-1][0].astype(projected.dtype), tuple(found)

"""Bytes of the activations of a model on one device, counted from the configuration.

What a training step keeps of each block for its backward pass, and what it works with besides.
Sizes are those of the arrays that reverse-mode differentiation saves, which the compilers of GPUs
and TPUs keep; what they fuse away is left out.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend.core import Literal

from transformer_jax.functional.recurrent import CELLS, recur
from transformer_jax.models.config import CellName, TransformerConfig
from transformer_jax.models.costs.components import head_sizes, itemsize
from transformer_jax.models.recurrent_config import RecurrentConfig
from transformer_jax.models.recurrent_translator import RecurrentEncoderDecoder

__all__ = [
    "DeviceShare",
    "block_bytes",
    "recurrence_bytes",
    "residual_bytes",
    "translator_bytes",
    "working_bytes",
]


@dataclasses.dataclass(frozen=True)
class DeviceShare:
    """The part of a batch and of a model that one device computes at a time.

    Attributes:
        rows: Rows of its part of a micro-batch.
        tensor: Devices that share heads and feed-forward.
        context: Devices that share the positions of a text.
        lanes: Numbers to whose multiples a head is padded: 128 on TPUs.
        gathers: Whether products gather their kernels as they go, which a TPU does not fuse with
            the activation function that follows.
    """

    rows: float
    tensor: int = 1
    context: int = 1
    lanes: int = 1
    gathers: bool = False

    def tokens(self, length: int) -> float:
        """The tokens of its rows that lie on the device."""
        return self.rows * length / self.context

    def padded(self, head_dim: int) -> int:
        """The numbers of a head with their padding."""
        return -(-head_dim // self.lanes) * self.lanes


def block_bytes(
    config: TransformerConfig,
    local: DeviceShare,
    length: int,
    kernels: Sequence[str],
    memory: int | None = None,
) -> float:
    """Bytes that the backward pass of one block needs, kept since its forward pass.

    Args:
        config: Of the block's stack: that of a decoder is ``config.decoder()``.
        local: The device's part.
        length: Tokens of a row.
        kernels: Of self-attention, where that is the mixer, and of cross-attention, if there is a
            memory.
        memory: Tokens of a row that cross-attention reads; None without.

    Example:
        >>> from transformer_jax.models.presets import PRESETS
        >>> config, local = PRESETS["vaswani_base"], DeviceShare(8.0)
        >>> kept = [block_bytes(config, local, 128, [name]) for name in ("cudnn", "xla")]
        >>> [round(size / 2**20) for size in kept]
        [23, 27]
    """
    D, F, item = config.d_model, config.feed_forward.d_ff / local.tensor, itemsize(config)
    n = local.tokens(length)
    attends = config.mixer.kind == "attention"
    keys = [length] * attends + ([] if memory is None else [memory])
    total = sum(
        _attention_bytes(config, local, length, S, kernel)
        for S, kernel in zip(keys, kernels, strict=True)
    )
    # Input and result of the norm, and what the activation function needs.
    norms = 1 if config.norm.placement == "post" else 2
    around = n * D * (item * norms + _drops(config))
    if not attends:
        total += around + n * D * _mixer_bytes(config, masked=memory is None)
    return total + (around + n * F * _hidden_bytes(config, local) if F else 0)


def _mixer_bytes(config: TransformerConfig, *, masked: bool) -> float:
    """Bytes kept for each number of a vector by what takes the place of self-attention.

    A convolution keeps the inputs of all places side by side, its halves and the gate. Where rows
    hold several texts or padding (``masked``) it keeps these inputs apart too, and which of them
    count; a translator's decoder has neither. The directions of an encoder's recurrence have half
    of the numbers each.
    """
    mixer, item = config.mixer, itemsize(config)
    if mixer.kind == "recurrent":
        return float(recurrence_bytes(mixer.cell, config.compute.dtype))
    return float(item * (mixer.kernel_size + 3) + masked * mixer.kernel_size * (item + 1))


def _hidden_bytes(config: TransformerConfig, local: DeviceShare) -> int:
    """Bytes kept for each number between the two products of feed-forward.

    The result is the input of the second product. The slope of ReLU follows from the result;
    others need their input, and the tanh form of GELU its tanh, which XLA keeps in float32.
    """
    item, name = itemsize(config), config.feed_forward.activation
    kept = item if name == "relu" and not local.gathers else 2 * item
    kept += 4 if name == "gelu_tanh" else 0
    return kept + (item if config.feed_forward.gated else 0)


def _drops(config: TransformerConfig) -> float:
    """Bytes of a dropout mask, for each number."""
    return 1.0 if config.norm.residual_dropout else 0.0


def _attention_bytes(
    config: TransformerConfig, local: DeviceShare, T: int, S: int, kernel: str
) -> float:
    """The norm's input and result; queries, keys, values; what they mix to; scores, if kept."""
    sizes, item, D = head_sizes(config), itemsize(config), config.d_model
    n, m = local.tokens(T), local.tokens(S)
    heads, kv = sizes.heads / local.tensor, max(1, sizes.kv_heads / local.tensor)
    query, value = local.padded(sizes.head_dim), local.padded(sizes.value_dim)
    queries, mixed = n * heads * query, n * heads * value
    keys, merged = m * kv * (query + value), n * heads * sizes.value_dim
    norms = 1 if config.norm.placement == "post" else 2
    total = item * (norms * n * D + queries + keys + mixed + merged) + n * D * _drops(config)
    if kernel == "xla":
        weights = local.rows * heads * (T / local.context) * S
        # In the dtype of computation; XLA keeps them in float32 too.
        total += weights * (4 if item == 4 else 4 + item)
        # With dropout: what is kept, and which of them.
        total += weights * (1 + item) * bool(config.attention.dropout)
    return total


def working_bytes(
    config: TransformerConfig, local: DeviceShare, length: int, kernels: Sequence[str]
) -> float:
    """Bytes that the backward pass of one block needs for gradients of its activations.

    Example:
        >>> from transformer_jax.models.presets import PRESETS
        >>> round(working_bytes(PRESETS["vaswani_base"], DeviceShare(8.0), 128, ["xla"]) / 2**20)
        20
    """
    D, F, item = config.d_model, config.feed_forward.d_ff / local.tensor, itemsize(config)
    # Of a recurrence the products of its inputs and their gradient, of a convolution those of its
    # halves and its inputs side by side.
    mixer = config.mixer
    columns = {
        "attention": 1,
        "recurrent": CELLS[mixer.cell].inputs,
        "convolution": max(mixer.kernel_size, 2),
    }[mixer.kind]
    total = local.tokens(length) * item * (2 * columns * D + 2 * F)
    if "xla" in kernels:
        heads = head_sizes(config).heads / local.tensor
        total = max(total, local.rows * heads * (length / local.context) * length * (4 + 4 + item))
    return total


def residual_bytes(function: Callable[..., Any], *arguments: Any) -> int:
    """Bytes that the backward pass of ``function`` needs besides its arguments and constants.

    Args:
        function: Of arrays, to arrays.
        arguments: Shapes, all of which are differentiated by.

    Example:
        >>> x = jax.ShapeDtypeStruct((100,), jnp.float32)
        >>> residual_bytes(lambda x: 3 * x, x), residual_bytes(lambda x: jnp.exp(x), x)
        (0, 400)
    """
    kept = lambda *given: jax.tree.leaves(jax.vjp(function, *given)[1])
    traced = jax.make_jaxpr(kept)(*arguments).jaxpr
    known = {*traced.invars, *traced.constvars}
    found = {one for one in traced.outvars if not isinstance(one, Literal)} - known
    # Random keys, which have no item size, are few.
    numeric = lambda dtype: not jnp.issubdtype(dtype, jax.dtypes.extended)
    shapes: list[Any] = [one.aval for one in found]
    return sum(math.prod(a.shape) * a.dtype.itemsize for a in shapes if numeric(a.dtype))


@functools.lru_cache
def recurrence_bytes(cell: CellName, dtype: str) -> int:
    """Bytes that a cell keeps of each position for each number of its state.

    Args:
        cell: One of :data:`.functional.recurrent.CELLS`.
        dtype: Of computation; states and gates are in float32.

    Example:
        >>> recurrence_bytes("lstm", "float32"), recurrence_bytes("lstm", "bfloat16")
        (51, 49)
    """
    kind = CELLS[cell]
    shape = lambda *sizes, dtype=dtype: jax.ShapeDtypeStruct(sizes, dtype)

    def of(length: int) -> int:
        state = tuple(shape(1, 2, dtype="float32") for _ in range(kind.states))
        kernel = shape(2, 2 * kind.products)
        run = lambda projected, kernel, state: recur(kind, projected, kernel, state)
        return residual_bytes(run, shape(1, length, 2 * kind.inputs), kernel, state)

    return (of(3) - of(2)) // 2  # without what is kept once, of one of two numbers


def translator_bytes(config: RecurrentConfig, rows: float, length: int) -> float:
    """Bytes that a recurrent translator keeps up to its hidden states, with dropout.

    Args:
        config: Of the model.
        rows: Of a batch, on one device.
        length: Tokens of sources, and of targets.

    Example:
        >>> config = RecurrentConfig(vocab_size=50, d_model=64)
        >>> translator_bytes(config, 8.0, 32) > translator_bytes(config, 4.0, 32)
        True
    """
    one, two = (_translator_bytes(config, n, length) for n in (1, 2))
    return (two - one) * rows + (2 * one - two)


@functools.lru_cache
def _translator_bytes(config: RecurrentConfig, rows: int, length: int) -> int:
    make = lambda: RecurrentEncoderDecoder(config, rngs=nnx.Rngs(0))
    graph, params = nnx.split(nnx.eval_shape(make))
    tokens = jnp.zeros((rows, length), jnp.int32)
    inputs = {"source": tokens, "source_lengths": jnp.zeros(rows, jnp.int32)}

    def hidden(params: Any) -> Any:
        key = jax.random.key(0) if config.dropout else None
        return nnx.merge(graph, params).hidden(inputs, tokens, key=key)

    return residual_bytes(hidden, params)

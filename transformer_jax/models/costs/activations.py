"""Bytes of a model's activations on one device, counted from the configuration.

Counts what a training step keeps of each block for its backward pass, and its working memory.
Sizes are those of the arrays that reverse-mode differentiation saves, which the compilers of GPUs
and TPUs keep; fused arrays are left out.
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
        rows: Rows of the device's part of a micro-batch.
        tensor: Number of devices that share heads and feed-forward.
        context: Number of devices that share the positions of a text.
        lanes: A head is padded to a multiple of this: 128 on TPUs.
        gathers: Whether products gather their kernels as they run, which a TPU does not fuse with
            the following activation function.
    """

    rows: float
    tensor: int = 1
    context: int = 1
    lanes: int = 1
    gathers: bool = False

    def tokens(self, length: int) -> float:
        """Tokens of the device's rows that are on the device."""
        return self.rows * length / self.context

    def padded(self, head_dim: int) -> int:
        """The size of a head with padding."""
        return -(-head_dim // self.lanes) * self.lanes


def block_bytes(
    config: TransformerConfig,
    local: DeviceShare,
    length: int,
    kernels: Sequence[str],
    memory: int | None = None,
) -> float:
    """Bytes that the backward pass of one block needs from its forward pass.

    Args:
        config: Configuration of the block's stack; for a decoder, ``config.decoder()``.
        local: The device's part.
        length: Tokens of a row.
        kernels: Kernels of self-attention, if that is the mixer, and of cross-attention, if there
            is a memory.
        memory: Tokens per row that cross-attention reads; None without cross-attention.

    Example:
        >>> from transformer_jax.models.presets import PRESETS
        >>> config, local = PRESETS["vaswani_base"], DeviceShare(8.0)
        >>> kept = [block_bytes(config, local, 128, [name]) for name in ("cudnn", "xla")]
        >>> [round(size / 2**20) for size in kept]
        [23, 27]
    """
    D, F, item = config.d_model, config.feed_forward.d_ff / local.tensor, itemsize(config)
    n = local.tokens(length)
    attends = config.mixer.attends
    keys = [length] * attends + ([] if memory is None else [memory])
    total = sum(
        _attention_bytes(config, local, length, S, kernel)
        for S, kernel in zip(keys, kernels, strict=True)
    )
    # Input and result of the norm, and what the activation function saves.
    norms = 1 if config.norm.placement == "post" else 2
    around = n * D * (item * norms + _drops(config))
    if not attends:
        total += around + n * D * _mixer_bytes(config, masked=memory is None)
    return total + (around + n * F * _hidden_bytes(config, local) if F else 0)


def _mixer_bytes(config: TransformerConfig, *, masked: bool) -> float:
    """Bytes saved per element of a vector by a mixer other than self-attention.

    A convolution saves the inputs of all taps side by side, its halves and the gate. If rows hold
    several texts or padding (``masked``), it also saves these inputs separately, and which of them
    count; a translator's decoder has neither. In an encoder, each direction of the recurrence has
    half the width.
    """
    mixer, item = config.mixer, itemsize(config)
    if mixer.kind == "recurrent":
        return float(recurrence_bytes(mixer.cell, config.compute.dtype))
    return float(item * (mixer.kernel_size + 3) + masked * mixer.kernel_size * (item + 1))


def _hidden_bytes(config: TransformerConfig, local: DeviceShare) -> int:
    """Bytes saved per element between the two products of feed-forward.

    The result is the input of the second product. The slope of ReLU follows from the result;
    other activations need their input, and the tanh GELU its tanh, which XLA keeps in float32.
    """
    item, name = itemsize(config), config.feed_forward.activation
    kept = item if name == "relu" and not local.gathers else 2 * item
    kept += 4 if name == "gelu_tanh" else 0
    return kept + (item if config.feed_forward.gated else 0)


def _drops(config: TransformerConfig) -> float:
    """Bytes of a dropout mask, per element."""
    return 1.0 if config.norm.residual_dropout else 0.0


def _attention_bytes(
    config: TransformerConfig, local: DeviceShare, T: int, S: int, kernel: str
) -> float:
    """The norm's input and result; queries, keys, values; their mixture; and scores, if saved."""
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
        # In the compute dtype; XLA keeps them in float32 too.
        total += weights * (4 if item == 4 else 4 + item)
        # With dropout: the kept weights and the mask.
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
    # For a recurrence: the products of its inputs and their gradient. For a convolution: its
    # halves, and its inputs side by side.
    mixer = config.mixer
    columns = 1
    if not mixer.attends:
        recurrent = mixer.kind == "recurrent"
        columns = CELLS[mixer.cell].inputs if recurrent else max(mixer.kernel_size, 2)
    total = local.tokens(length) * item * (2 * columns * D + 2 * F)
    if "xla" in kernels:
        heads = head_sizes(config).heads / local.tensor
        total = max(total, local.rows * heads * (length / local.context) * length * (4 + 4 + item))
    return total


def residual_bytes(function: Callable[..., Any], *arguments: Any) -> int:
    """Bytes that the backward pass of ``function`` needs in addition to arguments and constants.

    Args:
        function: Function from arrays to arrays.
        arguments: Shapes; the function is differentiated with respect to all of them.

    Example:
        >>> x = jax.ShapeDtypeStruct((100,), jnp.float32)
        >>> residual_bytes(lambda x: 3 * x, x), residual_bytes(lambda x: jnp.exp(x), x)
        (0, 400)
    """
    kept = lambda *given: jax.tree.leaves(jax.vjp(function, *given)[1])
    traced = jax.make_jaxpr(kept)(*arguments).jaxpr
    known = {*traced.invars, *traced.constvars}
    found = {one for one in traced.outvars if not isinstance(one, Literal)} - known
    # Random keys, which have no item size, are small.
    numeric = lambda dtype: not jnp.issubdtype(dtype, jax.dtypes.extended)
    shapes: list[Any] = [one.aval for one in found]
    return sum(math.prod(a.shape) * a.dtype.itemsize for a in shapes if numeric(a.dtype))


@functools.lru_cache
def recurrence_bytes(cell: CellName, dtype: str) -> int:
    """Bytes that a cell saves per position and per element of its state.

    Args:
        cell: One of :data:`.functional.recurrent.CELLS`.
        dtype: Compute dtype; states and gates are float32.

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

    return (of(3) - of(2)) // 2  # without what is saved once; for one of two elements


def translator_bytes(config: RecurrentConfig, rows: float, length: int) -> float:
    """Bytes that a recurrent translator saves up to its hidden states, with dropout.

    Args:
        config: Configuration of the model.
        rows: Rows of a batch on one device.
        length: Tokens in sources, and in targets.

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

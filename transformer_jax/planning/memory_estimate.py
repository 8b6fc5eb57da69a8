"""Estimates the memory of a run's programs from the sizes of arrays, without compilation.

Parameters, the optimizer's state and batches are exact. Temporary arrays of XLA are estimated from
the sizes of the model: see the parts of :class:`Estimate`. Activations are counted from the
configuration: what a training step keeps of each block for its backward pass, and its working
memory. Their sizes are those of the arrays that reverse-mode differentiation saves, which the
compilers of GPUs and TPUs keep; fused arrays are left out.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend.core import Literal
from jax.sharding import AbstractMesh, Mesh
from jaxtyping import PyTree

from transformer_jax.functional.kernels.choice import Choice
from transformer_jax.functional.kernels.cross_entropy import (
    LogitsStorage,
    logits_limit,
    num_chunks,
)
from transformer_jax.functional.recurrent import CELLS, recur
from transformer_jax.models.config import CellName, TransformerConfig
from transformer_jax.models.costs import accounting
from transformer_jax.models.costs.accounting import cache_bytes
from transformer_jax.models.costs.components import head_sizes, itemsize, slot_bytes
from transformer_jax.models.layers.parameters import map_parameters
from transformer_jax.models.recurrent_config import ModelConfig, RecurrentConfig
from transformer_jax.models.recurrent_translator import RecurrentEncoderDecoder
from transformer_jax.parallel.device_catalog import Target
from transformer_jax.parallel.sharding import num_batch_shards, shardings, shardings_like
from transformer_jax.planning.planned_kernels import attention_kernels
from transformer_jax.planning.run_programs import STEPS, Shape, decoding_shape, mesh_on, parts_of
from transformer_jax.recipes.plan_inputs import PlanInputs
from transformer_jax.recipes.settings import Trained
from transformer_jax.training.optimizers import make_optimizer
from transformer_jax.training.state import abstract_parts

__all__ = [
    "DeviceShare", "Estimate", "block_bytes", "estimate", "recurrence_bytes", "residual_bytes",
    "translator_bytes", "working_bytes",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class DeviceShare:
    """The part of a batch and of a model that one device computes at a time.

    Attributes:
        rows: Rows of the device's part of a micro-batch.
        tensor: Number of devices that share heads and feed-forward.
        context: Number of devices that share the positions of a text.
        lanes: The mixture of a head's values is padded to a multiple of this: 128 on TPUs, where
            queries, keys and values have their positions in the lanes.
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

    def padded(self, value_dim: int) -> int:
        """The size of a head's mixture with padding."""
        return -(-value_dim // self.lanes) * self.lanes


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
    other activations need their input.
    """
    item, name = itemsize(config), config.feed_forward.activation
    kept = item if name == "relu" and not local.gathers else 2 * item
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
    queries, keys = n * heads * sizes.head_dim, m * kv * (sizes.head_dim + sizes.value_dim)
    mixed, merged = n * heads * local.padded(sizes.value_dim), n * heads * sizes.value_dim
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


def residual_bytes(function: Callable[..., PyTree], *arguments: PyTree) -> int:
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
    shapes = [cast(jax.core.ShapedArray, one.aval) for one in found]
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
    key = lambda: jax.random.key(0) if config.dropout else None
    hidden = lambda params: nnx.merge(graph, params).hidden(inputs, tokens, key=key())
    return residual_bytes(hidden, params)


Run = TypeVar("Run", bound=Trained)

# Vectors per token of a stack outside of blocks: embedding, dropout, final norm, chunks for the
# loss, and the gradient twice.
_HIDDEN = 6.5
# What XLA:TPU leaves unused between arrays, as a fraction of their bytes; under fsdp once a block,
# whose gathered kernels come and go between arrays that stay.
_GAPS = 0.035
_RECURRENT_HIDDEN = 2.0  # for recurrent translators, whose dropout is part of `kept`


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Bytes that a device needs for a program, by purpose.

    Attributes:
        arguments: Parameters, the optimizer's state and the batch: exact.
        kept: Activations for the backward pass; with rematerialization, only inputs of blocks.
        hidden: Vectors of tokens before the first block and after the last, and their gradients.
        loss: A chunk of logits with its gradient, and the output table with its gradient.
        working: All activations of one block with their gradients.
        gradients: Gradients of parameters, in float32, sharded like these; with micro-batches also
            their sum.
        unsharded: Under fsdp, the kernels of two blocks in the compute dtype; on TPUs also the
            table's part and its moments in another layout.
        gaps: Factor of all temporaries for the gaps between them, see :data:`_GAPS`.
        cache: Keys and values of decoding, and of the encoded source.
        kernels: The kernel of each attention, with the reason if it is not the fused one.
    """

    arguments: float
    kept: float = 0.0
    hidden: float = 0.0
    loss: float = 0.0
    working: float = 0.0
    gradients: float = 0.0
    unsharded: float = 0.0
    gaps: float = 1.0
    cache: float = 0.0
    kernels: Mapping[str, Choice] = dataclasses.field(default_factory=dict)

    @property
    def temporaries(self) -> int:
        """Bytes besides arguments at the peak: in the loss, before it or after it."""
        peak = max(self.kept + self.loss, self.kept + self.working, self.working + self.gradients)
        return round((peak + self.hidden + self.unsharded + self.cache) * self.gaps)

    @property
    def memory(self) -> int:
        """Total bytes on a device."""
        return round(self.arguments) + self.temporaries


def estimate(run: Trained, target: Target, what: str, shape: Shape) -> Estimate:
    """Estimates the memory of one program of a run on each device of a target.

    Args:
        run: The run.
        target: Devices, which need not be present.
        what: ``training``, ``evaluation`` or ``decoding``.
        shape: Shape of a batch; for decoding, rows with all beams, and tokens read and written.
    """
    mesh = mesh_on(run, target)
    parts = parts_of(run, mesh, shape)
    state = _state_bytes(_plain(run), mesh)
    steps = run.training.gradient_accumulation_steps if what == "training" else 1
    tpu = target.type.platform == "tpu"
    local = DeviceShare(
        shape.rows / num_batch_shards(mesh) / steps,
        mesh.shape["tensor"],
        mesh.shape["context"],
        lanes=128 if tpu else 1,
        gathers=tpu and mesh.shape["fsdp"] > 1,
    )
    whole = accounting.count_parameters(run.model)
    item = itemsize(run.model)
    layers = run.model.encoder_layers + run.model.decoder_layers
    if what == "decoding":
        return _decoding(run, target, local, state)
    arguments = state.all + _split_bytes(parts.batch)
    training = what == "training"
    part = Shape(shape.rows // steps, shape.length)
    kernels = attention_kernels(run, target, part, training=training)
    blocks = _blocks(run, local, shape.length, kernels)
    loss = _loss_bytes(run, parts, local, shape.length, target, training=training)
    split = mesh.shape["fsdp"] > 1
    table = run.model.vocab_size * run.model.embedding_size
    unsharded = 2 * item * (whole - table) / max(layers, 1) / local.tensor if split else 0.0
    if local.gathers and training:
        unsharded += 3 * 4 * table / mesh.shape["fsdp"] / local.tensor
    if what == "evaluation":
        return Estimate(
            arguments,
            loss=loss,
            working=blocks.read,
            hidden=blocks.hidden / 2,
            unsharded=unsharded,
            kernels=kernels,
        )
    remat = run.model.compute.remat
    return Estimate(
        arguments,
        kept=blocks.inputs if remat else sum(blocks.sizes),
        hidden=blocks.hidden,
        loss=loss,
        working=blocks.working + (max(blocks.sizes) if remat else 0),
        gradients=state.gradients * (2 if steps > 1 else 1),
        unsharded=unsharded,
        gaps=1 + _GAPS * (layers if split else 1) if tpu else 1.0,
        kernels=kernels,
    )


def _decoding(run: Trained, target: Target, local: DeviceShare, state: "_State") -> Estimate:
    """Estimates decoding: parameters next to the training state, the cache, and the prompts."""
    shape = decoding_shape(run, 1)
    assert shape is not None
    config = run.model.decoder()
    reading = dataclasses.replace(local, rows=local.rows / shape.beams)
    logits = 3 * 4 * local.rows * config.vocab_size / local.tensor
    if isinstance(run.model, RecurrentConfig):
        # Beams are reordered into new states; encoder states and their keys are per sentence.
        states = cache_bytes(run.model, 0)
        encoded = cache_bytes(run.model, shape.read) - states
        cache = 2 * local.rows * states + reading.rows * encoded
        working = _recurrent(run.model, reading, shape.read).read
        return Estimate(state.all + state.parameters, loss=logits, cache=cache, working=working)
    # Beams are reordered into a new cache; a cache that is too small exists next to its successor.
    cache = 2 * _cache_bytes(run, local, shape.read + shape.written)
    working = working_bytes(run.model, reading, shape.read, ["xla"])
    if run.model.encoder_layers:
        cache += _attended_bytes(run, local, shape.read)
    return Estimate(state.all + state.parameters, loss=logits, cache=cache, working=working)


class _State(NamedTuple):
    all: float  # parameters, the optimizer's state, the moving average
    parameters: float
    gradients: float


def _plain(run: Run) -> Run:
    """Returns the run without settings that do not affect the size of its state."""
    compute = dataclasses.replace(run.model.compute, remat=False)
    training = dataclasses.replace(run.training, gradient_accumulation_steps=1)
    model = dataclasses.replace(run.model, compute=compute)
    return dataclasses.replace(run, model=model, training=training)


@functools.lru_cache(maxsize=512)  # a search over settings asks for few of them, often
def _state_bytes(run: Trained, mesh: Mesh | AbstractMesh) -> _State:
    """Returns the bytes of a device's part of the training state."""
    parts = parts_of(run, mesh, Shape(num_batch_shards(mesh), 8))
    declared, frozen = abstract_parts(parts.model, parts.partition)
    params = map_parameters(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype), declared)
    fixed = map_parameters(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype), frozen)
    placed = shardings(declared, mesh)
    tx = make_optimizer(run.optimizer, run.model.d_model, STEPS, params=declared)
    moments = jax.eval_shape(tx.init, params)
    trained = _bytes(params, placed)
    kept = trained + _bytes(fixed, shardings(frozen, mesh))
    of_moments = _bytes(moments, shardings_like(moments, params, placed, mesh))
    average = trained if run.training.ema_decay is not None else 0.0
    return _State(kept + of_moments + average, kept, trained)


def _bytes(shapes: PyTree, placed: PyTree) -> float:
    sizes = jax.tree.map(
        lambda a, s: math.prod(s.shard_shape(a.shape)) * a.dtype.itemsize, shapes, placed
    )
    return float(sum(jax.tree.leaves(sizes)))


def _split_bytes(batch: PyTree) -> float:
    return _bytes(batch, jax.tree.map(lambda leaf: leaf.sharding, batch))


class _Blocks(NamedTuple):
    sizes: list[float]  # bytes saved per block
    inputs: float  # inputs of all blocks
    hidden: float
    working: float
    read: float  # working memory of a forward pass


def _blocks(
    run: Trained, local: DeviceShare, length: int, kernels: Mapping[str, Choice]
) -> _Blocks:
    config = run.model
    if isinstance(config, RecurrentConfig):
        return _recurrent(config, local, length)
    vectors = local.tokens(length) * config.d_model * itemsize(config)
    kept, stacks = [], 0
    # Mixers other than attention have none.
    of = lambda *names: [kernels[name].kernel for name in names if name in kernels]
    if config.encoder_layers:
        stacks += 1
        kept += [block_bytes(config, local, length, of("encoder"))] * config.encoder_layers
    if config.decoder_layers:
        stacks += 1
        decoder = config.decoder()
        if config.encoder_layers:
            size = block_bytes(decoder, local, length, of("decoder", "cross-attention"), length)
        else:
            size = block_bytes(decoder, local, length, of("decoder"))
        kept += [size] * config.decoder_layers
    working = working_bytes(config, local, length, of(*kernels))
    hidden = stacks * _HIDDEN * vectors
    return _Blocks(kept, vectors * len(kept), hidden, working, max(kept) / 2)


def _recurrent(config: RecurrentConfig, local: DeviceShare, length: int) -> _Blocks:
    """Counts the saved arrays of recurrent layers by tracing."""
    vectors = local.tokens(length) * config.d_model * itemsize(config)
    kept = translator_bytes(config, local.rows, length)
    products = vectors * CELLS[config.cell].inputs
    # Products are arranged by position for the loop, next to encoder states and their keys.
    read = 2 * products + vectors * (2 * config.encoded_size / config.d_model + 2)
    if config.attention.score == "concat" and not config.width_beside:
        read += 4 * local.rows * length**2 * config.d_model  # sums of all states and keys
    return _Blocks([kept], 0.0, _RECURRENT_HIDDEN * vectors, 2 * products, read)


def _loss_bytes(
    run: Trained,
    parts: PlanInputs,
    local: DeviceShare,
    length: int,
    target: Target,
    *,
    training: bool,
) -> float:
    """Returns the bytes of a chunk of logits, and in training of its and the table's gradients."""
    config: ModelConfig = run.model.decoder() if run.model.decoder_layers else run.model
    if not parts.scored:
        return 0.0
    rows = local.tokens(length) * parts.scored
    columns = config.vocab_size / local.tensor
    width = config.hidden_size if isinstance(config, RecurrentConfig) else config.embedding_size
    table = columns * width * itemsize(config)
    if parts.ranked and not training:
        # An accuracy compares all logits, in float32, however the loss stores them.
        return 2 * 4 * rows * columns + table
    devices = num_batch_shards(mesh_on(run, target)) * local.context
    limit = logits_limit(target.device.device_kind)
    storage = LogitsStorage(config.compute.logits_dtype, config.compute.logits_chunk, limit)
    chunks = num_chunks(math.ceil(rows), math.ceil(columns), storage.on_each(devices))
    logit = 2 if storage.dtype == "bfloat16" else 4
    chunk = rows / chunks * columns
    if not training:
        return chunk * logit + table
    # XLA:TPU fuses the gradient of logits into the products that read it, in a loop over chunks and
    # where columns do not fill the lanes.
    fuses = local.lanes > 1 and (chunks > 1 or columns % local.lanes > 0)
    gradient = 0 if fuses else itemsize(config)
    return chunk * (logit + gradient) + 4 * columns * width + table


def _cache_bytes(run: Trained, local: DeviceShare, length: int) -> float:
    """Returns the bytes of the decoding cache: keys and values, or the state of a mixer."""
    if run.model.mixer.attends:
        return _attended_bytes(run, local, length)
    return local.rows * length * run.model.decoder_layers * slot_bytes(run.model.decoder())


def _attended_bytes(run: Trained, local: DeviceShare, length: int) -> float:
    """Returns the bytes of keys and values of positions."""
    config = run.model.decoder()
    sizes = head_sizes(config)
    width = sizes.kv_heads * (sizes.head_dim + sizes.value_dim) / local.tensor
    return local.rows * length * width * config.decoder_layers * itemsize(config)

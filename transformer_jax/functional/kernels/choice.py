"""Selection of attention kernels, which all compute the same function.

Kernels take heads-first arrays and :class:`.Scores`. Each returns the reason why it does not
support a case, or None. Unsupported cases run on XLA, and the reason is logged once.
"""

import contextlib
import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike
from jaxtyping import Array

from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.kernels import chunked, cudnn, ring, splash, xla
from transformer_jax.functional.layers import Dropout
from transformer_jax.functional.masks import Mask
from transformer_jax.functional.partitioning import (
    axis_size,
    constrain,
    current_mesh,
    partition_spec,
)
from transformer_jax.functional.scores import ALL_KEYS, Scores, Shaped

__all__ = [
    "KERNELS",
    "XLA_IN_BLOCKS",
    "Choice",
    "Kernel",
    "device_reason",
    "divide_queries",
    "recorded_choices",
    "records_choices",
    "resolve_implementation",
    "run_kernel",
    "select_kernel",
    "with_dropout",
]

log = logging.getLogger(__name__)

# Queries, keys, values, scores, and the number of devices that share the queries of a text.
Case = tuple[Shaped, Shaped, Shaped, Scores, int]


class Kernel(NamedTuple):
    """An implementation of attention.

    ``run(q, k, v, scores)`` computes attention. ``supports(q, k, v, scores, parts)``, where the
    queries of a text are split over ``parts`` devices, returns the reason why the kernel cannot, or
    None.
    """

    name: str
    run: Callable[..., Array]
    supports: Callable[..., str | None]
    # Whether the compiler can divide it between devices; if not, each device runs its own part.
    partitioned: bool = True
    # run_part(q, k, v, scores, index): the index-th of equal parts of the queries, with the mask of
    # the complete text. None leaves the division to the compiler.
    run_part: Callable[..., Array] | None = None
    gathers_keys: bool = True  # whether run_part needs all keys and values or only its own


KERNELS: dict[str, Kernel] = {
    "xla": Kernel("xla", xla.run, xla.supports),
    "chunked": Kernel("chunked", chunked.run, chunked.supports, run_part=chunked.run_part),
    "cudnn": Kernel("cudnn", cudnn.run, cudnn.supports, partitioned=False, run_part=cudnn.run_part),
    "splash": Kernel(
        "splash", splash.run, splash.supports, partitioned=False, run_part=splash.run_part
    ),
    # On one device, the ring would be blocks of keys.
    "ring": Kernel("ring", chunked.run, ring.supports, run_part=ring.run_part, gathers_keys=False),
}


class Choice(NamedTuple):
    """The kernel of an attention call, and why it differs from the configured one, if it does."""

    kernel: str
    why: str = ""


_choices: ContextVar[list[Choice] | None] = ContextVar("choices", default=None)

# The kernel of auto for short sequences.
XLA_IN_BLOCKS = KERNELS["xla"]._replace(run=functools.partial(xla.run, query_blocks=True))

# Scores larger than this, in bytes of float32, are never held in a device's memory at once.
LARGE = 2**30
# From this length on, auto uses blocks of keys. At this length they are as fast on a CPU as blocks
# of queries, and faster above, with and without a causal mask: benchmarks/results/kernels_cpu.json.
LONG = 512


def select_kernel(
    implementation: str,
    q: Shaped,
    k: Shaped,
    v: Shaped,
    scores: Scores = ALL_KEYS,
) -> Kernel:
    """Returns the kernel of this name, or the XLA kernel for ``auto`` and for unsupported cases.

    Depends only on shapes, dtypes and the structure of the mask: see
    :func:`resolve_implementation` for what depends on devices.

    Raises:
        ArgumentError: There is no kernel of this name.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.zeros((1, 1, 4, 8))
        >>> select_kernel("splash", x, x, x).name
        'xla'
    """
    parts = _sequence_parts(q.shape[2], k.shape[2])
    case = (q, k, v, scores, parts)
    if implementation == "auto":
        # Blocks of queries would cut across the parts on several devices.
        short = KERNELS["xla"] if parts > 1 else XLA_IN_BLOCKS
        return _chosen(_by_length(case, short, LONG))
    if implementation not in KERNELS:
        allowed = ", ".join(["auto", *KERNELS])
        raise ArgumentError(f"attend: implementation is {implementation!r}: allowed are {allowed}")
    kernel = KERNELS[implementation]
    if (reason := kernel.supports(*case)) is None:
        return _chosen(kernel)
    fallback = _by_length(case, KERNELS["xla"], None)
    # With one query there is nothing to fuse.
    if _choices.get() is None and (implementation == "chunked" or q.shape[2] != 1):
        if implementation == "cudnn" and jax.devices()[0].platform != "gpu":
            reason = "it needs a GPU, and there is none"  # whatever else is changed
        _log_once(f"attention by {fallback.name} instead of {implementation}: {reason}")
    return _chosen(fallback, reason)


@contextlib.contextmanager
def recorded_choices() -> Iterator[list[Choice]]:
    """Context manager: records the kernels of attention calls traced inside, in order.

    The calls are traced with the XLA kernel, whose shapes equal those of all other kernels, so no
    devices are needed.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.zeros((1, 1, 4, 8))
        >>> with recorded_choices() as found:
        ...     _ = select_kernel("splash", x, x, x)
        >>> found
        [Choice(kernel='xla', why='4 queries and 4 keys are not both multiples of 128')]
    """
    choices: list[Choice] = []
    token = _choices.set(choices)
    try:
        yield choices
    finally:
        _choices.reset(token)


def records_choices() -> bool:
    """Returns whether attention calls are recorded, as inside :func:`recorded_choices`."""
    return _choices.get() is not None


def _chosen(kernel: Kernel, why: str = "") -> Kernel:
    if (choices := _choices.get()) is None:
        return kernel
    choices.append(Choice(kernel.name, why))
    return KERNELS["xla"]


def resolve_implementation(
    implementation: str,
    platform: str,
    dtype: DTypeLike,
    head_dim: int,
    capability: float = 9.0,
) -> str:
    """Returns the implementation to configure for a model's devices.

    ``auto`` becomes the fastest known one. A kernel that the devices lack becomes ``auto``, which
    is logged once.

    Args:
        implementation: As configured.
        platform: Platform of the devices: ``cpu``, ``gpu`` or ``tpu``.
        dtype: Dtype of queries.
        head_dim: Size of a head.
        capability: Compute capability of a GPU.

    Example:
        >>> import jax.numpy as jnp
        >>> resolve_implementation("auto", "gpu", jnp.bfloat16, 64)
        'cudnn'
        >>> resolve_implementation("auto", "cpu", jnp.bfloat16, 64)
        'auto'
    """
    fused = ("cudnn", "splash")
    reasons = {x: device_reason(x, platform, dtype, head_dim, capability) for x in fused}
    if implementation == "auto":
        return next((name for name, reason in reasons.items() if reason is None), "auto")
    if reason := reasons.get(implementation):
        _log_once(f"attention by auto instead of {implementation}: {reason}, this is {platform}")
        return "auto"
    return implementation


def device_reason(
    name: str, platform: str, dtype: DTypeLike, head_dim: int, capability: float = 9.0
) -> str | None:
    """Returns the reason why devices lack a kernel; None if they have it.

    Arguments are those of :func:`resolve_implementation`.

    Example:
        >>> device_reason("splash", "gpu", "bfloat16", 64)
        'it needs a TPU'
    """
    if name == "splash":
        return None if platform == "tpu" else "it needs a TPU"
    if name != "cudnn":
        return None
    if platform != "gpu":
        return "it needs a GPU"
    if capability < 8.0:
        return "it needs compute capability 8.0"
    half = jax.numpy.dtype(dtype).itemsize == 2
    largest = 256 if capability >= 9.0 else 128
    if not half or head_dim > largest:
        return f"it needs half precision and heads of at most {largest}"
    return None


def run_kernel(kernel: Kernel, q: Array, k: Array, v: Array, scores: Scores = ALL_KEYS) -> Array:
    """Runs a kernel; on a mesh, each device computes its own rows, heads and queries.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.ones((1, 1, 4, 8))
        >>> run_kernel(KERNELS["xla"], x, x, x).shape
        (1, 1, 4, 8)
    """
    mesh, parts = current_mesh(), _sequence_parts(q.shape[2], k.shape[2])
    if mesh is None or (kernel.partitioned and parts == 1):
        return kernel.run(q, k, v, scores)
    run_part = kernel.run_part
    if parts > 1 and run_part is None:
        return kernel.run(*divide_queries(q, k, v), scores)
    B, K = k.shape[:2]
    rows, heads = partition_spec(("batch", "heads"), (B, K), mesh.shape, what="attention")
    x = P(rows, heads, "context" if parts > 1 else None)
    # The arrays of a mask have one row per text.
    mask = scores.mask
    dense = None if mask is None else mask.dense

    def of_array(leaf: Array) -> P:
        if leaf is dense:
            return partition_spec(("batch", "heads"), leaf.shape[:2], mesh.shape)
        return P(rows) if jnp.shape(leaf)[:1] == (B,) else P()

    of_mask = jax.tree.map(of_array, mask)

    def part(q: Array, k: Array, v: Array, mask: Mask | None) -> Array:
        if run_part is None or parts == 1:
            return kernel.run(q, k, v, dataclasses.replace(scores, mask=mask))
        if kernel.gathers_keys:
            k, v = (lax.all_gather(x, "context", axis=2, tiled=True) for x in (k, v))
        part_scores = dataclasses.replace(scores, mask=Mask() if mask is None else mask)
        return run_part(q, k, v, part_scores, lax.axis_index("context"))

    mapped = jax.shard_map(part, in_specs=(x, x, x, of_mask), out_specs=x, check_vma=False)
    return mapped(q, k, v, mask)


def with_dropout(implementation: str, dropout: Dropout) -> Kernel:
    """Returns the kernel that drops out weights, which is XLA.

    Example:
        >>> with_dropout("splash", (0.1, jax.random.key(0))).name
        'xla'
    """
    blocks = implementation == "auto" and axis_size("context") == 1
    run = functools.partial(xla.run, dropout=dropout, query_blocks=blocks)
    return _chosen(KERNELS["xla"]._replace(run=run), "attention dropout needs the weights")


def divide_queries(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Divides queries over the ``context`` axis of the mesh; each device has all keys.

    Example:
        >>> import jax.numpy as jnp
        >>> divide_queries(*[jnp.ones((1, 1, 4, 8))] * 3)[0].shape
        (1, 1, 4, 8)
    """
    if _sequence_parts(q.shape[2], k.shape[2]) == 1:
        return q, k, v
    queries, keys = (("batch", "heads", axis, None) for axis in ("sequence", None))
    return constrain(q, queries), constrain(k, keys), constrain(v, keys)


def _sequence_parts(T: int, S: int) -> int:
    """Returns the number of devices of the mesh that share the queries and the keys of a text."""
    size = axis_size("context")
    if size == 1 or not isinstance(T, int) or not isinstance(S, int) or T == 1:
        return 1
    if T % size or S % size:
        _log_once(
            f"attention of {T} queries and {S} keys on each of {size} devices of the context axis: "
            f"both must be multiples of {size}"
        )
        return 1
    return size


def _by_length(case: Case, short: Kernel, limit: int | None) -> Kernel:
    """Chooses ``chunked`` from a length on or for large scores, if it supports the case."""
    (B, N, T, _), S = case[0].shape, case[1].shape[2]
    devices = math.prod(axis_size(name) for name in ("data", "fsdp", "tensor"))
    scores = 4 * B * N * T * S // (devices * case[-1])
    long = limit is not None and min(T, S) >= limit
    if (long or scores > LARGE) and chunked.supports(*case) is None:
        return KERNELS["chunked"]
    return short


@lru_cache
def _log_once(message: str) -> None:
    log.warning(message)

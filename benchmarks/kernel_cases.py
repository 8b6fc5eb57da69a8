"""Cases of the kernel benchmark: attention in many forms, and other hot parts of a model."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array

from transformer_jax.functional import masks
from transformer_jax.functional.kernels import choice as kernels
from transformer_jax.functional.kernels.choice import KERNELS, XLA_IN_BLOCKS, Kernel
from transformer_jax.functional.layers import layer_norm, linear, rms_norm
from transformer_jax.functional.losses import OutputTable, linear_cross_entropy, token_cross_entropy
from transformer_jax.functional.masks import Mask
from transformer_jax.functional.positions import alibi_bias
from transformer_jax.functional.scores import ScaledDot, Scores
from transformer_jax.models.presets import PRESETS
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.parallel.placement import prepared
from transformer_jax.training.state import split

__all__ = ["ATTENTION", "LENGTHS", "AttentionCase", "Entry", "Peer", "Work", "attention", "others"]

Function = Callable[..., Array]

BACKWARD = 2.5  # ratio of products in attention's backward pass to the forward pass
DOCUMENTS = 4  # in each packed row


class Entry(NamedTuple):
    """One way to compute a case: its function, or the reason why it was refused."""

    run: Function | None
    reason: str | None = None


class Peer(NamedTuple):
    """A peer's attention: its result, heads first, and a timer of each pass; or why not."""

    result: Callable[[], np.ndarray]
    timers: dict[str, Callable[[], float]]
    reason: str | None = None


class Work(NamedTuple):
    """A case with its inputs.

    Attributes:
        name: Of the case.
        inputs: Trees of arrays; the first ones are differentiated.
        differentiated: Number of differentiated inputs.
        flops: Products and sums of the forward pass, and of both passes.
        bytes: Inputs and results of the forward pass, and of both.
        entries: Ways to compute it, by name; the first, in float32, is the reference.
        auto: The entry that ``auto`` chooses, if there is a choice.
        peers: Other libraries' ways.
    """

    name: str
    inputs: tuple[Any, ...]
    differentiated: int
    flops: tuple[float, float]
    bytes: tuple[float, float]
    entries: dict[str, Entry]
    auto: str | None = None
    peers: Mapping[str, Peer] = MappingProxyType({})


@dataclasses.dataclass(frozen=True)
class AttentionCase:
    """Attention of ``batch`` rows; for letters, see ``transformer_jax/__init__.py``."""

    name: str
    batch: int = 4
    heads: int = 8
    kv_heads: int | None = None
    queries: int = 1024
    keys: int | None = None
    head_dim: int = 64
    value_dim: int | None = None
    causal: bool = False
    window: int | None = None
    lengths: bool = False
    segments: bool = False
    softcap: float | None = None
    alibi: bool = False
    dropout: float = 0.0
    dtype: str | None = None  # None is the benchmark's dtype

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Returns the shapes of queries, keys and values."""
        B, K, S = self.batch, self.kv_heads or self.heads, self.keys or self.queries
        q = (B, self.heads, self.queries, self.head_dim)
        return q, (B, K, S, self.head_dim), (B, K, S, self.value_dim or self.head_dim)

    def mask(self, *rows: Any) -> Mask | None:
        """Returns the mask, with lengths or segments ``rows``."""
        mask = Mask(causal=self.causal, window=self.window)
        if self.lengths:
            mask = mask & masks.length_mask(rows[0])
        if self.segments:
            mask = mask & masks.segment_mask(rows[0], rows[0])
        empty = not (self.causal or self.window or self.lengths or self.segments)
        return None if empty else mask

    def rows(self) -> tuple[np.ndarray, ...]:
        """Returns lengths from half of the keys to all, or ids of documents in each row."""
        B, (_, _, S, _) = self.batch, self.shapes[1]
        if self.lengths:
            return (np.linspace(S // 2, S, B).astype(np.int32),)
        ids = np.arange(S, dtype=np.int32) * DOCUMENTS // S
        return (np.broadcast_to(ids, (B, S)).copy(),) if self.segments else ()

    def bias(self) -> Array | None:
        """Returns the bias of scores, if any."""
        _, (_, _, S, _), _ = self.shapes
        return alibi_bias(self.queries, S, self.heads) if self.alibi else None

    def scores(self, mask: Mask | None) -> Scores:
        """Returns the scores with a mask."""
        return Scores(mask, self.bias(), ScaledDot(softcap=self.softcap))


ATTENTION = (
    AttentionCase("causal", causal=True),
    AttentionCase("causal, key lengths", causal=True, lengths=True),
    AttentionCase("encoder, key lengths", lengths=True),
    AttentionCase("packed, causal", causal=True, segments=True),
    AttentionCase("cross attention, 512 to 1024, lengths", queries=512, keys=1024, lengths=True),
    AttentionCase("1000 tokens, causal", queries=1000, causal=True),
    AttentionCase("511 tokens, causal", queries=511, causal=True),
    AttentionCase("197 patches", queries=197),
    AttentionCase("64 rows of 64, lengths", batch=64, queries=64, lengths=True),
    AttentionCase("4096 tokens, packed, causal", batch=2, queries=4096, causal=True, segments=True),
    AttentionCase("heads of 20", head_dim=20, causal=True),
    AttentionCase("heads of 80", head_dim=80, causal=True),
    AttentionCase("heads of 96", head_dim=96, causal=True),
    AttentionCase("heads of 128", head_dim=128, causal=True),
    AttentionCase("heads of 256", head_dim=256, causal=True),
    AttentionCase("8 heads share 2 keys", kv_heads=2, causal=True),
    AttentionCase("window 256, causal", window=256, causal=True),
    AttentionCase("window 128 on both sides", window=128),
    AttentionCase("soft cap 30", softcap=30.0, causal=True),
    AttentionCase("float32", causal=True, dtype="float32"),
    AttentionCase("ALiBi", alibi=True, causal=True),
    AttentionCase("values of 32", value_dim=32, causal=True),
    AttentionCase("dropout 0.1", dropout=0.1, causal=True),
    AttentionCase("one query, 1024 keys", batch=8, queries=1, keys=1024, lengths=True),
)

# Around the lengths from which auto uses blocks of keys, on a CPU.
LENGTHS = tuple(
    AttentionCase(
        f"length {length}{', causal' * causal}", batch=1, heads=4, queries=length, causal=causal
    )
    for causal in (False, True)
    for length in (128, 256, 384, 512, 768, 1024)
)


def attention(case: AttentionCase, platform: str, capability: float, dtype: str) -> Work:
    """Creates a case with random inputs and every registered kernel, run or refused."""
    dtype = case.dtype or dtype
    rng = np.random.default_rng(0)
    qkv = tuple(rng.standard_normal(shape).astype(jnp.dtype(dtype)) for shape in case.shapes)
    rows = case.rows()
    (B, N, T, H), (_, _, S, U) = case.shapes[0], case.shapes[2]
    mask = case.mask(*map(jnp.asarray, rows))
    visible = None if mask is None else mask.array(T, S)
    seen = 1.0 if visible is None else float(jnp.mean(visible.astype(jnp.float32)))
    flops = 2.0 * B * N * T * S * (H + U) * seen
    entries = {"xla": _entry(case, KERNELS["xla"])}
    entries["xla in blocks of queries"] = _entry(case, XLA_IN_BLOCKS)
    for name, kernel in KERNELS.items():
        if name == "xla":
            continue
        reason = kernels.device_reason(name, platform, qkv[0].dtype, H, capability)
        reason = reason or kernel.supports(*qkv, case.scores(mask), 1)
        if case.dropout:
            reason = reason or "it drops no weights"
        entries[name] = _entry(case, kernel) if reason is None else Entry(None, reason)
    size = sum(x.nbytes for x in qkv)
    out = B * N * T * U * qkv[0].dtype.itemsize
    return Work(
        case.name,
        qkv + rows,
        3,
        (flops, flops * (1 + BACKWARD)),
        (size + out, 3 * size + 3 * out),
        entries,
        _auto(case, platform, capability, qkv, mask),
    )


def _auto(
    case: AttentionCase, platform: str, capability: float, qkv: tuple[Any, ...], mask: Mask | None
) -> str:
    """Returns the entry that ``auto`` chooses."""
    of = kernels.resolve_implementation(
        "auto", platform, qkv[0].dtype, case.head_dim, capability=capability
    )
    if case.dropout:
        return "xla in blocks of queries" if of == "auto" else "xla"
    q, k, v = (jax.ShapeDtypeStruct(x.shape, x.dtype) for x in qkv)
    chosen = kernels.select_kernel(of, q, k, v, case.scores(mask))
    return "xla in blocks of queries" if chosen is XLA_IN_BLOCKS else chosen.name


def _entry(case: AttentionCase, kernel: Kernel) -> Entry:
    def run(q: Array, k: Array, v: Array, *rows: Array) -> Array:
        dropped = {"dropout": (case.dropout, jax.random.key(0))} if case.dropout else {}
        return kernel.run(q, k, v, case.scores(case.mask(*rows)), **dropped)

    return Entry(run)


DECODE_STEP = "decode step of GPT-2 small, 8 texts, cache of 1024"


def others(dtype: str) -> dict[str, Callable[[], Work]]:
    """Returns functions that create cases of further parts of GPT-2 small."""
    of = {
        "cross-entropy of 2048 x 50304 logits": _cross_entropy,
        "queries, keys and values of 2048 x 768": _projection,
        "layer norm of 2048 x 768": _layer_norm,
        "RMS norm of 2048 x 768": _rms_norm,
        DECODE_STEP: _decode_step,
    }
    return {name: functools.partial(make, name, dtype) for name, make in of.items()}


ROWS, D = 2048, 768


def _draw(dtype: str, *shape: int, scale: float = 1.0) -> np.ndarray:
    x = scale * np.random.default_rng(len(shape) + shape[-1]).standard_normal(shape, np.float32)
    return np.asarray(x).astype(jnp.dtype(dtype))


def _cross_entropy(name: str, dtype: str) -> Work:
    V = 50_304
    x, table = _draw(dtype, ROWS, D), _draw(dtype, V, D, scale=D**-0.5)
    targets = np.random.default_rng(0).integers(0, V, ROWS).astype(np.int32)
    whole = lambda x, table, t: token_cross_entropy(OutputTable(table).logits(x), t).sum()
    fused = lambda x, table, t: linear_cross_entropy(x, OutputTable(table), t, chunk=512)[0]
    runs = {"logits held": whole, "in chunks of 512": fused}
    return _product(name, (x, table, targets), 2.0 * ROWS * D * V, runs, out=4)


def _projection(name: str, dtype: str) -> Work:
    kernel = _draw(dtype, D, 3 * D, scale=D**-0.5)
    inputs = _draw(dtype, ROWS, D), kernel, np.zeros(3 * D, kernel.dtype)
    runs = {"separate": _separate, "one product": linear}
    out = ROWS * 3 * D * kernel.itemsize
    return _product(name, inputs, 6.0 * ROWS * D * D, runs, out=out)


def _layer_norm(name: str, dtype: str) -> Work:
    x = _draw(dtype, ROWS, D)
    inputs = x, np.ones(D, x.dtype), np.zeros(D, x.dtype)
    run = lambda x, gain, bias: layer_norm(x, gain, bias, 1e-5)
    return _product(name, inputs, 8.0 * x.size, {"ours": run}, out=x.nbytes)


def _rms_norm(name: str, dtype: str) -> Work:
    x = _draw(dtype, ROWS, D)
    run = lambda x, gain: rms_norm(x, gain, 1e-5)
    return _product(name, (x, np.ones(D, x.dtype)), 5.0 * x.size, {"ours": run}, out=x.nbytes)


def _decode_step(name: str, dtype: str) -> Work:
    """Creates the case of the next token of 8 texts by GPT-2 small, with a cache of 1024."""
    preset = PRESETS["gpt2_small"]
    compute: Any = {"dtype": dtype}
    config = dataclasses.replace(preset, compute=dataclasses.replace(preset.compute, **compute))
    batch, room = 8, 1024
    shapes = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0)))
    graph, params = split(shapes)
    rng = np.random.default_rng(0)
    draw = lambda x: (0.02 * rng.standard_normal(x.shape, np.float32)).astype(
        jnp.dtype(dtype) if x.ndim > 1 else x.dtype
    )
    graph, params = prepared(graph, jax.tree.map(draw, params))
    cache = nnx.merge(graph, params).init_cache(None, batch, room)
    values = jax.tree.map(np.asarray, (params, cache))

    def step(params: Any, cache: Any, tokens: Array) -> Array:
        return nnx.merge(graph, params).step(tokens, cache)[0]

    weights = sum(x.nbytes for x in jax.tree.leaves(values[0]))
    held = sum(x.nbytes for x in jax.tree.leaves(values[1]))
    count = sum(x.size for x in jax.tree.leaves(values[0]) if x.ndim > 1)
    flops, size = 2.0 * batch * count, float(weights + held)
    inputs = (*values, np.arange(batch, dtype=np.int32))
    return Work(name, inputs, 0, (flops, flops), (size, size), {"ours": Entry(step)})


def _separate(x: Array, kernel: Array, bias: Array) -> Array:
    parts = zip(jnp.split(kernel, 3, 1), jnp.split(bias, 3), strict=True)
    return jnp.concatenate([lax.optimization_barrier(linear(x, k, b)) for k, b in parts], 1)


def _product(
    name: str,
    inputs: tuple[np.ndarray, ...],
    flops: float,
    runs: dict[str, Function],
    out: float,
) -> Work:
    real = [x for x in inputs if not np.issubdtype(x.dtype, np.integer)]
    size = sum(x.nbytes for x in real)
    return Work(
        name,
        inputs,
        len(real),
        (flops, 3 * flops),
        (size + out, 3 * size + 2 * out),
        {entry: Entry(run) for entry, run in runs.items()},
    )

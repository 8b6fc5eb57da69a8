"""Attention by the splash kernels of Pallas, on TPUs: masked blocks are skipped."""

from functools import lru_cache
from typing import TYPE_CHECKING, cast

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree

from transformer_jax.functional.masks import Mask
from transformer_jax.functional.reduce_scatter import LANES
from transformer_jax.functional.scores import ALL_KEYS, ScaledDot, Scores, Shaped

if TYPE_CHECKING:
    from jax.experimental.pallas.ops.tpu import splash_attention
    from jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_kernel import (
        SplashAttentionKernel,
    )

__all__ = ["run", "run_part", "supports"]


def supports(
    q: Shaped,
    k: Shaped,
    v: Shaped,
    scores: Scores,
    parts: int = 1,
) -> str | None:
    """Returns the reason why this kernel does not support a case; None if it does."""
    mask, T, S = scores.mask, q.shape[2], k.shape[2]
    if T // parts % LANES or S % LANES:
        where = "" if parts == 1 else " on a device"
        return f"{T // parts} queries{where} and {S} keys are not both multiples of {LANES}"
    if scores.bias is not None:
        return "it takes no bias"
    if mask is None:
        return None
    if mask.dense is not None:
        return "it takes no dense mask"
    if mask.positional and not (isinstance(mask.offset, int) and mask.offset == 0 and T == S):
        return "causality and windows need as many queries as keys, from position 0"
    return None


def run(
    q: Float[Array, "B N T H"],
    k: Float[Array, "B K S H"],
    v: Float[Array, "B K S U"],
    scores: Scores = ALL_KEYS,
    interpret: bool = False,
) -> Float[Array, "B N T U"]:
    """Computes the same as :func:`.xla.run`, for supported cases."""
    mask, score = scores.mask or Mask(), cast(ScaledDot, scores.score)
    kernel = _kernel(q.shape, v.shape, 1, mask, score, interpret)
    return _run(kernel, q, k, v, mask, score, 0)


def run_part(
    q: Array,
    k: Array,
    v: Array,
    scores: Scores,
    index: Array,
    interpret: bool = False,
) -> Array:
    """Computes :func:`run` for the ``index``-th of equal parts of the queries."""
    B, N, t, H = q.shape
    mask, score = scores.mask or Mask(), cast(ScaledDot, scores.score)
    if not mask.positional:
        return run(q, k, v, scores.part_of_queries(index, t), interpret)
    parts = lax.axis_size("context")
    kernel = _kernel((B, N, t * parts, H), v.shape, parts, mask, score, interpret)
    # Each table of blocks keeps only the rows of this part.
    axes = {"data_next": 1, "mask_next": 1, "block_mask": 1, "q_sequence": 0}

    def cut(info: PyTree) -> PyTree:
        def rows(x: Array, axis: int) -> Array:
            size = x.shape[axis] // parts
            return lax.dynamic_slice_in_dim(x, index * size, size, axis)

        blocks = {name: getattr(info, name) for name in axes}
        tables = {name: rows(x, axes[name]) for name, x in blocks.items() if x is not None}
        return info._replace(**tables)

    kernel.fwd_mask_info, kernel.dkv_mask_info = (
        cut(kernel.fwd_mask_info),
        cut(kernel.dkv_mask_info),
    )
    return _run(kernel, q, k, v, mask, score, index * t)


def _kernel(
    q: tuple[int, ...],
    v: tuple[int, ...],
    parts: int,
    mask: Mask,
    score: ScaledDot,
    interpret: bool,
) -> "SplashAttentionKernel":
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    (_, N, T, H), (_, _, S, U) = q, v
    return splash.make_splash_mha(
        splash.MultiHeadMask([_structure(mask.causal, mask.window, T, S)] * N),
        head_shards=1,
        q_seq_shards=parts,
        block_sizes=_block_sizes(T // parts, S, H, U),
        attn_logits_soft_cap=score.softcap,
        interpret=interpret,
    )


def _run(
    kernel: "SplashAttentionKernel",
    q: Array,
    k: Array,
    v: Array,
    mask: Mask,
    score: ScaledDot,
    start: int | Array,
) -> Array:
    """Attends for the queries from ``start`` on, whose positions are built into ``kernel``."""
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    (B, _, T, H), S = q.shape, k.shape[2]
    ids = segment_ids(mask, B, T, S, start)
    q = q * jnp.asarray(score.scale_of(H), q.dtype)
    if ids is None:
        return cast(Array, jax.vmap(kernel)(q, k, v))
    y = cast(Array, jax.vmap(kernel)(q, k, v, segment_ids=splash.SegmentIds(*ids)))
    # The kernel returns an average in fully masked rows. Selecting zero here also blocks their
    # gradient.
    visible = mask.part_of_queries(start, T).any_visible(T, S)
    return y if visible is None else jnp.where(visible, y, 0)


def segment_ids(
    mask: Mask, B: int, T: int, S: int, start: int | Array = 0
) -> tuple[Array, Array] | None:
    """Lengths and segments as ids ``[B T]`` and ``[B S]``, equal where a query sees a key.

    Queries begin at position ``start``. The kernel divides by zero in a fully masked row, so its
    query gets the id of some key within reach: the key at its position, or the first key if the
    mask has no positions.
    """
    mask = mask.part_of_queries(start, T)
    visible = mask.any_visible(T, S)
    held = (mask.kv_lengths, mask.q_lengths, mask.q_segments)
    if visible is None or all(x is None for x in held):
        return None
    ones = jnp.ones((B, T), jnp.int32), jnp.ones((B, S), jnp.int32)
    q, kv = ones
    if mask.q_segments is not None and mask.kv_segments is not None:
        q, kv = mask.q_segments, mask.kv_segments
    if mask.kv_lengths is not None:
        kv = jnp.where(jnp.arange(S)[None] < mask.kv_lengths[:, None], kv, 0)
    visible_ids = lax.dynamic_slice_in_dim(kv, start, T, axis=1) if mask.positional else kv[:, :1]
    harmless = jnp.broadcast_to(visible_ids, (B, T))
    return jnp.where(visible[:, 0, :, 0], q, harmless), kv


@lru_cache
def _structure(causal: bool, window: int | None, T: int, S: int) -> "splash_attention.Mask":
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    if window is not None:
        return splash.LocalMask((T, S), (window - 1, 0 if causal else window - 1), offset=0)
    return splash.CausalMask((T, S)) if causal else splash.FullMask((T, S))


def _block_sizes(T: int, S: int, H: int, U: int) -> "splash_attention.BlockSizes":
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    t, s = (max(n for n in (128, 256, 512, 1024) if length % n == 0) for length in (T, S))
    inner = min(s, 512)
    # With their channels in the lanes, heads of 64 would fill half of them, and twice the memory.
    by_positions = splash.QKVLayout.SEQ_MINOR
    of_keys, of_values = (
        by_positions if size % LANES else splash.QKVLayout.HEAD_DIM_MINOR for size in (H, U)
    )
    return splash.BlockSizes(
        block_q=t,
        block_kv=s,
        block_kv_compute=inner,
        block_q_dkv=t,
        block_kv_dkv=s,
        block_kv_dkv_compute=inner,
        use_fused_bwd_kernel=True,
        q_layout=of_keys,
        k_layout=of_keys,
        v_layout=of_values,
    )

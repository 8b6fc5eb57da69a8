"""Attention by the splash kernels of Pallas, on TPUs: masked blocks are skipped."""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.functional.masks import Mask
from transformer_jax.functional.scores import ScaledDot, scaled_dot

__all__ = ["run", "supports"]

LANES = 128  # of a TPU's vector unit: lengths are multiples of it


def supports(
    q: Any, k: Any, v: Any, mask: Mask | None, bias: Any, softcap: float | None
) -> str | None:
    """Why this kernel does not support a case; None if it does."""
    T, S = q.shape[2], k.shape[2]
    if T % LANES or S % LANES:
        return f"{T} queries and {S} keys are not both multiples of {LANES}"
    if bias is not None:
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
    mask: Mask | None = None,
    bias: None = None,
    score: ScaledDot = scaled_dot,
    interpret: bool = False,
) -> Float[Array, "B N T U"]:
    """The same as :func:`.xla.run`, for what :func:`supports`."""
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    B, N, T, _ = q.shape
    S = k.shape[2]
    mask = Mask() if mask is None else mask
    kernel = splash.make_splash_mha_single_device(
        splash.MultiHeadMask([_structure(mask.causal, mask.window, T, S)] * N),
        block_sizes=_block_sizes(T, S),
        attn_logits_soft_cap=score.softcap,
        interpret=interpret,
    )
    ids = segment_ids(mask, B, T, S)
    q = q * jnp.asarray(score.scale_of(q.shape[3]), q.dtype)
    if ids is None:
        return jax.vmap(kernel)(q, k, v)
    y = jax.vmap(kernel)(q, k, v, segment_ids=splash.SegmentIds(*ids))
    # The kernel gives an average in fully masked rows: it becomes zero here, and since no gradient
    # passes the selection, such rows send none.
    visible = mask.any_visible(T, S)
    return y if visible is None else jnp.where(visible, y, 0)


def segment_ids(mask: Mask, B: int, T: int, S: int) -> tuple[Array, Array] | None:
    """Lengths and segments as ids ``[B T]`` and ``[B S]``, equal where a query sees a key.

    The kernel divides by zero in a fully masked row, so its query gets the id of some key in
    reach: its own position's, or the first where positions do not matter.
    """
    visible = mask.any_visible(T, S)
    held = (mask.kv_lengths, mask.q_lengths, mask.q_segments)
    if visible is None or all(x is None for x in held):
        return None
    ones = jnp.ones((B, T), jnp.int32), jnp.ones((B, S), jnp.int32)
    q, kv = ones if mask.q_segments is None else (mask.q_segments, mask.kv_segments)
    if mask.kv_lengths is not None:
        kv = jnp.where(jnp.arange(S)[None] < mask.kv_lengths[:, None], kv, 0)
    harmless = kv if mask.positional else jnp.broadcast_to(kv[:, :1], (B, T))
    return jnp.where(visible[:, 0, :, 0], q, harmless), kv


@lru_cache
def _structure(causal: bool, window: int | None, T: int, S: int) -> Any:
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    if window is not None:
        return splash.LocalMask((T, S), (window - 1, 0 if causal else window - 1), offset=0)
    return splash.CausalMask((T, S)) if causal else splash.FullMask((T, S))


def _block_sizes(T: int, S: int) -> Any:
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    t, s = (max(n for n in (128, 256, 512, 1024) if length % n == 0) for length in (T, S))
    inner = min(s, 512)
    return splash.BlockSizes(
        block_q=t,
        block_kv=s,
        block_kv_compute=inner,
        block_q_dkv=t,
        block_kv_dkv=s,
        block_kv_dkv_compute=inner,
        use_fused_bwd_kernel=True,
    )

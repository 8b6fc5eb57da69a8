"""Attention by cuDNN's fused kernels, on NVIDIA GPUs in half precision."""

import dataclasses
from typing import Literal, TypedDict, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.masks import Mask
from transformer_jax.functional.scores import ALL_KEYS, ScaledDot, Scores, Shaped

__all__ = ["run", "run_part", "supports"]


class CudnnArguments(TypedDict):
    """Arguments of ``jax.nn.dot_product_attention``."""

    is_causal: bool
    key_value_seq_lengths: Array | None
    local_window_size: tuple[int, int] | None


def supports(
    q: Shaped,
    k: Shaped,
    v: Shaped,
    scores: Scores,
    parts: int = 1,
) -> str | None:
    """Returns the reason why this kernel does not support a case; None if it does.

    GPUs older than Hopper support less.
    """
    mask, score = scores.mask, cast(ScaledDot, scores.score)
    (_, _, T, H), U = q.shape, v.shape[3]
    if T == 1:
        return "one query is read faster by XLA"
    if q.dtype not in (jnp.bfloat16, jnp.float16):
        return f"it needs bfloat16 or float16, not {q.dtype}"
    if not q.dtype == k.dtype == v.dtype:
        return f"it needs one dtype, not {q.dtype}, {k.dtype} and {v.dtype}"
    if H != U:
        return f"value heads of size {U} differ from query heads of size {H}"
    if H % 8 or H > 256:
        return f"heads of size {H} are no multiple of 8 up to 256"
    if score.capped:
        return "it takes no soft cap"
    if scores.bias is not None:
        return "its gradient of a bias is limited to a batch of one"
    if parts > 1 and mask is not None and mask.positional:
        return "causality and windows need all queries on one device"
    return None if mask is None else _refuses(mask, T, k.shape[2])


def _refuses(mask: Mask, T: int, S: int) -> str | None:
    if mask.dense is not None:
        return "a dense mask would become a dense bias"
    if mask.q_segments is not None:
        return "it takes no segments"
    if mask.positional and not (isinstance(mask.offset, int) and mask.offset == 0 and T == S):
        return "causality and windows need as many queries as keys, from position 0"
    if mask.window is not None and not mask.causal:
        return "it takes windows only to the left"
    if mask.window is not None and mask.kv_lengths is not None:
        return "windows beyond the last key would be fully masked rows"
    return None


def run(
    q: Float[Array, "B N T H"],
    k: Float[Array, "B K S H"],
    v: Float[Array, "B K S U"],
    scores: Scores = ALL_KEYS,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Float[Array, "B N T U"]:
    """Computes the same as :func:`.xla.run`, for supported cases.

    Raises:
        ArgumentError: cuDNN is not installed.
    """
    T, S = q.shape[2], k.shape[2]
    mask, score = scores.mask or Mask(), cast(ScaledDot, scores.score)
    scale = score.scale_of(q.shape[3])
    if mask.kv_lengths is not None:
        # The kernel returns an average in fully masked rows. Values of zero also block its
        # gradient, and are written by the kernel that makes the values.
        v = jnp.where(mask.kv_lengths[:, None, None, None] > 0, v, 0)
    (q, k, v), settings = arguments(q, k, v, mask)
    try:
        y = jax.nn.dot_product_attention(
            q, k, v, implementation=implementation, scale=scale, **settings
        )
    except RuntimeError as error:  # JAX raises it if there is no cuDNN
        reason = "" if jax.devices()[0].platform == "gpu" else ", and there is no GPU"
        reason = reason or f", which JAX does not find ({error})"
        raise ArgumentError(
            f"attend: implementation cudnn needs a GPU with cuDNN{reason}: use auto"
        ) from None
    y = y[:, :T].swapaxes(1, 2)
    visible = dataclasses.replace(mask, kv_lengths=None).any_visible(T, S)
    return y if visible is None else jnp.where(visible, y, 0)


def run_part(q: Array, k: Array, v: Array, scores: Scores, index: Array) -> Array:
    """Computes :func:`run` for the ``index``-th of equal parts of the queries."""
    return run(q, k, v, scores.part_of_queries(index, q.shape[2]))


def arguments(
    q: Array, k: Array, v: Array, mask: Mask
) -> tuple[tuple[Array, Array, Array], CudnnArguments]:
    """The arguments of ``jax.nn.dot_product_attention``: heads inside, even lengths."""
    S = k.shape[2]
    lengths = mask.kv_lengths
    if S % 2 and lengths is None:
        lengths = jnp.full((q.shape[0],), S, jnp.int32)
    if lengths is not None:
        # Without any visible key the kernel's normalizer would be infinite.
        lengths = jnp.clip(jnp.broadcast_to(lengths, (q.shape[0],)), 1, S).astype(jnp.int32)

    def even(x: Array) -> Array:
        # The kernel refuses odd lengths in training.
        return jnp.pad(x.swapaxes(1, 2), ((0, 0), (0, x.shape[2] % 2), (0, 0), (0, 0)))

    window = None if mask.window is None else (mask.window - 1, 0)
    settings: CudnnArguments = {
        "is_causal": mask.causal,
        "key_value_seq_lengths": lengths,
        "local_window_size": window,
    }
    return (even(q), even(k), even(v)), settings

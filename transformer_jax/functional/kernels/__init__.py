"""How attention is computed: a registry of kernels that agree on what, and differ in how.

A kernel takes heads-first arrays. Each says of a case why it cannot take it, or None; nothing is
raised for that, the case goes to ``xla``, which takes all, and one line is logged.
"""

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
from jaxtyping import Array

from transformer_jax.functional.kernels import chunked, cudnn, splash, xla
from transformer_jax.functional.masks import Mask

__all__ = ["KERNELS", "Kernel", "select_kernel"]

log = logging.getLogger(__name__)


class Kernel(NamedTuple):
    """One way to compute attention.

    ``run(q, k, v, mask, bias, scale, softcap)`` computes it, and
    ``supports(q, k, v, mask, bias, softcap, platform)`` says why it cannot, or None.
    """

    name: str
    run: Callable[..., Array]
    supports: Callable[..., str | None]


KERNELS: dict[str, Kernel] = {
    module.__name__.rpartition(".")[2]: Kernel(
        module.__name__.rpartition(".")[2], module.run, module.supports
    )
    for module in (xla, chunked, cudnn, splash)
}

# Scores that would fill this many bytes in float32 are not worth holding at once.
LARGE = 2**30
# On CPU, blocks of keys are faster from these lengths on, forward and backward together: 1.1 to
# 1.25 times, and 1.25 to 1.9 times where they skip what causality hides. At 256 it is a draw.
LONG = 512
LONG_CAUSAL = 384


def select_kernel(
    implementation: str,
    q: Array | jax.ShapeDtypeStruct,
    k: Array | jax.ShapeDtypeStruct,
    v: Array | jax.ShapeDtypeStruct,
    mask: Mask | None = None,
    bias: Array | None = None,
    softcap: float | None = None,
    platform: str | None = None,
) -> Kernel:
    """The kernel to run: the one asked for, or the fastest known for ``auto``; ``xla`` if it can't.

    Raises:
        ValueError: A name that no kernel has.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.zeros((1, 1, 4, 8))
        >>> select_kernel("splash", x, x, x, platform="cpu").name
        'xla'
    """
    platform = jax.default_backend() if platform is None else platform
    asked = implementation
    if implementation == "auto":
        asked = _fastest(q, k, mask, platform)
    elif implementation not in KERNELS:
        allowed = ", ".join(["auto", *KERNELS])
        raise ValueError(f"there is no attention {implementation!r}: allowed are {allowed}")
    reason = KERNELS[asked].supports(q, k, v, mask, bias, softcap, platform)
    if reason is None:
        return KERNELS[asked]
    _say_once(f"attention by xla instead of {asked}: {reason}", implementation != "auto")
    return KERNELS["xla"]


def _fastest(q: Any, k: Any, mask: Mask | None, platform: str) -> str:
    """What to try first, from measurements."""
    B, N, T, _ = q.shape
    S = k.shape[2]
    if T > 1 and platform == "gpu" and q.dtype.itemsize == 2:
        return "cudnn"
    if T > 1 and platform == "tpu":
        return "splash"
    skips = mask is not None and mask.causal and isinstance(mask.offset, int)
    long = min(T, S) >= (LONG_CAUSAL if skips else LONG)
    if 4 * B * N * T * S > LARGE or (platform == "cpu" and long):
        return "chunked"
    return "xla"


@lru_cache
def _say_once(message: str, loudly: bool) -> None:
    log.log(logging.WARNING if loudly else logging.INFO, message)

"""Costs of complete layers: attention with its projections, and recurrent layers by their cell.

Table 1 of Vaswani et al. 2017 leaves the projections of attention out, and the constants.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.core.arguments import checked_arguments
from transformer_jax.core.config_fields import Count
from transformer_jax.functional.attention import attend
from transformer_jax.functional.recurrent import CELLS, recur
from transformer_jax.laboratory.complexity.measure import program_flops

__all__ = ["Complete", "complete_flops", "complete_multiply_adds"]

Complete = Literal["scores and mixing", "self-attention", "tanh", "lstm"]


@checked_arguments
def complete_multiply_adds(kind: Complete, n: Count, d: Count) -> int:
    """Returns the multiply-adds of a complete layer over ``n`` vectors of size ``d``.

    ``2 n² d`` for scores and mixing, ``4 n d² + 2 n² d`` for self-attention with its projections,
    ``2 n d²`` for a tanh layer and ``8 n d²`` for an LSTM.

    Example:
        >>> [complete_multiply_adds(kind, 128, 512) // 10**6 for kind in ("self-attention", "tanh")]
        [150, 67]
    """
    mixing, product = 2 * n * n * d, n * d * d
    return {
        "scores and mixing": mixing,
        "self-attention": 4 * product + mixing,
        "tanh": 2 * product,
        "lstm": 8 * product,
    }[kind]


@checked_arguments
def complete_flops(kind: Complete, n: Count, d: Count) -> float:
    """Counts the FLOPs of a complete layer, as XLA counts them in its compiled program.

    As in :func:`.count_flops`, one step of a recurrent layer is compiled, and counts ``n`` times.

    Example:
        >>> round(complete_flops("self-attention", 64, 128) / 2e6, 1)
        5.3
    """
    shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, jnp.float32)
    if kind == "scores and mixing":
        return program_flops(_mixed, *[shape(n, d)] * 3)
    if kind == "self-attention":
        return program_flops(_attention, shape(n, d), shape(d, 3 * d), shape(d, d))
    gates = 4 if kind == "lstm" else 1
    states = (shape(1, d),) * (2 if kind == "lstm" else 1)
    step = lambda now, U, *state: recur(CELLS[kind], now[None], U, state)[0]
    once = program_flops(step, shape(1, gates * d), shape(d, gates * d), *states)
    return program_flops(jnp.matmul, shape(n, d), shape(d, gates * d)) + n * once


def _mixed(
    q: Float[Array, "n d"], k: Float[Array, "n d"], v: Float[Array, "n d"]
) -> Float[Array, "n d"]:
    heads = lambda x: x[None, :, None]
    return attend(heads(q), heads(k), heads(v), implementation="xla")[0, :, 0]


def _attention(
    x: Float[Array, "n d"], W: Float[Array, "d p"], O: Float[Array, "d d"]
) -> Float[Array, "n d"]:
    return _mixed(*jnp.split(x @ W, 3, axis=1)) @ O

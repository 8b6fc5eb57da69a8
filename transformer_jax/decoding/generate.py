"""Greedy decoding and sampling as one compiled loop, over anything that maps tokens to logits."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_jax.functional import logits as processors

__all__ = ["Generated", "Sampling", "generate"]

Step = Callable[[Array, Any], tuple[Array, Any]]  # tokens [R], state -> logits [R V], state


class Sampling(NamedTuple):
    """How the next token is drawn; each setting is one number for all rows, or one a row."""

    temperature: Any = 1.0  # 0 is greedy (row B34)
    top_k: Any = None  # the k most probable tokens (row B32)
    top_p: Any = None  # the fewest tokens that hold this much probability (row B33)
    min_p: Any = None  # tokens at least this fraction as probable as the most probable


class Generated(NamedTuple):
    """One sequence a row."""

    tokens: Int[Array, "R T"]  # EOS included where there is one, then padding
    lengths: Int[Array, " R"]  # tokens, EOS included
    log_probs: Float[Array, " R"]  # of the sequence under the model itself, whatever the sampling
    finished: Bool[Array, " R"]  # whether it ends with EOS


class _Loop(NamedTuple):
    t: Int[Array, ""]
    last: Int[Array, " R"]
    tokens: Int[Array, "R T"]
    lengths: Int[Array, " R"]
    log_probs: Float[Array, " R"]
    finished: Bool[Array, " R"]
    state: Any


def generate(
    step: Step,
    state: Any,
    first: Int[Array, " R"],
    *,
    length: int,
    eos: int,
    pad: int,
    limits: Int[Array, " R"] | None = None,
    minimum: int = 1,
    forbidden: tuple[int, ...] = (),
    sampling: Sampling | None = None,
    key: Key[Array, ""] | None = None,
    seeds: Int[Array, " R"] | None = None,
) -> Generated:
    """The sequence that grows from each row's ``first`` token, one token at a time.

    Without a ``key`` each token is the most probable one, the lowest among equals (row B30); with
    a key it is drawn from the distribution that ``sampling`` makes (rows B32-B34). The draw of row
    r at step t depends on ``(key, seeds[r], t)`` alone: not on the other rows, their number or
    order. The loop ends when every row has met EOS or its limit.

    Args:
        step: Maps the last tokens ``[R]`` and a state to logits ``[R V]`` and the next state.
        state: Before the first token; ``R`` rows.
        first: The token that each row goes on from: BOS, or the last of a prompt.
        length: T, the most tokens of any row, EOS included.
        eos: Ends a row.
        pad: Fills what follows.
        limits: The most tokens of each row, EOS included; 0 marks a row of padding.
        minimum: The fewest tokens, EOS included, where the limit leaves the choice.
        forbidden: Tokens that are never chosen.
        sampling: How tokens are drawn, if ``key`` is given.
        key: Randomness; None is greedy.
        seeds: A number for each row; None numbers the rows.

    Example:
        >>> table = jnp.array([[0.0, 2.0, 1.0], [0.0, 1.0, 2.0], [9.0, 0.0, 0.0]])
        >>> step = lambda tokens, state: (table[tokens], state)
        >>> generate(step, None, jnp.array([0, 1]), length=4, eos=2, pad=0).tokens
        Array([[1, 2, 0, 0],
               [2, 0, 0, 0]], dtype=int32)
    """
    R = first.shape[0]
    limits = jnp.full((R,), length, jnp.int32) if limits is None else jnp.minimum(limits, length)
    sampling = Sampling() if sampling is None else sampling
    if key is not None:
        seeds = jnp.arange(R) if seeds is None else seeds
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, seeds)
    loop = _Loop(
        t=jnp.int32(0),
        last=first.astype(jnp.int32),
        tokens=jnp.full((R, length), pad, jnp.int32),
        lengths=jnp.zeros(R, jnp.int32),
        log_probs=jnp.zeros(R),
        finished=jnp.zeros(R, bool),
        state=state,
    )

    def body(loop: _Loop) -> _Loop:
        t = loop.t
        logits, state = step(loop.last, loop.state)
        logits = logits.astype(jnp.float32)
        words = np.arange(logits.shape[1])
        barred = np.isin(words, forbidden)[None]
        if minimum > 1:
            early = (t + 1 < minimum) & (t + 1 < limits)
            barred = barred | (early[:, None] & (words == eos)[None])
        allowed = jnp.where(barred, -jnp.inf, logits)
        if key is None:
            token = processors.argmax(allowed)
        else:
            step_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, t)
            token = _draw(allowed, sampling, step_keys)
        here = (~loop.finished) & (t < limits)
        token = jnp.where(here, token, pad).astype(jnp.int32)
        chosen = jnp.take_along_axis(logits, token[:, None], axis=1)[:, 0]
        gain = chosen - jax.nn.logsumexp(logits, axis=-1)
        return _Loop(
            t=t + 1,
            last=token,
            tokens=lax.dynamic_update_slice(loop.tokens, token[:, None], (jnp.int32(0), t)),
            lengths=loop.lengths + here,
            log_probs=loop.log_probs + jnp.where(here, gain, 0.0),
            finished=loop.finished | (here & (token == eos)),
            state=state,
        )

    def goes_on(loop: _Loop) -> Bool[Array, ""]:
        return (loop.t < length) & (~loop.finished & (loop.t < limits)).any()

    loop = lax.while_loop(goes_on, body, loop)
    return Generated(loop.tokens, loop.lengths, loop.log_probs, loop.finished)


def _draw(
    logits: Float[Array, "R V"], sampling: Sampling, keys: Key[Array, " R"]
) -> Int[Array, " R"]:
    """A token of each row; temperature first, then the cuts, as each row asks."""
    logits = processors.temperature(logits, sampling.temperature)
    if sampling.top_k is not None:
        logits = processors.top_k(logits, sampling.top_k)
    if sampling.top_p is not None:
        logits = processors.top_p(logits, sampling.top_p)
    if sampling.min_p is not None:
        logits = processors.min_p(logits, sampling.min_p)
    return processors.sample(logits, keys)

"""Greedy decoding and sampling as one compiled loop, over anything that maps tokens to logits."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_jax.functional import logits as processors

__all__ = [
    "GenerationOutput",
    "GenerationState",
    "SamplingConfig",
    "append_token",
    "continue_generation",
    "generate",
    "init_generation",
]

Step = Callable[[Array, Any], tuple[Array, Any]]  # tokens [R], state -> logits [R V], state


class SamplingConfig(NamedTuple):
    """How the next token is drawn; each setting is one number for all rows, or one a row."""

    temperature: Any = 1.0  # 0 is greedy (row B34)
    top_k: Any = None  # the k most probable tokens (row B32)
    top_p: Any = None  # the fewest tokens that hold this much probability (row B33)
    min_p: Any = None  # tokens at least this fraction as probable as the most probable
    repetition_penalty: Any = None  # of tokens that were read or written
    no_repeat_ngram: Any = None  # no run of so many tokens twice; 0 is free


class GenerationOutput(NamedTuple):
    """One sequence a row."""

    tokens: Int[Array, "R T"]  # EOS included where there is one, then padding
    lengths: Int[Array, " R"]  # tokens, EOS included
    log_probs: Float[Array, " R"]  # of the sequence under the model itself, whatever the sampling
    finished: Bool[Array, " R"]  # whether it ends with EOS


class GenerationState(NamedTuple):
    """A generation under way, from which it goes on."""

    t: Int[Array, ""]  # tokens written by now
    last: Int[Array, " R"]
    tokens: Int[Array, "R P+T"]  # what was read, if that is told, and what is written
    begins: Int[Array, " R"]  # where what was read begins in ``tokens``
    limits: Int[Array, " R"]
    lengths: Int[Array, " R"]
    log_probs: Float[Array, " R"]
    finished: Bool[Array, " R"]
    before: Int[Array, " R"]  # draws that each row has behind it
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
    sampling: SamplingConfig | None = None,
    key: Key[Array, ""] | None = None,
    seeds: Int[Array, " R"] | None = None,
) -> GenerationOutput:
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
    keys = None
    if key is not None:
        seeds = jnp.arange(first.shape[0]) if seeds is None else seeds
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, seeds)
    progress = init_generation(state, first, length=length, pad=pad, limits=limits)
    write = functools.partial(
        append_token,
        eos=eos,
        pad=pad,
        minimum=minimum,
        forbidden=forbidden,
        sampling=sampling,
        keys=keys,
    )
    progress = continue_generation(step, progress, length, write)
    return GenerationOutput(
        progress.tokens, progress.lengths, progress.log_probs, progress.finished
    )


def init_generation(
    state: Any,
    first: Int[Array, " R"],
    *,
    length: int,
    pad: int,
    limits: Int[Array, " R"] | None = None,
    read: tuple[Int[Array, "R P"], Int[Array, " R"]] | None = None,
    before: Int[Array, " R"] | None = None,
) -> GenerationState:
    """A generation before its first token; see :func:`generate`.

    Args:
        state: Before the first token.
        first: The token that each row goes on from.
        length: T, room for so many new tokens.
        pad: Fills rows.
        limits: The most new tokens of each row.
        read: Prompts, ``first`` their last column, and where in it each begins: what penalties
            for repetition look at beside what is written.
        before: How many tokens each row wrote in an earlier generation that this one goes on from,
            so that its draws go on too; None is 0.
    """
    R = first.shape[0]
    limits = jnp.full((R,), length, jnp.int32) if limits is None else jnp.minimum(limits, length)
    room = jnp.full((R, length), pad, jnp.int32)
    begins = jnp.zeros(R, jnp.int32) if read is None else read[1].astype(jnp.int32)
    return GenerationState(
        t=jnp.int32(0),
        last=first.astype(jnp.int32),
        tokens=room if read is None else jnp.concatenate([read[0].astype(jnp.int32), room], axis=1),
        begins=begins,
        limits=limits.astype(jnp.int32),
        lengths=jnp.zeros(R, jnp.int32),
        log_probs=jnp.zeros(R),
        finished=jnp.zeros(R, bool),
        before=jnp.zeros(R, jnp.int32) if before is None else before.astype(jnp.int32),
        state=state,
    )


def continue_generation(
    step: Step,
    progress: GenerationState,
    until: int | Int[Array, ""],
    write: Callable[[GenerationState, Array], GenerationState],
) -> GenerationState:
    """Goes on until ``until`` tokens are written, or all rows have ended; see :func:`generate`.

    Cut into pieces in any way, a generation gives the same tokens.

    Args:
        step: Maps the last tokens and a state to logits and the next state.
        progress: Where it stands; it has room for ``until`` tokens.
        until: Counted from the first.
        write: Chooses the next token of each row by its logits, such as :func:`append_token`.
    """

    def body(at: GenerationState) -> GenerationState:
        logits, state = step(at.last, at.state)
        return write(at._replace(state=state), logits)

    def goes_on(at: GenerationState) -> Bool[Array, ""]:
        return (at.t < until) & (~at.finished & (at.t < at.limits)).any()

    return lax.while_loop(goes_on, body, progress)


def append_token(
    at: GenerationState,
    logits: Float[Array, "R V"],
    *,
    eos: int,
    pad: int,
    read: int = 0,
    minimum: int = 1,
    forbidden: tuple[int, ...] = (),
    sampling: SamplingConfig | None = None,
    ngrams: tuple[int, ...] = (),
    keys: Key[Array, " R"] | None = None,
) -> GenerationState:
    """A generation with one more token of each row, chosen by ``logits``.

    The state is left as it is: what gave the logits gave the state too.

    Args:
        at: Where it stands; it has room for a token.
        logits: Of the token that follows in each row.
        eos: Ends a row.
        pad: Fills what follows.
        read: P, the columns of ``at.tokens`` that were read.
        minimum: The fewest tokens.
        forbidden: Tokens that are never chosen.
        sampling: How tokens are chosen. Penalties for repetition hold for greedy rows too.
        ngrams: The lengths above 0 in ``sampling.no_repeat_ngram``, which shape the computation.
        keys: Randomness of each row; None is greedy.

    Example:
        >>> at = init_generation(None, jnp.array([5, 5]), length=2, pad=0, limits=jnp.array([2, 0]))
        >>> at = append_token(at, jnp.array([[0.0, 1.0, 2.0]] * 2), eos=1, pad=0)
        >>> at.tokens, at.lengths
        (Array([[2, 0],
               [0, 0]], dtype=int32), Array([1, 0], dtype=int32))
    """
    sampling = SamplingConfig() if sampling is None else sampling
    t, logits = at.t, logits.astype(jnp.float32)
    words = np.arange(logits.shape[1])
    barred = np.isin(words, forbidden)[None]
    if minimum > 1:
        early = (t + 1 < minimum) & (t + 1 < at.limits)
        barred = barred | (early[:, None] & (words == eos)[None])
    allowed = _penalised(logits, at, read + t, sampling, ngrams)
    allowed = jnp.where(barred, -jnp.inf, allowed)
    if keys is None:
        token = processors.argmax(allowed)
    else:
        token = _draw(allowed, sampling, jax.vmap(jax.random.fold_in)(keys, at.before + t))
    here = (~at.finished) & (t < at.limits)
    token = jnp.where(here, token, pad).astype(jnp.int32)
    chosen = jnp.take_along_axis(logits, token[:, None], axis=1)[:, 0]
    peak, rest = processors.normalizer(logits)
    gain = (chosen - peak) - rest
    return at._replace(
        t=t + 1,
        last=token,
        tokens=lax.dynamic_update_slice(at.tokens, token[:, None], (jnp.int32(0), read + t)),
        lengths=at.lengths + here,
        log_probs=at.log_probs + jnp.where(here, gain, 0.0),
        finished=at.finished | (here & (token == eos)),
    )


def _penalised(
    logits: Float[Array, "R V"],
    at: GenerationState,
    known: Int[Array, ""],
    sampling: SamplingConfig,
    ngrams: tuple[int, ...],
) -> Float[Array, "R V"]:
    """Logits with repetition discouraged and forbidden, as each row asks."""
    if sampling.repetition_penalty is not None:
        columns = jnp.arange(at.tokens.shape[1])[None]
        valid = (columns >= at.begins[:, None]) & (columns < known)
        penalty = sampling.repetition_penalty
        logits = processors.repetition_penalty(logits, at.tokens, valid, penalty)
    for n in ngrams:
        cut = processors.no_repeat_ngram(logits, at.tokens, known, n)
        logits = jnp.where((sampling.no_repeat_ngram == n)[:, None], cut, logits)
    return logits


def _draw(
    logits: Float[Array, "R V"], sampling: SamplingConfig, keys: Key[Array, " R"]
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

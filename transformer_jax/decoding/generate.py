"""Greedy decoding and sampling as one compiled loop, over anything that maps tokens to logits."""

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_jax.decoding.options import SpecialTokens
from transformer_jax.functional import logits as processors

__all__ = [
    "GenerationOutput",
    "GenerationState",
    "SamplingConfig",
    "Step",
    "append_token",
    "continue_generation",
    "generate",
    "init_generation",
    "record",
    "row_keys",
]

Step = Callable[[Array, Any], tuple[Array, Any]]  # tokens [R], cache -> logits [R V], cache


class SamplingConfig(NamedTuple):
    """How the next token is chosen; each setting is one number for all rows, or one a row.

    None leaves a setting out of the compiled program.
    """

    temperature: Any = 1.0  # 0 is greedy (row B34)
    top_k: Any = None  # the k most probable tokens (row B32)
    top_p: Any = None  # the fewest tokens that hold this much probability (row B33)
    min_p: Any = None  # tokens at least this fraction as probable as the most probable
    repetition_penalty: Any = None  # above 1 makes tokens of prompt and text less probable
    no_repeat_ngram_size: Any = None  # n-grams of this size occur once; 0 allows all
    min_length: Any = None  # fewest tokens, EOS included, where the length limit permits

    @property
    def depends_on_text(self) -> bool:
        """Whether tokens of the prompt and the text make others less probable."""
        return self.repetition_penalty is not None or self.no_repeat_ngram_size is not None

    @property
    def ngram_sizes(self) -> tuple[int, ...]:
        """Sizes of n-grams that occur once in some row, for settings in host memory."""
        sizes = self.no_repeat_ngram_size
        return () if sizes is None else tuple(sorted({*np.ravel(sizes).tolist()} - {0}))


class GenerationOutput(NamedTuple):
    """One sequence a row."""

    tokens: Int[Array, "R T"]  # EOS included where there is one, then padding
    lengths: Int[Array, " R"]  # tokens, EOS included
    log_probs: Float[Array, " R"]  # of the sequence under the model itself, whatever the sampling
    finished: Bool[Array, " R"]  # whether it ends with EOS


class GenerationState(NamedTuple):
    """A generation in progress, which :func:`continue_generation` resumes."""

    t: Int[Array, ""]  # tokens generated so far
    last: Int[Array, " R"]
    tokens: Int[Array, "R P+T"]  # the prompt, if it is kept, and what is generated
    starts: Int[Array, " R"]  # column of the first token of each prompt
    max_lengths: Int[Array, " R"]
    lengths: Int[Array, " R"]
    log_probs: Float[Array, " R"]
    finished: Bool[Array, " R"]
    sampled: Int[Array, " R"]  # tokens that each row sampled in earlier generations
    cache: Any

    @property
    def active(self) -> Bool[Array, " R"]:
        """The rows that have neither generated EOS nor reached their limit."""
        return ~self.finished & (self.t < self.max_lengths)


def generate(
    step: Step,
    cache: Any,
    start: Int[Array, " R"],
    special: SpecialTokens,
    *,
    length: int,
    max_lengths: Int[Array, " R"] | None = None,
    sampling: SamplingConfig | None = None,
    keys: Key[Array, " R"] | None = None,
) -> GenerationOutput:
    """The sequence that continues each row's ``start`` token, one token at a time.

    Without ``keys`` each token is the most probable one, the lowest id among equals (row B30);
    with keys it is sampled as ``sampling`` says (rows B32-B34). The sample of row r at step t
    depends on ``(keys[r], t)`` alone: not on the other rows, their number or order. The loop ends
    when every row has generated EOS or reached its limit.

    Args:
        step: Maps the last tokens ``[R]`` and a cache to logits ``[R V]`` and the next cache.
        cache: Cache before the first token; ``R`` rows.
        start: Last token of each prompt, or BOS.
        special: Ids of EOS, padding and suppressed tokens.
        length: T, most tokens of any row, EOS included.
        max_lengths: Most tokens of each row, EOS included; 0 marks a row of padding.
        sampling: How tokens are chosen; penalties and lengths hold for greedy rows too.
        keys: Random key of each row, see :func:`row_keys`; None is greedy.

    Example:
        >>> table = jnp.array([[0.0, 2.0, 1.0], [0.0, 1.0, 2.0], [9.0, 0.0, 0.0]])
        >>> step = lambda tokens, cache: (table[tokens], cache)
        >>> special = SpecialTokens(eos=2, pad=0)
        >>> generate(step, None, jnp.array([0, 1]), special, length=4).tokens
        Array([[1, 2, 0, 0],
               [2, 0, 0, 0]], dtype=int32)
    """
    state = init_generation(cache, start, length=length, pad=special.pad, max_lengths=max_lengths)
    append = functools.partial(append_token, special=special, sampling=sampling, keys=keys)
    state = continue_generation(step, state, length, append)
    return GenerationOutput(state.tokens, state.lengths, state.log_probs, state.finished)


def row_keys(key: Key[Array, ""], seeds: Int[Array, " R"]) -> Key[Array, " R"]:
    """A random key for each row, by its seed.

    Example:
        >>> keys = row_keys(jax.random.key(0), jnp.array([3, 3, 4]))
        >>> keys[0] == keys[1], keys[0] == keys[2]
        (Array(True, dtype=bool), Array(False, dtype=bool))
    """
    return jax.vmap(jax.random.fold_in, (None, 0))(key, seeds)


def init_generation(
    cache: Any,
    start: Int[Array, " R"],
    *,
    length: int,
    pad: int,
    max_lengths: Int[Array, " R"] | None = None,
    prompt: tuple[Int[Array, "R P"], Int[Array, " R"]] | None = None,
    sampled: Int[Array, " R"] | None = None,
) -> GenerationState:
    """A generation before its first token; see :func:`generate`.

    Args:
        cache: Cache before the first token.
        start: Last token of each prompt, or BOS.
        length: T, room for so many new tokens.
        pad: Padding id.
        max_lengths: Most new tokens of each row.
        prompt: Prompts, which end with ``start``, and the column in which each starts; repetition
            penalties count their tokens too.
        sampled: Tokens that each row sampled in an earlier generation that this one continues;
            None is 0.
    """
    R = start.shape[0]
    most = jnp.full((R,), length, jnp.int32)
    most = most if max_lengths is None else jnp.minimum(max_lengths, length)
    room = jnp.full((R, length), pad, jnp.int32)
    tokens, starts = room, jnp.zeros(R, jnp.int32)
    if prompt is not None:
        tokens = jnp.concatenate([prompt[0].astype(jnp.int32), room], axis=1)
        starts = prompt[1].astype(jnp.int32)
    return GenerationState(
        t=jnp.int32(0),
        last=start.astype(jnp.int32),
        tokens=tokens,
        starts=starts,
        max_lengths=most.astype(jnp.int32),
        lengths=jnp.zeros(R, jnp.int32),
        log_probs=jnp.zeros(R),
        finished=jnp.zeros(R, bool),
        sampled=jnp.zeros(R, jnp.int32) if sampled is None else sampled.astype(jnp.int32),
        cache=cache,
    )


def continue_generation(
    step: Step,
    state: GenerationState,
    until: int | Int[Array, ""],
    append: Callable[[GenerationState, Array], GenerationState],
    *,
    remaining: int = 0,
) -> GenerationState:
    """Continues until ``until`` tokens are generated or all rows have ended; see :func:`generate`.

    Split into calls in any way, a generation gives the same tokens.

    Args:
        step: Maps the last tokens and a cache to logits and the next cache.
        state: Where the generation stands; it has room for ``until`` tokens.
        until: Number of tokens, counted from the first.
        append: Chooses the next token of each row by its logits, such as :func:`append_token`.
        remaining: It stops early where at most so many rows have not ended.
    """

    def body(at: GenerationState) -> GenerationState:
        logits, cache = step(at.last, at.cache)
        return append(at._replace(cache=cache), logits)

    def unfinished(at: GenerationState) -> Bool[Array, ""]:
        return (at.t < until) & (at.active.sum() > remaining)

    return lax.while_loop(unfinished, body, state)


def append_token(
    at: GenerationState,
    logits: Float[Array, "R V"],
    special: SpecialTokens,
    *,
    prompt_length: int = 0,
    sampling: SamplingConfig | None = None,
    ngram_sizes: tuple[int, ...] = (),
    keys: Key[Array, " R"] | None = None,
) -> GenerationState:
    """Choose each row's next token by ``logits`` and append it.

    The cache stays: the call that gave the logits updated it.

    Args:
        at: Where the generation stands; it has room for a token.
        logits: Logits of the next token of each row.
        special: Ids of EOS, padding and suppressed tokens.
        prompt_length: P, columns of ``at.tokens`` that hold the prompt.
        sampling: How tokens are chosen. Repetition penalties hold for greedy rows too.
        ngram_sizes: The sizes above 0 in ``sampling.no_repeat_ngram_size``, static.
        keys: Random key of each row; None is greedy.

    Example:
        >>> at = init_generation(
        ...     None, jnp.array([5, 5]), length=2, pad=0, max_lengths=jnp.array([2, 0])
        ... )
        >>> logits, special = jnp.array([[0.0, 1.0, 2.0]] * 2), SpecialTokens(eos=1, pad=0)
        >>> at = append_token(at, logits, special)
        >>> at.tokens, at.lengths
        (Array([[2, 0],
               [0, 0]], dtype=int32), Array([1, 0], dtype=int32))
    """
    sampling = SamplingConfig() if sampling is None else sampling
    t, logits = at.t, logits.astype(jnp.float32)
    ids, ends = np.arange(logits.shape[1]), special.ends
    suppressed = np.isin(ids, special.suppress_tokens)[None]
    if sampling.min_length is not None:
        early = (t + 1 < sampling.min_length) & (t + 1 < at.max_lengths)
        suppressed = suppressed | (early[:, None] & np.isin(ids, ends)[None])
    allowed = _penalized(logits, at, prompt_length + t, sampling, ngram_sizes)
    allowed = jnp.where(suppressed, -jnp.inf, allowed)
    if keys is None:
        token = processors.argmax(allowed)
    else:
        token = _sample(allowed, sampling, jax.vmap(jax.random.fold_in)(keys, at.sampled + t))
    ended = functools.reduce(operator.or_, (token == end for end in ends))
    return record(at, token, logits, ended, special.pad, prompt_length)


def record(
    at: GenerationState,
    token: Int[Array, " R"],
    logits: Float[Array, "R V"],
    ends: Bool[Array, " R"],
    pad: int | Int[Array, ""],
    prompt_length: int | Int[Array, ""] = 0,
) -> GenerationState:
    """``at`` with a chosen token of each row that has not ended, and its log-probability.

    Args:
        at: Where the generation stands.
        token: The chosen tokens.
        logits: Logits of the model, before any processing.
        ends: Which of the tokens end their row.
        pad: Padding id, for rows that have ended.
        prompt_length: Columns of ``at.tokens`` that hold the prompt.
    """
    active = at.active
    token = jnp.where(active, token, pad).astype(jnp.int32)
    chosen = processors.take_logit(logits, token)
    peak, rest = processors.normalizer(logits)
    gain = (chosen - peak) - rest
    place = (jnp.int32(0), prompt_length + at.t)
    return at._replace(
        t=at.t + 1,
        last=token,
        tokens=lax.dynamic_update_slice(at.tokens, token[:, None], place),
        lengths=at.lengths + active,
        log_probs=at.log_probs + jnp.where(active, gain, 0.0),
        finished=at.finished | (active & ends),
    )


def _penalized(
    logits: Float[Array, "R V"],
    at: GenerationState,
    length: Int[Array, ""],
    sampling: SamplingConfig,
    ngram_sizes: tuple[int, ...],
) -> Float[Array, "R V"]:
    """Logits after each row's repetition penalty and without its repeated n-grams."""
    if sampling.repetition_penalty is not None:
        columns = jnp.arange(at.tokens.shape[1])[None]
        valid = (columns >= at.starts[:, None]) & (columns < length)
        penalty = sampling.repetition_penalty
        logits = processors.repetition_penalty(logits, at.tokens, valid, penalty)
    for n in ngram_sizes:
        unrepeated = processors.no_repeat_ngram(logits, at.tokens, length, n)
        chosen = (sampling.no_repeat_ngram_size == n)[:, None]
        logits = jnp.where(chosen, unrepeated, logits)
    return logits


def _sample(
    logits: Float[Array, "R V"], sampling: SamplingConfig, keys: Key[Array, " R"]
) -> Int[Array, " R"]:
    """A token of each row; temperature first, then truncation of the distribution."""
    logits = processors.temperature(logits, sampling.temperature)
    if sampling.top_k is not None:
        logits = processors.top_k(logits, sampling.top_k)
    if sampling.top_p is not None:
        logits = processors.top_p(logits, sampling.top_p)
    if sampling.min_p is not None:
        logits = processors.min_p(logits, sampling.min_p)
    return processors.sample(logits, keys)

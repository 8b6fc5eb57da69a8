"""Logits processors of a search: functions of scores, named after their settings.

All settings are arrays, so a compiled program serves many configurations. An unused processor
changes nothing.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.decoding.search_plan import SearchPlan, SearchValues, used
from transformer_jax.functional import logits as functional

__all__ = ["StepContext", "forbid_repeated_ngrams", "process_logits", "sequence_bias", "token_mask"]


class StepContext(NamedTuple):
    """Inputs of processors at a step, in addition to scores and settings."""

    written: Int[Array, ""]  # number of written tokens
    length: Int[Array, ""]  # columns of ``text`` in use: prompt and written tokens
    ends: Bool[Array, " V"]  # which tokens end a text
    last: Bool[Array, "R 1"] | None = None  # rows at their limit, which may end at any length
    text: Int[Array, "R W"] | None = None  # prompt and written tokens
    starts: Int[Array, " R"] | None = None  # the first column of each row that is not padding
    source: Int[Array, "R S"] | None = None  # the input of the encoder or decoder
    width: Int[Array, ""] | None = None  # columns of ``source`` in use


def process_logits(
    scores: Float[Array, "R V"], at: StepContext, plan: SearchPlan, values: SearchValues
) -> Float[Array, "R V"]:
    """Applies the processors of the plan, in order, to the scores of the next token.

    Args:
        scores: Logits for a single beam, log-probabilities for several.
        at: Context of the step.
        plan: The plan, which names the processors.
        values: Their settings.

    Example:
        >>> from transformer_jax.decoding.generation_config import GenerationConfig
        >>> from transformer_jax.decoding.search_plan import search_settings
        >>> config = GenerationConfig(eos_token_id=(0,), min_new_tokens=2, suppress_tokens=(2,))
        >>> at = StepContext(jnp.array(0), jnp.array(1), token_mask(jnp.array([0]), 4))
        >>> process_logits(jnp.zeros((1, 4)), at, *search_settings(config, vocab=4, length=3))
        Array([[-inf,   0., -inf,   0.]], dtype=float32)
    """
    for name in plan.processors:
        scores = _PROCESSORS[name](scores, at, values, plan)
    return scores


def token_mask(ids: Int[Array, " n"], vocab: int) -> Bool[Array, " {vocab}"]:
    """Marks ``ids`` in a vocabulary; negative ids are ignored.

    Example:
        >>> token_mask(jnp.array([2, -1]), 4)
        Array([False, False,  True, False], dtype=bool)
    """
    return (jnp.arange(vocab)[:, None] == ids[None]).any(1)


def sequence_bias(
    scores: Float[Array, "R V"],
    tokens: Int[Array, "R W"],
    length: Int[Array, ""],
    runs: Int[Array, "N L"],
    biases: Float[Array, " N"],
) -> Float[Array, "R V"]:
    """Adds a sequence's bias to its last token, if the text ends with the tokens before it.

    Args:
        scores: Scores of the next token.
        tokens: Each row's tokens so far.
        length: Number of columns of ``tokens`` in use.
        runs: Sequences of tokens, right-aligned and padded with -1.
        biases: Bias of each sequence.

    Example:
        >>> seen, runs = jnp.array([[1, 2]]), jnp.array([[2, 0], [1, 1], [-1, 3]])
        >>> sequence_bias(jnp.zeros((1, 4)), seen, jnp.array(2), runs, jnp.array([5.0, 6.0, 7.0]))
        Array([[5., 0., 0., 7.]], dtype=float32)
    """
    R, V = scores.shape
    N, L = runs.shape
    here = jnp.ones((R, N), bool)
    for back in range(1, L):
        expected = runs[:, L - 1 - back][None]
        token = jnp.where(length >= back, _back(tokens, length, back), -2)
        here = here & ((expected < 0) | (expected == token[:, None]))
    last = jnp.broadcast_to(jnp.where(runs[:, -1] < 0, V, runs[:, -1])[None], (R, N))
    rows = jnp.broadcast_to(jnp.arange(R)[:, None], (R, N))
    bias = (
        jnp.zeros_like(scores)
        .at[rows, last]
        .add(jnp.where(here, biases[None].astype(scores.dtype), 0), mode="drop")
    )
    return scores + bias


def forbid_repeated_ngrams(
    scores: Float[Array, "R V"],
    source: tuple[Int[Array, "R S"], Int[Array, ""]],
    tokens: Int[Array, "R W"],
    length: Int[Array, ""],
    n: Int[Array, ""] | Int[Array, " R"],
    most: int,
) -> Float[Array, "R V"]:
    """Forbids each token that would complete an n-gram of ``source``.

    If ``source`` is ``tokens``, this is :func:`functional.logits.no_repeat_ngram` with a traced
    ``n``, which may differ between rows.

    Args:
        scores: Scores of the next token.
        source: Tokens with the n-grams not to repeat, and their number of columns in use.
        tokens: Each row's tokens so far.
        length: Number of columns of ``tokens`` in use.
        n: Size of the n-grams; 0 forbids nothing.
        most: Upper bound of ``n``.

    Example:
        >>> source, seen, two = jnp.array([[3, 1, 2]]), jnp.array([[2, 3]]), jnp.array(2)
        >>> forbid_repeated_ngrams(jnp.zeros((1, 4)), (source, jnp.array(3)), seen, two, two, 4)
        Array([[  0., -inf,   0.,   0.]], dtype=float32)
    """
    before, width = source
    R, S = before.shape
    at, n = jnp.arange(S)[None], n.reshape(-1, 1)
    ends = jnp.broadcast_to((n > 0) & (at >= n - 1) & (at < width), (R, S))
    for back in range(1, most):
        token = jnp.where(length >= back, _back(tokens, length, back), -2)
        earlier = jnp.pad(before, ((0, 0), (back, 0)), constant_values=-3)[:, :S]
        ends = ends & ((back >= n) | (earlier == token[:, None]))
    return functional.suppress_tokens(scores, jnp.where(ends, before, -1))


def _back(tokens: Int[Array, "R W"], length: Int[Array, ""], back: int) -> Int[Array, " R"]:
    """Returns the token ``back`` columns before the next one."""
    return jnp.take(tokens, jnp.maximum(length - back, 0), axis=1)


def _forbid(x: Array, which: Array | np.ndarray) -> Array:
    return jnp.where(which, -jnp.inf, x)


def _encoder_repetition_penalty(
    x: Array, at: StepContext, values: SearchValues, plan: SearchPlan
) -> Array:
    source = used(at.source)
    here = (jnp.arange(source.shape[1]) < used(at.width))[None]
    seen = jnp.broadcast_to(here, source.shape)
    return functional.repetition_penalty(x, source, seen, used(values.encoder_repetition))


def _repetition_penalty(x: Array, at: StepContext, values: SearchValues, plan: SearchPlan) -> Array:
    text = used(at.text)
    columns = jnp.arange(text.shape[1])[None]
    seen = (columns >= used(at.starts)[:, None]) & (columns < at.length)
    return functional.repetition_penalty(x, text, seen, used(values.repetition))


def _no_repeat_ngram_size(
    x: Array, at: StepContext, values: SearchValues, plan: SearchPlan
) -> Array:
    text, n = used(at.text), used(values.ngram)
    return forbid_repeated_ngrams(x, (text, at.length), text, at.length, n, plan.ngram)


def _encoder_no_repeat_ngram_size(
    x: Array, at: StepContext, values: SearchValues, plan: SearchPlan
) -> Array:
    source, n = (used(at.source), used(at.width)), used(values.encoder_ngram)
    return forbid_repeated_ngrams(x, source, used(at.text), at.length, n, plan.encoder_ngram)


def _min_length(x: Array, at: StepContext, values: SearchValues, plan: SearchPlan) -> Array:
    early = (at.written + 1 < used(values.min_length)).reshape(-1, 1)
    early = early if at.last is None else early & ~at.last
    return _forbid(x, early & at.ends[None])


def _forced_eos_token_id(
    x: Array, at: StepContext, values: SearchValues, plan: SearchPlan
) -> Array:
    tokens = used(values.forced_last)
    forced = jnp.where(tokens, 0.0, -jnp.inf)[None]
    return jnp.where(tokens.any() & (at.written == used(values.at_last)), forced, x)


def _remove_invalid_values(
    x: Array, at: StepContext, values: SearchValues, plan: SearchPlan
) -> Array:
    least = jnp.finfo(jnp.float32).min
    return jnp.where(used(values.finite), jnp.nan_to_num(x, neginf=least), x)


def _exponential_decay_length_penalty(
    x: Array, at: StepContext, values: SearchValues, plan: SearchPlan
) -> Array:
    gain = jnp.abs(x) * used(values.decay)[at.written]
    return x + jnp.where(at.ends[None] & jnp.isfinite(x), gain, 0.0)


def _begin_suppress_tokens(
    x: Array, at: StepContext, values: SearchValues, plan: SearchPlan
) -> Array:
    return _forbid(x, (used(values.begin_suppressed) & (at.length == used(values.first)))[None])


_PROCESSORS: dict[str, Callable[[Array, StepContext, SearchValues, SearchPlan], Array]] = {
    "sequence_bias": lambda x, at, values, plan: sequence_bias(
        x, used(at.text), at.length, used(values.biased), used(values.biases)
    ),
    "encoder_repetition_penalty": _encoder_repetition_penalty,
    "repetition_penalty": _repetition_penalty,
    "no_repeat_ngram_size": _no_repeat_ngram_size,
    "encoder_no_repeat_ngram_size": _encoder_no_repeat_ngram_size,
    "bad_words_ids": lambda x, at, values, plan: sequence_bias(
        x, used(at.text), at.length, used(values.barred), used(values.barriers)
    ),
    "min_length": _min_length,
    "forced_bos_token_id": lambda x, at, values, plan: functional.force_token(
        x, jnp.where(at.length == 1, used(values.forced_first), -1)
    ),
    "forced_eos_token_id": _forced_eos_token_id,
    "remove_invalid_values": _remove_invalid_values,
    "exponential_decay_length_penalty": _exponential_decay_length_penalty,
    "suppress_tokens": lambda x, at, values, plan: _forbid(x, used(values.suppressed)[None]),
    "begin_suppress_tokens": _begin_suppress_tokens,
    "temperature": lambda x, at, values, plan: functional.temperature(x, used(values.temperature)),
    "top_k": lambda x, at, values, plan: functional.top_k(x, used(values.top_k)),
    "top_p": lambda x, at, values, plan: functional.top_p(x, used(values.top_p)),
    "min_p": lambda x, at, values, plan: functional.min_p(x, used(values.min_p)),
    "renormalize_logits": lambda x, at, values, plan: jnp.where(
        used(values.renormalize), jax.nn.log_softmax(x, axis=-1), x
    ),
}

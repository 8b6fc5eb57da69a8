"""Logits processing by a Hugging Face generation config, as one pure function of arrays.

Everything that can be a number is one, so that a compiled program serves many configs: a
processor that a config does not use gets numbers that change nothing.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int

from transformer_jax.decoding.hf_config import HFGenerationConfig
from transformer_jax.functional import logits as processors

__all__ = [
    "ProcessorParams",
    "ProcessorShapes",
    "PromptContext",
    "forbid_repeated_ngrams",
    "process_logits",
    "processor_params",
    "processor_shapes",
    "sequence_bias",
]


@dataclasses.dataclass(frozen=True)
class ProcessorShapes:
    """Sizes of the arrays of a program; 0 and False leave a part of it out."""

    ends: int = 0  # tokens that end a text
    biased: tuple[int, int] = (0, 0)  # runs with a bias, and their most tokens
    barred: tuple[int, int] = (0, 0)  # runs never written
    forced_ends: int = 0
    suppressed: int = 0
    suppressed_first: int = 0
    ngram: int = 0
    encoder_ngram: int = 0
    repetition: bool = False
    encoder_repetition: bool = False
    earliest: bool = False  # whether ends may come too early
    forced_first: bool = False
    decay: bool = False
    finite: bool = False
    renormalize: bool = False


class ProcessorParams(NamedTuple):
    """The numbers of one generation config; tokens are -1 where it has fewer than the program."""

    ends: Any  # [E]
    biased: Any  # [N L] runs, right-aligned
    biases: Any  # [N]
    barred: Any  # [N L]
    barriers: Any  # [N], -∞
    forced_first: Any  # []
    forced_ends: Any  # [n]
    suppressed: Any  # [n]
    suppressed_first: Any  # [n]
    ngram: Any  # [], 0 is free
    encoder_ngram: Any
    repetition: Any  # [], 1 changes nothing
    encoder_repetition: Any
    decay: Any  # [T + 1], factor of what end tokens gain after so many new tokens
    finite: Any  # []
    renormalize: Any
    longest: Any  # [], tokens of a text, its prompt included
    earliest: Any  # [], the same of the shortest
    first: Any  # [], tokens at which what is written first is suppressed
    powers: Any  # [T + 1], lengthᵅ that scores of so many written tokens are divided by
    hopeful: Any  # [], whether hopes of beams are for the longest text
    eager: Any  # [], whether a sentence is done once it has all its hypotheses
    pad: Any  # []
    fill: Any  # []


class PromptContext(NamedTuple):
    """What each row has before it."""

    starts: Int[Array, " R"]  # the first column of its tokens that is no padding
    source: Int[Array, "R S"]  # what the encoder or the decoder read, padding included
    width: Int[Array, ""]  # columns of it that count


def processor_shapes(configs: Iterable[HFGenerationConfig]) -> ProcessorShapes:
    """The sizes of a program that serves all of ``configs``.

    Example:
        >>> configs = HFGenerationConfig(eos_token_id=(2, 3)), HFGenerationConfig(max_length=9)
        >>> shapes = processor_shapes(configs)
        >>> shapes == ProcessorShapes(ends=2)
        True
    """
    each = list(configs)
    most = lambda size: max(size(r) for r in each)
    table = lambda runs: (most(lambda r: len(runs(r))), most(lambda r: _longest(runs(r))))
    return ProcessorShapes(
        ends=most(lambda r: len(r.eos_token_id)),
        biased=table(lambda r: [run for run, _ in r.sequence_bias]),
        barred=table(lambda r: r.barred),
        forced_ends=most(lambda r: len(r.forced_eos_token_id)),
        suppressed=most(lambda r: len(r.suppress_tokens)),
        suppressed_first=most(lambda r: len(r.begin_suppress_tokens)),
        ngram=most(lambda r: r.no_repeat_ngram_size),
        encoder_ngram=most(lambda r: r.encoder_no_repeat_ngram_size),
        repetition=any(r.repetition_penalty != 1 for r in each),
        encoder_repetition=any(r.encoder_repetition_penalty != 1 for r in each),
        earliest=any(bool(r.min_length or r.min_new_tokens) for r in each),
        forced_first=any(r.forced_bos_token_id is not None for r in each),
        decay=any(r.exponential_decay_length_penalty is not None for r in each),
        finite=any(r.remove_invalid_values for r in each),
        renormalize=any(r.renormalize_logits for r in each),
    )


def processor_params(
    config: HFGenerationConfig, shapes: ProcessorShapes, *, prompt: int, longest: int, steps: int
) -> ProcessorParams:
    """The numbers of a generation config, as arrays of the sizes ``shapes``.

    Args:
        config: The generation config.
        shapes: At least those of :func:`processor_shapes` for ``config``.
        prompt: Tokens before the first that is written, padding included.
        longest: Tokens of a text, prompt included.
        steps: T, the most tokens that the program writes.

    Example:
        >>> config = HFGenerationConfig(eos_token_id=(3,), length_penalty=2.0)
        >>> params = processor_params(config, ProcessorShapes(ends=2), prompt=4, longest=7, steps=3)
        >>> params.ends.tolist(), params.powers.tolist(), params.longest.tolist()
        ([3, -1], [1.0, 1.0, 4.0, 9.0], 7)
    """
    # Powers in double precision, rounded once, as Python's are.
    written = np.arange(1, steps + 1, dtype=np.float64)
    powers = np.concatenate([[1.0], written**config.length_penalty])
    start, base = config.exponential_decay_length_penalty or (0, 1.0)
    with np.errstate(over="ignore"):  # far on, an end is as sure as float32 can say
        decay = float(base) ** np.maximum(np.arange(steps + 1.0) - start, 0) - 1
    decay = np.minimum(decay, np.finfo(np.float32).max / 1e4)
    biases = np.array([bias for _, bias in config.sequence_bias], np.float32)
    later = prompt == 1 and config.forced_bos_token_id is not None
    earliest = config.min_length
    if config.min_new_tokens is not None:
        earliest = prompt + config.min_new_tokens
    return ProcessorParams(
        ends=_filled(config.eos_token_id, shapes.ends),
        biased=_aligned([run for run, _ in config.sequence_bias], shapes.biased),
        biases=np.pad(biases, (0, shapes.biased[0] - len(biases))),
        barred=_aligned(config.barred, shapes.barred),
        barriers=np.full(shapes.barred[0], -np.inf, np.float32),
        forced_first=np.int32(
            -1 if config.forced_bos_token_id is None else config.forced_bos_token_id
        ),
        forced_ends=_filled(config.forced_eos_token_id, shapes.forced_ends),
        suppressed=_filled(config.suppress_tokens, shapes.suppressed),
        suppressed_first=_filled(config.begin_suppress_tokens, shapes.suppressed_first),
        ngram=np.int32(config.no_repeat_ngram_size),
        encoder_ngram=np.int32(config.encoder_no_repeat_ngram_size),
        repetition=np.float32(config.repetition_penalty),
        encoder_repetition=np.float32(1 / config.encoder_repetition_penalty),
        decay=decay.astype(np.float32),
        finite=np.bool_(config.remove_invalid_values),
        renormalize=np.bool_(config.renormalize_logits),
        longest=np.int32(longest),
        earliest=np.int32(earliest),
        first=np.int32(prompt + later),
        powers=powers.astype(np.float32),
        hopeful=np.bool_(config.early_stopping == "never" and config.length_penalty > 0),
        eager=np.bool_(config.early_stopping is True),
        pad=np.int32(config.pad),
        fill=np.int32(config.fill),
    )


def process_logits(
    scores: Float32[Array, "R V"],
    tokens: Int[Array, "R W"],
    length: Int[Array, ""],
    prompt: Int[Array, ""],
    context: PromptContext,
    params: ProcessorParams,
    shapes: ProcessorShapes,
) -> Float32[Array, "R V"]:
    """Scores of the next token after the processors, one after the other in their order.

    Args:
        scores: Logits in greedy search, log-probabilities in beam search.
        tokens: Each row's tokens so far: its prompt with its padding, and what is written.
        length: How many columns of ``tokens`` those are.
        prompt: How many of them were read.
        context: What each row has before it.
        params: The numbers of the generation config.
        shapes: Sizes of the program.

    Example:
        >>> config = HFGenerationConfig(eos_token_id=(0,), min_new_tokens=2, suppress_tokens=(2,))
        >>> shapes, one = processor_shapes([config]), jnp.array(1)
        >>> params = processor_params(config, shapes, prompt=1, longest=5, steps=4)
        >>> first = jnp.array([[3]])
        >>> context = PromptContext(jnp.array([0]), first, one)
        >>> process_logits(jnp.zeros((1, 4)), first, one, one, context, params, shapes)
        Array([[-inf,   0., -inf,   0.]], dtype=float32)
    """
    V, params = scores.shape[1], ProcessorParams(*map(jnp.asarray, params))
    ends = among(params.ends, V)
    forbid_if = lambda x, which, now: jnp.where((which & now)[None], -jnp.inf, x)
    if shapes.biased[0]:
        scores = sequence_bias(scores, tokens, length, params.biased, params.biases)
    if shapes.encoder_repetition:
        columns = jnp.arange(context.source.shape[1])
        seen = jnp.broadcast_to((columns < context.width)[None], context.source.shape)
        scores = processors.repetition_penalty(
            scores, context.source, seen, params.encoder_repetition
        )
    if shapes.repetition:
        columns = jnp.arange(tokens.shape[1])[None]
        seen = (columns >= context.starts[:, None]) & (columns < length)
        scores = processors.repetition_penalty(scores, tokens, seen, params.repetition)
    if shapes.ngram:
        scores = forbid_repeated_ngrams(
            scores, tokens, length, tokens, length, params.ngram, shapes.ngram
        )
    if shapes.encoder_ngram:
        source = (context.source, context.width)
        n, most = params.encoder_ngram, shapes.encoder_ngram
        scores = forbid_repeated_ngrams(scores, *source, tokens, length, n, most)
    if shapes.barred[0]:
        scores = sequence_bias(scores, tokens, length, params.barred, params.barriers)
    if shapes.earliest:
        scores = forbid_if(scores, ends, length < params.earliest)
    if shapes.forced_first:
        scores = processors.force_token(scores, jnp.where(length == 1, params.forced_first, -1))
    if shapes.forced_ends:
        last = among(params.forced_ends, V)
        forced = jnp.where(last, 0.0, -jnp.inf)[None]
        scores = jnp.where(last.any() & (length == params.longest - 1), forced, scores)
    if shapes.finite:
        limits = jnp.finfo(jnp.float32)
        scores = jnp.where(params.finite, jnp.nan_to_num(scores, neginf=limits.min), scores)
    if shapes.decay:
        gain = jnp.abs(scores) * params.decay[length - prompt]
        gain = jnp.where(ends[None] & jnp.isfinite(scores), gain, 0.0)
        scores = scores + gain
    if shapes.suppressed:
        scores = forbid_if(scores, among(params.suppressed, V), jnp.bool_(True))
    if shapes.suppressed_first:
        scores = forbid_if(scores, among(params.suppressed_first, V), length == params.first)
    if shapes.renormalize:
        scores = jnp.where(params.renormalize, jax.nn.log_softmax(scores, axis=-1), scores)
    return scores


def among(ids: Int[Array, " n"], vocab: int) -> Bool[Array, " {vocab}"]:
    """Which tokens of a vocabulary are among ``ids``; negative ones are none.

    Example:
        >>> among(jnp.array([2, -1]), 4)
        Array([False, False,  True, False], dtype=bool)
    """
    return jnp.zeros(vocab, bool).at[jnp.where(ids < 0, vocab, ids)].set(True, mode="drop")


def sequence_bias(
    scores: Float[Array, "R V"],
    tokens: Int[Array, "R W"],
    length: Int[Array, ""],
    runs: Int[Array, "N L"],
    biases: Float[Array, " N"],
) -> Float[Array, "R V"]:
    """Scores with each run's bias on its last token, where the rest of the run stands before it.

    Args:
        scores: Of the next token.
        tokens: Each row's tokens so far.
        length: How many columns of ``tokens`` those are.
        runs: Tokens, right-aligned and filled up with -1.
        biases: What is added.

    Example:
        >>> seen, runs = jnp.array([[1, 2]]), jnp.array([[2, 0], [1, 1], [-1, 3]])
        >>> sequence_bias(jnp.zeros((1, 4)), seen, jnp.array(2), runs, jnp.array([5.0, 6.0, 7.0]))
        Array([[5., 0., 0., 7.]], dtype=float32)
    """
    R, V = scores.shape
    N, L = runs.shape
    here = jnp.ones((R, N), bool)
    for back in range(1, L):
        wanted = runs[:, L - 1 - back][None]
        token = jnp.where(length >= back, _back(tokens, length, back), -2)
        here = here & ((wanted < 0) | (wanted == token[:, None]))
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
    source: Int[Array, "R S"],
    width: Int[Array, ""],
    tokens: Int[Array, "R W"],
    length: Int[Array, ""],
    n: Int[Array, ""],
    most: int,
) -> Float[Array, "R V"]:
    """Forbids each token that would make the last tokens an n-gram of ``source``.

    With ``source`` the tokens themselves, :func:`functional.logits.no_repeat_ngram` for an ``n``
    that is known late.

    Args:
        scores: Of the next token.
        source: Tokens that hold the n-grams not to repeat.
        width: Columns of ``source`` that count.
        tokens: Each row's tokens so far.
        length: How many columns of ``tokens`` those are.
        n: Tokens of a run; 0 forbids nothing.
        most: The most that ``n`` can be.

    Example:
        >>> source, seen, two = jnp.array([[3, 1, 2]]), jnp.array([[2, 3]]), jnp.array(2)
        >>> forbid_repeated_ngrams(jnp.zeros((1, 4)), source, jnp.array(3), seen, two, two, 4)
        Array([[  0., -inf,   0.,   0.]], dtype=float32)
    """
    R, S = source.shape
    at = jnp.arange(S)[None]
    ends = jnp.broadcast_to((n > 0) & (at >= n - 1) & (at < width), (R, S))
    for back in range(1, most):
        token = jnp.where(length >= back, _back(tokens, length, back), -2)
        before = jnp.pad(source, ((0, 0), (back, 0)), constant_values=-3)[:, :S]
        ends = ends & ((back >= n) | (before == token[:, None]))
    return processors.suppress_tokens(scores, jnp.where(ends, source, -1))


def _back(tokens: Int[Array, "R W"], length: Int[Array, ""], back: int) -> Int[Array, " R"]:
    """The token ``back`` columns before the next one."""
    return jnp.take(tokens, jnp.maximum(length - back, 0), axis=1)


def _longest(runs: Sequence[Sequence[int]]) -> int:
    return max(map(len, runs), default=0)


def _filled(ids: Sequence[int], size: int) -> np.ndarray:
    return np.array([*ids, *[-1] * (size - len(ids))], np.int32)


def _aligned(runs: Sequence[Sequence[int]], shape: tuple[int, int]) -> np.ndarray:
    table = np.full(shape, -1, np.int32)
    for row, run in enumerate(runs):
        table[row, shape[1] - len(run) :] = run
    return table

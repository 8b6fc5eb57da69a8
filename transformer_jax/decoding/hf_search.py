"""Greedy and beam search as ``transformers`` defines them, each as one compiled loop."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.decoding.beam import Reorder
from transformer_jax.decoding.generate import (
    GenerationState,
    Step,
    continue_generation,
    init_generation,
    record,
)
from transformer_jax.decoding.hf_logits import (
    ProcessorParams,
    ProcessorShapes,
    PromptContext,
    process_logits,
)
from transformer_jax.functional import logits as processors

__all__ = ["HFProcessors", "HFPrompts", "HFSearchOutput", "hf_beam_search", "hf_greedy_search"]

OUT = -1e9  # subtracted from hypotheses that do not count, in the arithmetic of the original


class HFPrompts(NamedTuple):
    """What each text begins with."""

    tokens: Int[Array, "B P"]  # from the first column on, left padding included
    length: Any  # [], columns that count
    valid: Bool[Array, " B"] | None = None  # rows that count; None is all


class HFProcessors(NamedTuple):
    """A generation config as logits processors apply it."""

    params: ProcessorParams
    shapes: ProcessorShapes
    context: PromptContext  # of R rows

    def __call__(
        self,
        logits: Float[Array, "R V"],
        tokens: Int[Array, "R W"],
        length: Int[Array, ""],
        prompt_length: Int[Array, ""],
    ) -> Float[Array, "R V"]:
        """The scores of the next token after ``length`` columns of ``tokens``."""
        return process_logits(
            logits, tokens, length, prompt_length, self.context, self.params, self.shapes
        )


class HFSearchOutput(NamedTuple):
    """Texts of each prompt, best first."""

    tokens: Int[Array, "B M W"]  # prompt, what is written, and what fills the rest
    lengths: Int[Array, "B M"]  # tokens written, an end included; 0 where there is no hypothesis
    scores: Float[Array, "B M"]  # log-probability as processed, over length to its power


def hf_greedy_search(
    step: Step, cache: Any, prompts: HFPrompts, logits_processors: HFProcessors, *, steps: int
) -> HFSearchOutput:
    """Continue each prompt by the best-scored token, until an end token or the limit.

    Processors change logits, not probabilities. ``scores`` are log-probabilities under the model
    itself, whatever was processed.

    Args:
        step: Maps the last tokens ``[B]`` and a cache to logits ``[B V]`` and the next cache.
        cache: Cache before the last token of the prompts; ``B`` rows.
        prompts: The prompts.
        logits_processors: The generation config.
        steps: T, room for so many tokens.

    Example:
        >>> from transformer_jax.decoding.hf_config import HFGenerationConfig
        >>> from transformer_jax.decoding.hf_logits import processor_params, processor_shapes
        >>> config = HFGenerationConfig(eos_token_id=(2,), pad_token_id=0, suppress_tokens=(1,))
        >>> shapes = processor_shapes([config])
        >>> params = processor_params(config, shapes, prompt=1, longest=4, steps=3)
        >>> table = jnp.array([[0.0, 2.0, 1.0], [1.0, 3.0, 0.0], [9.0, 0.0, 0.0]])
        >>> step = lambda tokens, cache: (table[tokens], cache)
        >>> prompts, starts, one = jnp.array([[0], [1]]), jnp.zeros(2, jnp.int32), jnp.array(1)
        >>> process = HFProcessors(params, shapes, PromptContext(starts, prompts, one))
        >>> hf_greedy_search(step, None, HFPrompts(prompts, 1), process, steps=3).tokens[:, 0]
        Array([[0, 2, 0, 0],
               [1, 0, 2, 0]], dtype=int32)
    """
    B = prompts.tokens.shape[0]
    known, params = jnp.asarray(prompts.length, jnp.int32), _arrays(logits_processors.params)
    logits_processors = logits_processors._replace(params=params)
    tokens = _with_room(prompts.tokens, known, steps, params.pad)
    most = jnp.full((B,), params.longest - known, jnp.int32)
    state = init_generation(
        cache,
        jnp.take(tokens, known - 1, axis=1),
        length=steps,
        pad=0,
        max_lengths=most if prompts.valid is None else jnp.where(prompts.valid, most, 0),
    )

    def append(at: GenerationState, logits: Float[Array, "B V"]) -> GenerationState:
        logits = logits.astype(jnp.float32)
        token = processors.argmax(logits_processors(logits, at.tokens, known + at.t, known))
        ends = (token[:, None] == params.ends[None]).any(-1)
        return record(at, token, logits, ends, params.pad, known)

    state = continue_generation(step, state._replace(tokens=tokens), steps, append)
    return HFSearchOutput(state.tokens[:, None], state.lengths[:, None], state.log_probs[:, None])


class _Beams(NamedTuple):
    length: Int[Array, ""]  # columns that stand
    live: Int[Array, "B M W"]
    log_probs: Float[Array, "B M"]  # of the live
    best: Int[Array, "B M W"]
    scores: Float[Array, "B M"]  # of the best
    lengths: Int[Array, "B M"]
    ended: Bool[Array, "B M"]  # whether a hypothesis stands there
    broken: Bool[Array, " B"]  # whether a logit was NaN or infinite
    hopeful: Bool[Array, " B"]  # whether the live may still get among the best; once lost, for good
    over: Bool[Array, ""]
    cache: Any


def _initial_beams(room: Array, known: Array, real: Array, M: int, cache: Any) -> _Beams:
    """The state before the first token: beams with the prompts, no hypothesis."""
    B, start = room.shape[0], jnp.repeat(room[:, None], M, axis=1)
    return _Beams(
        length=known,
        live=start,
        # All beams start equal: only the first counts, or they would stay copies of one another.
        log_probs=jnp.broadcast_to(jnp.where(jnp.arange(M) == 0, 0.0, OUT)[None], (B, M)),
        best=start,
        scores=jnp.full((B, M), OUT),
        lengths=jnp.zeros((B, M), jnp.int32),
        ended=jnp.zeros((B, M), bool),
        broken=jnp.zeros(B, bool),
        hopeful=real,
        over=~real.any(),
        cache=cache,
    )


def hf_beam_search(
    step: Step,
    cache: Any,
    prompts: HFPrompts,
    logits_processors: HFProcessors,
    reorder: Reorder,
    *,
    num_beams: int,
    steps: int,
) -> HFSearchOutput:
    """The best hypotheses that a beam of ``num_beams`` finds, as ``transformers`` ranks them.

    Processors change log-probabilities, which are renormalized only by ``renormalize_logits``.
    Only continuations ranked among the ``num_beams`` best may end a text; a text that reaches the
    limit ends there. Of the rest the ``num_beams`` best live on. Whether the live can still get
    among the best is estimated from their present length, or with ``early_stopping="never"`` from
    the longest.

    Args:
        step: Maps the last tokens ``[R]`` and a cache to logits ``[R V]`` and the next cache;
            ``R = B M`` rows, the beams of a sentence side by side.
        cache: Cache before the last token of the prompts, with ``R`` rows.
        prompts: The prompts.
        logits_processors: The generation config.
        reorder: Maps a cache and ``parents [B M]`` to the cache whose beam m continues beam
            ``parents[b, m]``.
        num_beams: M.
        steps: T, room for so many tokens.
    """
    B, M = prompts.tokens.shape[0], num_beams
    known, params = jnp.asarray(prompts.length, jnp.int32), _arrays(logits_processors.params)
    logits_processors = logits_processors._replace(params=params)
    real = jnp.ones(B, bool) if prompts.valid is None else prompts.valid
    room = _with_room(prompts.tokens, known, steps, params.fill)
    loop = _initial_beams(room, known, real, num_beams, cache)

    def body(loop: _Beams) -> _Beams:
        length, written = loop.length, loop.length + 1 - known
        rows = loop.live.reshape(B * M, -1)
        logits, cache = step(jnp.take(rows, length - 1, axis=1), loop.cache)
        scores = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
        # One such logit makes the whole row NaN, which a processor may take out again.
        broken = jnp.isnan(scores[:, 0]).reshape(B, M).any(1) & real & ~params.finite
        broken = loop.broken | broken
        scores = logits_processors(scores, rows, length, known)
        V = scores.shape[1]
        total = (scores.reshape(B, M, V) + loop.log_probs[:, :, None]).reshape(B, M * V)
        # So many that M are left however many end.
        candidates = min(max(2, 1 + logits_processors.shapes.ends) * M, M * V)
        total, place = processors.top_k_two_stage(total, candidates)
        parents, tokens = place // V, place % V
        ends = (tokens[:, :, None] == params.ends[None, None]).any(-1)
        ends = ends | (length + 1 >= params.longest)

        log_probs, onward = lax.top_k(total + jnp.where(ends, OUT, 0.0), M)
        take = functools.partial(jnp.take_along_axis, indices=onward, axis=1)
        parents_on = take(parents)
        live = jnp.take_along_axis(loop.live, parents_on[:, :, None], axis=1)
        live = lax.dynamic_update_slice(
            live, take(tokens)[:, :, None], (jnp.int32(0), jnp.int32(0), length)
        )
        best = _best(loop, total, parents, tokens, ends, params, written)
        loop = loop._replace(
            length=length + 1,
            live=live,
            log_probs=log_probs,
            broken=broken,
            cache=reorder(cache, parents_on),
            **best,
        )
        hopeful = loop.hopeful & _hopeful(loop, params, known)
        full = params.eager & (loop.ended.all(-1) | ~real).all()
        over = ~hopeful.any() | full | (ends | ~real[:, None]).all() | broken.any()
        return loop._replace(hopeful=hopeful, over=over)

    loop = lax.while_loop(lambda loop: ~loop.over, body, loop)
    scores = jnp.where(loop.broken[:, None], jnp.nan, loop.scores)
    return HFSearchOutput(loop.best, loop.lengths, scores)


def _best(
    loop: _Beams,
    total: Float[Array, "B K"],
    parents: Int[Array, "B K"],
    tokens: Int[Array, "B K"],
    ends: Bool[Array, "B K"],
    params: ProcessorParams,
    written: Int[Array, ""],
) -> dict[str, Array]:
    """The best of what had ended and of what ends now; the older, then the likelier if equal."""
    (B, M), K = loop.scores.shape, total.shape[1]
    ends = ends & (jnp.arange(K) < M)[None]
    closed = params.eager & loop.ended.all(-1)
    scores = total / params.powers[written]
    # One after the other, as in the original, whose rounding this is.
    scores = scores + jnp.where(closed, OUT, 0.0)[:, None]
    scores = scores + jnp.where(loop.hopeful, 0.0, OUT)[:, None]
    scores = scores + jnp.where(ends, 0.0, OUT)
    best, place = lax.top_k(jnp.concatenate([loop.scores, scores], axis=1), M)
    pick = lambda old, new: jnp.take_along_axis(jnp.concatenate([old, new], 1), place, axis=1)
    nothing = jnp.zeros((B, M), jnp.int32)
    source = pick(jnp.broadcast_to(jnp.arange(M)[None], (B, M)), M + parents)
    rows = jnp.concatenate([loop.best, loop.live], axis=1)
    rows = jnp.take_along_axis(rows, source[:, :, None], axis=1)
    here = (jnp.arange(rows.shape[2]) == loop.length)[None, None] & (place >= M)[:, :, None]
    return {
        "best": jnp.where(here, pick(nothing, tokens)[:, :, None], rows),
        "scores": best,
        "lengths": pick(loop.lengths, jnp.broadcast_to(written, (B, K))),
        "ended": pick(loop.ended, ends),
    }


def _hopeful(loop: _Beams, params: ProcessorParams, known: Int[Array, ""]) -> Bool[Array, " B"]:
    """Whether the first live hypothesis could beat the worst that ended."""
    length = jnp.where(params.hopeful, params.longest, loop.length) - known
    reach = loop.log_probs[:, :1] / params.powers[length]
    worst = jnp.where(loop.ended, loop.scores.min(-1, keepdims=True), OUT)
    return (reach > worst).any(-1)


def _with_room(
    prompts: Int[Array, "B P"], known: Int[Array, ""], steps: int, fill: Int[Array, ""]
) -> Int[Array, "B W"]:
    """Prompts with room for what is written, filled up."""
    tokens = jnp.pad(prompts.astype(jnp.int32), ((0, 0), (0, steps)))
    return jnp.where((jnp.arange(tokens.shape[1]) < known)[None], tokens, fill)


def _arrays(params: ProcessorParams) -> ProcessorParams:
    return ProcessorParams(*map(jnp.asarray, params))

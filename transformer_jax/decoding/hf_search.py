"""Greedy and beam search as ``transformers`` counts, each as one compiled loop."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.decoding.hf_logits import (
    ProcessorParams,
    ProcessorShapes,
    PromptContext,
    process_logits,
)
from transformer_jax.functional import logits as processors

__all__ = ["HFSearchOutput", "hf_beam_search", "hf_greedy_search"]

Step = Callable[[Array, Any], tuple[Array, Any]]  # tokens [R], state -> logits [R V], state
Reorder = Callable[[Any, Array], Any]  # state, parents [B M] -> state

OUT = -1e9  # what a hypothesis that does not count loses, in the arithmetic of the original


class HFSearchOutput(NamedTuple):
    """Texts of each prompt, best first."""

    tokens: Int[Array, "B M W"]  # prompt, what is written, and what fills the rest
    lengths: Int[Array, "B M"]  # tokens written, an end included; 0 where there is no hypothesis
    scores: Float[Array, "B M"]  # log-probability as processed, over length to its power


class _Greedy(NamedTuple):
    length: Int[Array, ""]  # columns that stand
    tokens: Int[Array, "B W"]
    going: Bool[Array, " B"]
    written: Int[Array, " B"]
    worth: Float[Array, " B"]
    state: Any


def hf_greedy_search(
    step: Step,
    state: Any,
    prompts: Int[Array, "B P"],
    known: Int[Array, ""],
    *,
    steps: int,
    read: PromptContext,
    how: ProcessorParams,
    room: ProcessorShapes,
    real: Bool[Array, " B"] | None = None,
) -> HFSearchOutput:
    """The text that grows from each prompt by the best-scored token, until an end or the limit.

    Processors change logits, not probabilities. ``scores`` are log-probabilities under the model
    itself, whatever was processed.

    Args:
        step: Maps the last tokens ``[B]`` and a state to logits ``[B V]`` and the next state.
        state: Before the last token of the prompts; ``B`` rows.
        prompts: Tokens that texts begin with, padding included, from the first column on.
        known: How many columns of ``prompts`` those are.
        steps: T, room for so many tokens.
        read: What the rules look at besides.
        how: The rules.
        room: What the rules need.
        real: Which rows count; None is all.

    Example:
        >>> from transformer_jax.decoding.hf_logits import processor_params, processor_shapes
        >>> from transformer_jax.decoding.hf_config import HFGenerationConfig
        >>> rules = HFGenerationConfig(eos_token_id=(2,), pad_token_id=0, suppress_tokens=(1,))
        >>> how = processor_params(rules, processor_shapes([rules]), prompt=1, longest=4, steps=3)
        >>> table = jnp.array([[0.0, 2.0, 1.0], [1.0, 3.0, 0.0], [9.0, 0.0, 0.0]])
        >>> step = lambda tokens, state: (table[tokens], state)
        >>> first, starts, one = jnp.array([[0], [1]]), jnp.zeros(2, jnp.int32), jnp.array(1)
        >>> rest = {"steps": 3, "how": how, "room": processor_shapes([rules])}
        >>> read = PromptContext(starts, first, one)
        >>> hf_greedy_search(step, None, first, one, read=read, **rest).tokens[:, 0]
        Array([[0, 2, 0, 0],
               [1, 0, 2, 0]], dtype=int32)
    """
    B = prompts.shape[0]
    known, how = jnp.asarray(known, jnp.int32), ProcessorParams(*map(jnp.asarray, how))
    loop = _Greedy(
        length=known,
        tokens=_with_room(prompts, known, steps, how.pad),
        going=jnp.ones(B, bool) if real is None else real,
        written=jnp.zeros(B, jnp.int32),
        worth=jnp.zeros(B),
        state=state,
    )

    def body(loop: _Greedy) -> _Greedy:
        length, tokens, going = loop.length, loop.tokens, loop.going
        logits, state = step(jnp.take(tokens, length - 1, axis=1), loop.state)
        logits = logits.astype(jnp.float32)
        token = processors.argmax(process_logits(logits, tokens, length, known, read, how, room))
        gain = jnp.take_along_axis(logits, token[:, None], axis=1)[:, 0]
        peak, rest = processors.normalizer(logits)
        gain = (gain - peak) - rest
        token = jnp.where(going, token, how.pad)[:, None]
        return _Greedy(
            length=length + 1,
            tokens=lax.dynamic_update_slice(tokens, token, (jnp.int32(0), length)),
            going=going & ~(token == how.ends[None]).any(-1),
            written=loop.written + going,
            worth=loop.worth + jnp.where(going, gain, 0.0),
            state=state,
        )

    goes_on = lambda loop: loop.going.any() & (loop.length < how.longest)
    loop = lax.while_loop(goes_on, body, loop)
    return HFSearchOutput(loop.tokens[:, None], loop.written[:, None], loop.worth[:, None])


class _Beams(NamedTuple):
    length: Int[Array, ""]  # columns that stand
    live: Int[Array, "B M W"]
    worth: Float[Array, "B M"]  # log-probabilities of the live
    best: Int[Array, "B M W"]
    scores: Float[Array, "B M"]  # of the best
    lengths: Int[Array, "B M"]
    ended: Bool[Array, "B M"]  # whether a hypothesis stands there
    broken: Bool[Array, " B"]  # whether a logit was NaN or infinite
    hope: Bool[Array, " B"]  # whether the live may still get among the best; once lost, for good
    over: Bool[Array, ""]
    state: Any


def hf_beam_search(
    step: Step,
    state: Any,
    prompts: Int[Array, "B P"],
    known: Int[Array, ""],
    *,
    beams: int,
    steps: int,
    reorder: Reorder,
    read: PromptContext,
    how: ProcessorParams,
    room: ProcessorShapes,
    real: Bool[Array, " B"] | None = None,
) -> HFSearchOutput:
    """The best hypotheses that a beam of ``beams`` meets, as ``transformers`` counts them.

    Processors change log-probabilities, which are not normalised again unless asked for. Only
    continuations ranked among the ``beams`` best may end a text; a text that meets the limit ends
    there. Of the rest the ``beams`` best live on. Whether the live can still get among the best
    is guessed from their present length, or with ``early_stopping="never"`` from the longest.

    Args:
        step: Maps the last tokens ``[R]`` and a state to logits ``[R V]`` and the next state;
            ``R = B M`` rows, the beams of a sentence side by side.
        state: Before the last token of the prompts, with ``R`` rows.
        prompts: Tokens that texts begin with, padding included, from the first column on.
        known: How many columns of ``prompts`` those are.
        beams: M.
        steps: T, room for so many tokens.
        reorder: Maps a state and ``parents [B M]`` to the state whose beam m goes on from beam
            ``parents[b, m]``.
        read: What the rules look at besides, with ``R`` rows.
        how: The rules.
        room: What the rules need.
        real: Which sentences count; None is all.
    """
    B, M = prompts.shape[0], beams
    known, how = jnp.asarray(known, jnp.int32), ProcessorParams(*map(jnp.asarray, how))
    real = jnp.ones(B, bool) if real is None else real
    prompts = jnp.repeat(_with_room(prompts, known, steps, how.fill)[:, None], M, axis=1)
    loop = _Beams(
        length=known,
        live=prompts,
        # All beams start equal: only the first counts, or they would stay copies of one another.
        worth=jnp.broadcast_to(jnp.where(jnp.arange(M) == 0, 0.0, OUT)[None], (B, M)),
        best=prompts,
        scores=jnp.full((B, M), OUT),
        lengths=jnp.zeros((B, M), jnp.int32),
        ended=jnp.zeros((B, M), bool),
        broken=jnp.zeros(B, bool),
        hope=real,
        over=~real.any(),
        state=state,
    )

    def body(loop: _Beams) -> _Beams:
        length, written = loop.length, loop.length + 1 - known
        rows = loop.live.reshape(B * M, -1)
        logits, state = step(jnp.take(rows, length - 1, axis=1), loop.state)
        scores = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
        # One such logit makes the whole row NaN, which a rule may take out again.
        broken = jnp.isnan(scores[:, 0]).reshape(B, M).any(1) & real & ~how.finite
        broken = loop.broken | broken
        scores = process_logits(scores, rows, length, known, read, how, room)
        V = scores.shape[1]
        total = (scores.reshape(B, M, V) + loop.worth[:, :, None]).reshape(B, M * V)
        # So many that, whatever ends, M are left to go on.
        total, place = processors.top_k_two_stage(total, min(max(2, 1 + room.ends) * M, M * V))
        parents, tokens = place // V, place % V
        ends = (tokens[:, :, None] == how.ends[None, None]).any(-1)
        ends = ends | (length + 1 >= how.longest)

        worth, onward = lax.top_k(total + jnp.where(ends, OUT, 0.0), M)
        chosen = functools.partial(jnp.take_along_axis, indices=onward, axis=1)
        parents_on = chosen(parents)
        live = jnp.take_along_axis(loop.live, parents_on[:, :, None], axis=1)
        live = lax.dynamic_update_slice(
            live, chosen(tokens)[:, :, None], (jnp.int32(0), jnp.int32(0), length)
        )
        best = _best(loop, total, parents, tokens, ends, how, written)
        loop = loop._replace(
            length=length + 1,
            live=live,
            worth=worth,
            broken=broken,
            state=reorder(state, parents_on),
            **best,
        )
        hope = loop.hope & _hopeful(loop, how, known)
        full = how.eager & (loop.ended.all(-1) | ~real).all()
        over = ~hope.any() | full | (ends | ~real[:, None]).all() | broken.any()
        return loop._replace(hope=hope, over=over)

    loop = lax.while_loop(lambda loop: ~loop.over, body, loop)
    scores = jnp.where(loop.broken[:, None], jnp.nan, loop.scores)
    return HFSearchOutput(loop.best, loop.lengths, scores)


def _best(
    loop: _Beams,
    total: Float[Array, "B K"],
    parents: Int[Array, "B K"],
    tokens: Int[Array, "B K"],
    ends: Bool[Array, "B K"],
    how: ProcessorParams,
    written: Int[Array, ""],
) -> dict[str, Array]:
    """The best of what had ended and of what ends now; the older, then the likelier if equal."""
    (B, M), K = loop.scores.shape, total.shape[1]
    ends = ends & (jnp.arange(K) < M)[None]
    closed = how.eager & loop.ended.all(-1)
    scores = total / how.powers[written]
    # One after the other, as in the original, whose rounding this is.
    scores = scores + jnp.where(closed, OUT, 0.0)[:, None]
    scores = scores + jnp.where(loop.hope, 0.0, OUT)[:, None]
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


def _hopeful(loop: _Beams, how: ProcessorParams, known: Int[Array, ""]) -> Bool[Array, " B"]:
    """Whether the first live hypothesis could beat the worst that ended."""
    length = jnp.where(how.hopeful, how.longest, loop.length) - known
    reach = loop.worth[:, :1] / how.powers[length]
    worst = jnp.where(loop.ended, loop.scores.min(-1, keepdims=True), OUT)
    return (reach > worst).any(-1)


def _with_room(
    prompts: Int[Array, "B P"], known: Int[Array, ""], steps: int, fill: Int[Array, ""]
) -> Int[Array, "B W"]:
    """Prompts with room for what is written, filled up."""
    tokens = jnp.pad(prompts.astype(jnp.int32), ((0, 0), (0, steps)))
    return jnp.where((jnp.arange(tokens.shape[1]) < known)[None], tokens, fill)

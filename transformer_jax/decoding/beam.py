"""Beam search as one compiled loop, over anything that maps tokens and a state to logits."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.decoding.generate import Step
from transformer_jax.decoding.lengths import best_possible_score, length_penalty
from transformer_jax.decoding.options import BeamSearchConfig, SpecialTokens
from transformer_jax.functional import logits as processors

__all__ = ["Hypotheses", "Reorder", "beam_search"]

Reorder = Callable[[Any, Array], Any]  # cache, parents [B M] -> cache


class Hypotheses(NamedTuple):
    """The ``P = config.kept`` best finished hypotheses of each sentence, best first."""

    tokens: Int[Array, "B P T"]  # the end token included, then padding
    lengths: Int[Array, "B P"]  # tokens, the end included; 0 where there is no such hypothesis
    log_probs: Float[Array, "B P"]  # of the whole sequence, the end included; NaN if logits were
    scores: Float[Array, "B P"]  # the same, normalized for length
    ended: Bool[Array, "B P"]  # by an EOS that search chose, not by the limit of lengths


class _Live(NamedTuple):
    """Hypotheses that continue, with the steps that led to them."""

    last: Int[Array, "B M"]
    log_probs: Float[Array, "B M"]
    parents: Int[Array, "T B M"]  # beam m of step t continues beam parents[t, b, m]
    tokens: Int[Array, "T B M"]


class _Finished(NamedTuple):
    """The best that have ended: ``ends`` follows live beam ``beam`` as token number ``length``."""

    scores: Float[Array, "B P"]
    log_probs: Float[Array, "B P"]
    lengths: Int[Array, "B P"]
    beams: Int[Array, "B P"]
    ends: Int[Array, "B P"]
    ended: Bool[Array, "B P"]


class _Loop(NamedTuple):
    t: Int[Array, ""]
    live: _Live
    finished: _Finished
    done: Bool[Array, " B"]
    broken: Bool[Array, " B"]  # whether a logit was NaN or infinite
    cache: Any


def _initial(start: Array, cache: Any, config: BeamSearchConfig, length: int) -> _Loop:
    """The state before the first token; all sentences are open."""
    B, M = start.shape[0], config.num_beams
    out_of = jnp.full((B, config.kept), -jnp.inf)
    nothing = jnp.zeros((B, config.kept), jnp.int32)
    # All beams start equal: only the first counts, or they would stay copies of one another.
    log_probs = jnp.where(jnp.arange(M) == 0, 0.0, -jnp.inf)
    trail = jnp.zeros((length, B, M), jnp.int32)
    return _Loop(
        t=jnp.int32(0),
        live=_Live(
            last=jnp.broadcast_to(start[:, None], (B, M)).astype(jnp.int32),
            log_probs=jnp.broadcast_to(log_probs[None], (B, M)),
            parents=trail,
            tokens=trail,
        ),
        finished=_Finished(out_of, out_of, nothing, nothing, nothing, nothing.astype(bool)),
        done=jnp.zeros(B, bool),
        broken=jnp.zeros(B, bool),
        cache=cache,
    )


def beam_search(
    step: Step,
    cache: Any,
    start: Int[Array, " B"],
    reorder: Reorder,
    special: SpecialTokens,
    config: BeamSearchConfig,
    *,
    length: int,
    max_lengths: Int[Array, " B"] | None = None,
) -> Hypotheses:
    """The ``config.kept`` best complete sequences that beam search finds.

    Each step scores every continuation of every live hypothesis. Continuations by an end token
    that are among the ``num_beams`` best leave the beam for the finished ones; of the others the
    ``num_beams`` best live on, so the beam never starves and a finished hypothesis never changes.
    Of several end tokens the most probable ends a hypothesis: the text is the same with each. In
    the last step that a sentence's limit allows, an end is the only continuation and its
    probability is paid, unless ``unscored_eos``: every hypothesis returned is complete, and
    ``log_probs`` is what teacher forcing gives it. The limit cut a text, and ``ended`` is False,
    where this EOS is none of the ``num_beams`` best continuations; it cut all texts of a sentence
    if a hypothesis that does not end has a better score than every one that did. With
    ``num_beams >= V ** (length - 1)`` the search is exact (row B31).

    A sentence is done when no live hypothesis can reach the worst of those that are kept
    (:func:`best_possible_score`); it returns what a search to the limit would. Sentences do not
    influence one another. Ties go to the shorter, then to the better-ranked hypothesis.

    Args:
        step: Maps the last tokens ``[R]`` and a cache to logits ``[R V]`` and the next cache;
            ``R = B M`` rows, the beams of a sentence side by side.
        cache: Cache before the first token, with ``R`` rows.
        start: The token that starts each sentence, usually BOS.
        reorder: Maps a cache and ``parents [B M]`` to the cache whose beam m continues beam
            ``parents[b, m]``.
        special: Ids of end tokens, padding and suppressed tokens.
        config: Beams, hypotheses returned, normalization and lengths.
        length: T, most tokens of any hypothesis, the end included.
        max_lengths: Most tokens of each sentence, the end included; 0 marks a row of padding.
    """
    B, M = start.shape[0], config.num_beams
    limits = jnp.full((B,), length, jnp.int32)
    limits = limits if max_lengths is None else jnp.minimum(max_lengths, length)
    normalization = config.normalization
    alpha = jnp.broadcast_to(jnp.asarray(config.length_penalty, jnp.float32), (B,))
    loop = _initial(start, cache, config, length)._replace(done=limits <= 0)

    def body(loop: _Loop) -> _Loop:
        t, live = loop.t, loop.live
        logits, cache = step(live.last.reshape(B * M), loop.cache)
        last = t + 1 >= limits
        found = _continuations(logits, live.log_probs, special)
        ends, last_tokens, onward, parents, tokens, finite = found
        broken = loop.broken | (~finite & ~loop.done)
        if config.unscored_eos:
            ends = jnp.where(last[:, None], live.log_probs, ends)
            last_tokens = jnp.where(last[:, None], special.eos, last_tokens)
        # An end counts if it is among the M best continuations; in the last step, any does.
        better = (onward[:, None, :] > ends[:, :, None]).sum(-1)
        better += (ends[:, None, :] > ends[:, :, None]).sum(-1)
        chosen = (better < M) & (t + 1 >= config.min_length)
        ends = jnp.where((chosen | last[:, None]) & ~loop.done[:, None], ends, -jnp.inf)
        here = jnp.broadcast_to(t + 1, (B, 1))
        penalty = length_penalty(here, normalization, alpha[:, None])
        scores = ends / penalty
        finished = _admit(loop.finished, scores, ends, last_tokens, t + 1, chosen)
        cut = onward[:, :1] / penalty > finished.scores[:, :1]
        cut &= (last & ~loop.done)[:, None]
        finished = finished._replace(ended=finished.ended & ~cut)
        hope = best_possible_score(onward[:, 0], limits, normalization, alpha)
        settled = config.early_stopping & (finished.scores[:, -1] >= hope)
        origin = (t, jnp.int32(0), jnp.int32(0))
        return _Loop(
            t=t + 1,
            live=_Live(
                last=tokens,
                log_probs=onward,
                parents=lax.dynamic_update_slice(live.parents, parents[None], origin),
                tokens=lax.dynamic_update_slice(live.tokens, tokens[None], origin),
            ),
            finished=finished,
            done=loop.done | last | settled | broken,
            broken=broken,
            cache=reorder(cache, parents),
        )

    loop = lax.while_loop(lambda loop: ~loop.done.all() & (loop.t < length), body, loop)
    return _read_back(loop, special)


def _continuations(
    logits: Float[Array, "R V"],
    log_probs: Float[Array, "B M"],
    special: SpecialTokens,
) -> tuple[
    Float[Array, "B M"],
    Int[Array, "B M"],
    Float[Array, "B M"],
    Int[Array, "B M"],
    Int[Array, "B M"],
    Bool[Array, " B"],
]:
    """Log-probabilities of ending each hypothesis, and of the M best continuations.

    The former with the most probable end token, the latter with the beam and the token of each;
    and whether all of it is finite. Only the best of each row are compared across rows, and only
    their log-probabilities are ever computed.
    """
    B, M = log_probs.shape
    V = logits.shape[1]
    most = min(M, V)
    logits = logits.astype(jnp.float32)
    peak, rest = (part.reshape(B, M) for part in processors.normalizer(logits))
    # First the normaliser: a logit may be so large that a log-probability is lost beside it.
    each = jnp.stack([processors.take_logit(logits, end) for end in special.ends], axis=-1)
    last_tokens = jnp.array(special.ends, jnp.int32)[processors.argmax(each)].reshape(B, M)
    ends = log_probs + ((each.max(-1).reshape(B, M) - peak) - rest)
    suppressed = np.isin(np.arange(V), (*special.ends, *special.suppress_tokens))
    allowed = jnp.where(suppressed[None], -jnp.inf, logits)
    values, tokens = processors.top_k_two_stage(allowed, most)
    values = (values.reshape(B, M, most) - peak[:, :, None]) - rest[:, :, None]
    values = values + log_probs[:, :, None]
    onward, place = processors.top_k_of_rows(values.reshape(B, M * most), M)
    tokens = jnp.take_along_axis(tokens.reshape(B, M * most), place, axis=1)
    finite = jnp.isfinite(rest).all(1)
    return ends, last_tokens, onward, place // most, tokens.astype(jnp.int32), finite


def _admit(
    finished: _Finished,
    scores: Float[Array, "B M"],
    log_probs: Float[Array, "B M"],
    ends: Int[Array, "B M"],
    length: Array,
    ended: Bool[Array, "B M"],
) -> _Finished:
    """The best of what had finished before and of what ends now, older ones first among equals."""
    B, M = scores.shape
    P = finished.scores.shape[1]
    beams = jnp.broadcast_to(jnp.arange(M, dtype=jnp.int32)[None], (B, M))
    lengths = jnp.broadcast_to(length, (B, M))
    best, place = processors.top_k_of_rows(jnp.concatenate([finished.scores, scores], axis=1), P)

    def pick(old, new):
        return jnp.take_along_axis(jnp.concatenate([old, new], axis=1), place, axis=1)

    return _Finished(
        scores=best,
        log_probs=pick(finished.log_probs, log_probs),
        lengths=pick(finished.lengths, lengths),
        beams=pick(finished.beams, beams),
        ends=pick(finished.ends, ends),
        ended=pick(finished.ended, ended),
    )


def _read_back(loop: _Loop, special: SpecialTokens) -> Hypotheses:
    """The tokens of the finished hypotheses, traced back from their ends to the start."""
    found = (loop.finished.log_probs > -jnp.inf) & ~loop.broken[:, None]
    lengths = jnp.where(found, loop.finished.lengths, 0)

    def back(beams, at):
        t, parents, tokens = at
        # At step t = length - 1 stands the end; before it, the tokens of the beam it followed.
        inside = t < lengths - 1
        token = jnp.where(inside, jnp.take_along_axis(tokens, beams, axis=1), special.pad)
        token = jnp.where(t == lengths - 1, loop.finished.ends, token)
        return jnp.where(inside, jnp.take_along_axis(parents, beams, axis=1), beams), token

    steps = jnp.arange(loop.live.tokens.shape[0])
    trail = (steps, loop.live.parents, loop.live.tokens)
    _, tokens = lax.scan(back, loop.finished.beams, trail, reverse=True)
    finite = lambda values: jnp.where(loop.broken[:, None], jnp.nan, values)
    return Hypotheses(
        jnp.moveaxis(tokens, 0, -1),
        lengths,
        finite(loop.finished.log_probs),
        finite(loop.finished.scores),
        loop.finished.ended & found,
    )

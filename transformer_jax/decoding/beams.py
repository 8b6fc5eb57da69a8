"""Beam search: one step of all beams, and the texts of the finished hypotheses."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.decoding.logits_processors import StepContext, process_logits
from transformer_jax.decoding.search_plan import SearchPlan, SearchValues, used
from transformer_jax.decoding.search_state import Hypotheses, Ranking, SearchResult, SearchState
from transformer_jax.functional import logits as functional
from transformer_jax.models.protocol import Extendable

__all__ = ["advance_beams", "read_back"]


class _TokenScores(NamedTuple):
    """Scores of the next token of each beam, and their conversion to log-probabilities."""

    raw: Float[Array, "R V"]  # logits, or log-probabilities if processors need them
    model: Float[Array, "R V"] | None  # log-probabilities before processors, if different
    peak: Float[Array, "B M"]
    rest: Float[Array, "B M"]
    best: tuple[Float[Array, "R n"], Int[Array, "R n"]]  # of each beam, without end tokens
    exact: bool

    def log_probs(self, values: Float[Array, "B M n"]) -> Float[Array, "B M n"]:
        """Returns the log-probabilities of raw scores."""
        if self.exact:
            return values
        # The normalizer is subtracted first: a log-probability would be lost in the rounding of a
        # large logit.
        return (values - self.peak[:, :, None]) - self.rest[:, :, None]


class _Ways(NamedTuple):
    """Continuations of beams by one token each."""

    totals: Float[Array, "B N"]
    beams: Int[Array, "B N"]
    tokens: Int[Array, "B N"]
    model: Float[Array, "B N"] | None = None


def advance_beams(
    model: Extendable,
    state: SearchState,
    logits: Float[Array, "R V"],
    at: StepContext,
    plan: SearchPlan,
    values: SearchValues,
) -> SearchState:
    """Advances each beam by one token.

    Each step scores every continuation of every beam:

    - A continuation by an end token becomes a finished hypothesis if it is among the
      ``num_beams`` best.
    - The ``num_beams`` best of the remaining continuations stay live, so the beam never empties.
    - The ``kept`` finished hypotheses with the best length-normalized scores are kept.

    At the length limit, a live beam is finished without an end token (``cut``), or the end token is
    its only continuation and its log-probability is added, so that every text is complete. In the
    latter case ``ended`` is False, since the limit cut the text, unless the end token is among the
    ``num_beams`` best continuations. All texts of a sentence count as cut if a text without end
    scores better than every finished one. With ``num_beams >= V ** (length - 1)``, the search is
    exact.

    With ``optimal``, a sentence is done when no live beam can reach the worst kept hypothesis,
    which does not change the result; with ``hf``, by the rules of transformers. If there are
    several end tokens, ``optimal`` uses the most probable one: the text is the same with each. Ties
    go to the shorter hypothesis, then to the better-ranked one.

    Args:
        model: Reorders the cache.
        state: The search.
        logits: Logits of the next token; the beams of a sentence are adjacent.
        at: Context of the step.
        plan: The static part of the search.
        values: The settings.
    """
    t, hf = state.t, plan.finishing == "hf"
    scores = _scores(state, logits, at, plan, values)
    last = t + 1 >= state.limits
    broken = ~functools.reduce(jnp.logical_and, jnp.isfinite(scores.rest).T) & ~state.done
    broken = broken if values.finite is None else broken & ~used(values.finite)
    onward = _onward(state, scores)
    ends = _ends(state, scores, at, plan, values)
    chosen = _chosen(onward, ends, plan, logits.shape[1])
    if plan.may_end_short and "min_length" in plan.processors:  # a shorter text is cut
        chosen = chosen & (t + 1 >= used(values.min_length)).reshape(-1, 1)
    best, penalty = _admit(state, onward, ends, chosen, plan, values), _penalty(values, t + 1)
    if not plan.cut:
        overtaken = onward.totals[:, :1] / penalty > best.ranked.scores[:, :1]
        best = best._replace(ended=best.ended & ~(overtaken & (last & ~state.done)[:, None]))
    longest = _penalty(values, state.limits)
    if hf:
        reach = onward.totals[:, :1] / jnp.where(used(values.hopeful), longest, penalty)
        hopeless = used(values.eager) | ~(reach[:, 0] > best.ranked.scores[:, -1])
        settled = (best.lengths > 0).all(1) & hopeless
    else:
        # The best possible outcome is to keep the current log-probability up to the limit.
        reach = onward.totals[:, :1] / longest
        settled = best.ranked.scores[:, -1] >= reach[:, 0]
        settled = settled if values.patient is None else settled & ~used(values.patient)
    zero, text = jnp.int32(0), state.text
    if text is not None:
        text = jnp.take_along_axis(text, onward.beams[:, :, None], axis=1)
        text = lax.dynamic_update_slice(text, onward.tokens[:, :, None], (zero, zero, at.length))
    write = lambda trail, row: lax.dynamic_update_slice(trail, row[None], (t, zero, zero))
    return state._replace(
        t=t + 1,
        last=onward.tokens,
        total=onward.totals,
        model=onward.model,
        tokens=write(state.tokens, onward.tokens),
        parents=write(state.parents, onward.beams),
        text=text,
        best=best,
        done=state.done | last | settled | broken,
        broken=state.broken | broken,
        cache=model.reorder(state.cache, onward.beams),
    )


def _scores(
    state: SearchState,
    logits: Float[Array, "R V"],
    at: StepContext,
    plan: SearchPlan,
    values: SearchValues,
) -> _TokenScores:
    (B, M), V = state.total.shape, logits.shape[1]
    few = min(M, V)
    each = values.map_rows(lambda value: jnp.repeat(value, M))
    onward = lambda raw: jnp.where(at.ends[None], -jnp.inf, raw)
    if not plan.ranks_log_probs:
        raw = process_logits(logits, at, plan, each)
        normal, best = functional.normalizer_and_top_k(logits, onward(raw), few)
        peak, rest = (part.reshape(B, M) for part in normal)
        return _TokenScores(raw, None, peak, rest, best, False)
    peak, rest = (part.reshape(B, M) for part in functional.normalizer(logits))
    log_probs = (logits.reshape(B, M, V) - peak[:, :, None]) - rest[:, :, None]
    log_probs = log_probs.reshape(B * M, V)
    raw = process_logits(log_probs, at, plan, each)
    best = functional.top_k_two_stage(onward(raw), few)
    return _TokenScores(raw, log_probs, peak, rest, best, True)


def _onward(state: SearchState, scores: _TokenScores) -> _Ways:
    """Returns the ``num_beams`` best continuations that do not end.

    Only the best of each beam are compared across beams. If processors only mask tokens, only these
    have their log-probabilities computed.
    """
    B, M = state.total.shape
    values, tokens = (part.reshape(B, M, -1) for part in scores.best)
    few = values.shape[2]
    totals = scores.log_probs(values) + state.total[:, :, None]
    totals, place = functional.top_k_of_rows(totals.reshape(B, M * few), M)
    tokens = jnp.take_along_axis(tokens.reshape(B, M * few), place, axis=1).astype(jnp.int32)
    return _with_model(state, scores, _Ways(totals, place // few, tokens))


def _ends(
    state: SearchState,
    scores: _TokenScores,
    at: StepContext,
    plan: SearchPlan,
    values: SearchValues,
) -> _Ways:
    """Returns continuations by an end token: each beam's most probable one, or all for ``hf``."""
    (B, M), R = state.total.shape, scores.raw.shape[0]
    tokens = used(values.ends)
    # One at a time, so that a vocabulary split over devices is not gathered.
    raw = jnp.stack(
        [
            functional.take_logit(scores.raw, jnp.broadcast_to(jnp.maximum(token, 0), (R,)))
            for token in tokens
        ],
        axis=-1,
    )
    raw = jnp.where(tokens < 0, -jnp.inf, raw).reshape(B, M, -1)
    tokens = jnp.broadcast_to(tokens, raw.shape)
    if plan.finishing == "optimal":
        most = functional.argmax(raw)[:, :, None]
        raw, tokens = (jnp.take_along_axis(part, most, axis=2) for part in (raw, tokens))
    totals = (scores.log_probs(raw) + state.total[:, :, None]).reshape(B, -1)
    beams = jnp.broadcast_to(jnp.arange(M, dtype=jnp.int32)[None, :, None], tokens.shape)
    return _with_model(state, scores, _Ways(totals, beams.reshape(B, -1), tokens.reshape(B, -1)))


def _with_model(state: SearchState, scores: _TokenScores, ways: _Ways) -> _Ways:
    """Returns ``ways`` with the model's log-probabilities, if the ranking uses other scores."""
    if scores.model is None or state.model is None:
        return ways
    B, V = state.total.shape[0], scores.raw.shape[1]
    places = ways.beams * V + jnp.maximum(ways.tokens, 0)
    gain = jnp.take_along_axis(scores.model.reshape(B, -1), places, axis=1)
    return ways._replace(model=gain + jnp.take_along_axis(state.model, ways.beams, axis=1))


def _chosen(onward: _Ways, ends: _Ways, plan: SearchPlan, vocab: int) -> Bool[Array, "B N"]:
    """Returns whether ends are among the ``num_beams`` best continuations.

    Among equals, ``hf`` prefers the earlier beam and token, like top-k there.
    """
    place = lambda ways: ways.beams * vocab + ways.tokens

    def before(ways: _Ways) -> Int[Array, "B N"]:
        these, those = ways.totals[:, None, :], ends.totals[:, :, None]
        first = these > those
        if plan.finishing == "hf":
            earlier = place(ways)[:, None, :] < place(ends)[:, :, None]
            first = first | ((these == those) & earlier)
        return first.sum(-1)

    return before(onward) + before(ends) < plan.beams


def _admit(
    state: SearchState,
    onward: _Ways,
    ends: _Ways,
    chosen: Bool[Array, "B N"],
    plan: SearchPlan,
    values: SearchValues,
) -> Hypotheses:
    """Returns the best of old and new finished hypotheses; ties go to older ones."""
    last, open_ = (state.t + 1 >= state.limits)[:, None], ~state.done[:, None]
    ways, ended, counts = ends, chosen, chosen
    if plan.cut:  # beams at the limit are finished, as if they had ended
        ways = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), ends, onward)
        limited = jnp.broadcast_to(last, onward.totals.shape)
        counts = jnp.concatenate([chosen, limited], axis=1)
        ended = jnp.concatenate([chosen, jnp.zeros_like(limited)], axis=1)
    else:
        counts = chosen | last
    counts = counts & open_
    scores = ways.totals / _penalty(values, state.t + 1)
    if plan.finishing == "hf":  # in the arithmetic of transformers
        scores = scores + jnp.where(counts, 0.0, plan.missing_score)
    else:
        scores = jnp.where(counts, scores, plan.missing_score)
    old = state.best.ranked
    both = jnp.concatenate([old.scores, scores], axis=1)
    scores, where = functional.top_k_of_rows(both, plan.kept)

    def pick(before: Array, new: Array) -> Array:
        return jnp.take_along_axis(jnp.concatenate([before, new], axis=1), where, axis=1)

    return Hypotheses(
        pick(state.best.lengths, jnp.where(counts, state.t + 1, 0)),
        pick(state.best.ended, ended & counts),
        Ranking(
            scores,
            totals=pick(old.totals, ways.totals),
            model=None if ways.model is None else pick(used(old.model), ways.model),
            beams=pick(old.beams, ways.beams),
            last=pick(old.last, ways.tokens),
        ),
    )


def _penalty(values: SearchValues, length: Array) -> Array:
    """Returns the divisors of totals, for one length or a length per row: [1 1] or [B 1]."""
    if values.penalties is None:
        return jnp.ones((1, 1))
    table = used(values.penalties)
    if not length.ndim:
        return table[:, length][:, None]
    if len(table) == 1:
        return table[0, length][:, None]
    return jnp.take_along_axis(table, length[:, None], axis=1)


def read_back(state: SearchState, plan: SearchPlan, values: SearchValues) -> SearchResult:
    """Returns the finished hypotheses, with tokens traced back from end to start."""
    best, ranked, broken = state.best, state.best.ranked, state.broken[:, None]
    there = (best.lengths > 0) & ~broken
    if plan.finishing == "optimal":  # texts of probability 0 are dropped
        there = there & (ranked.scores > plan.missing_score)
    lengths = jnp.where(there, best.lengths, 0)

    def back(beams: Array, at: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        t, parents, tokens = at
        # The last token was written at step t = length - 1, after the beam that it continues.
        inside = t < lengths - 1
        token = jnp.where(inside, jnp.take_along_axis(tokens, beams, axis=1), values.pad)
        token = jnp.where(t == lengths - 1, ranked.last, token)
        return jnp.where(inside, jnp.take_along_axis(parents, beams, axis=1), beams), token

    assert state.parents is not None, "several beams"
    trail = (jnp.arange(len(state.tokens)), state.parents, state.tokens)
    _, tokens = lax.scan(back, ranked.beams, trail, reverse=True)
    finite = lambda x: jnp.where(broken, jnp.nan, x)
    log_probs = ranked.totals if ranked.model is None else ranked.model
    if plan.finishing == "optimal":
        log_probs = jnp.where(there, log_probs, plan.missing_score)
    return SearchResult(
        jnp.moveaxis(tokens, 0, -1), lengths, finite(log_probs), finite(ranked.scores),
        best.ended & there,
    )  # fmt: skip

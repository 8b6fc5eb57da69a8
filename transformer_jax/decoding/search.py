"""Greedy search, sampling and beam search as one compiled loop.

Search works on any object that maps tokens and a cache to logits, such as a :class:`.Decodable`
model. Its :class:`.SearchPlan` is static; its :class:`.SearchValues` are arrays.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from transformer_jax.decoding.beams import advance_beams, read_back
from transformer_jax.decoding.logits_processors import StepContext, process_logits, token_mask
from transformer_jax.decoding.search_plan import SearchPlan, SearchValues, used
from transformer_jax.decoding.search_state import (
    Hypotheses,
    SearchResult,
    SearchRows,
    SearchState,
    SearchTrail,
    put_rows,
    start_search,
    take_rows,
)
from transformer_jax.functional import logits as functional
from transformer_jax.models.protocol import Extendable

__all__ = ["advance_search", "continue_search", "search", "search_result", "search_trail"]


def continue_search(
    model: Extendable,
    state: SearchState,
    until: int | Int[Array, ""],
    plan: SearchPlan,
    values: SearchValues,
    remaining: int = 0,
) -> SearchState:
    """Continues until ``until`` tokens are written or at most ``remaining`` rows are unfinished.

    Splitting a search into several calls does not change the texts.

    Args:
        model: A decoder, encoder-decoder or :class:`Steps`.
        state: The search, which has room for ``until`` tokens.
        until: Number of tokens, counted from the first.
        plan: The static part of the search.
        values: The settings.
        remaining: The loop stops when at most this many rows are unfinished.
    """

    def body(state: SearchState) -> SearchState:
        logits, cache = model.step(state.last.reshape(-1), state.cache)
        return advance_search(model, state._replace(cache=cache), logits, plan, values)

    def unfinished(state: SearchState) -> Bool[Array, ""]:
        return (state.t < until) & ((~state.done).sum() > remaining)

    return lax.while_loop(unfinished, body, state)


def advance_search(
    model: Extendable,
    state: SearchState,
    logits: Float[Array, "R V"],
    plan: SearchPlan,
    values: SearchValues,
) -> SearchState:
    """Advances each unfinished row by one token.

    Args:
        model: Reorders the cache, which already includes the step that computed the logits.
        state: The search, with room for a token.
        logits: Logits of the next token.
        plan: The static part of the search.
        values: The settings.
    """
    logits, values = logits.astype(jnp.float32), jax.tree.map(jnp.asarray, values)
    at = _step_context(state, plan, values, logits.shape[1])
    if plan.beams > 1:
        return advance_beams(model, state, logits, at, plan, values)
    return _advance_one(state, logits, at, plan, values)


def _step_context(
    state: SearchState, plan: SearchPlan, values: SearchValues, vocab: int
) -> StepContext:
    M, context = plan.beams, state.context
    last = jnp.repeat(state.t + 1 >= state.limits, M)[:, None] if plan.may_end_short else None
    at = StepContext(state.t, state.t + 1, token_mask(used(values.ends), vocab), last)
    if context is None:
        return at
    spread = lambda rows: None if rows is None else jnp.repeat(rows, M, axis=0)
    return at._replace(
        length=context.length + state.t,
        text=None if state.text is None else state.text.reshape(-1, state.text.shape[2]),
        starts=spread(context.starts),
        source=spread(context.source),
        width=None if context.width is None else used(context.width),
    )


def _advance_one(
    state: SearchState,
    logits: Float[Array, "B V"],
    at: StepContext,
    plan: SearchPlan,
    values: SearchValues,
) -> SearchState:
    """Advances greedy search or sampling, which stop at the first end token."""
    allowed, t = process_logits(logits, at, plan, values), state.t
    if state.keys is None:
        token = functional.argmax(allowed)
    else:
        keys = jax.vmap(jax.random.fold_in)(state.keys, state.sampled + t)
        token = functional.sample(allowed, keys)
    active = ~state.done
    token = jnp.where(active, token, values.pad).astype(jnp.int32)
    peak, rest = functional.normalizer(logits)
    gain = jnp.where(active, (functional.take_logit(logits, token) - peak) - rest, 0.0)
    ended = active & (token[:, None] == used(values.ends)[None]).any(-1)
    zero, text = jnp.int32(0), state.text
    if text is not None:
        text = lax.dynamic_update_slice(text, token[:, None, None], (zero, zero, at.length))
    return state._replace(
        t=t + 1,
        last=token[:, None],
        total=state.total + gain[:, None],
        tokens=lax.dynamic_update_slice(state.tokens, token[None, :, None], (t, zero, zero)),
        text=text,
        best=Hypotheses(state.best.lengths + active[:, None], state.best.ended | ended[:, None]),
        done=state.done | ended | (t + 1 >= state.limits),
    )


def search_result(state: SearchState, plan: SearchPlan, values: SearchValues) -> SearchResult:
    """Returns the completed texts."""
    if plan.beams > 1:
        return read_back(state, plan, values)
    best, table = state.best, values.penalties
    scores = state.total
    if table is not None:
        table = jnp.broadcast_to(jnp.asarray(table), (scores.shape[0], table.shape[1]))
        scores = scores / jnp.take_along_axis(table, best.lengths, axis=1)
    return SearchResult(
        jnp.moveaxis(state.tokens, 0, -1), best.lengths, state.total, scores, best.ended
    )


def search(
    model: Extendable,
    cache: PyTree,
    rows: SearchRows,
    plan: SearchPlan,
    values: SearchValues,
    *,
    length: int,
    sizes: Sequence[int] = (),
) -> SearchResult:
    """Returns the texts found by a search.

    Greedy search takes the most probable token, or the lowest id among equals; with keys, each
    token is sampled, and the sample of a row at step t depends only on its key and ``sampled + t``.
    For beam search see :func:`.advance_beams`. Rows are independent, and the loop ends when every
    row is done. When the number of unfinished rows falls to the next of ``sizes``, they continue in
    a loop of that size, within the same program. This is faster if the time of a step grows with
    its rows, as on CPUs.

    Args:
        model: A decoder, encoder-decoder or :class:`Steps`.
        cache: Cache before the first token.
        rows: The rows to search.
        plan: The static part of the search.
        values: The settings.
        length: T, the largest number of tokens in any text, including an end token.
        sizes: Descending numbers of rows.

    Example:
        >>> from transformer_jax.decoding.generation_config import GenerationConfig
        >>> from transformer_jax.decoding.search_plan import search_settings
        >>> from transformer_jax.decoding.search_state import Steps
        >>> table = jnp.array([[0.0, 2.0, 1.0], [0.0, 1.0, 2.0], [9.0, 0.0, 0.0]])
        >>> model = Steps(lambda tokens, cache: (table[tokens], cache))
        >>> config = GenerationConfig(eos_token_id=(2,), pad_token_id=0)
        >>> settings = search_settings(config, vocab=3, length=4)
        >>> search(model, None, SearchRows(jnp.array([0, 1])), *settings, length=4).tokens[:, 0]
        Array([[1, 2, 0, 0],
               [2, 0, 0, 0]], dtype=int32)
    """
    state = start_search(cache, rows, plan, values, length=length)
    full, places, row_values = state, jnp.arange(rows.last.shape[0]), values
    for size in sizes:
        state = continue_search(model, state, length, plan, row_values, remaining=size)
        full = put_rows(full, state, places)
        order = jnp.argsort(state.done, stable=True)[:size]
        state, places = take_rows(model, state, order), places[order]
        row_values = values.take(places)
    state = continue_search(model, state, length, plan, row_values)
    return search_result(put_rows(full, state, places) if sizes else state, plan, values)


def search_trail(
    model: Extendable,
    cache: PyTree,
    rows: SearchRows,
    plan: SearchPlan,
    values: SearchValues,
    *,
    length: int,
) -> tuple[SearchResult, SearchTrail]:
    """Returns the result of :func:`search` with beam search, and the live beams of each step.

    Args:
        model: A decoder, encoder-decoder or :class:`Steps`.
        cache: Cache before the first token.
        rows: The rows to search.
        plan: The static part of the search, with several beams.
        values: The settings.
        length: T, the largest number of tokens in any text, including an end token.
    """
    state = start_search(cache, rows, plan, values, length=length)
    state = continue_search(model, state, length, plan, values)
    assert state.parents is not None, "a single beam has no parents"
    return search_result(state, plan, values), SearchTrail(state.tokens, state.parents, state.t)

"""The state of a search: rows, hypotheses and resulting texts."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from transformer_jax.core.trees import AnyArray
from transformer_jax.decoding.search_plan import SearchPlan, SearchValues
from transformer_jax.models.protocol import Extendable

__all__ = [
    "Hypotheses",
    "PromptContext",
    "Ranking",
    "SearchResult",
    "SearchRows",
    "SearchState",
    "SearchTrail",
    "Steps",
    "put_rows",
    "row_keys",
    "start_search",
    "take_rows",
]


class Steps(NamedTuple):
    """The functions of a model that a search calls, which a :class:`.Decodable` has."""

    # Tokens [R] and a cache -> logits [R V] and the cache.
    step: Callable[[Array, PyTree], tuple[Array, PyTree]]
    reorder: Callable[[PyTree, Array], PyTree] = lambda cache, parents: cache  # parents [B M]
    take: Callable[[PyTree, Array], PyTree] = lambda cache, rows: cache


class PromptContext(NamedTuple):
    """The tokens before each text, for processors that read them."""

    tokens: Int[AnyArray, "B P"]  # the prompts
    length: Int[Array | np.int32, ""]  # number of columns in use
    starts: Int[AnyArray, " B"]  # the first column of each row that is not padding
    source: Int[AnyArray, "B S"] | None = None  # input of the encoder or decoder
    width: Int[Array | np.int32, ""] | None = None  # number of its columns in use


class SearchRows(NamedTuple):
    """The rows of a search."""

    last: Int[AnyArray, " B"]  # the last token of each prompt, or BOS
    limits: Int[AnyArray, " B"] | None = None  # largest number of new tokens; 0 marks an empty row
    keys: Key[Array, " B"] | None = None  # of samples, see :func:`row_keys`; None is no sampling
    sampled: Int[AnyArray, " B"] | None = None  # number of tokens sampled earlier; None is 0
    context: PromptContext | None = None


class Ranking(NamedTuple):
    """The scores of finished hypotheses, and where each ends."""

    scores: Float[Array, "B P"]
    totals: Float[Array, "B P"]  # the sums from which scores are computed
    model: Float[Array, "B P"] | None  # log-probabilities under the model, if different
    beams: Int[Array, "B P"]  # the beam that the last token follows
    last: Int[Array, "B P"]  # that token


class Hypotheses(NamedTuple):
    """The finished hypotheses."""

    lengths: Int[Array, "B P"]  # 0 is none
    ended: Bool[Array, "B P"]  # by an end token
    ranking: Ranking | None = None  # None for a single beam

    @property
    def ranked(self) -> Ranking:
        """Returns the ranking of several beams."""
        assert self.ranking is not None, "a single beam is not ranked"
        return self.ranking


class SearchState(NamedTuple):
    """A search in progress, which :func:`continue_search` resumes."""

    t: Int[Array, ""]  # number of tokens written so far
    last: Int[Array, "B M"]
    total: Float[Array, "B M"]  # ranks beams
    model: Float[Array, "B M"] | None  # log-probability under the model, if different
    tokens: Int[Array, "T B M"]
    parents: Int[Array, "T B M"] | None  # for several beams
    text: Int[Array, "B M W"] | None  # prompt and text, for processors that read them
    best: Hypotheses
    done: Bool[Array, " B"]
    broken: Bool[Array, " B"]  # whether a logit was NaN or infinite
    limits: Int[Array, " B"]
    keys: Key[Array, " B"] | None
    sampled: Int[Array, " B"]
    context: PromptContext | None
    cache: PyTree


class SearchResult(NamedTuple):
    """The ``P`` best texts of each row, best first."""

    tokens: Int[Array, "B P T"]  # including an end token, then padding
    lengths: Int[Array, "B P"]  # including an end token; 0 if there is no text
    log_probs: Float[Array, "B P"]  # under the model, before any processor
    scores: Float[Array, "B P"]  # ranks texts
    ended: Bool[Array, "B P"]  # by an end token chosen in the search, not by the limit


class SearchTrail(NamedTuple):
    """The live beams after each step of a beam search."""

    tokens: Int[Array, "T B M"]  # the token that each beam wrote
    parents: Int[Array, "T B M"]  # the beam of the previous step that it continues
    steps: Int[Array, ""]  # number of steps


def row_keys(key: Key[Array, ""], seeds: Int[Array, " B"]) -> Key[Array, " B"]:
    """Returns a random key for each row, derived from its seed.

    Example:
        >>> keys = row_keys(jax.random.key(0), jnp.array([3, 3, 4]))
        >>> keys[0] == keys[1], keys[0] == keys[2]
        (Array(True, dtype=bool), Array(False, dtype=bool))
    """
    return jax.vmap(jax.random.fold_in, (None, 0))(key, seeds)


def start_search(
    cache: PyTree, rows: SearchRows, plan: SearchPlan, values: SearchValues, *, length: int
) -> SearchState:
    """Returns a search before its first token.

    Args:
        cache: Cache before the first token, of ``R = B M`` rows.
        rows: The rows.
        plan: The static part of the search.
        values: The settings.
        length: T, room for this many new tokens.
    """
    (B,), M, P = rows.last.shape, plan.beams, plan.kept
    limits = jnp.full((B,), length, jnp.int32)
    if rows.limits is not None:
        limits = jnp.minimum(rows.limits, length).astype(jnp.int32)
    # All beams start equal: only the first is live, since otherwise all would remain copies.
    total = jnp.where(jnp.arange(M) == 0, 0.0, plan.missing_score).astype(jnp.float32)
    zeros, text, parents, model = jnp.zeros((B, P), jnp.int32), None, None, None
    trail = jnp.full((length, B, M), values.pad, jnp.int32)
    best = Hypotheses(zeros, zeros.astype(bool))
    if M > 1:
        missing = jnp.full((B, P), plan.missing_score, jnp.float32)
        parents, model = trail, jnp.zeros((B, M)) if plan.ranks_log_probs else None
        by_model = missing if plan.ranks_log_probs else None
        best = best._replace(ranking=Ranking(missing, missing, by_model, zeros, zeros))
    if plan.reads_text:
        context = rows.context
        assert context is not None, "processors read the prompt"
        text = jnp.pad(context.tokens.astype(jnp.int32), ((0, 0), (0, length)))
        text = jnp.where((jnp.arange(text.shape[1]) < context.length)[None], text, values.pad)
        text = jnp.repeat(text[:, None], M, axis=1)
    return SearchState(
        t=jnp.int32(0),
        last=jnp.broadcast_to(rows.last[:, None], (B, M)).astype(jnp.int32),
        total=jnp.broadcast_to(total[None], (B, M)),
        model=model,
        tokens=trail,
        parents=parents,
        text=text,
        best=best,
        done=limits <= 0,
        broken=jnp.zeros(B, bool),
        limits=limits,
        keys=rows.keys,
        sampled=zeros[:, 0] if rows.sampled is None else jnp.asarray(rows.sampled, jnp.int32),
        context=rows.context,
        cache=cache,
    )


# Fields without a row axis, and fields whose second axis is rows.
_COMMON, _TRAILS = ("t", "cache"), ("tokens", "parents")


def take_rows(model: Extendable, state: SearchState, rows: Int[Array, " N"]) -> SearchState:
    """Returns the search of some rows."""

    def pick(name: str, value: PyTree) -> PyTree:
        if name in _TRAILS:
            return value[:, rows]
        return jax.tree.map(lambda x: x[rows] if jnp.ndim(x) else x, value)

    parts = {
        name: pick(name, value)
        for name, value in zip(state._fields, state, strict=True)
        if name not in _COMMON and value is not None
    }
    return state._replace(cache=model.take(state.cache, rows), **parts)


def put_rows(full: SearchState, state: SearchState, places: Int[Array, " N"]) -> SearchState:
    """Returns ``full`` with its rows at ``places`` replaced by those of ``state``."""

    def write(name: str, old: PyTree, new: PyTree) -> PyTree:
        if name in _TRAILS:
            return old.at[:, places].set(new)
        return jax.tree.map(lambda a, b: a.at[places].set(b) if jnp.ndim(a) else a, old, new)

    parts = {
        name: write(name, old, new)
        for name, old, new in zip(state._fields, full, state, strict=True)
        if name not in (*_COMMON, "keys", "context") and old is not None
    }
    return full._replace(t=state.t, **parts)

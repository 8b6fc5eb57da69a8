"""Compiled programs of text generation: prefill, generation, search and scoring."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx

from transformer_jax.decoding.forced import TeacherForced, teacher_forced_log_probs
from transformer_jax.decoding.options import SpecialTokens
from transformer_jax.decoding.search import advance_search, continue_search, search
from transformer_jax.decoding.search_plan import SearchPlan, SearchValues
from transformer_jax.decoding.search_state import (
    PromptContext,
    SearchResult,
    SearchRows,
    SearchState,
    start_search,
)
from transformer_jax.decoding.speculate import PromptLookupState, prompt_lookup_decode
from transformer_jax.models.protocol import Decodable
from transformer_jax.parallel.inference import MeshProgram

__all__ = ["MoreTokens", "Programs", "PromptBatch", "SearchPrompts", "prefill", "search_prompts"]


class PromptBatch(NamedTuple):
    """Prompts to continue, and what was generated of each before."""

    tokens: Any  # [B P], padded on the left
    starts: Any  # [B], where each prompt begins
    limits: Any  # [B], most new tokens of each
    generated: Any  # [B], new tokens of earlier segments
    keys: Any = None  # [B], of samples
    seen: tuple[Any, Any] | None = None  # [B Q] and [B], tokens that penalties apply to; None: none


class MoreTokens(NamedTuple):
    """Tokens that follow a cache."""

    tokens: Any  # [B T], padded on the right
    count: Any  # [], how many of them are no padding
    at: Any  # [], the slot of the first; what the cache holds from there on is forgotten


class SearchPrompts(NamedTuple):
    """Prompts of one search, as rows that end in the same column."""

    tokens: Any  # [B P], padded on the left
    starts: Any  # [B], where each prompt begins
    limits: Any  # [B], most new tokens of each, EOS included; 0 marks a row of padding
    inputs: Any = None  # of the encoder, by name
    keys: Any = None  # [B], of samples


class Programs:
    """Functions of parameters and token arrays, each compiled once for a shape and kept.

    Prompts are rows that end in the same column; ``starts`` says where each begins.

    Attributes:
        begin: Prefills prompts, and generates the first token of each.
        resume: Reads more tokens into a cache, which is used up, and generates the first token.
        go: Goes on up to a number of tokens; what is given is used up.
        grow: A cache with more room.
        search: Greedy search, sampling or beam search from prompts; see :func:`search_prompts`.
        look_begin: Reads one prompt for speculation.
        look_go: Goes on with that; the one given is used up.
        force: Log-probabilities of given texts, by teacher forcing.
    """

    def __init__(self, graph: Any, special: SpecialTokens, *, num_draft_tokens: int = 0):
        """Takes the static part of a model and the special tokens of its texts."""
        self.graph, self.special, self.draft = graph, special, num_draft_tokens
        self.begin = MeshProgram(self._begin_batch, static_argnames=("plan", "size", "length"))
        self.resume = MeshProgram(
            self._resume_batch, static_argnames=("plan", "length"), donate_argnums=1
        )
        self.go = MeshProgram(self._go_batch, static_argnames="plan", donate_argnums=1)
        # Nothing is given up for it: no memory of another size can be used again.
        self.grow = MeshProgram(_grown, static_argnames="size")
        self.search = MeshProgram(self._search_batch, static_argnames=("plan", "length", "sizes"))
        self.look_begin = MeshProgram(self._look_begin_one, static_argnames="length")
        self.look_go = MeshProgram(self._look_go_one, donate_argnums=1)
        self.force = MeshProgram(self._force_batch, static_argnames="best")

    def _begin_batch(self, params, prompts, *, plan, values, size, length) -> SearchState:
        model, tokens = nnx.merge(self.graph, params), prompts.tokens
        cache = model.init_cache(None, tokens.shape[0], size)
        read = model.prefill(tokens, cache, prompts.starts)
        return _first(model, read, prompts, plan, values, length)

    def _resume_batch(self, params, cache, more, prompts, *, plan, values, length) -> SearchState:
        model = nnx.merge(self.graph, params)
        read = model.prefill_more(more.tokens, more.count, cache.truncate(more.at))
        return _first(model, read, prompts, plan, values, length)

    def _go_batch(self, params, state, until, *, plan, values) -> SearchState:
        return continue_search(nnx.merge(self.graph, params), state, until, plan, values)

    def _search_batch(self, params, prompts, *, plan, values, length, sizes=()) -> SearchResult:
        model = nnx.merge(self.graph, params)
        return search_prompts(model, prompts, plan, values, length=length, sizes=sizes)

    def _look_begin_one(self, params, tokens, starts, *, length) -> PromptLookupState:
        cache = prefill(
            nnx.merge(self.graph, params), SearchPrompts(tokens, starts, None), 1 + length
        )
        return PromptLookupState(
            tokens=jnp.pad(tokens[0], (0, length)),
            known=jnp.int32(tokens.shape[1]),
            log_prob=jnp.float32(0.0),
            finished=jnp.bool_(False),
            steps=jnp.int32(0),
            cache=cache,
        )

    def _look_go_one(self, params, at, until) -> PromptLookupState:
        extend = nnx.merge(self.graph, params).extend
        return prompt_lookup_decode(extend, at, until, self.special, num_draft_tokens=self.draft)

    def _force_batch(self, params, arguments, targets, *, best) -> TeacherForced:
        return teacher_forced_log_probs(nnx.merge(self.graph, params)(*arguments), targets, best)


def prefill(model: Decodable, prompts: SearchPrompts, length: int, beams: int = 1) -> Any:
    """A cache that holds all but the last token of each prompt.

    Args:
        model: Decoder or encoder-decoder.
        prompts: The prompts, and the inputs of the encoder.
        length: Most new tokens.
        beams: Beams of each prompt.
    """
    B, P = prompts.tokens.shape
    cache = model.init_cache(prompts.inputs, B, P - 1 + length, beams=beams)
    if P > 1:
        cache = model.prefill(prompts.tokens[:, :-1], cache, prompts.starts)[1]
    return cache


def search_prompts(
    model: Decodable,
    prompts: SearchPrompts,
    plan: SearchPlan,
    values: SearchValues,
    *,
    length: int,
    sizes: tuple[int, ...] = (),
    context: PromptContext | None = None,
) -> SearchResult:
    """Returns the texts that a search finds after prompts, as one program.

    Args:
        model: Decoder or encoder-decoder.
        prompts: The prompts, and the inputs of the encoder.
        plan: The static part of the search.
        values: Its settings.
        length: Most new tokens of any text, EOS included.
        sizes: Numbers of rows, falling, that the loop goes on with; see :func:`.search`.
        context: The prompts as processors read them.
    """
    cache = prefill(model, prompts, length, plan.beams)
    rows = SearchRows(prompts.tokens[:, -1], prompts.limits, prompts.keys, None, context)
    return search(model, cache, rows, plan, values, length=length, sizes=sizes)


def _first(
    model: Any,
    read: tuple[Any, Any],
    prompts: PromptBatch,
    plan: SearchPlan,
    values: SearchValues,
    length: int,
) -> SearchState:
    """The first token of each prompt, by the logits and the cache of a prefill."""
    logits, cache = read
    context = None
    if prompts.seen is not None:
        tokens, starts = prompts.seen
        context = PromptContext(tokens, jnp.int32(tokens.shape[1]), starts)
    last = prompts.tokens[:, -1]
    rows = SearchRows(last, prompts.limits, prompts.keys, prompts.generated, context)
    state = start_search(cache, rows, plan, values, length=length)
    return advance_search(model, state, logits, plan, values)


def _grown(cache: Any, *, size: int) -> Any:
    return cache.resize(size)

"""Compiled programs of text generation: prefill, generation, search and scoring."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Int, Key, PyTree

from transformer_jax.core.errors import ConfigError
from transformer_jax.core.trees import AnyArray
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.decoding.options import SpecialTokens
from transformer_jax.decoding.scoring import TeacherForced, teacher_forced_log_probs
from transformer_jax.decoding.search import advance_search, continue_search, search, search_trail
from transformer_jax.decoding.search_plan import SearchPlan, SearchValues, search_settings
from transformer_jax.decoding.search_state import (
    Hypotheses,
    PromptContext,
    SearchResult,
    SearchRows,
    SearchState,
    SearchTrail,
    start_search,
)
from transformer_jax.decoding.speculate import PromptLookupState, prompt_lookup_decode
from transformer_jax.decoding.stored_programs import stored
from transformer_jax.models.layers.cache import Cache, LayerCache
from transformer_jax.models.partition import Graph
from transformer_jax.models.protocol import Decodable
from transformer_jax.parallel.placement import MeshProgram, split_model

__all__ = [
    "MoreTokens",
    "Programs",
    "PromptBatch",
    "SearchPrompts",
    "generate",
    "prefill",
    "search_prompts",
]


class PromptBatch(NamedTuple):
    """Prompts to continue, with the state of their generation."""

    tokens: Int[AnyArray, "B P"]  # padded on the left
    starts: Int[AnyArray, " B"]  # index at which each prompt begins
    limits: Int[AnyArray, " B"]  # largest number of new tokens
    generated: Int[AnyArray, " B"]  # number of new tokens in earlier segments
    keys: Key[Array, " B"] | None = None  # sampling keys
    # Tokens that penalties apply to, padded on the left, and the index at which they begin.
    seen: tuple[Int[AnyArray, "B Q"], Int[AnyArray, " B"]] | None = None


class MoreTokens(NamedTuple):
    """Tokens to append to a cache."""

    tokens: Int[AnyArray, "B T"]  # padded on the right
    length: Int[Array | np.int32, ""]  # how many of them are not padding
    at: Int[Array | np.int32, ""]  # slot of the first; later contents of the cache are discarded


class SearchPrompts(NamedTuple):
    """Prompts of one search, as rows that end in the same column."""

    tokens: Int[AnyArray, "B P"]  # padded on the left
    starts: Int[AnyArray, " B"]  # index at which each prompt begins
    # Largest number of new tokens, including EOS; 0 marks an empty row, None is no limit.
    limits: Int[AnyArray, " B"] | None
    inputs: Mapping[str, PyTree] | None = None  # inputs of the encoder, by name
    keys: Key[Array, " B"] | None = None  # sampling keys


# The types of a search's state, besides its own.
_STATE = (Hypotheses, PromptContext, Cache, LayerCache)


class Programs:
    """Functions of parameters and token arrays, each compiled once per shape and kept.

    Prompts are rows that end in the same column; ``starts`` gives the index at which each begins.

    Attributes:
        begin: Prefills prompts, and generates the first token of each.
        resume: Reads more tokens into a cache, which is donated, and generates the first token.
        decode: Continues up to a number of tokens; the argument is donated.
        grow: Returns a cache with more room.
        search: Greedy search, sampling or beam search from prompts; see :func:`search_prompts`.
        draft_prefill: Prefills one prompt for speculation.
        draft_decode: Continues speculation; the argument is donated.
        score: Log-probabilities of given texts, by teacher forcing.
        logits: Logits of given texts.
        trail: Beam search from prompts, with its live beams; see :func:`.search_trail`.
    """

    def __init__(self, graph: Graph, special: SpecialTokens, *, num_draft_tokens: int = 0):
        """Takes the static part of a model and the special tokens of its texts."""
        self.graph, self.special, self.draft = graph, special, num_draft_tokens

        def program(
            function: Callable[..., PyTree], *returns: type, **options: object
        ) -> MeshProgram:
            parts = graph, special, num_draft_tokens
            return MeshProgram(stored(function, *parts, returns=returns), **options)

        state, draft = (SearchState, *_STATE), (PromptLookupState, *_STATE)
        self.begin = program(self._begin_batch, *state, static_argnames=("plan", "size", "length"))
        self.resume = program(
            self._resume_batch, *state, static_argnames=("plan", "length"), donate_argnums=1
        )
        self.decode = program(self._decode_batch, *state, static_argnames="plan", donate_argnums=1)
        # The argument is not donated: memory of a different size cannot be reused.
        self.grow = MeshProgram(_grown, static_argnames="size")
        self.search = program(
            self._search_batch, SearchResult, static_argnames=("plan", "length", "sizes")
        )
        self.draft_prefill = program(self._draft_prefill_one, *draft, static_argnames="length")
        self.draft_decode = program(self._draft_decode_one, *draft, donate_argnums=1)
        self.score = program(self._score_batch, TeacherForced, static_argnames="best")
        self.logits = program(self._logits_batch)
        self.trail = program(
            self._trail_batch, SearchResult, SearchTrail, static_argnames=("plan", "length")
        )

    def _begin_batch(
        self,
        params: PyTree,
        prompts: PromptBatch,
        *,
        plan: SearchPlan,
        values: SearchValues,
        size: int,
        length: int,
    ) -> SearchState:
        model, tokens = nnx.merge(self.graph, params), prompts.tokens
        cache = model.init_cache(None, tokens.shape[0], size)
        read = model.prefill(tokens, cache, prompts.starts)
        return _first(model, read, prompts, plan, values, length)

    def _resume_batch(
        self,
        params: PyTree,
        cache: PyTree,
        more: MoreTokens,
        prompts: PromptBatch,
        *,
        plan: SearchPlan,
        values: SearchValues,
        length: int,
    ) -> SearchState:
        model = nnx.merge(self.graph, params)
        read = model.prefill_more(more.tokens, more.length, cache.truncate(more.at))
        return _first(model, read, prompts, plan, values, length)

    def _decode_batch(
        self,
        params: PyTree,
        state: SearchState,
        until: Array,
        *,
        plan: SearchPlan,
        values: SearchValues,
    ) -> SearchState:
        return continue_search(nnx.merge(self.graph, params), state, until, plan, values)

    def _search_batch(
        self,
        params: PyTree,
        prompts: SearchPrompts,
        *,
        plan: SearchPlan,
        values: SearchValues,
        length: int,
        sizes: tuple[int, ...] = (),
    ) -> SearchResult:
        model = nnx.merge(self.graph, params)
        return search_prompts(model, prompts, plan, values, length=length, sizes=sizes)

    def _draft_prefill_one(
        self, params: PyTree, tokens: Array, starts: Array, *, length: int
    ) -> PromptLookupState:
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

    def _draft_decode_one(
        self, params: PyTree, at: PromptLookupState, until: Array
    ) -> PromptLookupState:
        extend = nnx.merge(self.graph, params).extend
        return prompt_lookup_decode(extend, at, until, self.special, num_draft_tokens=self.draft)

    def _score_batch(
        self, params: PyTree, arguments: tuple[Array, ...], targets: Array, *, best: int
    ) -> TeacherForced:
        return teacher_forced_log_probs(nnx.merge(self.graph, params)(*arguments), targets, best)

    def _logits_batch(self, params: PyTree, arguments: tuple[Array, ...]) -> Array:
        return nnx.merge(self.graph, params)(*arguments)

    def _trail_batch(
        self,
        params: PyTree,
        prompts: SearchPrompts,
        *,
        plan: SearchPlan,
        values: SearchValues,
        length: int,
    ) -> tuple[SearchResult, SearchTrail]:
        model = nnx.merge(self.graph, params)
        cache = prefill(model, prompts, length, plan.beams)
        rows = SearchRows(prompts.tokens[:, -1], prompts.limits)
        return search_trail(model, cache, rows, plan, values, length=length)


def prefill(model: Decodable, prompts: SearchPrompts, length: int, beams: int = 1) -> PyTree:
    """Returns a cache with all but the last token of each prompt.

    Args:
        model: A decoder or encoder-decoder.
        prompts: The prompts, and the inputs of the encoder.
        length: Largest number of new tokens.
        beams: Number of beams per prompt.
    """
    tokens, (B, P) = jnp.asarray(prompts.tokens), prompts.tokens.shape
    cache = model.init_cache(prompts.inputs, B, P - 1 + length, beams=beams)
    if P > 1:
        cache = model.prefill(tokens[:, :-1], cache, jnp.asarray(prompts.starts))[1]
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
    """Searches for texts after prompts, in one program.

    Args:
        model: A decoder or encoder-decoder.
        prompts: The prompts, and the inputs of the encoder.
        plan: The static part of the search.
        values: Its settings.
        length: Largest number of new tokens in any text, including EOS.
        sizes: Descending numbers of rows that the loop continues with; see :func:`.search`.
        context: The prompts in the form that processors read.
    """
    cache = prefill(model, prompts, length, plan.beams)
    rows = SearchRows(prompts.tokens[:, -1], prompts.limits, prompts.keys, None, context)
    return search(model, cache, rows, plan, values, length=length, sizes=sizes)


def generate(
    model: Decodable, inputs: Mapping[str, PyTree], config: GenerationConfig
) -> Int[np.ndarray, "B T"]:
    """Returns the best text for each row of the inputs, by greedy or beam search.

    The program is compiled once per model, configuration and input shapes.

    Args:
        model: Any encoder-decoder.
        inputs: Arguments of its encoder by name; the first axis of each array is the batch.
        config: Config with ``decoder_start_token_id``, ``eos_token_id`` and ``max_new_tokens`` (T).

    Returns:
        Tokens, including an end token, then padding.

    Raises:
        ConfigError: The start token or the limit is missing, or a setting does not apply here.
    """
    for name in ("decoder_start_token_id", "max_new_tokens"):
        if getattr(config, name) is None:
            raise ConfigError(f"{name} is None: a search from inputs needs it")
    names = {field.name for field in dataclasses.fields(GenerationConfig)}
    config.refuse_settings(
        names - _NOT_OF_INPUTS, "is not a setting of a search from inputs: leave it out"
    )
    graph, params = split_model(model)
    return np.asarray(_generate(params, inputs, graph=graph, config=config))


# Settings of samples, of prompts and texts, and of source tokens.
_NOT_OF_INPUTS = {
    *("do_sample", "num_return_sequences", "seed", "temperature", "top_k", "top_p", "min_p"),
    *("max_length", "max_len_a", "max_len_b", "stop", "allow_unk", "adapter"),
    *("encoder_repetition_penalty", "encoder_no_repeat_ngram_size"),
}


def _generate_rows(
    params: PyTree, inputs: Mapping[str, PyTree], *, graph: Graph, config: GenerationConfig
) -> Int[Array, "B T"]:
    start, length = config.decoder_start_token_id, config.max_new_tokens
    assert start is not None
    assert length is not None
    model, B = nnx.merge(graph, params), len(jax.tree.leaves(inputs)[0])
    first, starts = jnp.full((B, 1), start, jnp.int32), jnp.zeros(B, jnp.int32)
    logits, _ = jax.eval_shape(lambda: model.step(first[:, 0], model.init_cache(inputs, B, 1)))
    plan, values = search_settings(config, vocab=logits.shape[1], length=length)
    found = search_prompts(
        model,
        SearchPrompts(first, starts, None, inputs),
        plan,
        values,
        length=length,
        context=PromptContext(first, jnp.int32(1), starts),
    )
    return found.tokens[:, 0]


_generate = MeshProgram(_generate_rows, static_argnames=("graph", "config"))


def _first(
    model: Decodable,
    read: tuple[Array, PyTree],
    prompts: PromptBatch,
    plan: SearchPlan,
    values: SearchValues,
    length: int,
) -> SearchState:
    """Returns the first token of each prompt, given the logits and the cache of a prefill."""
    logits, cache = read
    context = None
    if prompts.seen is not None:
        tokens, starts = prompts.seen
        context = PromptContext(tokens, jnp.int32(tokens.shape[1]), starts)
    last = prompts.tokens[:, -1]
    rows = SearchRows(last, prompts.limits, prompts.keys, prompts.generated, context)
    state = start_search(cache, rows, plan, values, length=length)
    return advance_search(model, state, logits, plan, values)


def _grown(cache: PyTree, *, size: int) -> PyTree:
    return cache.resize(size)

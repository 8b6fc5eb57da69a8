"""What a language model compiles: reading prompts, writing, searching, judging."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from transformer_jax.decoding.beam import Hypotheses, beam_search
from transformer_jax.decoding.forced import TeacherForced, teacher_forced_log_probs
from transformer_jax.decoding.generate import (
    GenerationState,
    append_token,
    continue_generation,
    init_generation,
)
from transformer_jax.decoding.options import SpecialTokens
from transformer_jax.decoding.speculate import PromptLookupState, prompt_lookup_decode

__all__ = ["Programs", "PromptBatch"]


class PromptBatch(NamedTuple):
    """Prompts to continue, and what was generated of each before."""

    tokens: Any  # [B P], padded on the left
    starts: Any  # [B], where each prompt begins
    limits: Any  # [B], most new tokens of each
    generated: Any  # [B], new tokens of earlier segments
    seen: tuple[Any, Any]  # [B Q] and [B], what penalties apply to, and where it begins


class Programs:
    """Functions of parameters and token arrays, each compiled once for a shape and kept.

    Prompts are rows that end in the same column; ``starts`` says where each begins.

    Attributes:
        begin: Prefills prompts, and generates the first token of each.
        go: Goes on up to a number of tokens; what is given is used up.
        grow: A cache with more room; the one given is used up.
        search: Beam search from prompts.
        look_begin: Reads one prompt for speculation.
        look_go: Goes on with that; the one given is used up.
        force: What the model thinks of given texts.
    """

    def __init__(self, graph: Any, special: SpecialTokens, *, num_draft_tokens: int = 0):
        """Takes the static part of a decoder, and what it may not write."""
        self.graph, self.special, self.draft = graph, special, num_draft_tokens
        self.begin = jax.jit(self._begin_batch, static_argnames=("size", "length", "ngrams"))
        self.go = jax.jit(self._go_batch, static_argnames=("read", "ngrams"), donate_argnums=1)
        self.grow = jax.jit(_grown, static_argnames="size", donate_argnums=0)
        self.search = jax.jit(self._search_batch, static_argnames="length")
        self.look_begin = jax.jit(self._look_begin_one, static_argnames="length")
        self.look_go = jax.jit(self._look_go_one, donate_argnums=1)
        self.force = jax.jit(self._force_batch, static_argnames="best")

    def _prefilled(self, params, tokens, starts, size: int, beams: int = 1):
        """The model, and its cache with all but the last token of each prompt."""
        model = nnx.merge(self.graph, params)
        cache = model.init_cache(None, tokens.shape[0], size, beams=beams)
        if tokens.shape[1] > 1:
            cache = model.prefill(tokens[:, :-1], cache, starts)[1]
        return model, cache

    def _begin_batch(
        self, params, prompts, sampling, keys, *, size, length, ngrams
    ) -> GenerationState:
        model, tokens = nnx.merge(self.graph, params), prompts.tokens
        cache = model.init_cache(None, tokens.shape[0], size)
        logits, cache = model.prefill(tokens, cache, prompts.starts)
        progress = init_generation(
            cache,
            tokens[:, -1],
            length=length,
            pad=self.special.pad,
            max_lengths=prompts.limits,
            prompt=prompts.seen,
            sampled=prompts.generated,
        )
        return self._writing(sampling, keys, prompts.seen[0].shape[1], ngrams)(progress, logits)

    def _go_batch(
        self, params, progress, until, sampling, keys, *, read, ngrams
    ) -> GenerationState:
        step = nnx.merge(self.graph, params).step
        return continue_generation(
            step, progress, until, self._writing(sampling, keys, read, ngrams)
        )

    def _writing(
        self, sampling, keys, read, ngrams
    ) -> Callable[[GenerationState, Any], GenerationState]:
        return functools.partial(
            append_token,
            special=self.special,
            prompt_length=read,
            sampling=sampling,
            ngram_sizes=ngrams,
            keys=keys,
        )

    def _search_batch(self, params, tokens, starts, max_lengths, config, *, length) -> Hypotheses:
        size = tokens.shape[1] - 1 + length
        model, cache = self._prefilled(params, tokens, starts, size, config.num_beams)
        # Search ends every hypothesis with EOS, also where texts do not end by themselves.
        suppressed = tuple(t for t in self.special.suppress_tokens if t != self.special.eos)
        return beam_search(
            model.step,
            cache,
            tokens[:, -1],
            model.reorder,
            self.special._replace(suppress_tokens=suppressed),
            config,
            length=length,
            max_lengths=max_lengths,
        )

    def _look_begin_one(self, params, tokens, starts, *, length) -> PromptLookupState:
        size = tokens.shape[1] + length
        _, cache = self._prefilled(params, tokens, starts, size)
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

    def _force_batch(self, params, inputs, targets, *, best) -> TeacherForced:
        return teacher_forced_log_probs(nnx.merge(self.graph, params)(inputs), targets, best)


def _grown(cache: Any, *, size: int) -> Any:
    return cache.resize(size)

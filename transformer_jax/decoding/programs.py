"""What text generation compiles: prefill, generation, search and scoring."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Key

from transformer_jax.decoding.beam import Hypotheses, beam_search
from transformer_jax.decoding.compaction import generate_compacting
from transformer_jax.decoding.forced import TeacherForced, teacher_forced_log_probs
from transformer_jax.decoding.generate import (
    GenerationState,
    SamplingConfig,
    append_token,
    continue_generation,
    generate,
    init_generation,
)
from transformer_jax.decoding.lengths import length_penalty
from transformer_jax.decoding.options import BeamSearchConfig, SpecialTokens
from transformer_jax.decoding.speculate import PromptLookupState, prompt_lookup_decode
from transformer_jax.models.protocol import Decodable
from transformer_jax.parallel.inference import MeshProgram

__all__ = ["MoreTokens", "Programs", "PromptBatch", "SearchPrompts", "prefill", "search"]


class PromptBatch(NamedTuple):
    """Prompts to continue, and what was generated of each before."""

    tokens: Any  # [B P], padded on the left
    starts: Any  # [B], where each prompt begins
    limits: Any  # [B], most new tokens of each
    generated: Any  # [B], new tokens of earlier segments
    seen: tuple[Any, Any]  # [B Q] and [B], what penalties apply to, and where it begins


class MoreTokens(NamedTuple):
    """What follows the tokens in a cache."""

    tokens: Any  # [B T], padded on the right
    count: Any  # [], how many of them are no padding
    at: Any  # [], the slot of the first; what the cache holds from there on is forgotten


class SearchPrompts(NamedTuple):
    """Prompts of one search, as rows that end in the same column."""

    tokens: Any  # [B P], padded on the left
    starts: Any  # [B], where each prompt begins
    max_lengths: Any  # [B], most new tokens of each, EOS included; 0 marks a row of padding
    inputs: Any = None  # of the encoder, by name


class Programs:
    """Functions of parameters and token arrays, each compiled once for a shape and kept.

    Prompts are rows that end in the same column; ``starts`` says where each begins.

    Attributes:
        begin: Prefills prompts, and generates the first token of each.
        resume: Reads more tokens into a cache, which is used up, and generates the first token.
        go: Goes on up to a number of tokens; what is given is used up.
        grow: A cache with more room.
        search: Greedy search, sampling or beam search from prompts; see :func:`search`.
        look_begin: Reads one prompt for speculation.
        look_go: Goes on with that; the one given is used up.
        force: Log-probabilities of given texts, by teacher forcing.
    """

    def __init__(self, graph: Any, special: SpecialTokens, *, num_draft_tokens: int = 0):
        """Takes the static part of a model and the special tokens of its texts."""
        self.graph, self.special, self.draft = graph, special, num_draft_tokens
        self.begin = MeshProgram(self._begin_batch, static_argnames=("size", "length", "ngrams"))
        self.resume = MeshProgram(
            self._resume_batch, static_argnames=("length", "ngrams"), donate_argnums=1
        )
        self.go = MeshProgram(
            self._go_batch, static_argnames=("prompt_length", "ngrams"), donate_argnums=1
        )
        # Nothing is given up for it: no memory of another size can be used again.
        self.grow = MeshProgram(_grown, static_argnames="size")
        self.search = MeshProgram(
            self._search_batch, static_argnames=("length", "special", "sizes")
        )
        self.look_begin = MeshProgram(self._look_begin_one, static_argnames="length")
        self.look_go = MeshProgram(self._look_go_one, donate_argnums=1)
        self.force = MeshProgram(self._force_batch, static_argnames="best")

    def _begin_batch(
        self, params, prompts, sampling, keys, *, size, length, ngrams
    ) -> GenerationState:
        model, tokens = nnx.merge(self.graph, params), prompts.tokens
        cache = model.init_cache(None, tokens.shape[0], size)
        read = model.prefill(tokens, cache, prompts.starts)
        return self._first(read, prompts, sampling, keys, length=length, ngrams=ngrams)

    def _resume_batch(
        self, params, cache, more, prompts, sampling, keys, *, length, ngrams
    ) -> GenerationState:
        model = nnx.merge(self.graph, params)
        read = model.prefill_more(more.tokens, more.count, cache.truncate(more.at))
        return self._first(read, prompts, sampling, keys, length=length, ngrams=ngrams)

    def _first(self, read, prompts, sampling, keys, *, length, ngrams) -> GenerationState:
        logits, cache = read
        progress = init_generation(
            cache,
            prompts.tokens[:, -1],
            length=length,
            pad=self.special.pad,
            max_lengths=prompts.limits,
            prompt=prompts.seen,
            sampled=prompts.generated,
        )
        return self._writing(sampling, keys, prompts.seen[0].shape[1], ngrams)(progress, logits)

    def _go_batch(
        self, params, progress, until, sampling, keys, *, prompt_length, ngrams
    ) -> GenerationState:
        step = nnx.merge(self.graph, params).step
        return continue_generation(
            step, progress, until, self._writing(sampling, keys, prompt_length, ngrams)
        )

    def _writing(
        self, sampling, keys, prompt_length, ngrams
    ) -> Callable[[GenerationState, Any], GenerationState]:
        return functools.partial(
            append_token,
            special=self.special,
            prompt_length=prompt_length,
            sampling=sampling,
            ngram_sizes=ngrams,
            keys=keys,
        )

    def _search_batch(
        self, params, prompts, config, sampling=None, keys=None, *, length, special, sizes=()
    ) -> Hypotheses:
        model = nnx.merge(self.graph, params)
        how = {"length": length, "sampling": sampling, "keys": keys, "sizes": sizes}
        return search(model, prompts, config, special, **how)

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


def search(
    model: Decodable,
    prompts: SearchPrompts,
    config: BeamSearchConfig,
    special: SpecialTokens,
    *,
    length: int,
    sampling: SamplingConfig | None = None,
    keys: Key[Array, " B"] | None = None,
    sizes: tuple[int, ...] = (),
) -> Hypotheses:
    """The best texts that a search finds, as one program.

    It is beam search with several beams, and greedy search or sampling with one.

    Args:
        model: Decoder or encoder-decoder.
        prompts: The prompts, and the inputs of the encoder.
        config: Beams, hypotheses returned, normalization and lengths.
        special: Ids of EOS, padding and suppressed tokens.
        length: Most new tokens of any text, EOS included.
        sampling: How tokens are sampled with ``keys``.
        keys: Random key of each prompt; None samples nothing.
        sizes: Of greedy search, the numbers of rows that :func:`.generate_compacting` goes on with.
    """
    cache = prefill(model, prompts, length, config.num_beams)
    start, limits = prompts.tokens[:, -1], prompts.max_lengths
    if config.num_beams > 1:
        return beam_search(
            model.step,
            cache,
            start,
            model.reorder,
            special,
            config,
            length=length,
            max_lengths=limits,
        )
    sampling = SamplingConfig() if sampling is None else sampling
    if config.min_length > 1:
        sampling = sampling._replace(min_length=config.min_length)
    if sizes and keys is None:
        begun = init_generation(cache, start, length=length, pad=special.pad, max_lengths=limits)
        append = functools.partial(append_token, special=special, sampling=sampling)
        out = generate_compacting(model, begun, length, append, sizes)
    else:
        out = generate(
            model.step,
            cache,
            start,
            special,
            length=length,
            max_lengths=limits,
            sampling=sampling,
            keys=keys,
        )
    penalty = length_penalty(out.lengths, config.normalization, config.length_penalty)
    parts = (out.tokens, out.lengths, out.log_probs, out.log_probs / penalty, out.finished)
    return Hypotheses(*(part[:, None] for part in parts))


def _grown(cache: Any, *, size: int) -> Any:
    return cache.resize(size)

"""Greedy decoding with draft tokens copied from earlier text (prompt lookup)."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from transformer_jax.decoding.options import SpecialTokens
from transformer_jax.functional import logits as processors
from transformer_jax.models.layers.cache import Cache

__all__ = ["PromptLookupState", "prompt_lookup", "prompt_lookup_decode"]

# tokens [1 T], cache -> logits after each [1 T V], cache
Extend = Callable[[Array, Cache], tuple[Array, Cache]]


class PromptLookupState(NamedTuple):
    """The state of one text."""

    tokens: Int[Array, " N"]  # the prompt, then generated tokens
    known: Int[Array, ""]  # their number; the last is not in the cache yet
    log_prob: Float[Array, ""]  # of the generated tokens
    finished: Bool[Array, ""]  # whether the last token ends the text
    steps: Int[Array, ""]  # number of passes through the model
    cache: PyTree


def prompt_lookup(
    tokens: Int[Array, " N"], known: Int[Array, ""] | int, count: int, longest: int = 3
) -> Int[Array, " {count}"]:
    """Returns the tokens that followed the longest earlier match of the text's end.

    Matches have up to ``longest`` tokens; ties go to the latest; without a match they are
    arbitrary.

    Saxena 2023, "Prompt lookup decoding".

    Example:
        >>> text = jnp.array([7, 8, 9, 1, 7, 8, 0, 0, 0])
        >>> prompt_lookup(text, 6, 2)
        Array([9, 1], dtype=int32)
    """
    N = tokens.shape[0]
    places = jnp.arange(N, dtype=jnp.int32)
    same, alike = places < known - 1, jnp.zeros(N, jnp.int32)
    for back in range(longest):
        last = tokens[jnp.maximum(known - 1 - back, 0)]
        same = same & (jnp.roll(tokens, back) == last) & (places >= back)
        alike = alike + same
    best = processors.argmax(alike * N + places)
    # If the draft runs past the end of the text, it repeats itself.
    return lax.dynamic_slice(jnp.pad(tokens, (0, count)), (best + 1,), (count,)).astype(jnp.int32)


def prompt_lookup_decode(
    extend: Extend,
    at: PromptLookupState,
    until: Int[Array, ""] | int,
    special: SpecialTokens,
    *,
    num_draft_tokens: int,
) -> PromptLookupState:
    """Continues greedy decoding until ``until`` tokens are known, or an end.

    Each pass reads the last token and ``num_draft_tokens`` draft tokens (:func:`prompt_lookup`),
    keeps the draft tokens that greedy decoding would have generated, and adds one more token.
    Weights are read once per pass, which dominates the cost of a step if memory bandwidth is the
    limit.

    Args:
        extend: The model on several tokens at once.
        at: The state; ``tokens`` and cache have room for ``until`` and the drafts.
        until: Number of tokens, including the prompt.
        special: Ids of end and suppressed tokens.
        num_draft_tokens: Number of draft tokens per pass.
    """
    until = jnp.asarray(until, jnp.int32)

    def body(at: PromptLookupState) -> PromptLookupState:
        guess = prompt_lookup(at.tokens, at.known, num_draft_tokens)
        read = jnp.concatenate([at.tokens[at.known - 1][None], guess])
        logits, cache = extend(read[None], at.cache)
        logits = logits[0].astype(jnp.float32)
        suppressed = np.isin(np.arange(logits.shape[1]), special.suppress_tokens)[None]
        chosen = processors.argmax(jnp.where(suppressed, -jnp.inf, logits)).astype(jnp.int32)
        # A token counts if all draft tokens before it were correct and none ended the text.
        ends = jnp.isin(chosen, np.array(special.ends))
        right = (guess == chosen[:-1]) & ~ends[:-1]
        count = 1 + jnp.cumprod(right.astype(jnp.int32)).sum()
        count = jnp.minimum(count, until - at.known)
        kept = jnp.arange(num_draft_tokens + 1) < count
        worth = jnp.take_along_axis(logits, chosen[:, None], axis=1)[:, 0]
        peak, rest = processors.normalizer(logits)
        worth = (worth - peak) - rest
        return PromptLookupState(
            tokens=lax.dynamic_update_slice(at.tokens, chosen, (at.known,)),
            known=at.known + count,
            log_prob=at.log_prob + jnp.where(kept, worth, 0.0).sum(),
            finished=(kept & ends).any(),
            steps=at.steps + 1,
            cache=cache.truncate(at.known - 1 + count),
        )

    return lax.while_loop(lambda at: (at.known < until) & ~at.finished, body, at)

"""Exhaustive search over all sequences, the reference in tests of the other searches."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.decoding.generation_config import TRANSLATION, GenerationConfig
from transformer_jax.decoding.length_penalty import length_penalty
from transformer_jax.decoding.options import SpecialTokens

__all__ = ["ExactHypothesis", "exhaustive_search", "num_sequences"]

# Decoder inputs [R T], including the first token, to logits [R T V]: teacher forcing, no cache.
Scorer = Callable[[Int[np.ndarray, "R T"]], Float[np.ndarray, "R T V"]]


class ExactHypothesis(NamedTuple):
    """A complete sequence with its score."""

    tokens: tuple[int, ...]  # including EOS, unless the limit cut it
    log_prob: float
    score: float  # normalized for length


def num_sequences(vocab: int, length: int, limit: int = 1_000_000) -> int:
    """The number of sequences of ``length`` tokens: ``Kᴺ``.

    Bishop and Bishop 2024, section 12.3.2.

    Raises:
        ConfigError: There are more than ``limit``.

    Example:
        >>> num_sequences(5, 4)
        625
        >>> num_sequences(37_000, 25)
        Traceback (most recent call last):
        transformer_jax.core.errors.ConfigError: exhaustive search over 37,000 tokens and 25 ...
    """
    digits = length * math.log10(vocab)
    if digits > 300 or vocab**length > limit:
        raise ConfigError(
            f"exhaustive search over {plural(vocab, 'token')} and {plural(length, 'step')} has "
            f"{vocab}^{length} = "
            f"10^{digits:.1f} sequences: at most {limit} are searched; use beam search"
        )
    return vocab**length


def exhaustive_search(
    scorer: Scorer,
    special: SpecialTokens,
    config: GenerationConfig = TRANSLATION,
    *,
    start: int,
    vocab_size: int,
    length: int,
    limit: int = 1_000_000,
    rows: int = 4096,
) -> list[ExactHypothesis]:
    """Returns the ``num_return_sequences`` best of all sequences of at most ``length`` tokens.

    Each ends with the most probable of the end tokens, as in beam search. If ``at_limit`` is
    ``cut``, sequences of ``length`` tokens without an end are included.

    It scores complete prefixes, so it shares neither cache nor loop with the searches tested
    against it. Ties go to the shorter sequence, then to the lower tokens.

    Args:
        scorer: Maps decoder inputs ``[R T]``, including the first token, to logits ``[R T V]``.
        special: Ids of end tokens and suppressed tokens.
        config: ``num_return_sequences``, ``normalization``, ``length_penalty`` and ``at_limit`` are
            used.
        start: The token that starts every sequence, usually BOS.
        vocab_size: K, the number of tokens, including EOS.
        length: N, the largest number of tokens, including EOS.
        limit: Largest number of sequences to search.
        rows: Number of prefixes scored at once.

    Raises:
        ConfigError: ``vocab_size ** length`` is more than ``limit``.
    """
    num_sequences(vocab_size, length, limit)
    ends = (*special.ends, *special.suppress_tokens)
    letters = np.array([v for v in range(vocab_size) if v not in ends], np.int32)
    K = len(letters)
    N = length if K else 1  # only EOS can follow
    prefixes = np.full((K ** (N - 1), N), start, np.int32)
    for t in range(1, N):
        prefixes[:, t] = np.tile(np.repeat(letters, K ** (N - 1 - t)), K ** (t - 1))
    parts = [prefixes[i : i + rows] for i in range(0, len(prefixes), rows)]
    log_probs = np.concatenate([_log_probs(scorer(part)) for part in parts])
    found = _complete(prefixes, log_probs, special.ends, config)
    if config.at_limit == "cut" and K:
        found += _cut(prefixes, log_probs, letters, config)
    return sorted(found, key=lambda e: (-e.score, len(e.tokens), e.tokens))[
        : config.num_return_sequences
    ]


def _complete(
    prefixes: Int[np.ndarray, "R T"],
    log_probs: Float[np.ndarray, "R T V"],
    ends: tuple[int, ...],
    config: GenerationConfig,
) -> list[ExactHypothesis]:
    """Completes every distinct prefix of ``prefixes`` with its most probable end token."""
    N, so_far = prefixes.shape[1], _so_far(prefixes, log_probs)
    lengths = np.arange(1, N + 1)
    penalties = length_penalty(lengths, config.normalization, config.length_penalty).tolist()
    found = {}
    for n in range(N):
        last = log_probs[:, n][:, list(ends)]
        chosen, total = np.array(ends)[last.argmax(1)], so_far[:, n] + last.max(1)
        given = prefixes[:, 1 : n + 1].tolist(), chosen.tolist(), total.tolist()
        for prefix, end, log_prob in zip(*given, strict=True):
            tokens = (*prefix, end)
            found[tokens] = ExactHypothesis(tokens, log_prob, log_prob / penalties[n])
    return list(found.values())


def _cut(
    prefixes: Int[np.ndarray, "R T"],
    log_probs: Float[np.ndarray, "R T V"],
    letters: Int[np.ndarray, " K"],
    config: GenerationConfig,
) -> list[ExactHypothesis]:
    """Returns the best sequences of maximal length without an end token."""
    N = prefixes.shape[1]
    totals = _so_far(prefixes, log_probs)[:, -1:] + log_probs[:, -1][:, letters]
    # Rows and letters ascend, so that ties go to the lower tokens.
    best = np.argsort(-totals, axis=None, kind="stable")[: config.num_return_sequences]
    rows, last = np.unravel_index(best, totals.shape)
    penalty = float(length_penalty(np.array([N]), config.normalization, config.length_penalty)[0])
    return [
        ExactHypothesis((*prefixes[row, 1:].tolist(), int(letters[k])), total, total / penalty)
        for row, k, total in zip(rows, last, totals[rows, last].tolist(), strict=True)
    ]


def _so_far(
    prefixes: Int[np.ndarray, "R T"], log_probs: Float[np.ndarray, "R T V"]
) -> Float[np.ndarray, "R T"]:
    """Returns the log-probability of each prefix of 0, 1, ... tokens."""
    follow = prefixes[:, 1:, None]
    steps = np.take_along_axis(log_probs[:, :-1], follow, axis=2)[:, :, 0]
    return np.concatenate([np.zeros((len(prefixes), 1)), np.cumsum(steps, axis=1)], axis=1)


def _log_probs(logits: Float[np.ndarray, "R T V"]) -> Float[np.ndarray, "R T V"]:
    logits = np.asarray(logits, np.float64)
    top = logits.max(-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))

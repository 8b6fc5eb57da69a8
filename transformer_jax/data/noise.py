"""Noise for denoising pre-training: functions of tokens and a generator (Lewis et al. 2020)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from transformer_jax.core.errors import ArgumentError, plural

__all__ = [
    "SpanCorruption",
    "document_rotation",
    "num_spans",
    "restore_spans",
    "sentence_permutation",
    "span_corruption",
    "text_infilling",
    "token_deletion",
    "token_masking",
]

Tokens = Int[np.ndarray, " n"]


class SpanCorruption(NamedTuple):
    """A text without some of its spans, and the spans.

    Attributes:
        source: The text with one sentinel in place of each span.
        target: Each sentinel with its span, and one more sentinel at the end.
    """

    source: Int[np.ndarray, " s"]
    target: Int[np.ndarray, " t"]


def token_masking(
    tokens: Tokens, rng: np.random.Generator, *, mask: int, probability: float
) -> Tokens:
    """Replaces ``round(probability · n)`` random tokens by ``mask``.

    Lewis et al. 2020, section 2.2.

    Args:
        tokens: A text.
        rng: The source of randomness.
        mask: The id of the mask token.
        probability: Fraction of the tokens, from 0 to 1.

    Raises:
        ArgumentError: A probability outside 0 to 1.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> token_masking(np.array([5, 6, 7, 8]), rng, mask=4, probability=0.5)
        array([5, 6, 4, 4])
    """
    masked = tokens.copy()
    masked[_drawn(len(tokens), rng, probability)] = mask
    return masked


def token_deletion(
    tokens: Tokens, rng: np.random.Generator, *, probability: float
) -> Int[np.ndarray, " kept"]:
    """Deletes ``round(probability · n)`` random tokens.

    Nothing marks the deleted positions. Lewis et al. 2020, section 2.2.

    Args:
        tokens: A text.
        rng: The source of randomness.
        probability: Fraction of the tokens, from 0 to 1.

    Raises:
        ArgumentError: A probability outside 0 to 1.

    Example:
        >>> token_deletion(np.array([5, 6, 7, 8]), np.random.default_rng(0), probability=0.5)
        array([5, 6])
    """
    return np.delete(tokens, _drawn(len(tokens), rng, probability))


def text_infilling(
    tokens: Tokens,
    rng: np.random.Generator,
    *,
    mask: int,
    probability: float,
    mean_length: float = 3.0,
) -> Int[np.ndarray, " m"]:
    """Replaces random spans of tokens by one ``mask`` each.

    Span lengths are drawn from a Poisson distribution until ``round(probability · n)`` tokens are
    hidden; the last span is cut to match exactly. A span of length 0 inserts a mask. Every order of
    spans and remaining tokens is equally likely. Spans of length 0 that would make more masks than
    hidden tokens are dropped, so the result is never longer than the text. Lewis et al. 2020,
    section 2.2.

    Args:
        tokens: A text.
        rng: The source of randomness.
        mask: The id of the mask token.
        probability: Fraction of the tokens to hide, from 0 to 1.
        mean_length: Mean of the Poisson distribution, at least 1.

    Raises:
        ArgumentError: A probability outside 0 to 1, or a mean below 1.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> text_infilling(np.arange(10, 20), rng, mask=4, probability=0.4)
        array([ 4, 12, 13,  4, 14, 15,  4, 18, 19])
    """
    hidden = _count(len(tokens), probability)
    lengths = _poisson_lengths(hidden, mean_length, rng)
    items = len(tokens) - hidden + len(lengths)
    is_span = np.zeros(items, bool)
    is_span[rng.choice(items, len(lengths), replace=False)] = True
    sizes = np.ones(items, np.int64)
    sizes[is_span] = lengths
    begins = np.cumsum(sizes) - sizes
    infilled = np.full(items, mask, tokens.dtype)
    infilled[~is_span] = tokens[begins[~is_span]]
    return infilled


def sentence_permutation(
    sentences: Sequence[Int[np.ndarray, " _"]], rng: np.random.Generator
) -> list[Int[np.ndarray, " _"]]:
    """Shuffles the sentences; every order is equally likely.

    Lewis et al. 2020, section 2.2.

    Example:
        >>> sentences = [np.array([5, 6]), np.array([7]), np.array([8, 9])]
        >>> sentence_permutation(sentences, np.random.default_rng(0))
        [array([8, 9]), array([5, 6]), array([7])]
    """
    return [sentences[i] for i in rng.permutation(len(sentences))]


def document_rotation(tokens: Tokens, rng: np.random.Generator) -> Tokens:
    """Rotates the tokens to begin at a random one.

    Every token is equally likely to be the first. Lewis et al. 2020, section 2.2.

    Example:
        >>> document_rotation(np.array([5, 6, 7, 8]), np.random.default_rng(0))
        array([8, 5, 6, 7])
    """
    return np.roll(tokens, -int(rng.integers(max(len(tokens), 1))))


def span_corruption(
    tokens: Tokens,
    rng: np.random.Generator,
    *,
    sentinels: Int[np.ndarray, " k"],
    probability: float = 0.15,
    mean_length: float = 3.0,
) -> SpanCorruption:
    """Replaces random spans of tokens by sentinels; the target is the spans.

    ``round(probability · n)`` tokens are hidden, at least one and never all, in :func:`num_spans`
    spans. Every division of the hidden tokens into spans is equally likely, and so is every
    placement with at least one token between two spans. (T5's own code always hides the last token
    and never the first.) Nothing is hidden in a text of one token, or if ``probability`` is 0.
    Raffel et al. 2020, section 3.1.4 and figure 2.

    Args:
        tokens: A text.
        rng: The source of randomness.
        sentinels: Ids of the sentinels, in order; at least one more than there are spans.
        probability: Fraction of the tokens to hide, from 0 to 1.
        mean_length: Mean length of a span, at least 1.

    Raises:
        ArgumentError: A probability outside 0 to 1, a mean below 1, or too few sentinels.

    Example:
        >>> rng, sentinels = np.random.default_rng(0), np.array([90, 91, 92])
        >>> source, target = span_corruption(np.arange(10, 30), rng, sentinels=sentinels,
        ...                                  probability=0.25)
        >>> source
        array([10, 11, 12, 13, 14, 15, 16, 17, 90, 22, 91, 24, 25, 26, 27, 28, 29])
        >>> target
        array([90, 18, 19, 20, 21, 91, 23, 92])
    """
    n = len(tokens)
    spans, hidden = num_spans(n, probability=probability, mean_length=mean_length)
    if spans + 1 > len(sentinels):
        raise ArgumentError(
            f"span_corruption: {plural(spans, 'span')} of {plural(n, 'token')} need "
            f"{plural(spans + 1, 'sentinel')}, there are {len(sentinels)}"
        )
    cuts = np.sort(rng.choice(max(hidden - 1, 0), max(spans - 1, 0), replace=False)) + 1
    lengths = np.diff(np.concatenate([[0], cuts, [hidden]]))[:spans]
    # Each span precedes a different remaining token, or is at the end.
    places = np.sort(rng.choice(n - hidden + 1, spans, replace=False))
    begins = places + np.cumsum(lengths) - lengths
    source = np.insert(np.delete(tokens, _inside(begins, lengths)), places, sentinels[:spans])
    parts = np.insert(tokens[_inside(begins, lengths)], np.cumsum(lengths) - lengths,
                      sentinels[:spans])  # fmt: skip
    return SpanCorruption(source, np.append(parts, sentinels[spans]).astype(tokens.dtype))


def num_spans(n: int, *, probability: float = 0.15, mean_length: float = 3.0) -> tuple[int, int]:
    """The numbers of spans and hidden tokens in :func:`span_corruption` of ``n`` tokens.

    ``round(hidden / mean_length)`` spans, at least one, and no more than fit with a token between
    two of them. The source has ``n - hidden + spans`` tokens, the target ``hidden + spans + 1``.

    Raises:
        ArgumentError: A probability outside 0 to 1, or a mean below 1.

    Example:
        >>> num_spans(512), num_spans(20, probability=0.25), num_spans(1)
        ((26, 77), (2, 5), (0, 0))
    """
    hidden = min(max(_count(n, probability), 1), n - 1) if probability and n > 1 else 0
    _check_mean(mean_length)
    spans = min(max(round(hidden / mean_length), 1), hidden, n - hidden + 1)
    return spans, hidden


def restore_spans(
    source: Int[np.ndarray, " s"], target: Int[np.ndarray, " t"], sentinels: Int[np.ndarray, " k"]
) -> Int[np.ndarray, " n"]:
    """Restores the text from a :class:`SpanCorruption`.

    Each sentinel in the source is replaced by the tokens that follow it in the target; a sentinel
    missing from the target is removed.

    Example:
        >>> restore_spans(np.array([5, 90, 8]), np.array([90, 6, 7, 91]), np.array([90, 91]))
        array([5, 6, 7, 8])
    """
    marks = np.flatnonzero(np.isin(target, sentinels))
    ends = np.append(marks[1:], len(target))
    spans = {int(target[i]): target[i + 1 : end] for i, end in zip(marks, ends, strict=True)}
    of_sentinels = set(np.asarray(sentinels).tolist())
    nothing = source[:0]
    parts = [
        spans.get(int(id), nothing) if int(id) in of_sentinels else source[i : i + 1]
        for i, id in enumerate(source)
    ]
    return np.concatenate([nothing, *parts])


def _count(n: int, probability: float) -> int:
    """Returns the number of tokens in a fraction of ``n`` tokens."""
    if not 0.0 <= probability <= 1.0:
        raise ArgumentError(f"probability is {probability}: from 0 to 1")
    return round(probability * n)


def _check_mean(mean_length: float) -> None:
    if not 1.0 <= mean_length < float("inf"):
        raise ArgumentError(f"mean_length is {mean_length}: at least 1")


def _drawn(n: int, rng: np.random.Generator, probability: float) -> Int[np.ndarray, " drawn"]:
    """The positions of a fraction of ``n`` tokens."""
    return rng.choice(n, _count(n, probability), replace=False)


def _poisson_lengths(
    hidden: int, mean_length: float, rng: np.random.Generator
) -> Int[np.ndarray, " spans"]:
    """Lengths of spans that hide exactly ``hidden`` tokens."""
    _check_mean(mean_length)
    lengths, total = np.zeros(0, np.int64), 0
    while total < hidden:
        more = rng.poisson(mean_length, 1 + int((hidden - total) / mean_length))
        lengths, total = np.append(lengths, more), total + int(more.sum())
    if not hidden:
        return lengths
    last = int(np.searchsorted(np.cumsum(lengths), hidden))
    lengths = lengths[: last + 1]
    lengths[last] -= int(lengths.sum()) - hidden
    kept = np.delete(lengths, np.flatnonzero(lengths == 0)[: max(len(lengths) - hidden, 0)])
    return rng.permutation(kept)  # the cut span may be anywhere


def _inside(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The positions in spans, in order."""
    offsets = np.repeat(np.cumsum(lengths) - lengths - begins, lengths)
    return np.asarray(np.arange(int(lengths.sum())) - offsets)

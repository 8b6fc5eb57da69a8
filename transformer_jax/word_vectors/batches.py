"""Blocks of consecutive words for the training of word vectors, drawn by NumPy."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int32, Integer

from transformer_jax.word_vectors.corpus import LINE_END, Corpus
from transformer_jax.word_vectors.settings import BlockShape

__all__ = ["Blocks", "epoch_blocks", "passes"]

PASS = 1 << 20  # numbers of the corpus that are drawn from at a time


class Blocks(NamedTuple):
    """The inputs of a step: N successive blocks of T words, with X negatives each.

    Attributes:
        words: The words, with those of the windows at both ends: ``N T + 2 reach`` of them.
        sentences: The number of the line of each word; padding has one of its own.
        windows: [N T], the size of the window of each center word; 0 for padding.
        negatives: [N X].
        progress: How far the epoch is after it, 0 to 1.
    """

    words: Int32[np.ndarray, " _"]
    sentences: Int32[np.ndarray, " _"]
    windows: Int32[np.ndarray, "N T"]
    negatives: Int32[np.ndarray, "N X"]
    progress: float


def passes(corpus: Corpus) -> int:
    """Returns the number of parts that an epoch is drawn in."""
    return -(-len(corpus.ids) // PASS)


def epoch_blocks(
    corpus: Corpus,
    keep: Float[np.ndarray, " V"],
    noise: Float[np.ndarray, " V"],
    shape: BlockShape,
    seed: tuple[int, ...],
) -> Iterator[Blocks]:
    """All words of a corpus once, subsampled, with windows of random sizes.

    Rare and dropped words are left out before windows are counted, as in ``word2vec.c``. A window
    has each size from 1 to ``reach`` equally often. A window ends at a line end, and at the end of
    a pass of a million numbers.

    Args:
        corpus: The words.
        keep: The probability that an occurrence of each word is kept.
        noise: The probability of each word as a negative.
        shape: Of blocks.
        seed: The same numbers give the same blocks.
    """
    edges = np.cumsum(noise.astype(np.float64))
    edges /= edges[-1]
    for number in range(passes(corpus)):
        rng = np.random.default_rng((*seed, number))
        part = np.asarray(corpus.ids[number * PASS : (number + 1) * PASS])
        known = np.flatnonzero(part >= 0)
        kept = known[rng.random(len(known), np.float32) < keep[part[known]]]
        lines = np.cumsum(part == LINE_END, dtype=np.int32)
        for drawn in _steps(part[kept], lines[kept], edges, shape, rng):
            yield drawn._replace(progress=(number + drawn.progress) / passes(corpus))


def _steps(
    words: Integer[np.ndarray, " _"],
    lines: Integer[np.ndarray, " _"],
    edges: Float[np.ndarray, " V"],
    shape: BlockShape,
    rng: np.random.Generator,
) -> Iterator[Blocks]:
    """The steps of a pass; their progress is that of the pass."""
    each = shape.words * shape.blocks
    steps = -(-len(words) // each)
    windows = np.zeros(steps * each, np.int32)
    windows[: len(words)] = rng.integers(1, shape.reach + 1, len(words))
    pad = (shape.reach, shape.reach + len(windows) - len(words))
    words, lines = np.pad(words, pad), np.pad(lines, pad, constant_values=-1)
    for step in range(steps):
        begin, end = step * each, (step + 1) * each
        around = slice(begin, end + 2 * shape.reach)
        negatives = np.searchsorted(edges, rng.random(shape.blocks * shape.negatives))
        yield Blocks(
            words[around],
            lines[around],
            windows[begin:end].reshape(shape.blocks, shape.words),
            negatives.astype(np.int32).reshape(shape.blocks, shape.negatives),
            (step + 1) / steps,
        )

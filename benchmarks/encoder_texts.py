"""The texts of the encoder benchmarks, for all libraries: real lengths, random ids.

This imports only NumPy, so any Python can use it.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["CLS", "FIRST", "LENGTHS", "MASK", "PAD", "SEP", "hidden", "parts", "shares", "texts"]

PAD, CLS, SEP, MASK, FIRST = 0, 2, 3, 4, 5  # FIRST is the first id of a word

# Percentiles of the lengths in tokens, with [CLS] and [SEP], of 20,000 lower-cased sentences, with
# a WordPiece vocabulary of 8,000 trained on film reviews.
LENGTHS: dict[str, tuple[int, ...]] = {
    # Single sentences of IMDB reviews, truncated to 128.
    "reviews": (
        4, 5, 6, 7, 7, 8, 8, 9, 9, 10, 10, 10, 11, 11, 12, 12, 12, 13, 13, 14,
        14, 14, 15, 15, 15, 16, 16, 16, 17, 17, 17, 18, 18, 18, 19, 19, 19, 20, 20, 20,
        21, 21, 21, 22, 22, 22, 23, 23, 23, 24, 24, 24, 25, 25, 25, 26, 26, 27, 27, 27,
        28, 28, 29, 29, 29, 30, 30, 31, 31, 32, 32, 33, 33, 34, 34, 35, 36, 36, 37, 38,
        38, 39, 40, 41, 42, 43, 44, 45, 47, 48, 49, 51, 52, 54, 57, 60, 64, 69, 79, 103,
    ),
    # Whole reviews, with a vocabulary of 8,000 trained on 1,500 of them, truncated to 512.
    "documents": (
        52, 63, 69, 76, 82, 90, 98, 105, 113, 119, 125, 131, 137, 141, 145, 149, 151, 154, 156, 158,
        161, 163, 164, 166, 168, 170, 173, 175, 177, 179, 181, 183, 185, 188, 190, 193, 195, 198,
        200, 203, 206, 209, 213, 216, 218, 221, 225, 228, 232, 235, 239, 242, 247, 251, 256, 260,
        264, 268, 273, 280, 285, 291, 297, 303, 310, 315, 321, 331, 338, 345, 354, 361, 370, 378,
        386, 395, 407, 418, 429, 441, 454, 467, 481, 496, 512, 512, 512, 512, 512, 512, 512, 512,
        512, 512, 512, 512, 512, 512, 512, 512,
    ),
    # The training examples of SST-2, which are sentences and phrases.
    "sst2": (
        3, 3, 4, 4, 4, 4, 4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 5, 5, 6, 6,
        6, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7, 8, 8, 8, 8, 8, 8, 9, 9,
        9, 9, 9, 9, 10, 10, 10, 10, 10, 11, 11, 11, 11, 12, 12, 12, 12, 13, 13, 13,
        14, 14, 14, 14, 15, 15, 15, 16, 16, 17, 17, 17, 18, 18, 19, 19, 20, 20, 21, 21,
        22, 23, 23, 24, 25, 25, 26, 27, 28, 29, 30, 31, 32, 34, 35, 37, 39, 42, 46, 54,
    ),
}  # fmt: skip


def texts(kind: str, count: int, vocab: int, seed: int = 0) -> list[np.ndarray]:
    """Returns ``count`` texts ``[CLS] ... [SEP]`` of random words, with real lengths.

    Example:
        >>> sorted(len(text) for text in texts("sst2", 5, vocab=100))
        [5, 7, 11, 17, 30]
    """
    rng = np.random.default_rng(seed)
    measured = LENGTHS[kind]
    lengths = [measured[(2 * i + 1) * len(measured) // (2 * count)] for i in range(count)]
    words = (rng.integers(FIRST, vocab, length - 2) for length in rng.permutation(lengths))
    return [np.array([CLS, *some, SEP], np.int64) for some in words]


def hidden(length: int, share: float = 0.15) -> int:
    """Returns the number of masked tokens of a text: a share of its words, at least one.

    Example:
        >>> [hidden(length) for length in (3, 12, 128)]
        [1, 2, 19]
    """
    return max(1, int(np.rint(share * (length - 2))))


def parts(batches: Sequence[Any], sizes: Sequence[int], count: int) -> list[list[Any]]:
    """Deals batches by size, so that all parts have similar distributions of sizes.

    There are fewer parts than ``count`` if there are fewer batches.

    Example:
        >>> parts("abcd", [8, 4, 16, 2], count=2)
        [['d', 'a'], ['b', 'c']]
    """
    order = sorted(range(len(batches)), key=lambda i: sizes[i])
    return [[batches[i] for i in order[k::count]] for k in range(min(count, len(batches)))]


def shares(real: int, padded: int, texts: int, steps: int) -> dict[str, Any]:
    """Returns the report about one batching."""
    return {
        "texts": texts,
        "batches": steps,
        "real_tokens": real,
        "padded_tokens": padded,
        "fill": round(real / padded, 3),
        "real_tokens_per_batch": math.floor(real / steps + 0.5),
    }

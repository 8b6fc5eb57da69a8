"""Laws of sequences: several in one row, and their order."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Array, Int, PyTree, Shaped

from transformer_jax.core.errors import ArgumentError, plural
from transformer_jax.laws.changes import other_values
from transformer_jax.laws.finding import Finding, difference, finding, law, worst

__all__ = ["packed_mates", "packing", "permutation"]

# Outputs [1 T ...] of documents packed into one row: tokens, segments (0 is padding) and positions
# within the document, each [1 T].
Packed = Callable[[Int[np.ndarray, "1 T"], Int[np.ndarray, "1 T"], Int[np.ndarray, "1 T"]], PyTree]


@law("Documents packed into one row give the outputs of each alone.")
def packing(
    packed: Packed,
    alone: Callable[[Int[np.ndarray, "1 n"]], PyTree],
    documents: Sequence[Int[Array | np.ndarray, " _"]],
    *,
    length: int,
    tolerance: float = 1e-5,
) -> Finding:
    """Compares the outputs of packed documents with the outputs of each document alone.

    Args:
        packed: Maps tokens, segments (1, 2, ... and 0 at padding) and positions within documents,
            each ``[1 T]``, to outputs ``[1 T ...]``.
        alone: Maps the tokens of one document ``[1 n]`` to outputs ``[1 n ...]``.
        documents: Tokens of the documents.
        length: Length of the row, ``T``; the rest is padding.
        tolerance: Largest difference of an output.

    Example:
        >>> alone = lambda tokens: np.cumsum(tokens, axis=1)
        >>> def packed(tokens, segments, positions):
        ...     same = (segments[:, :, None] == segments[:, None]) * np.tri(tokens.shape[1])
        ...     return (same @ tokens[:, :, None])[..., 0]
        >>> packing(packed, alone, [np.array([3, 4]), np.array([5, 6])], length=6).holds
        True
        >>> leaky = lambda tokens, *_: np.cumsum(tokens, axis=1)
        >>> packing(leaky, alone, [np.array([3, 4]), np.array([5, 6])], length=6).where
        'document 1, position 0'
    """
    row = _row(documents, length)
    found, places, first = np.asarray(packed(*row)), [], 0
    for n, document in enumerate(documents):
        part = found[:, first : first + len(document)]
        error, where = difference(part, alone(np.asarray(document)[None]), ("row", "position"))
        places.append((error, where.replace("row 0", f"document {n}")))
        first += len(document)
    return finding("packing", worst(*places), tolerance)


@law("Other documents of a packed row change no output of a document.")
def packed_mates(
    packed: Packed,
    documents: Sequence[Int[Array | np.ndarray, " _"]],
    *,
    length: int,
    tolerance: float = 0.0,
) -> Finding:
    """Checks that each document gives exactly the same outputs with other tokens around it.

    Args:
        packed: Maps tokens, segments (1, 2, ... and 0 at padding) and positions within documents,
            each ``[1 T]``, to outputs ``[1 T ...]``.
        documents: Tokens of the documents.
        length: Length of the row, ``T``; the rest is padding.
        tolerance: Largest change of an output.

    Example:
        >>> def packed(tokens, segments, positions):
        ...     same = (segments[:, :, None] == segments[:, None]) * np.tri(tokens.shape[1])
        ...     return (same @ tokens[:, :, None])[..., 0]
        >>> packed_mates(packed, [np.array([3, 4]), np.array([5, 6])], length=6).holds
        True
        >>> leaky = lambda tokens, *_: np.cumsum(tokens, axis=1)
        >>> packed_mates(leaky, [np.array([3, 4]), np.array([5, 6])], length=6).where[:10]
        'document 1'
    """
    if len(documents) < 2:
        raise ArgumentError("laws: one document has no others around it: give two or more")
    tokens, segments, positions = _row(documents, length)
    before, places = packed(tokens, segments, positions), []
    for n in range(len(documents)):
        own = segments == n + 1
        changed = np.where(own, tokens, other_values(tokens, tokens))
        error, where = difference(
            packed(changed, segments, positions), before, ("row", "position"), own
        )
        places.append((error, where.replace("row 0, ", f"document {n}: ")))
    return finding("packed_mates", worst(*places), tolerance)


@law("Permuted inputs give permuted outputs.")
def permutation(
    outputs: Callable[[Shaped[np.ndarray, "B T *F"]], PyTree],
    inputs: Shaped[Array | np.ndarray, "B T *F"],
    *,
    tolerance: float = 1e-6,
) -> Finding:
    """Checks that only positions encode the order: attention without them has none.

    Args:
        outputs: Maps inputs ``[B T ...]`` to outputs ``[B T ...]``.
        inputs: Tokens or vectors, in their original order.
        tolerance: Largest difference of an output.

    Example:
        >>> x = np.array([[1.0, 2.0, 3.0]])
        >>> permutation(lambda x: x - x.mean(1, keepdims=True), x).holds
        True
        >>> permutation(lambda x: np.cumsum(x, axis=1), x).holds
        False
    """
    inputs = np.asarray(inputs)
    T = inputs.shape[1]
    if (inputs == inputs[:, :1]).all():
        raise ArgumentError("laws: all inputs of a row are equal: give two that differ")
    order = np.roll(np.random.default_rng(0).permutation(T), 1)
    wanted = np.asarray(outputs(inputs))[:, order]
    place = difference(outputs(inputs[:, order]), wanted, ("row", "place"))
    return finding("permutation", place, tolerance)


def _row(
    documents: Sequence[Int[Array | np.ndarray, " _"]], length: int
) -> tuple[Int[np.ndarray, "1 T"], ...]:
    """Tokens, segments and positions of packed documents; padding repeats the first token."""
    total = sum(map(len, documents))
    if not all(map(len, documents)) or not 0 < total <= length:
        raise ArgumentError(
            f"laws: documents of {plural(total, 'token')} in a row of {length}: give documents "
            f"with tokens, and a row that holds them all"
        )
    tokens = np.full(length, np.asarray(documents[0])[0])
    segments, positions, first = np.zeros_like(tokens), np.zeros_like(tokens), 0
    for n, document in enumerate(documents):
        part = slice(first, first + len(document))
        tokens[part], segments[part] = np.asarray(document), n + 1
        positions[part], first = np.arange(len(document)), part.stop
    return tokens[None], segments[None], positions[None]

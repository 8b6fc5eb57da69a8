"""Texts of any number and length through an encoder, in a few shapes of batches."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from transformer_jax.core.numerics import refuse_nonfinite
from transformer_jax.data.examples import EncodedExamples, collate
from transformer_jax.parallel.inference import MeshProgram, round_up_rows

__all__ = ["Batches", "length_buckets"]

# Padded lengths up to 512, and multiples of 512 beyond.
_STEPS = ((4, 32, 4), (32, 64, 8), (64, 128, 16), (128, 256, 32), (256, 513, 64))
_LENGTHS = tuple(length for step in _STEPS for length in range(*step))
_BATCH = 64  # tokens of padding that a batch more, and perhaps a shape more, is worth


def length_buckets(
    lengths: Int[np.ndarray, " count"], tokens: int
) -> Iterator[tuple[Int[np.ndarray, " B"], int]]:
    """Batches of examples of like length: their numbers, -1 for none, and the padded length.

    A batch has as many rows as ``tokens`` have room for at its length; what is left over at a
    length moves up to the next where that pads little, or has as many rows as the next power of
    two. The longest come first, so that what does not fit into memory fails at once.

    Example:
        >>> lengths = np.array([3, 20, 9, 8, 11])
        >>> [(rows.tolist(), T) for rows, T in length_buckets(lengths, tokens=32)]
        [([1], 20), ([4, 2], 12), ([3, 0], 8)]
    """
    steps = np.array(_LENGTHS)
    known = steps[np.minimum(np.searchsorted(steps, lengths), len(steps) - 1)]
    padded = np.where(lengths > steps[-1], -(-lengths // 512) * 512, known)
    sizes = np.unique(padded).tolist()
    batches: list[tuple[np.ndarray, int]] = []
    carried = np.zeros(0, np.int64)
    for T, above in itertools.zip_longest(sizes, sizes[1:]):
        members = np.concatenate([carried, np.flatnonzero(padded == T)])
        members = members[np.argsort(lengths[members], kind="stable")]
        rows = max(1, tokens // T)
        whole = len(members) // rows * rows
        left = len(members) - whole
        part = min(rows, 1 << max(left - 1, 0).bit_length())
        moves = (
            above is not None
            and left < tokens // above  # or they would fill a longer batch by themselves
            and left * (above - T) < (part - left) * T + _BATCH
        )
        carried = members[whole:] if moves else members[:0]
        for start in range(0, whole, rows):
            batches.append((members[start : start + rows], T))
        if left and not moves:
            filled = np.full(part, -1, np.int64)
            filled[:left] = members[whole:]
            batches.append((filled, T))
    for chosen, T in reversed(batches):
        # Within a batch, too, the longest come first.
        yield np.concatenate([chosen[chosen >= 0][::-1], chosen[chosen < 0]]), T


class Batches:
    """Runs a function of an encoder over examples, compiled once for each shape.

    Args:
        program: ``(params, batch) -> array or tree of arrays``, the first axis of each being rows;
            the batch holds tokens, lengths and types (``collate``).
        tokens: Of a batch, padding included.
        pad: The id that fills up rows.
    """

    def __init__(self, program: Callable[[Any, dict[str, Any]], Any], *, tokens: int, pad: int):
        self._program, self._tokens, self._pad = MeshProgram(program), tokens, pad

    def __call__(
        self, params: Any, examples: EncodedExamples
    ) -> Iterator[tuple[Int[np.ndarray, " rows"], Any]]:
        """The numbers of some examples and what comes of them, until all have come once.

        Raises:
            NumericsError: The model computed NaN or infinity.
        """
        waiting: tuple[np.ndarray, Any] | None = None
        for indices, T in length_buckets(examples.store.lengths, self._tokens):
            empty = round_up_rows(len(indices), params) - len(indices)
            indices = np.concatenate([indices, np.full(empty, -1, indices.dtype)])
            batch = collate(examples, indices, T, self._pad)
            made = self._program(params, batch)
            if waiting is not None:  # one batch is computed while the one before is fetched
                yield self._fetched(*waiting)
            waiting = indices, made
        if waiting is not None:
            yield self._fetched(*waiting)

    @staticmethod
    def _fetched(indices: np.ndarray, made: Any) -> tuple[np.ndarray, Any]:
        real = indices >= 0
        found = jax.tree.map(lambda a: np.asarray(a)[real], made)
        refuse_nonfinite(*jax.tree.leaves(found))
        return indices[real], found

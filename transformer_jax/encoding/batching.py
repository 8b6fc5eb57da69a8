"""Texts of any number and length through an encoder, in a few shapes of batches."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from transformer_jax.data.examples import Examples, make_inputs

__all__ = ["Batches", "grouped"]

# Padded lengths; each shape is compiled once.
_LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def grouped(
    lengths: Int[np.ndarray, " count"], tokens: int
) -> Iterator[tuple[Int[np.ndarray, " B"], int]]:
    """Batches of examples of like length: their numbers, -1 for none, and the padded length.

    The padded lengths are 8, 16, 24, 32, 48, 64, ... 512 and multiples of 512; of each there is
    one number of rows, as many as ``tokens`` have room for. The longest come first, so that what
    does not fit into memory fails at once.

    Example:
        >>> [(rows.tolist(), T) for rows, T in grouped(np.array([3, 20, 9, 8]), tokens=32)]
        [([1], 24), ([2, -1], 16), ([3, 0, -1, -1], 8)]
    """
    steps = np.array(_LENGTHS)
    beyond = -(-lengths // 512) * 512
    padded = steps[np.minimum(np.searchsorted(steps, lengths), len(steps) - 1)]
    padded = np.where(lengths > steps[-1], beyond, padded)
    for T in np.unique(padded)[::-1]:
        members = np.flatnonzero(padded == T)
        members = members[np.argsort(-lengths[members], kind="stable")]
        rows = max(1, tokens // int(T))
        for start in range(0, len(members), rows):
            chosen = np.full(rows, -1, np.int64)
            chosen[: len(members[start : start + rows])] = members[start : start + rows]
            yield chosen, int(T)


class Batches:
    """Runs a function of an encoder over examples, compiled once for each shape.

    Args:
        program: ``(params, batch) -> array or tree of arrays``, the first axis of each being rows;
            the batch holds tokens, lengths and types (``make_inputs``).
        tokens: Of a batch, padding included.
        pad: The id that fills up rows.
    """

    def __init__(self, program: Callable[[Any, dict[str, Any]], Any], *, tokens: int, pad: int):
        self._program, self._tokens, self._pad = jax.jit(program), tokens, pad

    def __call__(
        self, params: Any, examples: Examples
    ) -> Iterator[tuple[Int[np.ndarray, " rows"], Any]]:
        """The numbers of some examples and what comes of them, until all have come once."""
        waiting: tuple[np.ndarray, Any] | None = None
        for indices, T in grouped(examples.store.lengths, self._tokens):
            batch = make_inputs(examples, indices, T, self._pad)
            made = self._program(params, batch)
            if waiting is not None:  # one batch is computed while the one before is fetched
                yield self._fetched(*waiting)
            waiting = indices, made
        if waiting is not None:
            yield self._fetched(*waiting)

    @staticmethod
    def _fetched(indices: np.ndarray, made: Any) -> tuple[np.ndarray, Any]:
        real = indices >= 0
        return indices[real], jax.tree.map(lambda a: np.asarray(a)[real], made)

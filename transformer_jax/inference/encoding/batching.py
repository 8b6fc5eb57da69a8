"""Batches of texts for an encoder, padded or packed, in a few shapes."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.core.numerics import refuse_nonfinite
from transformer_jax.data.examples import EncodedExamples, collate
from transformer_jax.data.row_offsets import ragged_indices
from transformer_jax.parallel.placement import MeshProgram, round_up_rows

__all__ = [
    "Batches",
    "PackedBatches",
    "PackedRows",
    "default_tokens",
    "length_buckets",
    "make_packed_inputs",
    "pack",
]

# Padded lengths up to 512, and multiples of 512 beyond.
_STEPS = ((4, 32, 4), (32, 64, 8), (64, 128, 16), (128, 256, 32), (256, 513, 64))
_LENGTHS = tuple(length for step in _STEPS for length in range(*step))
_BATCH = 64  # tokens of padding to accept in order to save a batch, and perhaps a shape


def length_buckets(
    lengths: Int[np.ndarray, " count"], tokens: int
) -> Iterator[tuple[Int[np.ndarray, " B"], int]]:
    """Yields batches of examples of similar length: indices (-1 is empty), and padded length.

    A batch has as many rows as fit into ``tokens``. A remainder joins the next length if that adds
    little padding; otherwise its rows are padded to a power of two. The longest batches are first,
    so that a lack of memory shows immediately.

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
            and left < tokens // above  # else they would fill a longer batch on their own
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
        # The longest are also first within a batch.
        yield np.concatenate([chosen[chosen >= 0][::-1], chosen[chosen < 0]]), T


class Batches:
    """Runs a function of an encoder over examples, compiled once for each shape.

    Args:
        program: ``(params, batch) -> array or tree of arrays`` with rows as first axis; the batch
            has tokens, lengths and types (``collate``).
        tokens: Maximum number of tokens per batch, with padding.
        pad: Padding id.
    """

    def __init__(self, program: Callable[[Any, dict[str, Any]], Any], *, tokens: int, pad: int):
        self._program, self._tokens, self._pad = MeshProgram(program), tokens, pad

    def __call__(
        self, params: Any, examples: EncodedExamples
    ) -> Iterator[tuple[Int[np.ndarray, " rows"], Any]]:
        """Yields indices of examples with their results, until all are done.

        Raises:
            NumericsError: The model computed NaN or infinity.
        """
        waiting: tuple[np.ndarray, Any] | None = None
        for indices, T in length_buckets(examples.store.lengths, self._tokens):
            empty = round_up_rows(len(indices), params) - len(indices)
            indices = np.concatenate([indices, np.full(empty, -1, indices.dtype)])
            batch = collate(examples, indices, T, self._pad)
            made = self._program(params, batch)
            if waiting is not None:  # compute a batch while fetching the previous one
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


# Row lengths in tokens; longer rows are multiples of the last.
_ROW_LENGTHS = (64, 128, 256, 512)


class PackedRows(NamedTuple):
    """The texts in each row of a batch, in order.

    Attributes:
        numbers: Indices of the texts; -1 is empty.
        T: Length of a row in tokens.
    """

    numbers: Int[np.ndarray, "B S"]
    T: int


def default_tokens(platform: str) -> int:
    """Returns the default number of tokens per batch; on a CPU, as many as fit into its caches.

    Example:
        >>> default_tokens("cpu"), default_tokens("tpu")
        (512, 8192)
    """
    return 512 if platform == "cpu" else 8192


def pack(lengths: Int[np.ndarray, " count"], tokens: int) -> Iterator[PackedRows]:
    """Yields batches of rows of several texts each; every text is in exactly one row.

    A text is placed in the row with the least sufficient room, the longest text first (best fit
    decreasing). A batch has ``tokens`` divided by row length rows; the last batch of each length
    has a power of two, so that few shapes are compiled.

    Args:
        lengths: Number of tokens of each text.
        tokens: Maximum number of tokens per batch, with padding; a longer text has its own batch.

    Example:
        >>> [(rows.numbers[:, :2].tolist(), rows.T) for rows in pack(np.array([70, 3, 60]), 128)]
        [([[0, -1]], 128), ([[2, 1]], 64)]
    """
    order = np.argsort(-lengths, kind="stable")
    classes = np.array([_row_length(int(lengths[i])) for i in order], np.int64)
    rows = _OpenRows()
    made: list[tuple[int, list[list[int]]]] = []
    for T in sorted(set(classes.tolist()), reverse=True):
        own: list[list[int]] = []
        most = max(1, tokens // T)
        for i in order[classes == T].tolist():
            if not rows.take(i, int(lengths[i])):
                own.append([i])
                rows.open(own[-1], T - int(lengths[i]), T // 2)
        # Empty rows of the last batch have room for shorter texts.
        left = len(own) % most
        for _ in range(min(most, 1 << max(left - 1, 0).bit_length()) - left if left else 0):
            own.append([])
            rows.open(own[-1], T, T // 2)
        made.append((T, own))
    for T, own in made:
        most = max(1, tokens // T)
        for start in range(0, len(own), most):
            some = own[start : start + most]
            numbers = np.full((len(some), T // 2), -1, np.int64)
            for row, texts in zip(numbers, some, strict=True):
                row[: len(texts)] = texts
            yield PackedRows(numbers, T)


def _row_length(length: int) -> int:
    last = _ROW_LENGTHS[-1]
    return next((T for T in _ROW_LENGTHS if length <= T), -(-length // last) * last)


class _OpenRows:
    """Rows with room, by their room."""

    def __init__(self) -> None:
        self._by_room: dict[int, list[tuple[list[int], int]]] = {}
        self._most = 0

    def open(self, row: list[int], room: int, texts: int) -> None:
        """Adds a row with ``room`` free tokens and at most ``texts`` texts."""
        if room and len(row) < texts:
            self._by_room.setdefault(room, []).append((row, texts))
            self._most = max(self._most, room)

    def take(self, text: int, length: int) -> bool:
        """Places a text in a row with room; returns whether there was one."""
        for room in range(length, self._most + 1):
            if found := self._by_room.get(room):
                row, texts = found.pop()
                row.append(text)
                self.open(row, room - length, texts)
                return True
        return False


def make_packed_inputs(
    examples: EncodedExamples, rows: PackedRows, pad: int
) -> dict[str, np.ndarray]:
    """Returns the arrays of one batch.

    Returns:
        ``tokens``, ``types`` and ``positions`` int32 ``[B T]``, positions counted within each text;
        ``segments`` int32 ``[B T]``, 1 for the first text of a row, and 0 for padding; ``starts``
        and ``lengths`` int32 ``[B S]`` of each text.

    Example:
        >>> from transformer_jax.data.store import TokenStore
        >>> store = TokenStore(np.array([2, 7, 3, 2, 3]), np.array([0, 3, 5]))
        >>> rows = PackedRows(np.array([[0, 1, -1]]), 6)
        >>> batch = make_packed_inputs(EncodedExamples(store, store.lengths), rows, pad=0)
        >>> [batch[name].tolist() for name in ("tokens", "segments", "positions")]
        [[[2, 7, 3, 2, 3, 0]], [[1, 1, 1, 2, 2, 0]], [[0, 1, 2, 0, 1, 0]]]
    """
    store, (numbers, T) = examples.store, rows
    lengths = np.where(numbers < 0, 0, store.lengths[numbers])
    starts = np.cumsum(lengths, axis=1) - lengths
    texts, places = ragged_indices(lengths.ravel())  # of every token: its text and its position
    row, chosen = texts // numbers.shape[1], numbers.ravel()[texts]
    at = row, starts.ravel()[texts] + places
    made = {name: np.zeros((len(numbers), T), np.int32) for name in ("types", "positions")}
    made |= {"tokens": np.full((len(numbers), T), pad, np.int32), "segments": made["types"].copy()}
    made["tokens"][at] = store.ids[store.offsets[chosen] + places]
    made["types"][at] = places >= examples.pair_starts[chosen]
    made["positions"][at] = places
    made["segments"][at] = texts % numbers.shape[1] + 1
    return made | {"starts": starts.astype(np.int32), "lengths": lengths.astype(np.int32)}


class PackedBatches:
    """Runs a function of an encoder over packed examples, compiled once for each shape.

    Args:
        program: ``(params, batch) -> array``, for batches of :func:`make_packed_inputs`.
        tokens: Maximum number of tokens per batch, with padding.
        pad: Padding id.
    """

    def __init__(self, program: Callable[[Any, dict[str, Any]], Any], *, tokens: int, pad: int):
        self._program, self._tokens, self._pad = MeshProgram(program), tokens, pad

    def __call__(
        self, params: Any, examples: EncodedExamples
    ) -> Iterator[tuple[PackedRows, Float[np.ndarray, "B ..."]]]:
        """Yields the rows of each batch with their results."""
        waiting: tuple[PackedRows, Array] | None = None
        for rows in pack(examples.store.lengths, self._tokens):
            empty = round_up_rows(len(rows.numbers), params) - len(rows.numbers)
            rows = rows._replace(
                numbers=np.pad(rows.numbers, ((0, empty), (0, 0)), constant_values=-1)
            )
            made = self._program(params, make_packed_inputs(examples, rows, self._pad))
            if waiting is not None:  # compute a batch while fetching the previous one
                yield waiting[0], np.asarray(waiting[1])
            waiting = rows, made
        if waiting is not None:
            yield waiting[0], np.asarray(waiting[1])

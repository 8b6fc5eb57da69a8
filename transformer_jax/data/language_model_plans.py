"""The tokens of each batch: contiguous blocks of one stream, or packed documents."""

import abc
import bisect
import dataclasses
import functools
import hashlib
import math
from typing import Generic, TypeVar

import numpy as np
from jaxtyping import Bool, Int

from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.data.plan import BatchShape, shuffled
from transformer_jax.data.store import TokenStore

__all__ = [
    "ContiguousPlan",
    "PackingPlan",
    "RowBatch",
    "RowsPlan",
    "make_rows",
    "pack",
    "places_of",
]

Rows = TypeVar("Rows")


@dataclasses.dataclass(frozen=True, eq=False)
class RowBatch:
    """The rows of one batch, each with at most ``P`` segments of the store.

    Attributes:
        indices: Index of each row in the plan; -1 for none.
        begins: Index in the store of the first target of each segment.
        lengths: Number of targets of each segment; 0 for none.
        context_only: Number of leading targets without weight, which serve as context.
        starts_document: Whether a segment begins a document: its first input is then BOS, otherwise
            the token before it.
        packed: Whether the segments of a row must not see each other.
    """

    indices: Int[np.ndarray, " B"]
    begins: Int[np.ndarray, "B P"]
    lengths: Int[np.ndarray, "B P"]
    context_only: Int[np.ndarray, "B P"]
    starts_document: Bool[np.ndarray, "B P"]
    packed: bool

    def __len__(self) -> int:
        return len(self.indices)

    def select(self, rows: Int[np.ndarray, " b"]) -> "RowBatch":
        """Selects rows, such as the rows of one process."""
        begins, lengths, context_only, starts = (part[rows] for part in self.segments())
        return RowBatch(self.indices[rows], begins, lengths, context_only, starts, self.packed)

    def segments(self) -> tuple[np.ndarray, ...]:
        """The arrays with one value per segment."""
        return self.begins, self.lengths, self.context_only, self.starts_document


class RowsPlan(abc.ABC, Generic[Rows]):
    """Rows of equal length, ``rows`` at a time, reshuffled for every epoch."""

    shapes: list[BatchShape]
    steps_per_epoch: int
    fingerprint: str

    def __init__(self, count: int, length: int, rows: int, seed: int, shuffle: bool):
        self.shapes = [BatchShape(rows, 0, length)]  # no source
        self.steps_per_epoch = -(-count // rows)
        self._count, self._seed, self._shuffle = count, seed, shuffle
        self._cached: tuple[int, np.ndarray] = (0, self._order(0))

    def __repr__(self) -> str:
        rows, _, length = self.shapes[0]
        return (
            f"{type(self).__name__}({self._count} rows of {length}, {rows} at a time, "
            f"{self.steps_per_epoch} steps an epoch, {self.non_padding_fraction:.1%} non-padding)"
        )

    @property
    def non_padding_fraction(self) -> float:
        """The fraction of positions whose targets have weight, over an epoch."""
        rows, _, length = self.shapes[0]
        return self._weight() / (self.steps_per_epoch * rows * length)

    def batch(self, step: int) -> Rows:
        """The rows of batch ``step``, counted from 0 over all epochs."""
        epoch, position = divmod(step, self.steps_per_epoch)
        # One assignment of one tuple, so that threads never see an epoch with another one's order.
        cached = self._cached
        if cached[0] != epoch:
            self._cached = cached = (epoch, self._order(epoch))
        rows = self.shapes[0].rows
        indices = np.full(rows, -1, np.int64)
        chosen = cached[1][position * rows : (position + 1) * rows]
        indices[: len(chosen)] = chosen
        return self._rows(indices, epoch)

    def padding(self, start: int = 0) -> list[Rows]:
        """An empty batch of the only shape."""
        del start
        return [self.batch(0)]

    def _order(self, epoch: int) -> np.ndarray:
        if not self._shuffle:
            return np.arange(self._count)
        return shuffled(self._count, self._seed, 2 * epoch)

    @abc.abstractmethod
    def _weight(self) -> int:
        """Number of targets with weight in an epoch."""

    @abc.abstractmethod
    def _rows(self, indices: np.ndarray, epoch: int) -> Rows:
        """Returns the rows of an epoch by their indices."""


class ContiguousPlan(RowsPlan[RowBatch]):
    """Contiguous blocks of one stream of tokens, as in nanoGPT: targets are inputs shifted by one.

    With ``shuffle``, block i of an epoch reads ``length`` tokens from ``phase + i * length`` on and
    predicts the next token of each. The phase and the order of blocks are random in every epoch, so
    the boundaries differ; fewer than ``2 * length`` tokens at both ends of the stream are omitted
    from an epoch.

    Without it, the blocks are in order and every token but the first is a target exactly once; the
    last block may be partly padding. With a ``stride`` below ``length``, blocks overlap and only
    the last ``stride`` targets of each have weight, so each of these has at least
    ``length - stride`` tokens of context before it, or all there are.

    Example:
        >>> plan = ContiguousPlan(10, length=4, rows=2, shuffle=False)
        >>> plan.batch(1).begins.tolist(), plan.batch(1).lengths.tolist()
        ([[9], [0]], [[1], [0]])
    """

    def __init__(
        self,
        total_tokens: int,
        *,
        length: int,
        rows: int,
        seed: int = 0,
        shuffle: bool = True,
        stride: int | None = None,
    ):
        """Makes a plan for a stream of ``total_tokens`` tokens.

        Args:
            total_tokens: Number of tokens in the store.
            length: Number of inputs, and of targets, in a block.
            rows: Number of blocks in a batch.
            seed: Random seed of phases and order.
            shuffle: False keeps the order of blocks, and covers all of the stream.
            stride: Distance between the starts of blocks, for evaluation; None is ``length``.

        Raises:
            ConfigError: A value is out of range, or a stride is given for shuffled blocks.
            DataError: There are too few tokens for one block.
        """
        _check(length, rows)
        self._stride = length if stride is None else stride
        if not 1 <= self._stride <= length:
            raise ConfigError(f"stride is {stride}: 1 to {length}, the length of a block")
        if shuffle and self._stride != length:
            raise ConfigError(f"stride is {stride}: shuffled blocks do not overlap, leave it out")
        least = length + 1 if shuffle else 2
        if total_tokens < least:
            raise DataError(
                f"the text has {plural(total_tokens, 'token')} and a block of {length} needs "
                f"{least}: give more text, or a shorter training.sequence_length"
            )
        self._targets = total_tokens - 1
        if shuffle:
            count = max(1, total_tokens // length - 1)  # the same, whatever the phase
        else:
            count = 1 + -(-max(0, self._targets - length) // self._stride)
        super().__init__(count, length, rows, seed, shuffle)
        self.fingerprint = _digest("blocks", total_tokens, length, rows, seed, shuffle, stride)

    def _weight(self) -> int:
        return self._count * self.shapes[0].T if self._shuffle else self._targets

    def _phase(self, epoch: int) -> int:
        if not self._shuffle:
            return 0
        length = self.shapes[0].T
        room = min(length, self._targets - self._count * length + 1)
        return int(shuffled(room, self._seed, 2 * epoch + 1)[0])

    def _rows(self, indices: np.ndarray, epoch: int) -> RowBatch:
        length = self.shapes[0].T
        begins = np.where(indices < 0, 0, self._phase(epoch) + indices * self._stride + 1)
        lengths = np.where(indices < 0, 0, np.minimum(self._targets + 1 - begins, length))
        skips = np.where(indices > 0, length - self._stride, 0)
        begins, lengths, skips = (array[:, None] for array in (begins, lengths, skips))
        return RowBatch(indices, begins, lengths, skips, np.zeros_like(begins, bool), False)


class PackingPlan(RowsPlan[RowBatch]):
    """Documents packed into rows, several per row if they fit, which do not see each other.

    A document longer than a row is split into segments; each later segment has the token before it
    as its first input. Segments are placed, longest first, in the fullest row with room for them
    (best fit decreasing, Ding et al. 2024). Packing happens once; the order of rows is reshuffled
    for every epoch. Every token is a target exactly once per epoch.

    Example:
        >>> plan = PackingPlan(np.array([3, 9, 4, 5]), length=8, rows=2, shuffle=False)
        >>> plan.non_padding_fraction, plan.batch(0).begins.tolist(), plan.batch(0).lengths.tolist()
        (0.65625, [[3, 0], [0, 16]], [[8, 0], [3, 5]])
    """

    def __init__(
        self,
        document_lengths: Int[np.ndarray, " count"],
        *,
        length: int,
        rows: int,
        seed: int = 0,
        shuffle: bool = True,
    ):
        """Makes a plan for documents of these lengths.

        Args:
            document_lengths: Number of tokens of each document, including its end token.
            length: Number of tokens in a row.
            rows: Number of rows in a batch.
            seed: Random seed of packing and of the order of rows.
            shuffle: False keeps the order in which rows were packed.

        Raises:
            ConfigError: A value is out of range.
            DataError: There are no tokens.
        """
        _check(length, rows)
        lengths = np.asarray(document_lengths, np.int64)
        if not lengths.sum():
            raise DataError("there are no documents to pack")
        begins, sizes, fresh = _segments(lengths, length)
        order, self._offsets = pack(sizes, length, seed)
        self._begins, self._sizes, self._fresh = begins[order], sizes[order], fresh[order]
        super().__init__(len(self._offsets) - 1, length, rows, seed, shuffle)
        self._total = int(lengths.sum())
        self.fingerprint = _digest("packed", lengths.astype("<i8"), length, rows, seed, shuffle)

    def _weight(self) -> int:
        return self._total

    def _rows(self, indices: np.ndarray, epoch: int) -> RowBatch:
        del epoch  # packed once
        places, valid = places_of(self._offsets, indices)
        return RowBatch(
            indices,
            np.where(valid, self._begins[places], 0),
            np.where(valid, self._sizes[places], 0),
            np.zeros_like(places),
            self._fresh[places] & valid,
            True,
        )


def make_rows(
    store: TokenStore, batch: RowBatch, T: int, bos: int, pad: int
) -> dict[str, np.ndarray]:
    """Returns the arrays of one batch, in which position t reads the token before its target.

    Args:
        store: The tokens.
        batch: Rows of the batch, from ``ContiguousPlan.batch`` or ``PackingPlan.batch``.
        T: Length of the rows.
        bos: The first input of a document, in packed rows.
        pad: The id of padding.

    Returns:
        ``tokens`` and ``targets`` int32 ``[B T]``, ``weights`` float32 ``[B T]``, 0 for padding
        and for context; for packed rows also int32 ``segments`` ``[B T]``, 1, 2, ... by segment
        and 0 for padding, and ``positions`` ``[B T]``, from 0 in each segment.

    Example:
        >>> store = TokenStore(np.array([5, 6, 3, 7, 3]), np.array([0, 3, 5]))
        >>> plan = PackingPlan(store.lengths, length=6, rows=1)
        >>> rows = make_rows(store, plan.batch(0), 6, bos=1, pad=0)
        >>> rows["tokens"], rows["targets"], rows["segments"]
        (array([[1, 5, 6, 1, 7, 0]], dtype=int32),
         array([[5, 6, 3, 7, 3, 0]], dtype=int32),
         array([[1, 1, 1, 2, 2, 0]], dtype=int32))
    """
    B = len(batch.indices)
    row, column = np.nonzero(batch.lengths)
    begins, lengths, skips, fresh = (field[row, column] for field in batch.segments())
    ends = np.cumsum(batch.lengths, axis=1)
    firsts = row * T + ends[row, column] - lengths  # indices in the flat batch
    before = np.cumsum(lengths) - lengths
    count = np.arange(lengths.sum())
    within = count - np.repeat(before, lengths)
    places = np.repeat(firsts, lengths) + within
    source = np.repeat(begins, lengths) + within

    spread = functools.partial(_spread, (B, T), places)
    inputs = store.ids[np.maximum(source - 1, 0)]
    tokens = spread(inputs, pad)
    tokens.reshape(-1)[firsts[fresh]] = bos
    made = {
        "tokens": tokens,
        "targets": spread(store.ids[source], pad),
        "weights": spread(within >= np.repeat(skips, lengths), 0, np.float32),
    }
    if batch.packed:
        made["segments"] = spread(np.repeat(column + 1, lengths), 0)
        made["positions"] = spread(within, 0)
    return made


def _spread(
    shape: tuple[int, int],
    places: Int[np.ndarray, " P"],
    values: np.ndarray,
    fill: int,
    dtype: type = np.int32,
) -> np.ndarray:
    """An array of ``fill`` with ``values`` at these flat indices."""
    flat: np.ndarray = np.full(math.prod(shape), fill, dtype)
    flat[places] = values
    return flat.reshape(shape)


def _check(length: int, rows: int) -> None:
    for name, value in (("length", length), ("rows", rows)):
        if value < 1:
            raise ConfigError(f"{name} is {value}: at least 1")


def _digest(*settings: object) -> str:
    digest = hashlib.sha256()
    for value in settings:
        digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def _segments(
    lengths: Int[np.ndarray, " count"], limit: int
) -> tuple[Int[np.ndarray, " P"], Int[np.ndarray, " P"], Bool[np.ndarray, " P"]]:
    """Starts of segments of at most ``limit`` tokens, their lengths, and which begin a document."""
    counts = -(-lengths // limit)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    sizes = np.minimum(np.repeat(lengths, counts) - within * limit, limit)
    begins = np.repeat(np.cumsum(lengths) - lengths, counts) + within * limit
    return begins, sizes, within == 0


def pack(
    sizes: Int[np.ndarray, " P"], limit: int, seed: int
) -> tuple[Int[np.ndarray, " P"], Int[np.ndarray, " rows"]]:
    """Packs segments into rows, longest first, each into the fullest row with room.

    Args:
        sizes: Number of tokens of each segment, at most ``limit``.
        limit: Number of tokens of a row.
        seed: Random seed of the order of segments of equal size.

    Returns:
        The segments in the order of rows, and the index in it of the first of each row, and the
        end.

    Example:
        >>> pack(np.array([3, 8, 4, 5]), limit=8, seed=0)
        (array([1, 0, 3, 2]), array([0, 1, 3, 4]))
    """
    row = _best_fit(sizes, limit, seed)
    return np.argsort(row, kind="stable"), np.concatenate([[0], np.cumsum(np.bincount(row))])


def places_of(
    offsets: Int[np.ndarray, " rows"], indices: Int[np.ndarray, " B"]
) -> tuple[Int[np.ndarray, "B P"], Bool[np.ndarray, "B P"]]:
    """Returns the indices of the segments of some rows of :func:`pack`, and which there are."""
    known = np.maximum(indices, 0)
    counts = np.where(indices < 0, 0, offsets[known + 1] - offsets[known])
    columns = np.arange(counts.max())
    valid = columns < counts[:, None]
    return np.where(valid, offsets[known][:, None] + columns, 0), valid


def _best_fit(sizes: Int[np.ndarray, " P"], limit: int, seed: int) -> Int[np.ndarray, " P"]:
    """Assigns segments to rows.

    Segments of equal size are interchangeable, and so are rows with equal room, so both move in
    groups: a row with room r takes r // size segments in turn, because it remains the fullest after
    each.
    """
    row = np.empty(len(sizes), np.int64)
    by_size = np.argsort(sizes, kind="stable")
    bounds = np.searchsorted(sizes[by_size], np.arange(limit + 2))
    rooms: list[int] = []  # of the open rows, ascending
    waiting: dict[int, list[np.ndarray]] = {}  # the rows with that room, in groups
    begun = 0

    def put(group: np.ndarray, room: int) -> None:
        if room and len(group):
            if room not in waiting:
                bisect.insort(rooms, room)
            waiting.setdefault(room, []).append(group)

    for size in range(limit, 0, -1):
        members = by_size[bounds[size] : bounds[size + 1]]
        if len(members):
            members = members[shuffled(len(members), seed, 2 * size + 1)]
        while len(members):
            at = bisect.bisect_left(rooms, size)
            if at < len(rooms):
                room = rooms.pop(at)
                group = np.concatenate(waiting.pop(room))
            else:
                room = limit
                group = np.arange(begun, begun + -(-len(members) // (limit // size)))
                begun += len(group)
            each = room // size
            full, rest = divmod(min(len(members), each * len(group)), each)
            used = full * each + rest
            row[members[:used]] = np.repeat(group[: full + (rest > 0)], each)[:used]
            members = members[used:]
            put(group[:full], room - each * size)
            put(group[full : full + (rest > 0)], room - rest * size)
            put(group[full + (rest > 0) :], room)
    return row

"""Batches of a fixed number of examples, whose texts share rows."""

import dataclasses
import functools
import hashlib

import numpy as np
from jaxtyping import Int

from transformer_jax.core.errors import DataError
from transformer_jax.data.plan import shuffled

__all__ = ["ExampleRows", "RowPlan"]

_UNIT = 8  # padded lengths are multiples of this
_SAMPLED = 256  # batches from which the shapes are chosen
_SIZES = 4  # shapes have up to about this many times their difference as rows


@dataclasses.dataclass(frozen=True, eq=False)
class ExampleRows:
    """The examples in each row of a batch.

    Attributes:
        numbers: Indices of the examples; -1 is none.
        T: Length of a row in tokens.
    """

    numbers: Int[np.ndarray, "R E"]
    T: int

    def __len__(self) -> int:
        return len(self.numbers)

    def select(self, rows: Int[np.ndarray, " b"]) -> "ExampleRows":
        """Selects rows, such as the rows of one process."""
        return ExampleRows(self.numbers[rows], self.T)


class RowPlan:
    """Batches of ``batch_size`` examples in random order, packed into rows of one length.

    All batches of an epoch have as many examples but the last. An example is placed in the row
    with the most room, the longest first; the number of rows is rounded up, so that there are few
    shapes.

    Example:
        >>> plan = RowPlan(np.array([5, 3, 4, 2, 6]), batch_size=4, shuffle=False)
        >>> plan.batch(0).numbers.tolist(), plan.batch(0).T
        ([[0, 3, -1], [2, 1, -1]], 8)
        >>> plan.batch(1).numbers.tolist()
        [[4, -1, -1], [-1, -1, -1]]
    """

    def __init__(
        self,
        lengths: Int[np.ndarray, " count"],
        *,
        batch_size: int,
        row_unit: int = 1,
        seed: int = 0,
        shuffle: bool = True,
    ):
        """Makes a plan for examples of these lengths.

        Args:
            lengths: Number of tokens of each example, over all of its texts.
            batch_size: Examples in a batch.
            row_unit: The number of rows is a multiple of this, so that they divide over devices and
                micro-batches.
            seed: Random seed of the order.
            shuffle: False keeps the order.

        Raises:
            DataError: There are no examples.
        """
        if not len(lengths):
            raise DataError("there are no examples to make batches of")
        self._lengths, self._batch_size = lengths, batch_size
        self._seed, self._shuffle = seed, shuffle
        self.steps_per_epoch = -(-len(lengths) // batch_size)
        self._epoch = 0, self._order(0)
        self.T = -(-int(lengths.max()) // _UNIT) * _UNIT
        self._most = max(1, min(batch_size, -(-3 * self.T // int(2 * lengths.mean()))))
        sampled = range(min(_SAMPLED, self.steps_per_epoch))
        counts = [len(self._packed(step)) for step in sampled]
        self._unit = row_unit * max(1, round(max(counts) / (_SIZES * row_unit)))
        # The last batch of an epoch may be small, and needs no shape of its own.
        self._least = min(counts[:-1], default=1)
        self.sizes = sorted({self._rounded(count) for count in counts})
        # Without the unit: a run on other devices has the same examples in each batch.
        digest = hashlib.sha256(repr((batch_size, seed, shuffle)).encode())
        digest.update(lengths.astype("<i8").tobytes())
        self.fingerprint = digest.hexdigest()[:16]

    @functools.cached_property
    def non_padding_fraction(self) -> float:
        """The fraction of token positions that are not padding, of the first batches."""
        sampled = range(min(_SAMPLED, self.steps_per_epoch))
        rows = [self.batch(step).numbers for step in sampled]
        real = sum(self._lengths[numbers[numbers >= 0]].sum() for numbers in rows)
        return float(real / (self.T * sum(map(len, rows))))

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Rows and tokens of the batches."""
        return [(size, self.T) for size in self.sizes]

    def batch(self, step: int) -> ExampleRows:
        """The rows of batch ``step``, counted from 0 over all epochs."""
        packed = self._packed(step)
        numbers = np.full((self._rounded(len(packed)), self._most), -1, np.int64)
        for row, examples in zip(numbers, packed, strict=False):
            row[: len(examples)] = examples
        return ExampleRows(numbers, self.T)

    def padding(self, start: int = 0) -> list[ExampleRows]:
        """Empty batches of every shape, the one of the next batch first."""
        sizes = dict.fromkeys([len(self.batch(start)), *self.sizes])
        return [ExampleRows(np.full((size, self._most), -1), self.T) for size in sizes]

    def _rounded(self, rows: int) -> int:
        return -(-max(rows, self._least) // self._unit) * self._unit

    def _order(self, epoch: int) -> Int[np.ndarray, " count"]:
        count = len(self._lengths)
        return shuffled(count, self._seed, epoch) if self._shuffle else np.arange(count)

    def _packed(self, step: int) -> list[list[int]]:
        """Returns the examples of each row of a batch."""
        epoch, place = divmod(step, self.steps_per_epoch)
        number, order = self._epoch
        if number != epoch:
            self._epoch = epoch, (order := self._order(epoch))
        chosen = order[place * self._batch_size :][: self._batch_size]
        longest_first = chosen[np.argsort(-self._lengths[chosen], kind="stable")]
        least = -(-int(self._lengths[chosen].sum()) // self.T)
        rows: list[list[int]] = [[] for _ in range(least)]
        room = np.full(least, self.T)
        for example in longest_first.tolist():
            row, length = int(np.argmax(room)), self._lengths[example]
            if room[row] < length:
                row, room = len(rows), np.append(room, self.T)
                rows.append([])
            rows[row].append(example)
            room[row] = 0 if len(rows[row]) == self._most else room[row] - length
        return rows

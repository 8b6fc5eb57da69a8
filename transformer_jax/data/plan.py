"""The examples of each batch, as a pure function of the lengths, the seed and the step."""

import copy
import dataclasses
import functools
import hashlib
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int, UInt64

from transformer_jax.core.arguments import check_values
from transformer_jax.core.config_fields import Amount, Configuration, Count
from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.data.shapes import choose_shapes

__all__ = [
    "ArrayPlan",
    "BatchPlan",
    "BatchShape",
    "Batching",
    "BucketPlan",
    "MixedPlan",
    "hashed",
    "repeats",
    "rows_within",
    "shuffled",
    "uniform",
]


class BatchShape(NamedTuple):
    """The shape of a batch, whose arrays are ``[rows S]`` and ``[rows T]``."""

    rows: int
    S: int
    T: int


@dataclasses.dataclass(frozen=True, eq=False)
class BatchPlan:
    """The rows of one batch: the example of each (-1 for none), and the padded lengths."""

    indices: Int[np.ndarray, " B"]
    S: int
    T: int

    def __len__(self) -> int:
        return len(self.indices)

    def select(self, rows: Int[np.ndarray, " b"]) -> "BatchPlan":
        """Selects rows, such as the rows of one process."""
        return BatchPlan(self.indices[rows], self.S, self.T)


@dataclasses.dataclass(frozen=True)
class ArrayPlan:
    """Rows of arrays in shuffled batches of one size; the last batch of an epoch wraps around.

    Its items are arrays of row indices. If ``rows`` does not divide ``count``, validation counts
    the first rows twice, unless ``fill`` replaces them by -1, which is no row.

    Example:
        >>> plan = ArrayPlan(count=5, rows=2)
        >>> [plan.batch(step).tolist() for step in range(plan.steps_per_epoch)]
        [[0, 2], [4, 3], [1, 0]]
    """

    count: int
    rows: int
    seed: int = 0
    shuffle: bool = True
    fill: bool = dataclasses.field(default=False, repr=False)

    def __post_init__(self) -> None:
        names = {"count": Count, "rows": Count, "seed": Amount, "shuffle": bool, "fill": bool}
        check_values("ArrayPlan: ", names, {name: getattr(self, name) for name in names})

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches until each row has occurred at least once."""
        return -(-self.count // self.rows)

    @property
    def fingerprint(self) -> str:
        """Checksum of the plan."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]

    def batch(self, step: int) -> Int[np.ndarray, " B"]:
        """The rows of batch ``step``, counted from 0 over all epochs."""
        epoch, position = divmod(step, self.steps_per_epoch)
        order = np.arange(self.count)
        if self.shuffle:
            order = shuffled(self.count, self.seed, epoch)
        begin = position * self.rows
        if self.fill:
            order = np.append(order, np.full(-self.count % self.rows, -1))
        return np.take(order, range(begin, begin + self.rows), mode="wrap")

    def padding(self, start: int = 0) -> list[Int[np.ndarray, " B"]]:
        """Rows of the only batch shape."""
        return [self.batch(start)]


class BucketPlan:
    """Batches of examples of similar lengths, in a fixed set of shapes under a token budget.

    Each example occurs once per epoch. It belongs to the first shape that holds both its sides; a
    shape has as many rows as the budget allows. Examples left over after a shape's last full batch
    move up to the next shape if that wastes less than empty rows. The composition and order of
    batches are reshuffled for every epoch, by arithmetic that does not depend on library versions.

    Example:
        >>> lengths = np.array([3, 9, 4, 5, 8, 2])
        >>> plan = BucketPlan(lengths, lengths, max_tokens=16, pad_to_multiple_of=8)
        >>> plan.shapes
        [BatchShape(rows=2, S=8, T=8), BatchShape(rows=1, S=16, T=16)]
        >>> plan.steps_per_epoch
        4
        >>> sorted(int(i) for step in range(4) for i in plan.batch(step).indices if i >= 0)
        [0, 1, 2, 3, 4, 5]
    """

    shapes: list[BatchShape]
    steps_per_epoch: int
    fingerprint: str

    def __init__(
        self,
        source_lengths: Int[np.ndarray, " count"],
        target_lengths: Int[np.ndarray, " count"],
        *,
        max_tokens: int = 4096,
        num_buckets: int = 6,
        pad_to_multiple_of: int = 4,
        required_batch_size_multiple: int = 1,
        seed: int = 0,
        shuffle: bool = True,
    ):
        """Makes a plan for examples of these lengths.

        Args:
            source_lengths: Number of tokens in each source.
            target_lengths: Number of tokens in each target.
            max_tokens: Largest ``rows * max(S, T)`` of a batch, including padding.
            num_buckets: Largest number of shapes, chosen from the lengths (``choose_shapes``).
            pad_to_multiple_of: Padded lengths are multiples of this, or of 8 if below it.
            required_batch_size_multiple: The number of rows is a multiple of this, so that they
                divide over devices and micro-batches.
            seed: Random seed of the order.
            shuffle: False keeps the order of shapes, and of the examples within each.

        Raises:
            ConfigError: The budget has no room for enough rows of the longest example.
            DataError: There are no examples.
        """
        source_lengths = np.asarray(source_lengths, np.int64)
        target_lengths = np.asarray(target_lengths, np.int64)
        if not len(source_lengths):
            raise DataError("there are no examples to make batches of")
        rows = required_batch_size_multiple
        settings = {
            "num_buckets": num_buckets,
            "pad_to_multiple_of": pad_to_multiple_of,
            "required_batch_size_multiple": rows,
        }
        for name, value in settings.items():
            if value < 1:
                raise ConfigError(f"{name} is {value}: at least 1")
        sizes = choose_shapes(source_lengths, target_lengths, num_buckets, pad_to_multiple_of)
        self.shapes = [
            BatchShape(rows_within(max_tokens, max(size), rows), *size) for size in sizes
        ]
        self._seed, self._shuffle = seed, shuffle
        self._chosen = (max_tokens, num_buckets, pad_to_multiple_of, rows, seed, shuffle)
        self._fill(source_lengths, target_lengths)

    def _fill(
        self, source_lengths: Int[np.ndarray, " count"], target_lengths: Int[np.ndarray, " count"]
    ) -> None:
        self._lengths = source_lengths + target_lengths
        fits = [(source_lengths <= one.S) & (target_lengths <= one.T) for one in self.shapes]
        self._bucket = np.argmax(fits, axis=0)
        self._moves = _moves(np.bincount(self._bucket, minlength=len(fits)), self.shapes)
        digest = hashlib.sha256(repr(self._chosen).encode())
        digest.update(source_lengths.astype("<i8").tobytes())
        digest.update(target_lengths.astype("<i8").tobytes())
        self.fingerprint = digest.hexdigest()[:16]
        self._cached: tuple[int, list[BatchPlan]] = (0, self._epoch(0))
        self.steps_per_epoch = len(self._cached[1])

    def with_lengths(
        self, source_lengths: Int[np.ndarray, " count"], target_lengths: Int[np.ndarray, " count"]
    ) -> "BucketPlan":
        """Returns a plan for other, no longer examples, in batches of the same shapes."""
        other = copy.copy(self)
        other._fill(source_lengths, target_lengths)
        return other

    def __repr__(self) -> str:
        return (
            f"BucketPlan({len(self._bucket)} examples, {self.steps_per_epoch} steps an epoch, "
            f"{self.non_padding_fraction:.1%} non-padding, "
            f"shapes {[tuple(shape) for shape in self.shapes]})"
        )

    @property
    def non_padding_fraction(self) -> float:
        """The fraction of an epoch's token positions that are not padding."""
        padded = sum(len(b.indices) * (b.S + b.T) for b in self.epoch(0))
        return float(self._lengths.sum() / padded)

    def batch(self, step: int) -> BatchPlan:
        """The rows of batch ``step``, counted from 0 over all epochs."""
        epoch, position = divmod(step, self.steps_per_epoch)
        return self.epoch(epoch)[position]

    def needed(self, start: int = 0) -> list[BatchShape]:
        """The shapes, in the order in which the batches after ``start`` steps first need them.

        Shapes that no later batch of the epoch needs come last.

        Example:
            >>> lengths = np.array([3, 9, 4, 5, 8, 2])
            >>> plan = BucketPlan(lengths, lengths, max_tokens=16, pad_to_multiple_of=8,
            ...                   shuffle=False)
            >>> plan.needed(2)[0] == plan.shapes[0], plan.needed(3)[0] == plan.shapes[1]
            (True, True)
        """
        epoch, position = divmod(start, self.steps_per_epoch)
        coming = (BatchShape(len(b.indices), b.S, b.T) for b in self.epoch(epoch)[position:])
        return list(dict.fromkeys([*coming, *self.shapes]))

    def padding(self, start: int = 0) -> list[BatchPlan]:
        """Empty batches, one of every shape, in the order of :meth:`needed`."""
        return [BatchPlan(np.full(rows, -1), S, T) for rows, S, T in self.needed(start)]

    def epoch(self, epoch: int) -> list[BatchPlan]:
        """All batches of an epoch, in order."""
        # One assignment of one tuple, so that threads never see an epoch with another one's
        # batches.
        cached = self._cached
        if cached[0] != epoch:
            self._cached = cached = (epoch, self._epoch(epoch))
        return cached[1]

    def _epoch(self, epoch: int) -> list[BatchPlan]:
        order = np.arange(len(self._bucket))
        if self._shuffle:
            order = shuffled(len(order), self._seed, 2 * epoch)
        batches = []
        carried = order[:0]
        for k, shape in enumerate(self.shapes):
            members = np.concatenate([carried, order[self._bucket[order] == k]])
            stay = len(members) - self._moves[k]  # if any move, the rest is a multiple of the rows
            carried = members[stay:]
            for start in range(0, stay, shape.rows):
                rows = members[start : start + shape.rows]
                padded = np.full(shape.rows, -1, np.int64)
                padded[: len(rows)] = rows
                batches.append(BatchPlan(padded, shape.S, shape.T))
        if self._shuffle:
            batches = [batches[i] for i in shuffled(len(batches), self._seed, 2 * epoch + 1)]
        return batches


@dataclasses.dataclass(frozen=True)
class Batching(Configuration, group="batching"):
    """Batches of examples of similar lengths under a token budget."""

    max_tokens: Count = 4096  # most tokens on a side of a batch, with padding, over all devices
    num_buckets: Count = 6  # largest number of batch shapes
    required_batch_size_multiple: Count = 8  # the number of rows in a batch is a multiple of this
    seed: Amount = 1  # random seed of the order
    # Padded lengths are multiples of this, or of 8 if below; None depends on the task.
    pad_to_multiple_of: Count | None = None

    def settings(self, usual: int = 4) -> dict[str, Any]:
        """The arguments of a :class:`.BucketPlan`.

        Args:
            usual: Default of ``pad_to_multiple_of``.
        """
        multiple = self.pad_to_multiple_of or usual
        return dataclasses.asdict(self) | {"pad_to_multiple_of": multiple}

    def plan(
        self,
        source_lengths: Int[np.ndarray, " count"],
        target_lengths: Int[np.ndarray, " count"] | None = None,
        *,
        usual: int = 4,
        shuffle: bool = True,
    ) -> BucketPlan:
        """Plans batches of examples of these lengths.

        Args:
            source_lengths: Number of tokens in each source.
            target_lengths: Number of tokens in each target; None is as in the source.
            usual: Default of ``pad_to_multiple_of``.
            shuffle: False keeps the order.

        Example:
            >>> batching = Batching(max_tokens=16, required_batch_size_multiple=1)
            >>> batching.plan(np.array([3, 5, 9])).steps_per_epoch
            2
        """
        target_lengths = source_lengths if target_lengths is None else target_lengths
        return BucketPlan(source_lengths, target_lengths, **self.settings(usual), shuffle=shuffle)


def rows_within(max_tokens: int, length: int, multiple: int) -> int:
    """The largest number of rows in a batch under a token budget.

    Args:
        max_tokens: Tokens in a batch, including padding.
        length: Tokens in a row, including padding.
        multiple: The number of rows must be a multiple of this.

    Raises:
        ConfigError: The budget has no room for that many rows.

    Example:
        >>> rows_within(4096, 60, 8)
        64
    """
    if max_tokens < length * multiple:
        raise ConfigError(
            f"a budget of {plural(max_tokens, 'token')} per batch has no room for "
            f"{plural(multiple, 'row')} of the longest text ({length} padded): raise it to "
            f"{length * multiple} or more (training.max_tokens), or lower the length of texts"
        )
    return max_tokens // length // multiple * multiple


def shuffled(count: int, seed: int, stream: int) -> Int[np.ndarray, " count"]:
    """A permutation of ``range(count)`` that is a pure function of its arguments.

    Indices are ordered by SplitMix64 of (seed, stream, index) (Steele et al. 2014).

    Example:
        >>> shuffled(6, seed=0, stream=0)
        array([0, 2, 5, 4, 3, 1])
    """
    return np.argsort(hashed(np.arange(count), seed, stream), kind="stable")


def hashed(
    numbers: Int[np.ndarray, "*shape"], seed: int, stream: int
) -> UInt64[np.ndarray, "*shape"]:
    """A pseudo-random integer for each of ``numbers``: SplitMix64 of (seed, stream, number).

    Example:
        >>> hashed(np.array([0, 1, 0]), seed=0, stream=0) % 100
        array([33, 80, 33], dtype=uint64)
    """
    state = np.array([seed % 2**64, stream], np.uint64)
    start = _splitmix(_splitmix(state[:1]) + state[1:])
    return _splitmix(start + numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def uniform(
    numbers: Int[np.ndarray, "*shape"], seed: int, stream: int
) -> Float64[np.ndarray, "*shape"]:
    """:func:`hashed` scaled to the interval from 0 (included) to 1 (excluded).

    Example:
        >>> uniform(np.arange(3), seed=0, stream=0).round(3)
        array([0.139, 0.971, 0.278])
    """
    return (hashed(numbers, seed, stream) >> np.uint64(11)) * 2.0**-53


def _splitmix(x: np.ndarray) -> np.ndarray:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def _moves(counts: Int[np.ndarray, " K"], shapes: list[BatchShape]) -> list[int]:
    """Counts the left-over examples of each shape that move up to the next shape."""
    moves, carried = [], 0
    for k, shape in enumerate(shapes):
        left = (int(counts[k]) + carried) % shape.rows
        carried = 0
        if k + 1 < len(shapes):
            larger = shapes[k + 1].S + shapes[k + 1].T
            size = shape.S + shape.T
            if left * (larger - size) < (shape.rows - left) * size:
                carried = left
        moves.append(carried)
    return moves


class MixedPlan(BucketPlan):
    """A :class:`.BucketPlan` whose groups of ``n`` examples occur in proportion to ``n^(1/T)``.

    Each example occurs at least once in every epoch. Examples of one group and shape take turns in
    occurring once more. The batches are a pure function of lengths, groups, temperature, seed and
    step.

    Source: Arivazhagan et al. 2019, "Massively Multilingual Neural Machine Translation in the
    Wild", section 4 (temperature-based sampling).

    Example:
        >>> lengths, groups = np.full(10, 4), np.arange(10) // 8
        >>> plan = MixedPlan(lengths, lengths, groups, 2.0, max_tokens=64)
        >>> found = np.concatenate([batch.indices for batch in plan.epoch(0)])
        >>> np.bincount(found[found >= 0]).tolist()
        [1, 1, 1, 1, 1, 1, 1, 1, 2, 2]
    """

    def __init__(
        self,
        source_lengths: Int[np.ndarray, " count"],
        target_lengths: Int[np.ndarray, " count"],
        groups: Int[np.ndarray, " count"],
        temperature: float,
        **settings: Any,
    ):
        """Makes a plan for examples of these lengths and groups.

        Args:
            source_lengths: Number of tokens in each source.
            target_lengths: Number of tokens in each target.
            groups: Index of each example's group, from 0.
            temperature: ``T``; 1 takes every example once.
            **settings: Arguments of :class:`.BucketPlan`.
        """
        # A place in the epoch belongs to a group and a shape; each epoch fills it with other
        # examples.
        times = repeats(np.bincount(groups), temperature)
        members = [np.flatnonzero(groups == group) for group in range(len(times))]
        order = [one[shuffled(len(one), settings.get("seed", 0), 0)] for one in members]
        counts = [round(rate * len(one)) for rate, one in zip(times, members, strict=True)]
        places = [np.resize(one, count) for one, count in zip(order, counts, strict=True)]
        self._places = np.concatenate(places)
        self._sides, self._groups = (source_lengths, target_lengths), groups
        super().__init__(source_lengths[self._places], target_lengths[self._places], **settings)
        digest = hashlib.sha256(self.fingerprint.encode())
        digest.update(self._places.astype("<i8").tobytes())
        self.fingerprint = digest.hexdigest()[:16]

    @functools.cached_property
    def _turns(self) -> list[tuple[Int[np.ndarray, " m"], Int[np.ndarray, " n"]]]:
        """The places of each group and shape, and the examples that fill them in turn."""
        source, target = self._sides
        fits = [(source <= shape.S) & (target <= shape.T) for shape in self.shapes]
        kinds = self._groups * len(self.shapes) + np.argmax(fits, axis=0)
        at = kinds[self._places]
        return [(np.flatnonzero(at == one), np.flatnonzero(kinds == one)) for one in np.unique(at)]

    def _epoch(self, epoch: int) -> list[BatchPlan]:
        examples = np.empty_like(self._places)
        for places, members in self._turns:
            turn = (epoch * len(places) + np.arange(len(places))) % len(members)
            examples[places] = members[turn]
        return [
            BatchPlan(np.where(batch.indices < 0, -1, examples[batch.indices]), batch.S, batch.T)
            for batch in super()._epoch(epoch)
        ]


def repeats(counts: Int[np.ndarray, " G"], temperature: float) -> Float[np.ndarray, " G"]:
    """Returns how often an example of each group occurs in an epoch, at least once.

    The groups occur in proportion to ``n^(1/T)``, scaled so that the least repeated examples occur
    once.

    Args:
        counts: Number of examples in each group, ``n``.
        temperature: ``T``, at least 1.

    Example:
        >>> repeats(np.array([400, 100]), 1.0), repeats(np.array([400, 100]), 2.0)
        (array([1., 1.]), array([1., 2.]))
    """
    rates = counts ** (1 / temperature - 1.0)
    return rates / np.min(rates)

"""Batches of arrays from a store and a plan, prefetched in a background thread."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, SupportsInt, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Int, PyTree

from transformer_jax.data.plan import BatchPlan, BucketPlan
from transformer_jax.data.store import PairStore, TokenStore

__all__ = ["Batch", "BatchSource", "Rows", "batches", "make_batch", "pad_rows", "prefetched"]

Batch = dict[str, PyTree]  # of arrays, may be nested
Made = TypeVar("Made")
Rows = Callable[[int], np.ndarray]
"""A function from the number of rows of the global batch to the indices of this process's rows."""


@runtime_checkable
class BatchSource(Protocol):
    """A source of examples for each batch, as a pure function of the step."""

    def batch(self, step: int) -> object:
        """Returns the input of ``make`` for batch ``step``."""


def make_batch(
    store: PairStore, indices: Int[np.ndarray, " B"], S: int, T: int, pad: int = 0
) -> Batch:
    """Returns the arrays of one batch: both sides padded to ``S`` and ``T``, and their lengths.

    A row of index -1 is only padding and has length 0.

    Returns:
        ``inputs``, a dictionary of ``source`` int32 ``[B S]`` and ``source_lengths`` int32 ``[B]``;
        ``target`` int32 ``[B T]`` and its ``lengths`` int32 ``[B]``.

    Example:
        >>> side = TokenStore(np.array([5, 3, 6, 7, 3]), np.array([0, 2, 5]))
        >>> store = PairStore(side, side, np.arange(2), {})
        >>> batch = make_batch(store, np.array([1, -1]), 4, 3)
        >>> batch["inputs"]["source"], batch["inputs"]["source_lengths"]
        (array([[6, 7, 3, 0],
               [0, 0, 0, 0]], dtype=int32), array([3, 0], dtype=int32))
    """
    source, source_lengths = pad_rows(store.source, indices, S, pad)
    target, lengths = pad_rows(store.target, indices, T, pad)
    inputs = {"source": source, "source_lengths": source_lengths}
    return {"inputs": inputs, "target": target, "lengths": lengths}


def batches(
    store: PairStore,
    plan: BucketPlan,
    *,
    start: int = 0,
    stop: int | None = None,
    rows: Rows | None = None,
    pad: int = 0,
    prefetch: int = 8,
) -> Iterator[Batch]:
    """Yields the batches of steps ``start`` to ``stop``, made in a background thread.

    The step is the only state: ``batches(..., start=n)`` continues exactly where another iterator
    stopped before step ``n``.

    Args:
        store: The sentences.
        plan: The sentences of each batch.
        start: The first step.
        stop: Step before which to stop; None never stops.
        rows: Selects the rows of each global batch for this process; None is all. The rows of all
            processes must partition the batch.
        pad: The id of padding.
        prefetch: Number of batches to make ahead; 0 makes each on demand.
    """

    def make(batch: BatchPlan) -> Batch:
        indices = batch.indices if rows is None else batch.indices[rows(len(batch.indices))]
        return make_batch(store, indices, batch.S, batch.T, pad)

    return prefetched(plan, make, start=start, stop=stop, prefetch=prefetch)


def prefetched(
    plan: BatchSource,
    make: Callable[[Any], Made],
    *,
    start: int = 0,
    stop: int | None = None,
    prefetch: int = 8,
    threads: int = 1,
) -> Iterator[Made]:
    """Yields ``make(plan.batch(step))`` for steps ``start`` to ``stop``, in background threads.

    Args:
        plan: Any plan.
        make: Function from the plan's batch to its arrays and any further values.
        start: The first step.
        stop: Step before which to stop; None never stops.
        prefetch: Number of batches to make ahead; 0 makes each on demand.
        threads: Number of batches to make concurrently; their order does not change.
    """
    if prefetch == 0:
        step = start
        while stop is None or step < stop:
            yield make(plan.batch(step))
            step += 1
        return
    if stop is not None and start >= stop:
        return  # grain refuses a position beyond the end
    import grain  # late: the import takes a second

    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=prefetch)
    data = grain.MapDataset.source(_Steps(plan, stop)).map(make).to_iter_dataset(options)
    iterator: Any = iter(data)
    iterator.set_state({"next_index": start})
    try:
        yield from iterator
    finally:
        iterator.close()


class _Steps:
    """A plan as a sequence of steps, the input of grain."""

    def __init__(self, plan: BatchSource, stop: int | None):
        self._plan, self._stop = plan, stop

    def __len__(self) -> int:
        # Grain counts with C integers; no run takes this many steps.
        return 2**48 if self._stop is None else self._stop

    def __getitem__(self, step: SupportsInt) -> object:
        return self._plan.batch(int(step))


def pad_rows(
    store: TokenStore, indices: Int[np.ndarray, " B"], width: int, pad: int
) -> tuple[Int[np.ndarray, "B width"], Int[np.ndarray, " B"]]:
    """Pads texts of a store to rows of one array; returns their lengths too. -1 is an empty row."""
    rows = np.maximum(indices, 0)
    begins = store.offsets[rows]
    lengths = np.where(indices < 0, 0, store.offsets[rows + 1] - begins)
    columns = np.arange(width)
    valid = columns[None, :] < lengths[:, None]
    places = np.minimum(begins[:, None] + columns[None, :], len(store.ids) - 1)
    ids = np.where(valid, store.ids[places], pad).astype(np.int32)
    return ids, lengths.astype(np.int32)

"""Batches of a plan on the devices of a mesh; each process creates its own rows."""

from collections.abc import Iterator, Mapping

import numpy as np
from jax.sharding import Mesh

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.loader import prefetched
from transformer_jax.parallel.mesh import local_rows, shard_batch
from transformer_jax.training.step import Batch
from transformer_jax.training.task import Data, Items, select_rows

__all__ = ["put_batch", "training_batches"]


def put_batch(data: Data, items: Items | np.ndarray, mesh: Mesh) -> Batch:
    """Creates the batch of ``items`` on the devices."""
    return shard_batch(_made(data, items, mesh), mesh, len(items))


def training_batches(data: Data, mesh: Mesh, start: int = 0) -> Iterator[Batch]:
    """Yields the batches after ``start`` steps without end, created in background threads."""

    def make(items: Items | np.ndarray) -> tuple[int, Batch]:
        return len(items), _made(data, items, mesh)

    # Only the background threads use the plan: they may be in the next epoch already, and
    # requesting an earlier epoch makes a plan rebuild it.
    made = prefetched(data.plan, make, start=start, threads=data.threads)
    try:
        for rows, batch in made:
            yield shard_batch(batch, mesh, rows)
    finally:
        made.close()  # type: ignore[attr-defined]


def _made(data: Data, items: Items | np.ndarray, mesh: Mesh) -> Batch:
    batch = data.make_batch(select_rows(items, local_rows(mesh, len(items))))
    if not isinstance(batch, Mapping):
        raise ConfigError(
            f"make_batch returned {type(batch).__name__}: a dictionary of arrays, with rows as "
            f"first axis, is needed"
        )
    return dict(batch)

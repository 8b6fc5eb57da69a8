"""Batches of pictures with the checksum by which a resumed run recognizes them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from transformer_jax.data.images.picture_store import ImageStore
from transformer_jax.training.task import Data, fingerprint

__all__ = ["picture_data"]


def picture_data(
    plan: Any,
    make_batch: Callable[[Any], Any],
    store: ImageStore,
    content: Callable[[Sequence[np.ndarray]], Iterable[np.ndarray]],
    threads: int,
) -> Data:
    """Returns the batches of pictures, with a checksum of the pictures and of all else.

    Args:
        plan: The items of each batch.
        make_batch: Function from the items of a process's rows to arrays.
        store: The pictures.
        content: Function from the checksums of pictures to those and all other arrays.
        threads: Number of threads that create training batches.
    """
    data = Data.of(plan, make_batch, content(list(store.parts())), threads)
    earlier = store.earlier_parts()
    if earlier is None:
        return data
    return data._replace(earlier_fingerprints=(fingerprint(plan.fingerprint, content(earlier)),))

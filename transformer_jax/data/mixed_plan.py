"""Batches from several groups of examples, in which small groups are repeated."""

import functools
import hashlib
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.data.plan import BatchPlan, BucketPlan, shuffled

__all__ = ["MixedPlan", "repeats"]


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

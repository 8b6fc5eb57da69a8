"""Batches of examples that share rows: all of them, whole, in random order, in few shapes."""

import numpy as np
import pytest

from transformer_jax.data.example_rows import RowPlan


@pytest.mark.parametrize("unit", [1, 3])
@pytest.mark.parametrize("size", [1, 7, 32])
def test_an_epoch_has_every_example_once_in_rows_with_room(size, unit):
    lengths = np.random.default_rng(size).integers(2, 90, 100)
    plan = RowPlan(lengths, batch_size=size, row_unit=unit, seed=3)
    for epoch in range(2):
        seen = []
        for step in range(plan.steps_per_epoch):
            batch = plan.batch(epoch * plan.steps_per_epoch + step)
            real = batch.numbers >= 0
            assert np.where(real, lengths[batch.numbers], 0).sum(1).max() <= batch.T
            assert len(batch) % unit == 0
            assert real.sum() == min(size, 100 - step * size)
            seen += batch.numbers[real].tolist()
        assert sorted(seen) == [*range(100)]
    assert len({*plan.sizes, *(len(plan.batch(i)) for i in range(50))}) <= len(plan.sizes) + 1
    assert len(plan.sizes) <= 5


def test_batches_are_a_function_of_the_seed_and_the_step_and_others_of_each_epoch():
    lengths = np.random.default_rng(0).integers(2, 20, 50)
    first, again, other = (RowPlan(lengths, batch_size=8, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.batch(9).numbers, again.batch(9).numbers)
    np.testing.assert_array_equal(first.batch(2).numbers, again.batch(2).numbers)  # and back
    examples = lambda plan, step: {*plan.batch(step).numbers.ravel().tolist()}
    assert examples(first, 0) != examples(other, 0)
    assert examples(first, 0) != examples(first, first.steps_per_epoch)
    assert first.fingerprint == again.fingerprint != other.fingerprint
    devices = RowPlan(lengths, batch_size=8, row_unit=4, seed=1)  # may be others when resumed
    assert devices.fingerprint == first.fingerprint
    assert examples(devices, 3) == examples(first, 3)

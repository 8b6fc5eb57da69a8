"""One plan over groups of examples: how often each occurs, and that no shape depends on it."""

import numpy as np
import pytest

from transformer_jax.data.plan import Batching, BucketPlan, MixedPlan, repeats

SETTINGS = Batching(max_tokens=256, num_buckets=3, required_batch_size_multiple=2).settings()


def example(sizes=(60, 17, 5), seed=0):
    rng = np.random.default_rng(seed)
    count = sum(sizes)
    source, target = rng.integers(3, 30, (2, count))
    return source, target, np.repeat(np.arange(len(sizes)), sizes)


def occurrences(plan, epoch, count):
    found = np.concatenate([batch.indices for batch in plan.epoch(epoch)])
    return np.bincount(found[found >= 0], minlength=count)


@pytest.mark.parametrize("temperature", [1.0, 1.5, 5.0, 1e9])
def test_groups_occur_by_temperature_and_each_example_at_least_once(temperature):
    source, target, groups = example()
    plan = MixedPlan(source, target, groups, temperature, **SETTINGS)
    sizes = np.bincount(groups)
    wanted = sizes ** (1 / temperature)
    for epoch in range(3):
        times = occurrences(plan, epoch, len(groups))
        assert times.min() == 1
        share = np.bincount(groups, times)
        np.testing.assert_allclose(share / share.sum(), wanted / wanted.sum(), atol=0.01)
    assert np.array_equal(np.round(repeats(sizes, temperature) * sizes), share)


def test_examples_of_a_group_and_shape_take_turns():
    source, target, groups = example()
    plan = MixedPlan(source, target, groups, 2.0, **SETTINGS)
    epochs = 60
    times = sum(occurrences(plan, epoch, len(groups)) for epoch in range(epochs))
    fits = [(source <= shape.S) & (target <= shape.T) for shape in plan.shapes]
    kinds = groups * len(fits) + np.argmax(fits, axis=0)
    for kind in np.unique(kinds):
        own = times[kinds == kind]
        assert own.max() - own.min() <= 1
    assert not np.array_equal(occurrences(plan, 0, 82), occurrences(plan, 1, 82))


def test_every_batch_fits_its_shape_and_is_a_function_of_the_step():
    source, target, groups = example()
    plans = [MixedPlan(source, target, groups, 3.0, **SETTINGS) for _ in range(2)]
    assert plans[0].fingerprint == plans[1].fingerprint
    steps = 3 * plans[0].steps_per_epoch
    first = [plans[0].batch(step) for step in range(steps)]
    later = {step: plans[1].batch(step) for step in reversed(range(steps))}
    for step, batch in enumerate(first):
        assert np.array_equal(batch.indices, later[step].indices)
        own = batch.indices[batch.indices >= 0]
        assert source[own].max() <= batch.S
        assert target[own].max() <= batch.T
        assert (len(batch), batch.S, batch.T) in plans[0].shapes
    other = MixedPlan(source, target, groups[::-1] * -1 + 2, 3.0, **SETTINGS)
    assert other.fingerprint != plans[0].fingerprint


def test_other_examples_have_the_same_shapes():
    source, target, _ = example()
    whole = BucketPlan(source, target, **SETTINGS)
    part = whole.with_lengths(source[:7], target[:7])
    assert part.shapes == whole.shapes
    found = np.concatenate([part.batch(i).indices for i in range(part.steps_per_epoch)])
    assert sorted(found[found >= 0]) == list(range(7))

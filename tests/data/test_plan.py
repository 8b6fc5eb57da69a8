"""Plans: each example once an epoch, few shapes, little padding, a function of the inputs."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.plan import BucketPlan, shuffled
from transformer_jax.data.shapes import choose_shapes


def captions(count, seed=0):
    """Lengths that are distributed like those of image captions and their translations."""
    draw = np.random.default_rng(seed)
    source = np.clip(np.round(np.exp(draw.normal(2.7, 0.32, count))), 4, 60).astype(np.int64)
    target = np.clip(np.round(source * np.exp(draw.normal(-0.03, 0.18, count))), 4, 60)
    return source, target.astype(np.int64)


lengths = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=120)
options = st.fixed_dictionaries(
    {
        "max_tokens": st.sampled_from([256, 300, 1000]),
        "num_buckets": st.integers(1, 6),
        "pad_to_multiple_of": st.sampled_from([1, 4, 8, 32]),
        "required_batch_size_multiple": st.sampled_from([1, 2, 4]),
        "seed": st.integers(0, 5),
        "shuffle": st.booleans(),
    }
)


@settings(max_examples=200, deadline=None)
@given(lengths, options, st.integers(0, 3))
def test_the_laws_of_a_plan(pairs, choice, epoch):
    source, target = np.array(pairs).T
    plan = BucketPlan(source, target, **choice)
    steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
    made = [plan.batch(step) for step in steps]
    seen = np.concatenate([batch.indices[batch.indices >= 0] for batch in made])
    assert sorted(seen.tolist()) == list(range(len(pairs)))  # each exactly once
    assert len(plan.shapes) <= choice["num_buckets"]
    for batch in made:
        rows = batch.indices[batch.indices >= 0]
        assert len(rows) > 0
        assert (source[rows] <= batch.S).all()
        assert (target[rows] <= batch.T).all()
        assert (len(batch.indices), batch.S, batch.T) in plan.shapes
        assert (batch.indices[: len(rows)] >= 0).all()  # padding rows come last
    for shape in plan.shapes:
        assert shape.rows * max(shape.S, shape.T) <= choice["max_tokens"]
        assert shape.rows % choice["required_batch_size_multiple"] == 0
        for length in (shape.S, shape.T):
            assert length % min(choice["pad_to_multiple_of"], 8) == 0
            assert length <= 32 or length % choice["pad_to_multiple_of"] == 0
    assert plan.non_padding_fraction == pytest.approx(
        (source + target).sum() / sum(len(b.indices) * (b.S + b.T) for b in made)
    )


def test_a_plan_is_a_function_of_its_arguments_in_any_order_of_asking():
    source, target = captions(500)
    first, second = (BucketPlan(source, target, max_tokens=512, seed=3) for _ in range(2))
    steps = [2 * first.steps_per_epoch + 1, 0, 5 * first.steps_per_epoch, 7, 0]
    for step in steps:
        np.testing.assert_array_equal(first.batch(step).indices, second.batch(step).indices)
    for epoch in (2, 0, 1):
        for i, batch in enumerate(first.epoch(epoch)):
            planned = second.batch(epoch * first.steps_per_epoch + i)
            np.testing.assert_array_equal(planned.indices, batch.indices)


def test_epochs_and_seeds_differ_and_unshuffled_ones_do_not():
    source, target = captions(500)
    plan = BucketPlan(source, target, max_tokens=512)
    other = BucketPlan(source, target, max_tokens=512, seed=1)
    fixed = BucketPlan(source, target, max_tokens=512, shuffle=False)

    def flat(plan, epoch):
        return np.concatenate([batch.indices for batch in plan.epoch(epoch)]).tolist()

    assert flat(plan, 0) != flat(plan, 1)
    assert flat(plan, 0) != flat(other, 0)
    assert flat(fixed, 0) == flat(fixed, 9)
    mates = [{frozenset(b.indices.tolist()) for b in plan.epoch(e)} for e in range(2)]
    assert len(mates[0] & mates[1]) < len(mates[0]) / 4  # who shares a batch is drawn too
    shapes = [[(b.S, b.T) for b in plan.epoch(e)] for e in range(2)]
    assert shapes[0] != shapes[1]  # the order of shapes is drawn too
    assert sorted(shapes[0]) == sorted(shapes[1])


def test_the_order_is_pinned():
    """A change of the arithmetic would change what a resumed run reads."""
    assert shuffled(10, 0, 0).tolist() == [0, 7, 8, 2, 5, 9, 4, 6, 3, 1]
    assert shuffled(10, -1, 3).tolist() == shuffled(10, 2**64 - 1, 3).tolist()
    source, target = captions(200)
    plan = BucketPlan(source, target, max_tokens=256, seed=7)
    assert plan.fingerprint == "915df6fcff65be7b"
    assert plan.batch(3).indices[:5].tolist() == [151, 172, 187, 137, 48]


def test_shuffles_are_uniform():
    count = np.zeros((5, 5))
    for stream in range(3000):
        count[np.arange(5), shuffled(5, 11, stream)] += 1
    # 25 cells with 600 expected and a deviation of 22.
    assert np.abs(count - 600).max() < 110
    orders = {tuple(shuffled(4, seed, 0)) for seed in range(500)}
    assert len(orders) == 24


def test_a_fingerprint_tells_plans_apart():
    source, target = captions(50)
    base = {
        "max_tokens": 256,
        "num_buckets": 3,
        "pad_to_multiple_of": 4,
        "required_batch_size_multiple": 1,
        "seed": 0,
    }
    plans = [BucketPlan(source, target, **base)]
    other = {
        "max_tokens": 320,
        "num_buckets": 2,
        "pad_to_multiple_of": 8,
        "required_batch_size_multiple": 2,
        "seed": 1,
    }
    plans += [BucketPlan(source, target, **{**base, name: other[name]}) for name in base]
    plans += [BucketPlan(target, source, **base), BucketPlan(source[1:], target[1:], **base)]
    assert len({plan.fingerprint for plan in plans}) == len(plans)
    assert BucketPlan(source, target, **base).fingerprint == plans[0].fingerprint


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=25),
    st.integers(1, 3),
)
def test_shapes_are_the_best_of_all_chains(pairs, count):
    source, target = np.array(pairs).T
    S = sorted({-(-int(n) // 4) * 4 for n in source})
    T = sorted({-(-int(n) // 4) * 4 for n in target})
    grid = list(itertools.product(S, T))

    def cost(chain):
        first = [next(s + t for s, t in chain if a <= s and b <= t) for a, b in pairs]
        return sum(first)

    chains = (
        (*chosen, (S[-1], T[-1]))
        for k in range(count)
        for chosen in itertools.combinations(grid, k)
        if all(a[0] <= b[0] and a[1] <= b[1] for a, b in itertools.pairwise(chosen))
    )
    found = choose_shapes(source, target, count, 4)
    assert len(found) <= count
    assert cost(found) == min(map(cost, chains))
    assert found[-1] == (S[-1], T[-1])
    assert len(set(found)) == len(found)


def test_many_lengths_are_searched_quickly_enough():
    draw = np.random.default_rng(0)
    source, target = draw.integers(1, 2000, (2, 5000))
    found = choose_shapes(source, target, 6, 8)
    assert found[-1] == (2000, 2000)
    assert len(found) == 6


@pytest.mark.parametrize("tokens", [1024, 4096])
def test_captions_fill_four_fifths_of_their_batches(tokens):
    source, target = captions(29_000)
    plan = BucketPlan(source, target, max_tokens=tokens)
    assert plan.non_padding_fraction >= 0.8
    assert len(plan.shapes) <= 6
    real = [target[b.indices[b.indices >= 0]].sum() for b in plan.epoch(0)]
    assert np.std(real) / np.mean(real) < 0.15


def test_a_budget_too_small_says_which_would_do():
    source, target = captions(50)
    longest = -(-max(source.max(), target.max()) // 4) * 4
    with pytest.raises(ConfigError, match=f"raise it to {longest * 8} or more"):
        BucketPlan(source, target, max_tokens=int(longest * 8 - 1), required_batch_size_multiple=8)
    BucketPlan(source, target, max_tokens=int(longest * 8), required_batch_size_multiple=8)


def test_no_examples_are_refused():
    with pytest.raises(DataError, match="no examples"):
        BucketPlan(np.zeros(0, np.int64), np.zeros(0, np.int64))

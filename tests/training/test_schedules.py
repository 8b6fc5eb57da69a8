"""Learning-rate schedules: formulas, warmup, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from transformer_jax.core.errors import ConfigError
from transformer_jax.training.optimizers import constant, cosine, inverse_sqrt, make_schedule, noam
from transformer_jax.training.settings import ScheduleConfig, check_warmup, num_warmup_steps


def test_noam_golden_numbers_h13():
    np.testing.assert_allclose(noam(4000, 512, 4000), 6.98771e-4, rtol=1e-6)
    np.testing.assert_allclose(noam(1, 512, 4000), 1.746928e-7, rtol=1e-6)


@pytest.mark.parametrize("width", [8, 512])
def test_noam_is_the_formula_of_the_paper_h13(width):
    steps = np.arange(1, 200)
    expected = width**-0.5 * np.minimum(steps**-0.5, steps * 30**-1.5)
    np.testing.assert_allclose(jax.vmap(lambda n: noam(n, width, 30))(steps), expected, rtol=1e-6)


@pytest.mark.parametrize("rate", [inverse_sqrt, constant, lambda n, p, w: cosine(n, p, w, 100)])
def test_warmup_is_linear_up_to_the_peak(rate):
    rates = np.asarray(jax.vmap(lambda n: rate(n, 0.5, 10))(jnp.arange(1, 121)))
    np.testing.assert_allclose(rates[:10], 0.05 * np.arange(1, 11), rtol=1e-5)
    assert rates.argmax() == 9
    assert (np.diff(rates[9:]) <= 1e-8).all()


def test_cosine_ends_at_its_final_fraction_and_stays():
    rates = [float(cosine(n, 2.0, 5, 50, final_fraction=0.1)) for n in (50, 51, 500)]
    np.testing.assert_allclose(rates, 0.2, rtol=1e-6)
    half = np.asarray(optax.cosine_decay_schedule(2.0, 45, 0.1)(jnp.arange(46)))
    ours = jax.vmap(lambda n: cosine(n, 2.0, 5, 50, 0.1))(jnp.arange(5, 51))
    np.testing.assert_allclose(ours, half, rtol=1e-5)


def test_schedules_count_updates_from_zero():
    rate = make_schedule(ScheduleConfig("inverse_sqrt", 4), 0.5, 8, 100)
    np.testing.assert_allclose(rate(0), 0.125)
    rate = make_schedule(ScheduleConfig(), None, 512, 9)
    np.testing.assert_allclose(rate(3999), 6.98771e-4, rtol=1e-6)
    # A rate given to noam is its peak, as everywhere else.
    np.testing.assert_allclose(make_schedule(ScheduleConfig(), 0.5, 512, 100)(3999), 0.5)


def test_warmup_may_be_a_fraction_of_the_run():
    part, whole = (
        make_schedule(ScheduleConfig("cosine", warmup), 1.0, 8, 200) for warmup in (0.1, 20)
    )
    for count in (0, 10, 19, 20, 100):
        assert part(count) == whole(count)


def test_a_warmup_longer_than_the_run_is_refused_for_schedules_without_an_end():
    for kind in ("noam", "inverse_sqrt", "constant"):
        check_warmup(ScheduleConfig(kind, 100), 100)
        with pytest.raises(ConfigError, match="warmup_steps is 101, but the run has 100 steps"):
            check_warmup(ScheduleConfig(kind, 101), 100)


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_a_warmup_that_rounds_to_the_whole_run_is_refused_for_schedules_that_decay_to_the_end(kind):
    check_warmup(ScheduleConfig(kind, 0.94), 10)
    with pytest.raises(ConfigError, match=r"10 \(0.96 of the run\), but the run has 10 steps"):
        check_warmup(ScheduleConfig(kind, 0.96), 10)
    check_warmup(ScheduleConfig("constant", 0.96), 10)
    for warmup in (None, 0.1, 1):  # a run of one step has no room for more
        check_warmup(ScheduleConfig(kind, warmup), 1)


def test_default_warmup_is_a_tenth_of_the_run_and_at_most_a_thousand_steps():
    steps = {total: num_warmup_steps(ScheduleConfig(warmup_steps=None), total)
             for total in (3, 130, 5000, 10_000, 10**6)}  # fmt: skip
    assert steps == {3: 1, 130: 13, 5000: 500, 10_000: 1000, 10**6: 1000}
    rate = make_schedule(ScheduleConfig("inverse_sqrt", None), 1.0, 8, 130)
    assert float(rate(12)) == 1.0


def test_linear_decay_equals_optax():
    ours = make_schedule(ScheduleConfig("linear", 4, final_fraction=0.2), 0.5, 8, 20)
    theirs = optax.join_schedules(
        [optax.linear_schedule(0.0, 0.5, 4), optax.linear_schedule(0.5, 0.1, 16)], [4]
    )
    # Ours counts updates from 1: the first has a rate already, and the last the final one.
    for count in range(24):
        np.testing.assert_allclose(ours(count), theirs(count + 1), rtol=1e-6)

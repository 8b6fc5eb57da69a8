"""Win rates of one model's samples over another's, row B40."""

import numpy as np
import pytest
from scipy import stats

from tests.conftest import SWEEP_SEED
from transformer_jax.core.errors import DataError
from transformer_jax.evaluation.win_rate import wilson_interval, win_rate


@pytest.mark.parametrize("wins", [0, 1, 17, 39, 40])
def test_intervals_are_those_of_scipy(wins):
    expected = stats.binomtest(wins, 40).proportion_ci(method="wilson")
    assert wilson_interval(wins / 40, 40) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_a_comparison_turned_round_is_one_minus_it():
    rng = np.random.default_rng(int(SWEEP_SEED))
    one, two = rng.integers(0, 4, (2, 30, 3)).astype(float)
    found = win_rate(one.tolist(), two.tolist())
    turned = win_rate(two.tolist(), one.tolist())
    assert found.rate == pytest.approx(1 - turned.rate)
    assert (found.wins, found.ties, found.losses) == (turned.losses, turned.ties, turned.wins)
    assert found.rate == pytest.approx(((one > two).mean() + (one >= two).mean()) / 2)
    assert found.rewards == pytest.approx((one.mean(), two.mean()))
    assert found.low < found.rate < found.high
    assert (found.high - found.low) == pytest.approx(turned.high - turned.low)


@pytest.mark.parametrize(
    ("one", "two"), [([], []), ([[]], [[]]), ([[1.0]], [[1.0, 2.0]]), ([[1.0]], [])]
)
def test_what_cannot_be_compared_is_refused(one, two):
    with pytest.raises(DataError, match="equally many samples"):
        win_rate(one, two)

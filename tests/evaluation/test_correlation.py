"""Correlations (row H22), against scipy and numbers done by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from transformer_jax.core.errors import DataError
from transformer_jax.evaluation.correlation import pearson, spearman

BOTH = pytest.mark.parametrize("score", [pearson, spearman])


def test_h22_by_hand():
    x, y = np.array([1, 2, 3, 4]), np.array([1.0, 3.0, 2.0, 10.0])
    # Deviations -1.5 -.5 .5 1.5 and -3 -1 -2 6: products sum to 13, squares to 5 and 50.
    assert pearson(x, y) == pytest.approx(13 / math.sqrt(250))
    assert spearman(x, y) == pytest.approx(1 - 6 * 2 / (4 * 15))  # two ranks off by one
    # Ranks 1.5 1.5 3 4 beside 1 2 3.5 3.5.
    ranks = [[1.5, 1.5, 3, 4], [1, 2, 3.5, 3.5]]
    tied = spearman(np.array([7, 7, 8, 90]), np.array([-5.0, 0.0, 2.0, 2.0]))
    assert tied == pytest.approx(np.asarray(np.corrcoef(ranks))[0, 1])


def test_h22_equal_to_scipy():
    rng = np.random.default_rng(0)
    for trial in range(60):
        size = int(rng.integers(3, 50))
        x = rng.normal(size=size) * 10.0 ** rng.integers(-6, 6)
        y = rng.normal(size=size) + (trial % 3 - 1) * x
        if trial % 2:  # ties, as in STS-B's scores of 0 to 5
            x, y = np.floor(rng.uniform(0, 4, size=(2, size)))
        if np.ptp(x) == 0 or np.ptp(y) == 0:
            continue
        assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-12)
        assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


@BOTH
def test_the_ends_are_exact(score):
    x = np.random.default_rng(0).normal(size=20)
    assert (score(x, x), score(x, -x)) == (1, -1)
    assert score(x, 3 * x + 1) == pytest.approx(1, abs=1e-12)
    assert -1 <= score(x, 3 * x + 1) <= 1
    assert score(np.array([1, 5]), np.array([2, 1])) == -1


def test_only_ranks_know_no_scale():
    x = np.arange(10.0)
    assert spearman(np.exp(x), x) == 1
    assert pearson(np.exp(x), x) < 0.8


@BOTH
def test_a_constant_side_has_none(score):
    constant, x = np.full(3, 0.1), np.array([1.0, 2.0, 4.0])  # the mean of 0.1 is not 0.1
    assert math.isnan(score(constant, x))
    assert math.isnan(score(x, constant))
    assert math.isnan(score(constant, constant))
    assert math.isnan(score(x[:1], x[:1]))


@BOTH
def test_numbers_that_are_none(score):
    x = np.array([1.0, 2.0, 4.0])
    assert math.isnan(score(np.array([1.0, math.nan, 2.0]), x))
    assert math.isnan(score(x, np.array([math.nan, 1.0, 2.0])))
    infinite = score(np.array([1.0, 2.0, math.inf]), x)
    assert infinite == 1 if score is spearman else math.isnan(infinite)


def test_sizes_that_have_no_squares():
    x = np.array([1.0, 3.0, 2.0, 7.0])
    y = np.array([1.0, 2.0, 4.0, 5.0])
    for scale in (1e-300, 1e300):
        assert pearson(scale * x, y) == pytest.approx(pearson(x, y), abs=1e-12)
    assert pearson(x.astype(np.float16) * 9000, y) == pytest.approx(pearson(x, y), abs=1e-3)


@BOTH
def test_nothing_and_counts_that_differ_are_refused(score):
    with pytest.raises(DataError, match="empty"):
        score(np.zeros(0), np.zeros(0))
    with pytest.raises(DataError, match=r"2 predictions but 3 references"):
        score(np.zeros(2), np.zeros(3))


def test_numbers_that_hardly_differ_correlate_as_their_differences():
    x = np.array([1.0, 3.0, 2.0, 5.0, 4.0])
    y = np.array([2.0, 1.0, 4.0, 3.0, 5.0])
    near = 12345.6 + x * 2.0**-39  # the last bits of float64
    x = (near - 12345.6) / 2.0**-39
    assert pearson(near, y) == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-12)
    assert pearson(x * 3e307, y * 1e-300) == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-12)

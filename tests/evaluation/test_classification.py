"""Labels beside those wanted (rows H22, B36), against scikit-learn and numbers done by hand."""

import numpy as np
import pytest

from transformer_jax.core.errors import DataError
from transformer_jax.evaluation.classification import (
    accuracy,
    confusion_matrix,
    f1,
    macro_f1,
    matthews_corrcoef,
)

# Class 0: 2 right of 3 given and 3 wanted; class 1: 1 of 3 and 2; class 2: 0 of 0 and 1.
GIVEN = np.array([0, 0, 1, 1, 1, 0])
WANTED = np.array([0, 0, 0, 1, 2, 1])


def draws():
    """Labels at random: few and many classes, one class only, and sides with different ones."""
    rng = np.random.default_rng(0)
    for trial in range(60):
        ours, theirs = rng.integers(1, 6, size=2)
        size = int(rng.integers(1, 40))
        offset = trial % 3
        wanted = rng.integers(0, theirs, size)
        given = np.where(rng.random(size) < 0.5, wanted, rng.integers(offset, offset + ours, size))
        yield given, wanted


@pytest.fixture
def sklearn():
    import sklearn.metrics

    return sklearn.metrics


def test_h22_by_hand():
    assert accuracy(GIVEN, WANTED) == pytest.approx(3 / 6)
    assert f1(GIVEN, WANTED) == pytest.approx(2 / 5)
    assert f1(GIVEN, WANTED, positive=0) == pytest.approx(4 / 6)
    assert f1(GIVEN, WANTED, positive=2) == 0
    assert macro_f1(GIVEN, WANTED) == pytest.approx((4 / 6 + 2 / 5 + 0) / 3)
    # c = 3, s = 6, given 3 3 0, wanted 3 2 1: (18 - 15) / √((36 - 18) (36 - 14)).
    assert matthews_corrcoef(GIVEN, WANTED) == pytest.approx(3 / np.sqrt(18 * 22))
    assert confusion_matrix(GIVEN, WANTED, 3).tolist() == [[2, 1, 0], [1, 1, 0], [0, 1, 0]]


def test_h22_the_four_cells_of_matthews():
    given = np.repeat([1, 1, 0, 0], [6, 1, 2, 3])  # right, false alarm, missed, right
    wanted = np.repeat([1, 0, 1, 0], [6, 1, 2, 3])
    tp, fp, fn, tn = 6, 1, 2, 3
    spread = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    assert matthews_corrcoef(given, wanted) == pytest.approx((tp * tn - fp * fn) / np.sqrt(spread))
    assert matthews_corrcoef(wanted, wanted) == 1
    assert matthews_corrcoef(1 - wanted, wanted) == -1


def test_h22_matthews_counts_beyond_64_bits():
    wanted = np.repeat([0, 1], 100_000)  # squares of 4e10: their product is no int64
    assert matthews_corrcoef(wanted, wanted) == 1
    assert matthews_corrcoef(wanted, np.roll(wanted, 50_000)) == 0


def test_nothing_to_divide_by_is_zero():
    ones = np.ones(4, int)
    assert f1(ones, ones, positive=3) == 0
    assert matthews_corrcoef(ones, ones) == 0
    assert matthews_corrcoef(ones, np.array([0, 1, 1, 1])) == 0
    assert matthews_corrcoef(np.array([0, 1, 1, 1]), ones) == 0
    assert macro_f1(ones, ones) == 1  # over the one class that occurs
    assert macro_f1(ones, ones, classes=4) == 0.25


def test_b36_macro_f1_weighs_rare_classes_as_frequent_ones():
    wanted = np.repeat([0, 1], [99, 1])
    lazy = np.zeros(100, int)
    assert accuracy(lazy, wanted) == 0.99
    assert macro_f1(lazy, wanted) == pytest.approx((2 * 99 / 199) / 2)


def test_labels_may_be_any_numbers():
    shift = lambda labels: labels.astype(np.int8) * 40 - 7
    assert macro_f1(shift(GIVEN), shift(WANTED)) == macro_f1(GIVEN, WANTED)
    assert matthews_corrcoef(shift(GIVEN), shift(WANTED)) == matthews_corrcoef(GIVEN, WANTED)
    narrow = np.arange(60, dtype=np.int8)  # 60 × 60 cells are more than an int8 counts
    np.testing.assert_array_equal(confusion_matrix(narrow, narrow, 60), np.eye(60, dtype=int))


def test_h22_equal_to_scikit_learn(sklearn):
    nine = list(range(9))
    close = lambda value: pytest.approx(value, abs=1e-12)
    for given, wanted in draws():
        assert accuracy(given, wanted) == close(sklearn.accuracy_score(wanted, given))
        macro = {"average": "macro", "zero_division": 0}
        assert macro_f1(given, wanted) == close(sklearn.f1_score(wanted, given, **macro))
        over_nine = sklearn.f1_score(wanted, given, labels=nine, **macro)
        assert macro_f1(given, wanted, classes=9) == close(over_nine)
        table = sklearn.confusion_matrix(wanted, given, labels=nine)
        np.testing.assert_array_equal(confusion_matrix(given, wanted, 9), table)
        scores = sklearn.f1_score(wanted, given, labels=nine, average=None, zero_division=0)
        assert [f1(given, wanted, positive=k) for k in nine] == close(scores)
        if len(given) > 1:  # scikit-learn warns of a confusion matrix of one example
            assert matthews_corrcoef(given, wanted) == close(
                sklearn.matthews_corrcoef(wanted, given)
            )


@pytest.mark.parametrize("score", [accuracy, f1, macro_f1, matthews_corrcoef])
def test_nothing_and_counts_that_differ_are_refused(score):
    with pytest.raises(DataError, match="empty"):
        score(np.zeros(0, int), np.zeros(0, int))
    with pytest.raises(DataError, match=r"1 prediction but 6 references"):
        score(GIVEN[:1], WANTED)


@pytest.mark.parametrize(
    "score",
    [
        lambda predictions, references: confusion_matrix(predictions, references, 3),
        lambda predictions, references: macro_f1(predictions, references, classes=3),
    ],
)
def test_labels_beyond_the_classes_are_refused(score):
    good = np.array([0, 2])
    with pytest.raises(DataError, match=r"a prediction is 3: 3 classes have labels 0 to 2"):
        score(np.array([0, 3]), good)
    with pytest.raises(DataError, match=r"a reference is -100: .* such as padding"):
        score(good, np.array([0, -100]))
    with pytest.raises(DataError, match=r"1 prediction but 2 references"):
        score(good[:1], good)
    with pytest.raises(DataError, match="empty"):
        score(good[:0], good[:0])

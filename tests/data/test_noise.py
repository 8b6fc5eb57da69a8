"""Laws of the noise of denoising pre-training: row T16."""

import collections
import itertools
import math

import numpy as np
import pytest

from transformer_jax.core.errors import ArgumentError
from transformer_jax.data.noise import (
    document_rotation,
    num_spans,
    restore_spans,
    sentence_permutation,
    span_corruption,
    text_infilling,
    token_deletion,
    token_masking,
)

MASK, FIRST = 4, 1000
MILLION = np.arange(FIRST, FIRST + 1_000_000)
SENTINELS = np.arange(100, 400)


def drawn(seed=0):
    return np.random.default_rng(seed)


def spans_of(text, infilled):
    """The lengths of the spans behind the masks of a text whose tokens count up."""
    kept = np.concatenate([[text[0] - 1], infilled[infilled != MASK], [text[-1] + 1]])
    gaps = np.diff(kept) - 1
    masks = np.bincount(np.cumsum(infilled != MASK)[infilled == MASK], minlength=len(gaps))
    return gaps, masks


def test_t16_masking_replaces_its_share_anywhere_and_nothing_else():
    masked = token_masking(MILLION, drawn(), mask=MASK, probability=0.3)
    where = masked == MASK
    assert where.sum() == 300_000
    np.testing.assert_array_equal(masked[~where], MILLION[~where])
    tenths = where.reshape(10, -1).sum(1)
    assert np.abs(tenths - 30_000).max() < 5 * math.sqrt(100_000 * 0.3 * 0.7)
    # Neighbors are independent of each other.
    both = (where[1:] & where[:-1]).mean()
    assert abs(both - 0.09) < 0.002


def test_t16_deletion_keeps_the_order_of_the_other_tokens():
    kept = token_deletion(MILLION, drawn(), probability=0.3)
    assert len(kept) == 700_000
    assert (np.diff(kept) > 0).all()
    tenths = np.histogram(kept, 10, (FIRST, FIRST + 1_000_000))[0]
    assert np.abs(tenths - 70_000).max() < 5 * math.sqrt(100_000 * 0.3 * 0.7)


@pytest.mark.parametrize("mean", [3.0, 3.5])
def test_t16_infilled_spans_have_poisson_lengths_and_hide_exactly_their_share(mean):
    infilled = text_infilling(MILLION, drawn(), mask=MASK, probability=0.3, mean_length=mean)
    gaps, masks = spans_of(MILLION, infilled)
    assert gaps.sum() == 300_000
    assert masks[gaps > 0].min() == 1
    # Where one mask stands alone, its gap is one span; a gap of 0 with a mask is an insertion.
    # No span prefers a neighbor, so that those alone are a fair sample of all.
    alone = gaps[masks == 1]
    counts = np.bincount(alone, minlength=20)
    poisson = np.array([math.exp(-mean) * mean**k / math.factorial(k) for k in range(12)])
    expected = poisson * len(alone)
    chi = ((counts[:12] - expected) ** 2 / expected).sum()
    assert chi < 40, counts  # 11 degrees of freedom
    assert abs(alone.mean() - mean) < 0.03
    # As many masks as the hidden tokens need.
    assert abs(masks.sum() - 300_000 / mean) < 5 * math.sqrt(300_000 / mean)


def test_t16_every_order_of_spans_and_tokens_is_equally_likely():
    text = np.arange(10, 16)
    made = [tuple(text_infilling(text, drawn(s), mask=MASK, probability=0.5)) for s in range(6000)]
    counts = collections.Counter(made)
    whole = [counts[key] for key in counts if len(key) == 4]  # one span of three tokens
    assert len(whole) == 4
    assert max(whole) - min(whole) < 5 * math.sqrt(sum(whole) / 2)
    # Two spans apart from each other: the longer one, which was not cut, may be either.
    pairs = collections.Counter()
    for key, count in counts.items():
        gaps, masks = spans_of(text, np.array(key))
        if len(key) == 5 and masks[gaps > 0].tolist() == [1, 1]:
            pairs[tuple(gaps[gaps > 0])] += count
    assert set(pairs) == {(1, 2), (2, 1)}
    assert abs(pairs[1, 2] - pairs[2, 1]) < 5 * math.sqrt(sum(pairs.values()))


@pytest.mark.parametrize("seed", range(40))
def test_infilling_never_grows_a_text_and_keeps_the_order(seed):
    rng = drawn(seed)
    n, probability = int(rng.integers(0, 40)), float(rng.random())
    text = np.arange(FIRST, FIRST + n)
    given = text.copy()
    mean = float(1 + 3 * rng.random())
    infilled = text_infilling(text, rng, mask=MASK, probability=probability, mean_length=mean)
    np.testing.assert_array_equal(text, given)
    assert len(infilled) <= n
    kept = infilled[infilled != MASK]
    assert len(kept) == n - round(probability * n)
    assert (np.diff(kept) > 0).all()
    assert np.isin(kept, text).all()


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_none_or_all_of_the_tokens(probability):
    text = np.arange(10, 22)
    masked = token_masking(text, drawn(), mask=MASK, probability=probability)
    left = token_deletion(text, drawn(), probability=probability)
    infilled = text_infilling(text, drawn(), mask=MASK, probability=probability)
    if probability:
        assert (masked == MASK).all()
        assert not len(left)
        assert (infilled == MASK).all()
        assert 1 <= len(infilled) <= 12
    else:
        for same in (masked, left, infilled):
            np.testing.assert_array_equal(same, text)


@pytest.mark.parametrize("n", [0, 1])
def test_texts_of_no_token_or_one(n):
    text = np.arange(10, 10 + n)
    for probability in (0.0, 0.3, 1.0):
        hidden = round(probability * n)
        assert len(token_deletion(text, drawn(), probability=probability)) == n - hidden
        infilled = text_infilling(text, drawn(), mask=MASK, probability=probability)
        assert infilled.tolist() == ([MASK] if hidden else text.tolist())
        source, target = span_corruption(
            text, drawn(), sentinels=SENTINELS, probability=probability
        )
        assert source.tolist() == text.tolist()
        assert target.tolist() == [SENTINELS[0]]
    np.testing.assert_array_equal(document_rotation(text, drawn()), text)
    assert sentence_permutation([text] * n, drawn()) == [text] * n


def test_t16_a_permutation_is_one_and_every_one_is_equally_likely():
    sentences = [np.arange(10 * i, 10 * i + i) for i in range(4)]
    counts = collections.Counter()
    for seed in range(4800):
        made = sentence_permutation(sentences, drawn(seed))
        order = tuple(len(part) for part in made)
        for part in made:
            np.testing.assert_array_equal(part, sentences[len(part)])
        counts[order] += 1
    assert set(counts) == set(itertools.permutations(range(4)))
    assert max(abs(n - 200) for n in counts.values()) < 5 * math.sqrt(200)


def test_t16_a_rotation_begins_with_any_token_and_keeps_the_circle():
    text = np.arange(10, 18)
    firsts = collections.Counter()
    for seed in range(4000):
        rotated = document_rotation(text, drawn(seed))
        at = int(rotated[0]) - 10
        np.testing.assert_array_equal(rotated, np.concatenate([text[at:], text[:at]]))
        firsts[at] += 1
    assert set(firsts) == set(range(8))
    assert max(abs(n - 500) for n in firsts.values()) < 5 * math.sqrt(500)


def test_t16_span_corruption_hides_fifteen_percent_in_spans_of_three_on_average():
    source, target = span_corruption(MILLION, drawn(), sentinels=-np.arange(1, 60_000))
    assert (target >= 0).sum() == 150_000
    assert (source >= 0).sum() == 850_000
    assert (source < 0).sum() == 50_000  # and so spans of 3.0
    lengths = np.diff(np.flatnonzero(target < 0)) - 1
    assert lengths.min() >= 1
    # Divisions into spans that are equally likely have lengths that fall geometrically.
    shares = np.bincount(lengths, minlength=12)[1:6] / 50_000
    np.testing.assert_allclose(shares, [(1 / 3) * (2 / 3) ** k for k in range(5)], atol=0.006)
    # Everywhere alike.
    tenths = np.histogram(target[target >= 0], 10, (FIRST, FIRST + 1_000_000))[0]
    assert np.abs(tenths - 15_000).max() < 600


@pytest.mark.parametrize("seed", range(60))
def test_t16_the_text_is_restored_from_source_and_target(seed):
    rng = drawn(seed)
    n = int(rng.integers(0, 200))
    text = rng.integers(500, 600, n)
    how = {"probability": float(rng.random()), "mean_length": float(1 + 4 * rng.random())}
    source, target = span_corruption(text, rng, sentinels=SENTINELS, **how)
    np.testing.assert_array_equal(restore_spans(source, target, SENTINELS), text)
    spans, hidden = num_spans(n, **how)
    assert (len(source), len(target)) == (n - hidden + spans, hidden + spans + 1)
    # The sentinels in order, one more in the target than in the source, and none touches another.
    assert source[source < 500].tolist() == SENTINELS[:spans].tolist()
    assert target[target < 500].tolist() == SENTINELS[: spans + 1].tolist()
    assert not ((source[1:] < 500) & (source[:-1] < 500)).any()
    assert (np.diff(np.flatnonzero(target < 500)) > 1).all()


def test_every_corruption_is_equally_likely():
    text = np.arange(10, 14)
    made = collections.Counter(
        tuple(span_corruption(text, drawn(seed), sentinels=SENTINELS, probability=0.5).source)
        for seed in range(3000)
    )
    assert len(made) == 3  # one span of two tokens
    assert max(abs(n - 1000) for n in made.values()) < 5 * math.sqrt(1000)


def test_a_seed_fixes_everything():
    text = np.arange(10, 60)
    for noise in (
        lambda rng: text_infilling(text, rng, mask=MASK, probability=0.3),
        lambda rng: span_corruption(text, rng, sentinels=SENTINELS).source,
        lambda rng: token_masking(text, rng, mask=MASK, probability=0.3),
    ):
        np.testing.assert_array_equal(noise(drawn(3)), noise(drawn(3)))
        assert noise(drawn(3)).tolist() != noise(drawn(4)).tolist()


@pytest.mark.parametrize("probability", [-0.1, 1.1, math.nan])
def test_what_is_no_probability_is_refused(probability):
    text = np.arange(10)
    for noise in (
        lambda: token_masking(text, drawn(), mask=MASK, probability=probability),
        lambda: token_deletion(text, drawn(), probability=probability),
        lambda: text_infilling(text, drawn(), mask=MASK, probability=probability),
        lambda: span_corruption(text, drawn(), sentinels=SENTINELS, probability=probability),
    ):
        with pytest.raises(ArgumentError, match="probability is"):
            noise()


def test_too_short_spans_and_too_few_sentinels_are_refused():
    text = np.arange(100)
    for mean in (0.5, math.nan, math.inf):
        with pytest.raises(ArgumentError, match="mean_length is"):
            text_infilling(text, drawn(), mask=MASK, probability=0.3, mean_length=mean)
        with pytest.raises(ArgumentError, match="mean_length is"):
            span_corruption(text, drawn(), sentinels=SENTINELS, mean_length=mean)
    with pytest.raises(ArgumentError, match="5 spans of 100 tokens need 6 sentinels, there are 5"):
        span_corruption(text, drawn(), sentinels=SENTINELS[:5])

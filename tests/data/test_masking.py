"""Laws of hidden tokens: rows B35, H18."""

import dataclasses
import time

import numpy as np
import pytest

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.masking import MLMMasking, mask_tokens
from transformer_jax.data.tokenizer import BERT_SPECIAL, train_tokenizer

PAD, CLS, SEP, MASK, FIRST, V = 0, 2, 3, 4, 5, 1005
PLAIN = np.arange(FIRST, V)
MASKING = MLMMasking(MASK, PLAIN)


def rows_of(count, T, seed=0):
    """Rows of text ids between special ones, with padding after them, and what may be hidden."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(FIRST, V, (count, T))
    lengths = rng.integers(T // 2, T + 1, count)[:, None]
    place = np.arange(T)[None]
    tokens[:, 0] = CLS
    tokens = np.where((place == lengths - 1) | (place == lengths // 2), SEP, tokens)
    tokens = np.where(place < lengths, tokens, PAD)
    return tokens, tokens >= FIRST


def is_masked(hidden, T):
    """The masked tokens, as an array of the form of the tokens."""
    found = np.zeros((len(hidden.tokens), T), int)
    rows, columns = np.nonzero(hidden.weights)
    np.add.at(found, (rows, hidden.masked_positions[rows, columns]), 1)
    assert found.max() <= 1
    return found.astype(bool)


def test_h18_of_a_million_tokens_fifteen_percent_are_hidden_and_of_these_80_10_10():
    T = 512
    tokens, allowed = rows_of(3500, T)
    hidden = mask_tokens(tokens, allowed, MASKING, np.arange(3500), seed=1, epoch=0)
    picked = is_masked(hidden, T)
    assert allowed.sum() > 1_000_000
    assert abs(picked.sum() / allowed.sum() - 0.15) < 0.002
    now, then = hidden.tokens[picked], tokens[picked]
    # One of a thousand random replacements is what stood there.
    assert abs((now == MASK).mean() - 0.8) < 0.002
    assert abs(((now != MASK) & (now != then)).mean() - 0.1 * 0.999) < 0.002
    assert abs((now == then).mean() - 0.1 - 0.1 * 0.001) < 0.002
    random = now[(now != MASK) & (now != then)]
    counts = np.bincount(random, minlength=V)
    assert not counts[:FIRST].any()
    # A sum of squares of 1,000 about normal numbers: 1,000 ± 45.
    expected = counts[FIRST:].mean()
    assert abs(((counts[FIRST:] - expected) ** 2).sum() / expected - 1000) < 200
    # Every place is as likely as any other.
    places = slice(1, T // 4)  # always text
    assert allowed[:, places].all()
    shares = picked[:, places].mean(0)
    assert np.abs(shares - 0.15).max() < 5 * np.sqrt(0.15 * 0.85 / 3500)


@pytest.mark.parametrize("continues", [None, np.arange(V) % 3 == 0], ids=["tokens", "words"])
def test_only_what_is_chosen_changes_and_targets_are_what_stood_there(continues):
    masking = dataclasses.replace(MASKING, is_continuation=continues)
    tokens, allowed = rows_of(40, 64)
    given = tokens.copy()
    hidden = mask_tokens(tokens, allowed, masking, np.arange(40), seed=1, epoch=0)
    np.testing.assert_array_equal(tokens, given)
    picked = is_masked(hidden, 64)
    assert not (picked & ~allowed).any()
    np.testing.assert_array_equal(hidden.tokens[~picked], tokens[~picked])
    real = hidden.weights > 0
    np.testing.assert_array_equal(
        hidden.targets[real], np.take_along_axis(tokens, hidden.masked_positions, 1)[real]
    )
    assert not hidden.targets[~real].any()
    assert not hidden.masked_positions[~real].any()
    assert set(np.unique(hidden.weights)) == {0.0, 1.0}
    for places, here in zip(hidden.masked_positions, real, strict=True):
        assert (np.diff(places[here]) > 0).all()
        assert here.sum() == np.flatnonzero(here).size == (np.flatnonzero(here) + 1).max()
    assert [a.dtype for a in hidden] == [np.int32, np.int32, np.int32, np.float32]


@pytest.mark.parametrize(
    ("count", "wanted"), [(128, 19), (127, 19), (123, 18), (100, 15), (10, 2), (3, 1), (1, 1)]
)
def test_h18_how_many_of_a_row_are_hidden(count, wanted):
    tokens = np.full((3, 130), PAD)
    tokens[:, :count] = 7
    hidden = mask_tokens(tokens, tokens == 7, MASKING, np.arange(3), seed=0, epoch=0)
    assert hidden.weights.sum(1).tolist() == [wanted] * 3
    assert hidden.masked_positions.shape == (3, MASKING.room(130))


@pytest.mark.parametrize("T", [1, 2, 8, 128, 512])
def test_there_is_room_for_all_that_are_hidden(T):
    tokens = np.full((2, T), 7)
    hidden = mask_tokens(tokens, tokens == 7, MASKING, np.arange(2), seed=0, epoch=0)
    assert hidden.masked_positions.shape == (2, MASKING.room(T))
    assert (hidden.weights == 1).all()


def test_masks_change_with_the_epoch_and_the_seed_and_with_nothing_else():
    tokens, allowed = rows_of(30, 64)
    numbers = np.arange(100, 130)
    make = lambda rows, **other: mask_tokens(
        tokens[rows], allowed[rows], MASKING, numbers[rows], **{"seed": 1, "epoch": 2, **other}
    )
    every = np.arange(30)
    whole = make(every)
    for a, b in zip(make(every), whole, strict=True):
        np.testing.assert_array_equal(a, b)
    for rows in (np.array([3, 29, 0]), every[::-1], np.array([7])):
        for part, array in zip(make(rows), whole, strict=True):
            np.testing.assert_array_equal(part, array[rows])
    for other in (make(every, epoch=3), make(every, seed=2)):
        assert (other.masked_positions != whole.masked_positions).any(1).all()
    # One text under two numbers has two masks.
    twice = mask_tokens(tokens[[0, 0]], allowed[[0, 0]], MASKING, np.array([0, 1]), seed=0, epoch=0)
    assert (twice.masked_positions[0] != twice.masked_positions[1]).any()


def test_every_token_is_hidden_in_some_epoch():
    tokens, allowed = rows_of(1, 32)
    seen = sum(
        is_masked(
            mask_tokens(tokens, allowed, MASKING, np.array([5]), seed=0, epoch=epoch), 32
        ).astype(int)
        for epoch in range(200)
    )
    share = seen[allowed] / 200
    wanted = round(0.15 * allowed.sum()) / allowed.sum()
    assert np.abs(share - wanted).max() < 5 * np.sqrt(wanted * (1 - wanted) / 200)
    assert not seen[~allowed].any()


def words_of(row, continues, allowed):
    """Numbers of words, -1 at what may not be hidden."""
    numbers, number = [], -1
    for i, id in enumerate(row):
        fresh = i == 0 or not allowed[i - 1] or not continues[id]
        number += allowed[i] and fresh
        numbers.append(number if allowed[i] else -1)
    return np.array(numbers)


def test_h18_whole_words_are_hidden_with_all_their_pieces_or_not_at_all():
    rng = np.random.default_rng(0)
    continues = np.zeros(V, bool)
    continues[V // 2 :] = True
    tokens, allowed = rows_of(300, 128)
    allowed &= rng.random(tokens.shape) > 0.02  # unknown ones, within words too
    masking = dataclasses.replace(MASKING, is_continuation=continues)
    hidden = mask_tokens(tokens, allowed, masking, np.arange(300), seed=0, epoch=0)
    picked = is_masked(hidden, 128)
    for row in range(300):
        numbers = words_of(tokens[row], continues, allowed[row])
        taken = set(numbers[picked[row]].tolist())
        np.testing.assert_array_equal(picked[row], np.isin(numbers, list(taken)))
        assert -1 not in taken
    counts, wanted = picked.sum(1), np.rint(0.15 * allowed.sum(1))
    assert (counts <= wanted).all()
    assert abs(picked.sum() / allowed.sum() - 0.15) < 0.01
    single = dataclasses.replace(MASKING, is_continuation=np.zeros(V, bool))
    found = mask_tokens(tokens, allowed, single, np.arange(300), seed=0, epoch=0)
    np.testing.assert_array_equal(found.weights.sum(1), wanted)


def test_a_word_longer_than_the_share_is_left_alone():
    continues = np.arange(V) != 5
    tokens = np.array([[CLS, 5, 6, 7, 8, 9, SEP]])
    masking = dataclasses.replace(MASKING, is_continuation=continues)
    hidden = mask_tokens(tokens, tokens >= FIRST, masking, np.array([0]), seed=0, epoch=0)
    assert not hidden.weights.any()
    np.testing.assert_array_equal(hidden.tokens, tokens)


@pytest.mark.parametrize("continues", [None, np.arange(V) % 3 == 0], ids=["tokens", "words"])
def test_rows_without_text_stay_as_they_are(continues):
    masking = dataclasses.replace(MASKING, is_continuation=continues)
    tokens, allowed = rows_of(4, 16)
    tokens[1], allowed[1] = PAD, False
    allowed[3] = False
    numbers = np.array([0, -1, 2, 3])
    hidden = mask_tokens(tokens, allowed, masking, numbers, seed=0, epoch=0)
    for row in (1, 3):
        np.testing.assert_array_equal(hidden.tokens[row], tokens[row])
        assert not any(array[row].any() for array in hidden[1:])
    assert (hidden.weights[[0, 2]].sum(1) > 0).all() or continues is not None


def test_shares_are_those_of_the_masking():
    tokens, allowed = rows_of(50, 64)
    make = lambda **fields: mask_tokens(
        tokens, allowed, dataclasses.replace(MASKING, **fields), np.arange(50), 0, 0
    )
    # As the lecture has it (row B35).
    simple = make(mlm_probability=0.4, mask_replace_prob=1.0, random_replace_prob=0.0)
    picked = is_masked(simple, 64)
    assert (simple.tokens[picked] == MASK).all()
    assert abs(picked.sum() / allowed.sum() - 0.4) < 0.01
    kept = make(mask_replace_prob=0.0, random_replace_prob=0.0)
    np.testing.assert_array_equal(kept.tokens, tokens)
    assert kept.weights.any()


def test_h18_a_masking_is_made_of_a_tokenizer():
    text = ["the lazy brown dog was playful"] * 3
    tokenizer = train_tokenizer("wordpiece", text, 40, special=BERT_SPECIAL)
    masking = MLMMasking.of(tokenizer)
    assert masking.mask == 4
    assert masking.plain.tolist() == list(range(5, tokenizer.vocab_size))
    assert masking.is_continuation is None
    assert masking.mlm_probability == 0.15
    assert (masking.mask_replace_prob, masking.random_replace_prob) == (0.8, 0.1)
    whole = MLMMasking.of(tokenizer, whole_word_mask=True, mlm_probability=0.2)
    np.testing.assert_array_equal(whole.is_continuation, tokenizer.is_continuation)
    assert whole.mlm_probability == 0.2
    with pytest.raises(ConfigError, match=r"no \[MASK\] token"):
        MLMMasking.of(train_tokenizer("wordpiece", text, 50))
    plain = train_tokenizer("characters", text, 40, special=BERT_SPECIAL)
    with pytest.raises(ConfigError, match="do not show where words begin"):
        MLMMasking.of(plain, whole_word_mask=True)


@pytest.mark.slow
def test_masks_are_made_fast_enough():
    tokens, allowed = rows_of(64, 512)
    for continues, least in ((None, 2e6), (np.arange(V) % 3 == 0, 5e5)):
        masking = dataclasses.replace(MASKING, is_continuation=continues)
        began = time.perf_counter()
        mask_tokens(tokens, allowed, masking, np.arange(64), seed=0, epoch=0)
        assert tokens.size / (time.perf_counter() - began) > least

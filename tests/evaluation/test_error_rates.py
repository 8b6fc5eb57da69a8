"""Word and character error rates: the shortest ways, and the figures of jiwer."""

import functools
import random

import pytest

from transformer_jax.core.errors import DataError
from transformer_jax.evaluation.error_rates import (
    character_error_rate,
    edit_counts,
    word_error_rate,
)

REFERENCES = ["the cat sat on the mat", "a b c d", "hello world again", "one two three four five",
              "x"]  # fmt: skip
HYPOTHESES = ["the cat sit on mat", "a c b d e", "hello word", "two three three four five six",
              "y z"]  # fmt: skip


def by_definition(hypothesis, reference):
    """The least edits, and the most substitutions among the shortest ways."""

    @functools.cache
    def best(i, j):
        if not i or not j:
            return i + j, 0
        fits = hypothesis[i - 1] == reference[j - 1]
        (diagonal, swapped), up, left = best(i - 1, j - 1), best(i - 1, j), best(i, j - 1)
        ways = [(up[0] + 1, up[1]), (left[0] + 1, left[1])]
        ways.append((diagonal, swapped) if fits else (diagonal + 1, swapped - 1))
        return min(ways)

    return best(len(hypothesis), len(reference))


def test_edits_are_the_fewest():
    draw = random.Random(0)
    for _ in range(400):
        texts = ["".join(draw.choices("abc", k=draw.randrange(9))) for _ in range(2)]
        substitutions, deletions, insertions = edit_counts(*texts)
        assert (substitutions + deletions + insertions, -substitutions) == by_definition(*texts)
        assert min(substitutions, deletions, insertions) >= 0
        assert len(texts[0]) == len(texts[1]) - deletions + insertions


def test_rates_are_those_of_jiwer():
    """jiwer 4: ``process_words(...).wer`` and ``process_characters(...).cer``."""
    words = word_error_rate(HYPOTHESES, REFERENCES)
    letters = character_error_rate(HYPOTHESES, REFERENCES)
    assert words.rate == pytest.approx(63.1578947368421)
    assert letters.rate == pytest.approx(42.857142857142855)
    assert (words.errors, words.length) == (12, 19)


def test_a_corpus_is_one_text_not_a_mean_of_texts():
    assert word_error_rate(["a", "b c d"], ["x", "b c d"]).rate == 25
    assert word_error_rate(["a b c"], ["a"]).rate == 200
    assert word_error_rate([""], ["a b"]).rate == 100
    assert character_error_rate([" ab "], ["ab"]).rate == 0


@pytest.mark.parametrize("rate", [word_error_rate, character_error_rate])
def test_what_has_no_rate_is_refused(rate):
    with pytest.raises(DataError, match="1 transcript but 2 references"):
        rate(["a"], ["a", "b"])
    with pytest.raises(DataError, match="nothing to score: the references have no"):
        rate(["a"], [" "])

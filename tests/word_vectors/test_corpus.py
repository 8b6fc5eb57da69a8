"""Texts as numbers of words, and phrases."""

import numpy as np
import pytest

from transformer_jax.core.errors import DataError
from transformer_jax.word_vectors.corpus import (
    LINE_END,
    UNKNOWN,
    join_phrases,
    no_overlap,
    read_corpus,
)


def corpus_of(tmp_path, text, **how):
    path = tmp_path / "text.txt"
    path.write_text(text)
    return read_corpus([path], tmp_path / "ids", **how)


def spelled(corpus):
    """The text that the numbers stand for, a list of words per line."""
    names = dict(enumerate(corpus.words)) | {UNKNOWN: "?"}
    lines, line = [], []
    for number in corpus.ids.tolist():
        if number == LINE_END:
            lines.append(line)
            line = []
        else:
            line.append(names[number])
    assert not line
    return lines


def test_numbers_stand_for_the_text(tmp_path):
    corpus = corpus_of(tmp_path, "b a\n\nrare b\n", words="blanks", min_count=1)
    assert spelled(corpus) == [["b", "a"], [], ["rare", "b"]]
    assert corpus.words == ("b", "a", "rare")  # by count, then by name
    assert corpus.counts.tolist() == [2, 1, 1]
    assert corpus.total == 4


def test_rare_words_are_unknown_and_counted(tmp_path):
    corpus = corpus_of(tmp_path, "b a b a rare", words="blanks", min_count=2)
    assert spelled(corpus) == [["b", "a", "b", "a", "?"]]
    assert corpus.total == 5


def test_letters_leave_punctuation_and_case_out(tmp_path):
    text = "Don't stop, Zoë: don’t STOP 42 snake_case!\n"
    corpus = corpus_of(tmp_path, text, min_count=1)
    assert spelled(corpus) == [["don't", "stop", "zoë", "don’t", "stop", "42", "snake_case"]]
    corpus = corpus_of(tmp_path, text, words="blanks", min_count=1)
    assert spelled(corpus) == [text.split()]


@pytest.mark.parametrize("words", ["letters", "blanks"])
def test_marks_and_no_break_blanks_cut_no_word(tmp_path, words):
    line = ["यह", "किताब", "हिन्दी", "में", "है", "คือ"]
    corpus = corpus_of(tmp_path, " ".join(line), words=words, min_count=1)
    assert (spelled(corpus), corpus.total) == ([line], 6)
    corpus = corpus_of(tmp_path, "10\u00a0000 a", words="blanks", min_count=1)
    assert spelled(corpus) == [["10\u00a0000", "a"]]


def test_a_text_too_small_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"text\.txt: 1 of 2 words occur 2 times or more"):
        corpus_of(tmp_path, "a a b", min_count=2)


def test_what_is_no_text_is_refused_with_its_line(tmp_path):
    (tmp_path / "text.txt").write_bytes(b"fine\ncaf\xe9\n")
    with pytest.raises(DataError, match=r"text\.txt:2: not UTF-8"):
        read_corpus([tmp_path / "text.txt"], tmp_path / "ids")


def test_phrases_are_joined_from_left_to_right():
    hits = np.array([True, True, False, True, True, True, True])
    assert no_overlap(hits).tolist() == [True, False, False, True, False, True, False]


def test_words_that_belong_together_become_one(tmp_path):
    rng = np.random.default_rng(0)
    others = [f"w{i}" for i in range(20)]
    lines = []
    for _ in range(2000):
        line = rng.choice(others, 5).tolist()
        line[2:3] = ["new", "york"] if rng.random() < 0.3 else [line[2]]
        lines.append(line)
    corpus = corpus_of(tmp_path, "\n".join(map(" ".join, lines)) + "\n", min_count=5)
    joined = join_phrases(corpus, tmp_path / "joined", threshold=10.0)
    expected = [" ".join(line).replace("new york", "new_york").split() for line in lines]
    assert spelled(joined) == expected
    assert "new" not in joined.words
    counts = dict(zip(joined.words, joined.counts.tolist(), strict=True))
    assert counts["new_york"] == sum("new_york" in line for line in expected)
    assert list(joined.counts) == sorted(joined.counts, reverse=True)
    assert "w0" in counts


def test_pairs_across_lines_and_rare_words_are_no_phrases(tmp_path):
    text = "x a\nb y\n" * 50 + "".join(f"a rare{i} b\n" for i in range(50))
    text += "a b\n" * 6  # no more often than by chance
    corpus = corpus_of(tmp_path, text, min_count=5)
    joined = join_phrases(corpus, tmp_path / "joined", threshold=0.1)
    assert "a_b" not in joined.words
    assert {"x_a", "b_y"} <= set(joined.words)


def test_a_second_pass_makes_longer_phrases(tmp_path):
    rng = np.random.default_rng(0)
    others = [f"w{i}" for i in range(30)]
    line = lambda: " ".join([*rng.choice(others, 3), "new york times", *rng.choice(others, 3)])
    corpus = corpus_of(tmp_path, "\n".join(line() for _ in range(300)), min_count=5)
    once = join_phrases(corpus, tmp_path / "1", threshold=5.0)
    twice = join_phrases(once, tmp_path / "2", threshold=5.0)
    assert "new_york" in once.words
    assert "new_york_times" in twice.words
    assert not (tmp_path / "2.merged").exists()


@pytest.mark.parametrize("words", ["letters", "blanks"])
def test_a_corpus_of_one_line_is_read_in_pieces(tmp_path, monkeypatch, words):
    text = "b a  b\u00a0cc\n\n" + "aa bb \u03a3\u03a3 aa  cc " * 10 + "\n b a"
    at_once = corpus_of(tmp_path, text, words=words, min_count=1)
    expected = spelled(at_once)
    for characters in (1, 2, 7, 40):
        monkeypatch.setattr("transformer_jax.word_vectors.corpus._CHARACTERS", characters)
        corpus = corpus_of(tmp_path, text, words=words, min_count=1)
        assert spelled(corpus) == expected
        assert (corpus.words, corpus.total) == (at_once.words, at_once.total)

"""Row B22: byte-pair encoding by the book, and the same merges from the trained tokenizer."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_jax.data.merges import bpe_merges, merge_lines
from transformer_jax.data.tokenizer import train_tokenizer

PETER = "Peter Piper picked a peck of pickled peppers"
# English of which the first merges have no ties, as the test itself checks.
TEXT = (
    "the cat that sat on the mat saw the rat that the other cat had seen there then these three "
    "brothers gathered their feathers with the others in the northern weather near another path "
    "and the singing king was bringing string and things in the spring morning during the evening"
)


def pair_count(text, merges, pair):
    """Counts a pair of neighbours after the merges, on the text itself."""
    count = 0
    for word in text.split():
        pieces = list(word)
        for left, right in merges:
            out = []
            for piece in pieces:
                if out and (out[-1], piece) == (left, right):
                    out[-1] = left + right
                else:
                    out.append(piece)
            pieces = out
        count += sum((a, b) == pair for a, b in itertools.pairwise(pieces))
    return count


def test_b22_the_merges_of_peter_piper():
    merges = bpe_merges(PETER, 5)
    assert ["".join(pair) for pair in merges] == ["pe", "ck", "ed", "ick", "pick"]
    assert pair_count(PETER, [], ("p", "e")) == 4
    assert pair_count(PETER, merges[:1], ("c", "k")) == 3
    ties = [("e", "d"), ("i", "ck"), ("p", "i"), ("pe", "r")]
    assert [pair_count(PETER, merges[:2], pair) for pair in ties] == [2, 2, 2, 2]
    assert merge_lines(PETER, 5)[-1].split("  ")[2] == "pick ed"


@settings(max_examples=100, deadline=None)
@given(st.text("ab c", max_size=40), st.integers(0, 8))
def test_each_merge_is_of_a_most_frequent_pair_and_the_first_of_equals(text, count):
    merges = bpe_merges(text, count)
    letters = sorted(set(text) - {" "})
    pieces = set(letters)
    for i, pair in enumerate(merges):
        scores = {(a, b): pair_count(text, merges[:i], (a, b)) for a in pieces for b in pieces}
        best = max(scores.values())
        assert pair == min(p for p in scores if scores[p] == best)
        pieces.add("".join(pair))
    assert [line.replace(" ", "") for line in merge_lines(text, count)] == [
        text.replace(" ", "")
    ] * (len(merges) + 1)


def test_b22_the_tokenizer_learns_the_same_merges(tmp_path):
    count = 6
    ours = bpe_merges(" ".join(TEXT.split()), count)
    for i, pair in enumerate(ours):  # no ties, or the comparison would mean nothing
        pieces = set(TEXT) - {" "} | {"".join(p) for p in ours[:i]}
        scores = [pair_count(TEXT, ours[:i], (a, b)) for a in pieces for b in pieces]
        assert sorted(scores)[-1] > sorted(scores)[-2], pair
    # One word a text, so that no space takes part in the merges.
    tokenizer = train_tokenizer("bpe", TEXT.split(), 260 + count)
    tokenizer.save(tmp_path / "tokenizer.json")
    theirs = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["merges"]
    assert [tuple(pair) for pair in theirs] == ours


def test_merging_stops_when_no_pair_is_left():
    assert bpe_merges("ab ab", 9) == [("a", "b")]
    assert bpe_merges("", 3) == []


@pytest.mark.parametrize("text", ["aaaa", "aaaaa aa"])
def test_overlapping_pairs_merge_from_the_left(text):
    assert merge_lines(text, 1)[1].split("  ")[0] in ("aa aa", "aa aa a")

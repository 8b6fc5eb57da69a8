"""Row H20: WordPiece by likelihood gain, against the score counted anew before each merge."""

import collections
import itertools
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_jax.data.backends import join_subwords, likelihood_merges
from transformer_jax.data.tokenizer import BERT_SPECIAL, train_tokenizer

LECTURE = {"aa": 4, "ab": 2, "cd": 2}


def first(words, count):
    return list(itertools.islice(likelihood_merges(words), count))


def by_fractions(words, count):
    """The merges by exact fractions, each from the pieces of the whole text."""
    texts = [([w[0], *(f"##{c}" for c in w[1:])], n) for w, n in words.items()]
    merges = []
    while len(merges) < count:
        pieces, pairs = collections.Counter(), collections.Counter()
        for word, n in texts:
            pieces.update({p: word.count(p) * n for p in set(word)})
            for pair in itertools.pairwise(word):
                pairs[pair] += n
        often = {pair: n for pair, n in pairs.items() if n > 1}
        if not often:
            break
        scores = {(a, b): Fraction(n, pieces[a] * pieces[b]) for (a, b), n in often.items()}
        best = min((-scores[pair], -n, pair) for pair, n in often.items())[2]
        merges.append(best)
        for word, _ in texts:
            at = 0
            while at + 1 < len(word):
                if (word[at], word[at + 1]) == best:
                    word[at : at + 2] = [join_subwords(*best)]
                at += 1
    return merges


def test_h20_the_first_merge_of_the_lecture_is_the_pair_that_gains_most():
    assert first(LECTURE, 1) == [("c", "##d")]
    texts = [" ".join([word] * n) for word, n in LECTURE.items()]
    merged = {}
    for kind in ("wordpiece", "wordpiece_likelihood"):
        size = len(BERT_SPECIAL) + 3 + 4 + 1  # ##a ##b ##d, a b c d, and one merge
        made = train_tokenizer(kind, texts, size, special=BERT_SPECIAL)
        merged[kind] = made.convert_ids_to_tokens([size - 1])
    assert merged == {"wordpiece": ["aa"], "wordpiece_likelihood": ["cd"]}


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text("abc", min_size=1, max_size=6), st.integers(1, 5), max_size=8))
def test_h20_each_merge_has_the_highest_score_of_all(words):
    assert first(words, 12) == by_fractions(words, 12)


def test_h20_pieces_that_occur_once_are_not_merged():
    assert first({"xyz": 1, "ab": 2}, 9) == [("a", "##b")]
    assert first({}, 9) == []
    # More pieces and pairs than the arrays begin with.
    many = {f"{chr(0x4E00 + i)}{chr(0x6E00 + i)}": 2 for i in range(1100)}
    assert len(first(many, 5000)) == 1100

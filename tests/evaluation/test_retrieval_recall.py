"""Recall of retrieval."""

import numpy as np
import pytest

from transformer_jax.evaluation.retrieval_recall import ranking_scores, recall, recalls


def plain(queries, candidates, own, depth):
    """The fraction of queries with a match among the nearest, matches last among equals."""
    hits = 0
    for query, mine in zip(queries, own, strict=True):
        near = [
            (-float(query @ one), bool(match)) for one, match in zip(candidates, mine, strict=False)
        ]
        hits += any(match for _, match in sorted(near)[:depth])
    return hits / len(queries)


@pytest.mark.parametrize("seed", range(4))
def test_recall_counts_queries_with_a_match_among_the_nearest(seed):
    rng = np.random.default_rng(seed)
    queries, candidates = rng.normal(size=(6, 3)), rng.normal(size=(4, 3))
    own = rng.random((6, 4)) < 0.3
    for depth in (1, 2, 4, 9):
        assert recall(queries, candidates, own, (depth,)) == [
            plain(queries, candidates, own, depth)
        ]


def test_a_query_without_any_match_is_no_hit():
    own = np.array([[True, False], [False, False]])
    assert recall(np.eye(2), np.eye(2), own, (1, 5)) == [0.5, 0.5]
    assert recalls(np.eye(2), np.eye(2), own)["image_recall_10"] == 0.5


@pytest.mark.parametrize("seed", range(3))
def test_rankings_of_several_relevant_texts_are_those_of_a_sort(seed):
    """By hand, as trec_eval: a full sort, in which relevant texts come last among equals."""
    rng = np.random.default_rng(seed)
    queries, texts = rng.normal(size=(6, 4)).round(), rng.normal(size=(30, 4)).round()
    draw = lambda: rng.choice(30, size=rng.integers(1, 15), replace=False).tolist()
    relevant = [draw() for _ in range(6)]
    found = ranking_scores(queries, texts, relevant)
    recall_5, reciprocal, gain = 0.0, 0.0, 0.0
    for query, own in zip(queries, relevant, strict=True):
        order = sorted(range(30), key=lambda i: (-(texts[i] @ query), i in own))
        hits = np.array([i in own for i in order])
        recall_5 += hits[:5].sum() / len(own)
        reciprocal += 1 / (1 + hits.argmax()) if hits[:10].any() else 0
        discounts = 1 / np.log2(np.arange(2, 12))
        gain += (hits[:10] * discounts).sum() / discounts[: len(own)].sum()
    np.testing.assert_allclose(found["recall_5"], recall_5 / 6)
    np.testing.assert_allclose(found["mrr_10"], reciprocal / 6)
    np.testing.assert_allclose(found["ndcg_10"], gain / 6)

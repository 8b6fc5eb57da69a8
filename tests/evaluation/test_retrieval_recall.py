"""Recall of retrieval."""

import numpy as np
import pytest

from transformer_jax.evaluation.retrieval_recall import recall, recalls


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
